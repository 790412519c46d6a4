//! Every shader, without a device.

use crate::kernels::Shader;
use crate::{feedback, magnitude, powersgd, qsgd, sums, topk};
use naga::valid::{Capabilities, ValidationFlags, Validator};

fn module(shader: Shader) -> (naga::Module, naga::valid::ModuleInfo) {
    let source = shader.source();
    let module = naga::front::wgsl::parse_str(&source)
        .unwrap_or_else(|error| panic!("{shader:?}: {}", error.emit_to_string(&source)));
    // What WebGPU has without any feature.
    let mut validator = Validator::new(ValidationFlags::all(), Capabilities::empty());
    let info =
        validator.validate(&module).unwrap_or_else(|error| panic!("{shader:?}: {}", error.emit_to_string(&source)));
    (module, info)
}

#[test]
fn shaders_translate_for_vulkan_metal_and_directx() {
    for shader in Shader::ALL {
        let (module, info) = module(shader);
        assert!(!module.entry_points.is_empty());
        naga::back::spv::write_vec(&module, &info, &Default::default(), None).unwrap();
        let metal = naga::back::msl::Options { fake_missing_bindings: true, ..Default::default() };
        naga::back::msl::write_string(&module, &info, &metal, &Default::default()).unwrap();
        let directx = naga::back::hlsl::Options { fake_missing_bindings: true, ..Default::default() };
        let mut text = String::new();
        naga::back::hlsl::Writer::new(&mut text, &directx, &Default::default()).write(&module, &info, None).unwrap();
    }
}

#[test]
fn parameters_are_laid_out_as_in_the_shaders() {
    let fields: [(Shader, &[&str], usize); 6] = [
        (Shader::Feedback, &feedback::Params::FIELDS, size_of::<feedback::Params>()),
        (Shader::Magnitude, &magnitude::Params::FIELDS, size_of::<magnitude::Params>()),
        (Shader::Sums, &sums::Params::FIELDS, size_of::<sums::Params>()),
        (Shader::Qsgd, &qsgd::Params::FIELDS, size_of::<qsgd::Params>()),
        (Shader::TopK, &topk::Params::FIELDS, size_of::<topk::Params>()),
        (Shader::PowerSgd, &powersgd::Params::FIELDS, size_of::<powersgd::Params>()),
    ];
    for (shader, fields, size) in fields {
        let (module, _) = module(shader);
        let params = module.types.iter().find(|(_, ty)| ty.name.as_deref() == Some("Params")).unwrap().1;
        let naga::TypeInner::Struct { members, span } = &params.inner else { panic!("{params:?}") };
        assert_eq!(*span as usize, size);
        let names: Vec<&str> = members.iter().map(|member| member.name.as_deref().unwrap()).collect();
        assert_eq!(names, fields);
        assert!(members.iter().enumerate().all(|(i, member)| member.offset as usize == 4 * i));
    }
}
