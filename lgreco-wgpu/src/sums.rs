//! Adds records of eight sums on the device: launches of `sums.wgsl`.
//!
//! The errors in a row are sums of terms `m · 2^e`, where `m` is f32 and `e` is an integer. The terms are added in the
//! order of a fixed tree, without float atomics. No value between 1e-30 and 1e30 overflows or vanishes. The relative
//! error is at most the tree's depth times 2^-23. All terms are nonnegative, so contraction to fused multiply-add does
//! no harm.

use crate::Error;
use crate::batch::{Batch, Part, Task};
use crate::kernels::{Kernel, Shader};
use crate::memory::Scratch;
use crate::packing::packs;
use crate::params::params;
use bytemuck::Pod;
use wgpu::Buffer;

/// Number of words of a record: eight mantissas, and then eight exponents.
pub(crate) const RECORD: usize = 16;

/// Number of records that one workgroup adds up.
const PER_WORKGROUP: usize = 4096;

const ADD: Kernel = Kernel { shader: Shader::Sums, entry: "add_records" };

params! {
    /// The struct `Params` in `sums.wgsl`, with the same layout.
    first, count, target_record,
}

/// Consecutive records to add up, and the number of the first record to which their sums are written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) first: usize,
    pub(crate) count: usize,
    pub(crate) target: usize,
}

impl Segment {
    /// Returns consecutive segments. `counts` has the number of records and the target of each segment.
    pub(crate) fn in_turn(counts: impl IntoIterator<Item = (usize, usize)>) -> Vec<Segment> {
        let mut next = 0;
        let segment = |(count, target)| {
            let first = next;
            next += count;
            Segment { first, count, target }
        };
        counts.into_iter().map(segment).collect()
    }
}

/// Bytes of `records` records.
pub(crate) fn bytes(records: usize) -> u64 {
    (4 * RECORD * records) as u64
}

/// Returns a buffer for the records that [`run`] leaves. The segments lie one after another in this buffer.
pub(crate) fn totals(batch: &mut Batch<'_>, segments: &[Segment]) -> Result<Buffer, Error> {
    batch.scratch(Scratch::Totals, bytes(segments.iter().map(|segment| segment.count).sum()))
}

/// Number of records to which [`add`] reduces `count` records.
pub(crate) fn left_of(count: usize) -> usize {
    count.div_ceil(PER_WORKGROUP)
}

/// Records the addition of each segment's records. Every 4096 records become one record of `totals`.
pub(crate) fn add(batch: &mut Batch<'_>, records: &Buffer, segments: &[Segment], totals: &Buffer) {
    let bindings = [(1, Part::from(records)), (2, totals.into())];
    let task = |segment: &Segment| {
        let Segment { first, count, target } = *segment;
        let params = Params { first: first as u32, count: count as u32, target_record: target as u32 };
        Task::new(params, &bindings, left_of(count))
    };
    batch.run(ADD, segments.iter().map(task).collect());
}

/// The binding to which the kernels of [`run`] write their records.
const OUTPUT: u32 = 5;

/// Records tasks whose workgroups write one record each, and the addition of each task's records by [`add`]. `place`
/// sets the number of a task's first record. The records that [`add`] leaves go to `totals`, from record `target` on.
pub(crate) fn run<P: Pod>(
    batch: &mut Batch<'_>,
    kernel: Kernel,
    tasks: &[Task<P>],
    place: impl Fn(&mut P, u32),
    (totals, target): (&Buffer, &mut usize),
) -> Result<(), Error> {
    let window = batch.gpu.window;
    let of_all = |tasks: &[Task<P>]| bytes(tasks.iter().map(Task::workgroups).sum());
    for pack in packs(tasks, |tasks| of_all(tasks) <= window) {
        let output = batch.scratch(Scratch::Output, of_all(pack))?;
        let left = |task: &Task<P>| {
            let count = task.workgroups();
            *target += left_of(count);
            (count, *target - left_of(count))
        };
        let segments = Segment::in_turn(pack.iter().map(left));
        let placed = pack.iter().zip(&segments).map(|(task, segment)| {
            let mut task = task.clone();
            place(&mut task.params, segment.first as u32);
            task.bindings.push((OUTPUT, (&output).into()));
            task
        });
        batch.run(kernel, placed.collect());
        add(batch, &output, &segments, totals);
    }
    Ok(())
}

/// Records the kernels that add up each segment of `totals`. The sum of a segment becomes one record of `results`.
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

/// Returns the value that the bits of a mantissa and an exponent represent.
pub(crate) fn value(mantissa: u32, exponent: u32) -> f64 {
    f64::from(f32::from_bits(mantissa)) * 2f64.powi(exponent as i32)
}
