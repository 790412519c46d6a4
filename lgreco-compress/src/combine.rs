//! Adds decoded values to existing values, or subtracts them, without storing the decoded values in memory.

use crate::spread::spread_parts;

/// How decoded values are combined with existing ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combine {
    /// Adds the decoded values.
    Add,
    /// Subtracts the decoded values.
    Subtract,
}

impl Combine {
    /// The identity: −0.0 for addition, +0.0 for subtraction.
    pub(super) fn unkept(self) -> f32 {
        match self {
            Combine::Add => -0.0,
            Combine::Subtract => 0.0,
        }
    }

    /// Adds a decoded value to `place`, or subtracts it.
    #[inline(always)]
    pub(super) fn put(self, place: &mut f32, value: f32) {
        match self {
            Combine::Add => *place += value,
            Combine::Subtract => *place -= value,
        }
    }
}

/// Adds `others` to `values`, or subtracts them, element by element.
pub fn combine_values(values: &mut [f32], how: Combine, others: &[f32]) {
    #[inline(always)]
    fn add((values, others): (&mut [f32], &[f32]), (): ()) {
        values.iter_mut().zip(others).for_each(|(place, x)| *place += x);
    }
    #[inline(always)]
    fn subtract((values, others): (&mut [f32], &[f32]), (): ()) {
        values.iter_mut().zip(others).for_each(|(place, x)| *place -= x);
    }
    match how {
        Combine::Add => spread_parts!(values.len(), 1, (values, others), (), add),
        Combine::Subtract => spread_parts!(values.len(), 1, (values, others), (), subtract),
    }
}
