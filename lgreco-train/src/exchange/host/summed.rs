//! Values that are summed by collectives, followed in memory by the ranks' status records. The values are sent as f32, or as bf16
//! if [`Moment::reduce_dtype`] says so.
//!
//! Ops use only f32. Just before the collective, values that travel as bf16 are rounded into the beginning of the same memory, and
//! the status record is written after them. Just after the collective, if no rank has failed, the values are widened again.

use crate::exchange::moment::Moment;
use crate::exchange::slip::Slip;
use crate::gradient::{Bf16, Dtype, Element};
use crate::simd::dispatch_with;
use core::ops::Range;

/// Largest number of f32 that a rank's status record takes.
pub(super) const SLIP_ROOM: usize = 2;
/// Number of values that are rounded or widened at a time.
const BLOCK: usize = 64;

/// Returns the memory of f32 values as a slice of bf16.
pub(super) fn halves(values: &mut [f32]) -> &mut [Bf16] {
    bytemuck::cast_slice_mut(values)
}

/// Rounds the values at `from` to bf16, and moves them towards the beginning of the memory, to bf16 index `to`.
#[inline(always)]
fn narrow((memory, from, mut to): (&mut [f32], Range<usize>, usize)) {
    let mut block = [Bf16(0); BLOCK];
    for start in from.clone().step_by(BLOCK) {
        let values = &memory[start..from.end.min(start + BLOCK)];
        let block = &mut block[..values.len()];
        block.iter_mut().zip(values).for_each(|(half, &value)| *half = Bf16::from_f32(value));
        halves(memory)[to..to + block.len()].copy_from_slice(block);
        to += block.len();
    }
}

/// Widens the first `values` bf16 of a memory to f32.
#[inline(always)]
fn widen((memory, values): (&mut [f32], usize)) {
    let mut block = [Bf16(0); BLOCK];
    for start in (0..values).step_by(BLOCK).rev() {
        let range = start..values.min(start + BLOCK);
        let block = &mut block[..range.len()];
        block.copy_from_slice(&halves(memory)[range.clone()]);
        memory[range].iter_mut().zip(block).for_each(|(value, half)| *value = half.to_f32());
    }
}

/// A value, rounded to the type in which it is summed.
#[inline(always)]
pub(super) fn rounded(value: f32, dtype: Dtype) -> f32 {
    if dtype == Dtype::Bf16 { Bf16::from_f32(value).to_f32() } else { value }
}

/// Rounds values to the type in which they are summed.
pub(super) fn round(values: &mut [f32], dtype: Dtype) {
    #[inline(always)]
    fn run(values: &mut [f32]) {
        values.iter_mut().for_each(|value| *value = rounded(*value, Dtype::Bf16));
    }
    if dtype == Dtype::Bf16 {
        dispatch_with!(values, run);
    }
}

/// Replaces values by the rounding errors of their shares: subtracts the sent `shares`, divided by `share`. Without
/// rounding, these errors are zeros.
pub(super) fn keep_rest(values: &mut [f32], shares: &[f32], share: f32, dtype: Dtype) {
    if dtype == Dtype::Bf16 {
        let back = 1.0 / share;
        values.iter_mut().zip(shares).for_each(|(value, sent)| *value -= sent * back);
    } else {
        values.fill(0.0);
    }
}

/// The form in which an exchange sends sums.
#[derive(Clone, Copy)]
pub(super) struct Wire {
    rank: usize,
    world: usize,
    dtype: Dtype,
}

impl Wire {
    pub(super) fn of(moment: &Moment) -> Wire {
        Wire { rank: moment.rank as usize, world: moment.world_size as usize, dtype: moment.reduce_dtype }
    }

    /// Number of f32 that the status records after each part of a memory take.
    pub(super) fn slip_room(&self) -> usize {
        if self.dtype == Dtype::Bf16 { SLIP_ROOM * self.world } else { self.world }
    }

    /// Moves values to index `to` of the memory, in the type in which they are summed, and writes this rank's status
    /// record after them. `to` must not be after the beginning of the values.
    pub(super) fn put(&self, memory: &mut [f32], values: Range<usize>, to: usize, slip: Slip) {
        let end = to + values.len();
        if self.dtype == Dtype::Bf16 {
            dispatch_with!((&mut *memory, values, to), narrow);
            let slips = &mut halves(memory)[end..].as_chunks_mut::<3>().0[..self.world];
            slips.fill([Bf16(0); 3]);
            slips[self.rank] = slip.to_bf16_sum();
        } else {
            let slips = &mut memory[end..][..self.world];
            slips.fill(0.0);
            slips[self.rank] = slip.to_sum();
        }
    }

    /// The received status records, from index `at` of the memory on.
    pub(super) fn slips<'a>(self, memory: &'a [f32], at: usize) -> impl Iterator<Item = Slip> + Clone + 'a {
        let dtype = self.dtype;
        (0..self.world).map(move |rank| match dtype {
            Dtype::Bf16 => Slip::of_bf16_sum(bytemuck::cast_slice::<f32, Bf16>(memory)[at..].as_chunks().0[rank]),
            _ => Slip::of_sum(memory[at + rank]),
        })
    }

    /// The received values at these indices, as f32.
    pub(super) fn take<'a>(&self, memory: &'a mut [f32], places: Range<usize>) -> &'a mut [f32] {
        if self.dtype != Dtype::Bf16 {
            return &mut memory[places];
        }
        let values = places.len();
        halves(memory).copy_within(places, 0);
        dispatch_with!((&mut *memory, values), widen);
        &mut memory[..values]
    }
}
