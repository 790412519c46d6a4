//! Kernels must count a tensor's values in workgroup memory before they add the counts to device memory. This test
//! inspects all loops over values in the shaders.

use super::shaders::valid;
use crate::kernels::Shader;
use naga::{AddressSpace, AtomicFunction, Block, Expression, Function, GlobalVariable, Handle, Module, Statement};

/// The names of the variables in the shaders that contain a tensor's values.
const VALUES: [&str; 3] = ["values", "offered", "tile"];

/// The effects of a part of a shader and of the functions that it calls.
#[derive(Clone, Copy, Debug, Default)]
struct Doing {
    reads_values: bool,
    adds_in_workgroup: bool,
    adds_in_storage: bool,
}

impl Doing {
    fn and(self, other: Doing) -> Doing {
        Doing {
            reads_values: self.reads_values || other.reads_values,
            adds_in_workgroup: self.adds_in_workgroup || other.adds_in_workgroup,
            adds_in_storage: self.adds_in_storage || other.adds_in_storage,
        }
    }
}

/// Returns the module's variable to which a pointer refers.
fn variable<'m>(module: &'m Module, function: &Function, pointer: Handle<Expression>) -> Option<&'m GlobalVariable> {
    match function.expressions[pointer] {
        Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => variable(module, function, base),
        Expression::GlobalVariable(variable) => Some(&module.global_variables[variable]),
        _ => None,
    }
}

fn reads_values(module: &Module, function: &Function, expression: &Expression) -> bool {
    let Expression::Load { pointer } = *expression else { return false };
    let name = variable(module, function, pointer).and_then(|variable| variable.name.as_deref());
    name.is_some_and(|name| VALUES.contains(&name))
}

/// Returns the blocks within a statement, and the body of the function that the statement calls.
fn within<'m>(module: &'m Module, function: &'m Function, statement: &'m Statement) -> Vec<(&'m Function, &'m Block)> {
    match statement {
        Statement::Block(block) => vec![(function, block)],
        Statement::If { accept, reject, .. } => vec![(function, accept), (function, reject)],
        Statement::Switch { cases, .. } => cases.iter().map(|case| (function, &case.body)).collect(),
        Statement::Loop { body, continuing, .. } => vec![(function, body), (function, continuing)],
        Statement::Call { function, .. } => {
            let called = &module.functions[*function];
            vec![(called, &called.body)]
        }
        _ => Vec::new(),
    }
}

fn doing(module: &Module, function: &Function, block: &Block) -> Doing {
    let of_statement = |statement: &Statement| match statement {
        Statement::Emit(range) => Doing {
            reads_values: range.clone().any(|at| reads_values(module, function, &function.expressions[at])),
            ..Doing::default()
        },
        Statement::Atomic { pointer, fun: AtomicFunction::Add, .. } => {
            let space = variable(module, function, *pointer).expect("a variable of the module").space;
            Doing {
                adds_in_workgroup: space == AddressSpace::WorkGroup,
                adds_in_storage: matches!(space, AddressSpace::Storage { .. }),
                ..Doing::default()
            }
        }
        _ => {
            let blocks = within(module, function, statement).into_iter();
            blocks.map(|(function, block)| doing(module, function, block)).fold(Doing::default(), Doing::and)
        }
    };
    block.iter().map(of_statement).fold(Doing::default(), Doing::and)
}

/// Returns the effects of each loop in a block and in the functions that the block calls.
fn loops(module: &Module, function: &Function, block: &Block) -> Vec<Doing> {
    let of_statement = |statement: &Statement| {
        let blocks = within(module, function, statement);
        let mut found: Vec<Doing> =
            blocks.iter().flat_map(|&(function, block)| loops(module, function, block)).collect();
        if let Statement::Loop { .. } = statement {
            let all = blocks.iter().map(|&(function, block)| doing(module, function, block));
            found.push(all.fold(Doing::default(), Doing::and));
        }
        found
    };
    block.iter().flat_map(of_statement).collect()
}

/// Returns the entry points whose loops over values add to workgroup memory, and the entry points whose loops over
/// values add to storage.
fn adding(source: &str) -> [Vec<String>; 2] {
    let (module, _) = valid(source, false);
    let of_entries = |adds: fn(Doing) -> bool| {
        let is_adding = |function| {
            let loops = loops(&module, function, &function.body);
            loops.into_iter().any(|doing| doing.reads_values && adds(doing))
        };
        let entries = module.entry_points.iter().filter(|entry| is_adding(&entry.function));
        entries.map(|entry| entry.name.clone()).collect()
    };
    [of_entries(|doing| doing.adds_in_workgroup), of_entries(|doing| doing.adds_in_storage)]
}

#[test]
fn loops_over_values_count_in_workgroup_memory() {
    for shader in Shader::ALL {
        let (in_workgroup, in_storage): (&[&str], &[&str]) = match shader {
            // These kernels add only few values directly to storage: sampled values, and values of bins for which
            // workgroup memory has no free slot.
            Shader::TopK => (
                &[
                    "histogram_1",
                    "histogram_2",
                    "histogram_3",
                    "add_to_sums",
                    "sample",
                    "gather_values",
                    "refine",
                    "settle",
                    "write_kept",
                ],
                &["histogram_1", "histogram_2", "histogram_3", "sample"],
            ),
            _ => (&[], &[]),
        };
        assert_eq!(adding(&shader.source(false)), [in_workgroup, in_storage], "{shader:?}");
    }
}

#[test]
fn loops_over_values_that_add_to_storage_are_found() {
    let edited = |shader: Shader, text, instead| {
        let source = shader.source(false);
        assert_eq!(source.matches(text).count(), 1, "{text}");
        adding(&source.replace(text, instead))
    };
    let [_, in_storage] = edited(
        Shader::TopK,
        "atomicAdd(&gathered[bits % level_bins(level)], 1u)",
        "atomicAdd(&counters[bits % level_bins(level)], 1u)",
    );
    assert!(in_storage.contains(&"settle".to_owned()), "{in_storage:?}");
    let [_, in_storage] =
        edited(Shader::TopK, "atomicAdd(&own_bins[own], 1u)", "atomicAdd(&bins_of[params.bins].counts[bin], 1u)");
    assert!(in_storage.contains(&"write_kept".to_owned()), "{in_storage:?}");
    let [in_workgroup, _] = edited(Shader::TopK, "if (tally(bin) == PLACES) {", "if (true) {");
    assert!(!in_workgroup.contains(&"histogram_3".to_owned()), "{in_workgroup:?}");
}
