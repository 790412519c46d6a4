//! Records of eight sums, added up on the device: `sums.wgsl`.
//!
//! Rows are sums of `m · 2^e`, an f32 and an integer exponent, added in the order of a fixed tree: there are no float
//! atomics, nothing overflows or vanishes between 1e-30 and 1e30, and the error is at most the tree's depth times
//! 2^-23. Only sums of numbers that are not negative occur, so contraction to fused multiply-add does no harm here.

use crate::Error;
use crate::batch::{Batch, Part, Task};
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
    first, count, target_record,
}

/// Records that follow each other, and the first of those that they become.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) first: usize,
    pub(crate) count: usize,
    pub(crate) target: usize,
}

/// Bytes of `records` records.
pub(crate) fn bytes(records: usize) -> u64 {
    (4 * RECORD * records) as u64
}

/// Records that [`add`] leaves of `count`.
pub(crate) fn left_of(count: usize) -> usize {
    count.div_ceil(PER_WORKGROUP)
}

/// Adds each of `segments` up to a few, which are put into `totals`.
pub(crate) fn add(batch: &mut Batch<'_>, records: &Buffer, segments: &[Segment], totals: &Buffer) {
    let bindings = [(1, Part::from(records)), (2, totals.into())];
    let task = |segment: &Segment| {
        let Segment { first, count, target } = *segment;
        let params = Params { first: first as u32, count: count as u32, target_record: target as u32 };
        Task::new(params, &bindings, left_of(count))
    };
    batch.run(ADD, segments.iter().map(task).collect());
}

/// Adds each of `segments` of `totals` up to one, which is put into `results`.
pub(crate) fn finish(
    batch: &mut Batch<'_>,
    mut totals: Buffer,
    segments: &[Segment],
    results: &Buffer,
) -> Result<(), Error> {
    let mut segments = segments.to_vec();
    let mut rest = batch.scratch(Scratch::MoreTotals, totals.size())?;
    while segments.iter().any(|segment| segment.count > PER_WORKGROUP) {
        let mut left = 0;
        let fewer = segments.iter().map(|segment| {
            let own = Segment { target: left, ..*segment };
            left += left_of(own.count);
            own
        });
        let fewer: Vec<Segment> = fewer.collect();
        add(batch, &totals, &fewer, &rest);
        for (segment, fewer) in segments.iter_mut().zip(fewer) {
            *segment = Segment { first: fewer.target, count: left_of(fewer.count), ..*segment };
        }
        std::mem::swap(&mut totals, &mut rest);
    }
    add(batch, &totals, &segments, results);
    Ok(())
}

/// The sum of a mantissa's bits and an exponent.
pub(crate) fn value(mantissa: u32, exponent: u32) -> f64 {
    f64::from(f32::from_bits(mantissa)) * 2f64.powi(exponent as i32)
}
