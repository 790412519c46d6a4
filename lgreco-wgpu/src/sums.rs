//! Records of eight sums, added up on the device: `sums.wgsl`.
//!
//! Rows are sums of `m · 2^e`, an f32 and an integer exponent, added in the order of a fixed tree: there are no float
//! atomics, nothing overflows or vanishes between 1e-30 and 1e30, and the error is at most the tree's depth times
//! 2^-23. Only sums of numbers that are not negative occur, so contraction to fused multiply-add does no harm here.

use crate::Error;
use crate::batch::{Batch, Part};
use crate::kernels::{Kernel, Shader};
use crate::memory::Scratch;
use crate::params::params;
use wgpu::Buffer;

/// Words of a record: eight mantissas, then eight exponents.
pub(crate) const RECORD: usize = 16;

/// Records one workgroup adds up.
const PER_WORKGROUP: usize = 4096;

const ADD: Kernel = Kernel { shader: Shader::Sums, entry: "add_records" };

params! {
    /// `Params` of `sums.wgsl`.
    count, target_record,
}

/// Bytes of `records` records.
pub(crate) fn bytes(records: usize) -> u64 {
    (4 * RECORD * records) as u64
}

/// Records that [`add`] leaves of `count`.
pub(crate) fn left_of(count: usize) -> usize {
    count.div_ceil(PER_WORKGROUP)
}

/// Adds `count` records up to a few, put at record `at` of `totals`; returns their number.
pub(crate) fn add(batch: &mut Batch<'_>, records: &Buffer, count: usize, totals: &Buffer, at: usize) -> usize {
    let groups = count.div_ceil(PER_WORKGROUP);
    let params = Params { count: count as u32, target_record: at as u32 };
    batch.dispatch(ADD, params, &[(1, Part::from(records)), (2, totals.into())], groups);
    groups
}

/// Adds `count` records up to one, put at record `at` of `results`.
pub(crate) fn finish(
    batch: &mut Batch<'_>,
    mut totals: Buffer,
    mut count: usize,
    results: &Buffer,
    at: usize,
) -> Result<(), Error> {
    let mut rest = batch.scratch(Scratch::MoreTotals, bytes(count))?;
    while count > PER_WORKGROUP {
        count = add(batch, &totals, count, &rest, 0);
        std::mem::swap(&mut totals, &mut rest);
    }
    add(batch, &totals, count, results, at);
    Ok(())
}

/// The sum of a mantissa's bits and an exponent.
pub(crate) fn value(mantissa: u32, exponent: u32) -> f64 {
    f64::from(f32::from_bits(mantissa)) * 2f64.powi(exponent as i32)
}
