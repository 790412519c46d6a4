//! Adjacent lanes of a workgroup must read adjacent values of device memory. This test computes how the read index
//! differs between adjacent lanes.

use super::shaders::valid;
use crate::kernels::Shader;
use naga::{
    AddressSpace, BinaryOperator, Binding, Block, BuiltIn, Expression, Function, Handle, Literal, LocalVariable,
    Module, Statement, TypeInner,
};
use std::collections::HashMap;

/// The names of the variables in the shaders that contain a tensor's values.
const VALUES: [&str; 2] = ["values", "offered"];

/// How much a number grows from one lane to the next, if this is known. The slope is known only for sums of lane
/// numbers times constants. The index of the word of a 16-bit value has the slope 1/2, because two values share a word.
type Slope = Option<f64>;

/// The arguments of a function, and the known slopes of its variables.
struct Frame<'m> {
    module: &'m Module,
    function: &'m Function,
    arguments: Vec<Slope>,
    variables: HashMap<Handle<LocalVariable>, Slope>,
    results: HashMap<Handle<Expression>, Slope>,
    returned: Slope,
    /// For each read of a value, the slope of the index of the word that is read.
    read: Vec<Slope>,
}

/// Returns the slope at a point that two paths reach.
fn joined(one: Slope, other: Slope) -> Slope {
    if one == other { one } else { None }
}

impl<'m> Frame<'m> {
    fn new(module: &'m Module, function: &'m Function, arguments: Vec<Slope>) -> Frame<'m> {
        let (variables, results) = (HashMap::new(), HashMap::new());
        Frame { module, function, arguments, variables, results, returned: Some(0.0), read: Vec::new() }
    }

    fn constant(&self, at: Handle<Expression>) -> Option<f64> {
        let literal = match self.function.expressions[at] {
            Expression::Literal(literal) => literal,
            Expression::Constant(constant) => {
                let Expression::Literal(literal) = self.module.global_expressions[self.module.constants[constant].init]
                else {
                    return None;
                };
                literal
            }
            _ => return None,
        };
        match literal {
            Literal::U32(number) => Some(number.into()),
            Literal::I32(number) => Some(number.into()),
            _ => None,
        }
    }

    fn slope(&self, at: Handle<Expression>) -> Slope {
        match self.function.expressions[at] {
            Expression::FunctionArgument(number) => self.arguments[number as usize],
            Expression::CallResult(_) => self.results.get(&at).copied().unwrap_or(Some(0.0)),
            Expression::AccessIndex { base, .. } | Expression::Splat { value: base, .. } => self.slope(base),
            Expression::Swizzle { vector: base, .. } | Expression::As { expr: base, .. } => self.slope(base),
            Expression::Access { base, index } => joined(self.slope(base), self.slope(index)),
            Expression::LocalVariable(variable) => self.variables.get(&variable).copied().unwrap_or(Some(0.0)),
            // The load of a local variable has the slope of the variable's value.
            Expression::Load { pointer }
                if matches!(self.function.expressions[pointer], Expression::LocalVariable(_)) =>
            {
                self.slope(pointer)
            }
            Expression::Load { pointer } => joined(self.slope(pointer), Some(0.0)),
            Expression::Binary { op, left, right } => {
                let (one, other) = (self.slope(left), self.slope(right));
                match (op, self.constant(right)) {
                    (BinaryOperator::Add, _) => Some(one? + other?),
                    (BinaryOperator::Subtract, _) => Some(one? - other?),
                    (BinaryOperator::Multiply, Some(factor)) => Some(one? * factor),
                    (BinaryOperator::Multiply, None) if self.constant(left).is_some() => {
                        Some(self.constant(left)? * other?)
                    }
                    (BinaryOperator::Divide, Some(divisor)) => Some(one? / divisor),
                    (BinaryOperator::ShiftLeft, Some(places)) => Some(one? * places.exp2()),
                    (BinaryOperator::ShiftRight, Some(places)) => Some(one? / places.exp2()),
                    _ => joined(joined(one, other), Some(0.0)),
                }
            }
            Expression::Select { accept, reject, .. } => joined(self.slope(accept), self.slope(reject)),
            Expression::Literal(_) | Expression::Constant(_) | Expression::GlobalVariable(_) => Some(0.0),
            Expression::ZeroValue(_) => Some(0.0),
            _ => None,
        }
    }

    /// Records the reads of a block, and how variables change from lane to lane.
    fn run(&mut self, block: &'m Block) {
        for statement in block {
            match statement {
                Statement::Emit(range) => {
                    for at in range.clone() {
                        self.look_at(at);
                    }
                }
                Statement::Store { pointer, value } => {
                    if let Expression::LocalVariable(variable) = self.function.expressions[*pointer] {
                        let slope = self.slope(*value);
                        let known = self.variables.get(&variable).copied().unwrap_or(slope);
                        self.variables.insert(variable, joined(known, slope));
                    }
                }
                Statement::Call { function, arguments, result } => {
                    let arguments = arguments.iter().map(|&argument| self.slope(argument)).collect();
                    let called = called(self.module, &self.module.functions[*function], arguments);
                    self.read.extend(called.read);
                    if let Some(result) = result {
                        self.results.insert(*result, called.returned);
                    }
                }
                Statement::Return { value: Some(value) } => self.returned = self.slope(*value),
                Statement::Block(block) => self.run(block),
                Statement::If { accept, reject, .. } => [accept, reject].into_iter().for_each(|block| self.run(block)),
                Statement::Switch { cases, .. } => cases.iter().for_each(|case| self.run(&case.body)),
                Statement::Loop { body, continuing, .. } => {
                    [body, continuing].into_iter().for_each(|block| self.run(block));
                }
                _ => {}
            }
        }
    }

    fn look_at(&mut self, at: Handle<Expression>) {
        let Expression::Load { pointer } = self.function.expressions[at] else { return };
        let Expression::Access { base, index } = self.function.expressions[pointer] else { return };
        let Expression::GlobalVariable(variable) = self.function.expressions[base] else { return };
        let variable = &self.module.global_variables[variable];
        let is_of_values = variable.name.as_deref().is_some_and(|name| VALUES.contains(&name));
        if is_of_values && matches!(variable.space, AddressSpace::Storage { .. }) {
            self.read.push(self.slope(index));
        }
    }
}

/// Analyses a function's body twice, because the effects of loops on variables are known only in the second pass.
fn called<'m>(module: &'m Module, function: &'m Function, arguments: Vec<Slope>) -> Frame<'m> {
    let mut frame = Frame::new(module, function, arguments);
    frame.run(&function.body);
    frame.read.clear();
    frame.run(&function.body);
    frame
}

/// Returns the slopes of the reads of each entry point that reads values, without repetitions.
fn slopes(source: &str) -> HashMap<String, Vec<Slope>> {
    let (module, _) = valid(source, false);
    let is_lane = |binding: &Option<Binding>| *binding == Some(Binding::BuiltIn(BuiltIn::LocalInvocationIndex));
    let entries = module.entry_points.iter().map(|entry| {
        let arguments = entry.function.arguments.iter().map(|argument| {
            let is_within = match &module.types[argument.ty].inner {
                TypeInner::Struct { members, .. } => members.iter().any(|member| is_lane(&member.binding)),
                _ => is_lane(&argument.binding),
            };
            Some(f64::from(is_within))
        });
        let mut read = called(&module, &entry.function, arguments.collect()).read;
        read.sort_by(|one, other| one.partial_cmp(other).expect("numbers"));
        read.dedup();
        (entry.name.clone(), read)
    });
    entries.filter(|(_, read)| !read.is_empty()).collect()
}

/// Returns the steepest slope of an entry point, or `None` if a slope is unknown.
fn steepest(slopes: &[Slope]) -> Slope {
    slopes.iter().try_fold(0.0, |steepest: f64, slope| slope.map(|slope| steepest.max(slope.abs())))
}

#[test]
fn lanes_read_side_by_side() {
    let mut looked_at = 0;
    for shader in Shader::ALL {
        for (entry, slopes) in slopes(&shader.source(false)) {
            let expected = match (shader, &entry[..]) {
                // Random bits are drawn for four values at a time.
                (Shader::Feedback, "store_bf16" | "store_int8") => Some(4.0),
                (Shader::TopK, "sample") => None,
                // A lane reads 16 consecutive values, or all values of a short block.
                (Shader::Eden, _) => None,
                // These kernels read tiles of 16 by 16 values.
                (Shader::PowerSgd, "multiply_chunk" | "residuals") => None,
                _ => Some(1.0),
            };
            assert_eq!(steepest(&slopes), expected, "{shader:?}, {entry}");
            looked_at += 1;
        }
    }
    assert!(looked_at > 15, "{looked_at} entry points");
}

#[test]
fn lanes_that_read_values_in_a_row_are_found() {
    for (shader, text, in_a_row, entries) in [
        (Shader::Magnitude, "j * 64u + lane.index;", "lane.index * 32u + j;", &["largest"][..]),
        (
            Shader::Qsgd,
            "var i = lane; i < PER_GROUP; i += 64u",
            "var i = lane * ROW; i < lane * ROW + ROW; i += 1u",
            &["extreme_values", "row", "encode"],
        ),
        (
            Shader::TopK,
            "var i = group.x * 256u + lane; i < params.count; i += groups.x * 256u",
            "var i = (group.x * 256u + lane) * 32u; i < params.count; i += 1u",
            &["histogram_2", "histogram_3"],
        ),
        (
            Shader::TopK,
            "var i = first + lane.index; i < end; i += 64u",
            "var i = first + (lane.index << 5u); i < end; i++",
            &["refine", "settle"],
        ),
        (
            Shader::TopK,
            "var i = first + lane; i < end; i += 64u",
            "var i = first + (lane << 5u); i < end; i++",
            &["count_kept"],
        ),
    ] {
        let source = shader.source(false);
        assert!(source.contains(text), "{text}");
        let slopes = slopes(&source.replace(text, in_a_row));
        for &entry in entries {
            assert_eq!(steepest(&slopes[entry]), Some(32.0), "{entry}");
        }
    }
}
