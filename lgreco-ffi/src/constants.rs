//! Constants of C and what they stand for.

use crate::status::Failure;

/// What the constant `found` stands for: one of `values`, which are in the order of the constants, from 0.
pub(crate) fn one_of<T: Copy, const N: usize>(what: &'static str, found: u32, values: [T; N]) -> Result<T, Failure> {
    values.get(found as usize).copied().ok_or(Failure::UnknownConstant { what, found })
}
