//! Rows of TopK in few bits: what `few_bits_errors.wgsl` is asked to do.
//!
//! What is left out is measured as for TopK in full. What the largest k keeps is written down once, and read once per k to fill
//! the bins of that k's range: `O(n + k · candidates)`. Their statistics are exact integers, so nothing cancels.

use crate::Error;
use crate::batch::Batch;
use crate::memory::Scratch;
use crate::positions::{count, write};
use crate::sums;
use crate::tensor::Tensor;
use crate::topk::{self, Params, ascending, kernel, order, select, tally_groups};
use lgreco_core::gradient::Dtype;
use wgpu::Buffer;

/// Most bits of a code.
const MOST_BITS: usize = 8;
/// Bytes of `bin_sums` of one k.
const SUMS: u64 = 4 * 6 * 128;
/// Numbers of kept values that are worked on together.
const MOST_KEEPS: usize = 256;

/// Words of results that [`measure`] writes: those of TopK in full, then mantissa and exponent by candidate and bits.
pub(crate) const fn result_words(keeps: usize) -> usize {
    topk::result_words(keeps) + 2 * MOST_BITS * keeps
}

/// Records the measurement of `keeps`, all from 1 to the number of elements, in 1 to 8 bits.
pub(crate) fn measure(
    batch: &mut Batch<'_>,
    tensor: &Tensor,
    keeps: &[u32],
    results: &Buffer,
    result: usize,
) -> Result<(), Error> {
    let keeps = ascending(keeps);
    let Some((&most, others)) = keeps.split_last() else { return Ok(()) };
    let state = select(batch, tensor, Dtype::F32, &keeps, true, results, result)?.state;
    let base = Params { dtype: tensor.dtype as u32, first_keep: others.len() as u32, ..Params::default() };
    let blocks = count(batch, tensor, &state, Params { bits: MOST_BITS as u32, ..base })?;
    let kept = Tensor::scratch(batch, Scratch::Kept, most as usize)?;
    write(batch, &blocks, &state, base, &kept);
    let together = MOST_KEEPS.min(batch.gpu.most_groups());
    let sums = batch.scratch(Scratch::BinSums, SUMS * keeps.len().min(together) as u64)?;
    let behind = result + topk::result_words(keeps.len());
    for (group, keeps) in keeps.chunks(together).enumerate() {
        let first_keep = group * together;
        let at = behind + 2 * MOST_BITS * first_keep;
        let base = Params { first_keep: first_keep as u32, result: at as u32, ..Params::default() };
        let of = || [(6, (&state).into()), (16, (&sums).into()), (18, (&blocks.bins).into())];
        batch.clear(&sums, SUMS * keeps.len() as u64);
        for piece in kept.all(batch) {
            let params = Params { offset: piece.skip, count: piece.count as u32, ..base };
            let bindings = [&[(1, piece.part.clone())][..], &of()].concat();
            batch.dispatch_3d(kernel("add_to_sums"), params, &bindings, [keeps.len(), tally_groups(&piece), 1]);
        }
        let bindings = [&[(9, results.into())][..], &of()].concat();
        batch.dispatch(kernel("few_bits_errors"), base, &bindings, keeps.len());
    }
    Ok(())
}

/// Reads the squared errors from the words that [`measure`] wrote: of each of `keeps` with each of `bits`.
pub(crate) fn errors(keeps: &[u32], bits: &[u8], words: &[u32], row: &mut [f64]) {
    let (dropped, rounded) = words.split_at(topk::result_words(keeps.len()));
    let mut left_out = vec![0.0; keeps.len()];
    topk::errors(keeps, dropped, &mut left_out);
    let by_bits = rounded.as_chunks::<2>().0.chunks(MOST_BITS);
    for (slot, by_bits) in order(keeps).into_iter().zip(by_bits) {
        for (&width, place) in bits.iter().zip(&mut row[slot * bits.len()..]) {
            let [mantissa, exponent] = by_bits[usize::from(width) - 1];
            *place = left_out[slot] + sums::value(mantissa, exponent);
        }
    }
}
