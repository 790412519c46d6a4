//! Checks every shader without a device.

use super::memory::backends;
use super::skipped;
use crate::compiler::{PROBE, compiles};
use crate::kernels::Shader;
use crate::{eden, feedback, magnitude, powersgd, qsgd, sums, topk};
use naga::valid::{Capabilities, ShaderStages, SubgroupOperationSet, ValidationFlags, Validator};
use std::process::Command;

fn module(shader: Shader, subgroups: bool) -> (naga::Module, naga::valid::ModuleInfo) {
    valid(&shader.source(subgroups), subgroups)
}

/// Parses and validates a source. Returns its module, and information about the module.
pub(super) fn valid(source: &str, subgroups: bool) -> (naga::Module, naga::valid::ModuleInfo) {
    let module =
        naga::front::wgsl::parse_str(source).unwrap_or_else(|error| panic!("{}", error.emit_to_string(source)));
    // Shaders without subgroups must not use optional features of WebGPU.
    let capabilities = if subgroups { Capabilities::SUBGROUP } else { Capabilities::empty() };
    let mut validator = Validator::new(ValidationFlags::all(), capabilities);
    if subgroups {
        validator.subgroup_stages(ShaderStages::COMPUTE).subgroup_operations(SubgroupOperationSet::all());
    }
    let info = validator.validate(&module).unwrap_or_else(|error| panic!("{}", error.emit_to_string(source)));
    (module, info)
}

#[test]
fn directx_does_without_subgroups() {
    use crate::kernels::uses_subgroups;
    use wgpu::{Backend, Features};
    assert!(uses_subgroups(Features::SUBGROUP, Backend::Vulkan) && uses_subgroups(Features::all(), Backend::Metal));
    assert!(!uses_subgroups(Features::SUBGROUP, Backend::Dx12) && !uses_subgroups(Features::empty(), Backend::Vulkan));
}

#[test]
fn shaders_translate_for_vulkan_metal_and_directx() {
    for (shader, subgroups) in Shader::ALL.into_iter().flat_map(|shader| [(shader, false), (shader, true)]) {
        let (module, info) = module(shader, subgroups);
        assert!(!module.entry_points.is_empty());
        // Subgroups require Vulkan 1.1 or Metal 2.1.
        let vulkan =
            naga::back::spv::Options { lang_version: (1, if subgroups { 3 } else { 0 }), ..Default::default() };
        naga::back::spv::write_vec(&module, &info, &vulkan, None).unwrap();
        let lang_version = if subgroups { (2, 1) } else { (1, 2) };
        let metal = naga::back::msl::Options { lang_version, fake_missing_bindings: true, ..Default::default() };
        naga::back::msl::write_string(&module, &info, &metal, &Default::default()).unwrap();
        let directx = naga::back::hlsl::Options { fake_missing_bindings: true, ..Default::default() };
        let mut text = String::new();
        naga::back::hlsl::Writer::new(&mut text, &directx, &Default::default()).write(&module, &info, None).unwrap();
    }
}

/// The kernel that distinguishes FXC from DXC must have the same construct as `tasks.wgsl`. The error about the
/// compiler must include the remedy.
#[test]
fn a_compiler_that_refuses_kernels_is_an_error() {
    let (module, info) = valid(PROBE, false);
    let directx = naga::back::hlsl::Options { fake_missing_bindings: true, ..Default::default() };
    let mut text = String::new();
    naga::back::hlsl::Writer::new(&mut text, &directx, &Default::default()).write(&module, &info, None).unwrap();
    let (before, after) = text.split_once("return;").expect("a return");
    assert!(before.contains("tasks.Load") && after.contains("GroupMemoryBarrierWithGroupSync"), "{text}");
    for backend in backends() {
        assert_eq!(compiles(backend.device(), PROBE), Ok(()));
        let Err(refused) = compiles(backend.device(), "@compute @workgroup_size(1) fn probe() { wrong }") else {
            panic!("a kernel that is none was compiled");
        };
        let said = refused.to_string();
        assert!(said.contains("static-dxc") && said.contains("wrong"), "{said}");
    }
}

/// SPIR-V's validator must accept naga's output for Vulkan.
#[test]
fn spirv_is_valid() {
    let required = std::env::var("LGRECO_REQUIRE").unwrap_or_default();
    if let Err(error) = Command::new("spirv-val").arg("--version").output() {
        assert!(!required.split(',').any(|name| name == "spirv"), "no spirv-val, but LGRECO_REQUIRE: {error}");
        return skipped(&format!("no spirv-val: {error}"));
    }
    let file = std::env::temp_dir().join(format!("lgreco-{}.spv", std::process::id()));
    let validated = |words: &[u32], environment: &str| {
        std::fs::write(&file, bytemuck::cast_slice::<u32, u8>(words)).unwrap();
        Command::new("spirv-val").args(["--target-env", environment]).arg(&file).output().unwrap()
    };
    for (shader, subgroups) in Shader::ALL.into_iter().flat_map(|shader| [(shader, false), (shader, true)]) {
        let (module, info) = module(shader, subgroups);
        let (lang_version, environment) = if subgroups { ((1, 3), "vulkan1.1") } else { ((1, 0), "vulkan1.0") };
        let options = naga::back::spv::Options { lang_version, ..Default::default() };
        let words = naga::back::spv::write_vec(&module, &info, &options, None).unwrap();
        let output = validated(&words, environment);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{shader:?}, subgroups: {subgroups}: {said}");
        assert!(!validated(&words[..words.len() - 1], environment).status.success(), "what is cut off is refused");
    }
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn parameters_are_laid_out_as_in_the_shaders() {
    for shader in Shader::ALL {
        let (fields, size) = match shader {
            Shader::Feedback => (feedback::Params::FIELDS, size_of::<feedback::Params>()),
            Shader::Magnitude => (magnitude::Params::FIELDS, size_of::<magnitude::Params>()),
            Shader::Sums => (sums::Params::FIELDS, size_of::<sums::Params>()),
            Shader::Qsgd => (qsgd::Params::FIELDS, size_of::<qsgd::Params>()),
            Shader::TopK => (topk::Params::FIELDS, size_of::<topk::Params>()),
            Shader::Eden => (eden::Params::FIELDS, size_of::<eden::Params>()),
            Shader::PowerSgd => (powersgd::Params::FIELDS, size_of::<powersgd::Params>()),
        };
        check_layout(shader, fields, size);
    }
}

/// Asserts that the shader's `Params` has these fields, of four bytes each.
fn check_layout(shader: Shader, fields: &[(&str, usize)], size: usize) {
    let (module, _) = module(shader, false);
    let params = module.types.iter().find(|(_, ty)| ty.name.as_deref() == Some("Params")).unwrap().1;
    let naga::TypeInner::Struct { members, span } = &params.inner else { panic!("{params:?}") };
    assert_eq!(*span as usize, size);
    let member = |member: &naga::StructMember| {
        assert_eq!(module.types[member.ty].inner, naga::TypeInner::Scalar(naga::Scalar::U32), "{member:?}");
        (member.name.clone().unwrap(), member.offset as usize)
    };
    let members: Vec<(String, usize)> = members.iter().map(member).collect();
    let fields: Vec<(String, usize)> = fields.iter().map(|&(name, offset)| (name.to_owned(), offset)).collect();
    assert_eq!(members, fields, "{shader:?}");
}
