//! Changes shaders so that they first fill workgroup memory with arbitrary values. Uninitialised workgroup memory may
//! have any content, so results must not change.

use super::shaders::valid;
use super::with;
use crate::WgpuBackend;
use crate::kernels::Shader;
use naga::{AddressSpace, Statement};
use wgpu::Features;

/// Returns the arbitrary value for a word of each type.
fn rubbish(of: &str) -> &'static str {
    match of {
        "u32" => "0xdeadbeefu",
        "i32" => "-559038737",
        "f32" => "bitcast<f32>(0x7fc00bad)",
        "vec2<u32>" => "vec2<u32>(0xdeadbeefu)",
        "vec4<f32>" => "vec4<f32>(bitcast<f32>(0x7fc00bad))",
        "Among" => "Among(0xdeadbeefu, 0xdeadbeefu, vec4<u32>(0xdeadbeefu), vec4<u32>(0xdeadbeefu))",
        "Grid" => "Grid(0xdeadbeefu, 1u, 0xdeadbeefu, 1u, 0xdeadbeefu, 1u, 0xdeadbeefu)",
        "Norm" => "Norm(Double(vec2<u32>(0xdeadbeefu), -559038737), 0xdeadbeefu, 0xdeadbeefu)",
        "Picked" => "Picked(0xdeadbeefu, 0xdeadbeefu)",
        "Wide" => "Wide(bitcast<f32>(0x7fc00bad), -559038737)",
        other => panic!("what rubbish is there of {other}?"),
    }
}

/// Returns a shader in which every entry point first fills all workgroup memory of the module with arbitrary values.
pub(crate) fn poisoned(source: &str) -> String {
    let variables = source.lines().filter_map(|line| line.strip_prefix("var<workgroup> "));
    let fills = variables.map(|variable| {
        let (name, of) = variable.trim_end_matches(';').split_once(": array<").expect("an array");
        let (of, len) = of.trim_end_matches('>').rsplit_once(", ").expect("its length");
        // In `vec2<u32>, 256` the bracket at the end belongs to the array.
        let set = match of.strip_prefix("atomic<") {
            Some(of) => format!("atomicStore(&{name}[i], {});", rubbish(of.trim_end_matches('>'))),
            None => format!("{name}[i] = {};", rubbish(of)),
        };
        // The length is a number or the name of a constant.
        let len = if len.ends_with(|last: char| last.is_ascii_digit()) { format!("{len}u") } else { len.to_owned() };
        format!("    for (var i = index; i < {len}; i += size) {{ {set} }}\n")
    });
    let fill =
        format!("\nfn poison(index: u32, size: u32) {{\n{}    workgroupBarrier();\n}}\n", fills.collect::<String>());
    let mut parts = source.split("@compute @workgroup_size(");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for entry in parts {
        let (size, rest) = entry.split_once(')').expect("a size");
        let (name, rest) = rest.split_once('(').expect("parameters");
        let (parameters, body) = rest.split_once(") {").expect("a body");
        const INDEX: &str = "@builtin(local_invocation_index) ";
        let (more, index) = match parameters.split_once(INDEX) {
            Some((_, own)) => (String::new(), own.split(':').next().expect("a name").to_owned()),
            None if parameters.contains("lane: Lane") => (String::new(), "lane.index".to_owned()),
            None => (format!("{INDEX}poisoner: u32, "), "poisoner".to_owned()),
        };
        let begin = format!("@compute @workgroup_size({size}){name}({more}{parameters}) {{");
        text += &format!("{begin}\n    poison({index}, {size}u);{body}");
    }
    text + &fill
}

/// Returns two pairs of backends: one pair with subgroups, if the adapter has them, and one without. The shaders of the
/// first backend of a pair fill workgroup memory.
pub(super) fn pairs() -> impl Iterator<Item = [WgpuBackend; 2]> {
    [Features::SUBGROUP, Features::empty()].into_iter().filter_map(|features| {
        let plain = with(features)?;
        Some([filled(features)?, plain])
    })
}

/// Returns a backend with these features whose shaders first fill workgroup memory.
pub(super) fn filled(features: Features) -> Option<WgpuBackend> {
    let mut backend = with(features)?;
    backend.gpu().kernels.poison();
    Some(backend)
}

#[test]
fn every_entry_point_of_every_shader_fills_all_workgroup_memory_first() {
    for (shader, subgroups) in Shader::ALL.into_iter().flat_map(|shader| [(shader, false), (shader, true)]) {
        let source = poisoned(&shader.source(subgroups));
        let (module, _) = valid(&source, subgroups);
        let variables = module.global_variables.iter();
        let variables = variables.filter(|(_, variable)| variable.space == AddressSpace::WorkGroup).count();
        assert_eq!(source.matches("for (var i = index; i < ").count(), variables, "{shader:?}");
        let (filling, _) =
            module.functions.iter().find(|(_, function)| function.name.as_deref() == Some("poison")).unwrap();
        for entry in &module.entry_points {
            let mut statements = entry.function.body.iter();
            let first = statements.find(|statement| !matches!(statement, Statement::Emit(_)));
            assert!(
                matches!(first, Some(Statement::Call { function, .. }) if *function == filling),
                "{shader:?}, {}: {first:?}",
                entry.name
            );
        }
        assert_eq!(module.entry_points.len(), source.matches("\n    poison(").count());
    }
}
