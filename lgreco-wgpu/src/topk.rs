//! TopK: what `topk.wgsl` is asked to do.
//!
//! The energies of TopK's rows are exact integer sums of magnitudes per bin; at most 2^-15 of the energy is lost to
//! their spread inside a bin.

use crate::Error;
use crate::batch::Batch;
use crate::kernels::{Kernel, Shader};
use crate::memory::Scratch;
use crate::params::params;
use crate::sums;
use crate::tensor::{Piece, Tensor};
use lgreco_core::gradient::Dtype;
use wgpu::Buffer;

params! {
    /// `Params` of `topk.wgsl`.
    offset, dtype, first, count, sent, rounds, energies, first_keep, keeps, blocks, first_block,
    result, elements, placement, low_bits, values_word, bits, codes, code_bit, bins, low_word, low_bit,
    high_word, high_bit, window, window_len,
}

/// Words of a bin of level 1.
const WORDS: u64 = 6;
/// Bins of level 1; slots, and bins per slot of levels 2 and 3.
pub(crate) const BINS: u64 = 17792;
pub(crate) const SLOTS: u64 = 224;
pub(crate) const MIDDLES: u64 = 512;
pub(crate) const LASTS: u64 = 256;

/// Words of a `Keep`.
const KEEP: usize = 8;

pub(crate) const fn kernel(entry: &'static str) -> Kernel {
    Kernel { shader: Shader::TopK, entry }
}

/// Values that a workgroup counts in its own memory at most: see `tally.wgsl`.
const MOST_TALLIED: usize = 1 << 14;
/// Values that are enough for a workgroup, and workgroups that are enough for a device.
const ENOUGH: usize = 1 << 12;
const ENOUGH_GROUPS: usize = 256;

/// Workgroups that count a piece's values: few, so that each adds to the device's tables for many values.
pub(crate) fn tally_groups(piece: &Piece) -> usize {
    piece.count.div_ceil(MOST_TALLIED).max(piece.count.div_ceil(ENOUGH).min(ENOUGH_GROUPS))
}

/// Whether sending values of type `from` as `to` changes any.
fn rounds(from: Dtype, to: Dtype) -> bool {
    to != Dtype::F32 && from != to
}

/// The magnitude from which on values become infinite when sent as `dtype`.
pub(crate) fn overflow(dtype: Dtype) -> u32 {
    match dtype {
        Dtype::F32 => crate::magnitude::INFINITY,
        Dtype::F16 => 0x477f_f000,
        Dtype::Bf16 => 0x7f7f_8000,
    }
}

/// The tables of selection.
pub(crate) struct Tables {
    bins: Buffer,
    slots: Buffer,
    fine: Buffer,
    prefix: Buffer,
    pub(crate) state: Buffer,
}

impl Tables {
    /// Cleared, with `keeps` (ascending) to look for.
    fn new(batch: &mut Batch<'_>, keeps: &[u32]) -> Result<Tables, Error> {
        let tables = Tables {
            bins: batch.scratch(Scratch::Bins, 4 * WORDS * BINS)?,
            slots: batch.scratch(Scratch::Slots, 4 * (BINS + SLOTS * MIDDLES))?,
            fine: batch.scratch(Scratch::Fine, 4 * SLOTS * (4 * MIDDLES + LASTS))?,
            prefix: batch.scratch(Scratch::Prefix, 4 * 5 * BINS)?,
            state: batch.scratch(Scratch::State, (4 * KEEP * keeps.len()) as u64)?,
        };
        let mut state = vec![0u32; KEEP * keeps.len()];
        state.iter_mut().step_by(KEEP).zip(keeps).for_each(|(slot, &keep)| *slot = keep);
        let state = batch.upload(bytemuck::cast_slice(&state))?;
        batch.copy(&state.buffer, 0, &tables.state, 0, (4 * KEEP * keeps.len()) as u64);
        batch.clear(&tables.bins, 4 * WORDS * BINS);
        Ok(tables)
    }
}

/// Finds where the k largest end for all `keeps`, ascending; with `energies`, the squared errors too.
pub(crate) fn select(
    batch: &mut Batch<'_>,
    tensor: &Tensor,
    sent: Dtype,
    keeps: &[u32],
    energies: bool,
    results: &Buffer,
    result: usize,
) -> Result<Tables, Error> {
    let tables = Tables::new(batch, keeps)?;
    let base = Params {
        dtype: tensor.dtype as u32,
        sent: sent as u32,
        rounds: rounds(tensor.dtype, sent) as u32,
        energies: energies as u32,
        result: result as u32,
        ..Params::default()
    };
    let of = |piece: &Piece| Params { offset: piece.skip, count: piece.count as u32, ..base };
    let Tables { bins, slots, fine, prefix, state } = &tables;
    let pieces = tensor.all(batch);
    for piece in &pieces {
        let bindings = [(1, piece.part.clone()), (2, bins.into()), (9, results.into())];
        batch.dispatch(kernel("histogram_1"), of(piece), &bindings, tally_groups(piece));
    }
    batch.dispatch(kernel("prefixes"), base, &[(2, bins.into()), (5, prefix.into())], 1);
    for (group, keeps) in keeps.chunks(SLOTS as usize).enumerate() {
        let first_keep = group * SLOTS as usize;
        let base = Params {
            first_keep: first_keep as u32,
            keeps: keeps.len() as u32,
            result: (result + 1 + 2 * first_keep) as u32,
            ..base
        };
        let of = |piece: &Piece| Params { offset: piece.skip, count: piece.count as u32, ..base };
        batch.clear(slots, slots.size());
        batch.clear(fine, fine.size());
        batch.dispatch(kernel("choose_1"), base, &[(3, slots.into()), (5, prefix.into()), (6, state.into())], 1);
        for (histogram, choose) in [("histogram_2", "choose_2"), ("histogram_3", "choose_3")] {
            for piece in &pieces {
                let bindings = [(1, piece.part.clone()), (3, slots.into()), (4, fine.into())];
                batch.dispatch(kernel(histogram), of(piece), &bindings, tally_groups(piece));
            }
            let mut bindings = vec![(4, fine.into()), (6, state.into())];
            if choose == "choose_2" {
                bindings.push((3, slots.into()));
            }
            batch.dispatch(kernel(choose), base, &bindings, 1);
        }
        if energies {
            let bindings = [(4, fine.into()), (5, prefix.into()), (6, state.into()), (9, results.into())];
            batch.dispatch(kernel("total"), base, &bindings, 1);
        }
    }
    Ok(tables)
}

/// Words of results that [`measure`] writes: the largest magnitude, then mantissa and exponent per candidate.
pub(crate) const fn result_words(keeps: usize) -> usize {
    1 + 2 * keeps
}

/// The candidates' places in ascending order of k.
pub(crate) fn order(keeps: &[u32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..keeps.len()).collect();
    order.sort_by_key(|&i| keeps[i]);
    order
}

/// `keeps` in this order.
pub(crate) fn ascending(keeps: &[u32]) -> Vec<u32> {
    order(keeps).into_iter().map(|i| keeps[i]).collect()
}

/// Records the measurement of `keeps`, all from 1 to the number of elements.
pub(crate) fn measure(
    batch: &mut Batch<'_>,
    tensor: &Tensor,
    sent: Dtype,
    keeps: &[u32],
    results: &Buffer,
    result: usize,
) -> Result<(), Error> {
    select(batch, tensor, sent, &ascending(keeps), true, results, result).map(|_| ())
}

/// Reads the squared errors from the words that [`measure`] wrote.
pub(crate) fn errors(keeps: &[u32], words: &[u32], row: &mut [f64]) {
    for (slot, pair) in order(keeps).into_iter().zip(words[1..].as_chunks::<2>().0) {
        row[slot] = sums::value(pair[0], pair[1]);
    }
}
