//! Measures rows of TopK in few bits, with the kernels of `few_bits_errors.wgsl`.
//!
//! The error of dropped values is measured as for TopK with full values. A kernel first writes the values that the
//! largest k keeps to a buffer. For each k, another kernel reads this buffer once and adds the values to the bins of
//! that k. With n values and the largest k, the measurement takes `O(n + k · candidates)` operations. The statistics of
//! the bins are exact integers, so subtracting nearly equal sums loses no precision.

use crate::Error;
use crate::batch::{Batch, Task};
use crate::blocks::{blocks_of, bytes_of, count, write};
use crate::error::{BufferJobError, of_job};
use crate::memory::Scratch;
use crate::packing::packs;
use crate::sums;
use crate::tensor::{Row, Tensor};
use crate::topk::{self, Params, Sought, ascending, fit, kernel, order, select, tally_groups};
use lgreco::gradient::Dtype;
use wgpu::Buffer;

/// Largest number of bits of a code.
const MOST_BITS: usize = 8;
/// Size of `bin_sums` for one k, in bytes.
const SUMS: u64 = 4 * 6 * 128;
/// Largest number of values of k that are measured together.
const MOST_KEEPS: usize = 256;

/// Number of result words of [`measure`]. After the words of TopK with full values come a mantissa and an exponent for
/// each k and each number of bits.
pub(crate) const fn result_words(keeps: usize) -> usize {
    topk::result_words(keeps) + 2 * MOST_BITS * keeps
}

/// Records the commands that measure the errors of each k in each row, with 1 to 8 bits. Each k is from 1 to the number
/// of elements.
pub(crate) fn measure(batch: &mut Batch<'_>, rows: &[Row<'_, &[u32]>], results: &Buffer) -> Result<(), BufferJobError> {
    let keeps: Vec<Vec<u32>> = rows.iter().map(|row| ascending(row.sought)).collect();
    let sought = rows.iter().zip(&keeps).map(|(row, keeps)| {
        let sought = Sought { tensor: row.tensor, sent: Dtype::F32, keeps, result: row.result };
        (row.job, sought)
    });
    let sought: Vec<(usize, Sought<'_>)> = sought.collect();
    let fits = |sought: &[(usize, Sought<'_>)]| {
        let sought: Vec<Sought<'_>> = sought.iter().map(|&(_, sought)| sought).collect();
        let blocks: u64 = sought.iter().map(|sought| bytes_of(blocks_of(batch, sought.tensor))).sum();
        let keeps: usize = sought.iter().map(|sought| sought.keeps.len().min(MOST_KEEPS)).sum();
        let fits = [4 * kept_of(&sought) as u64, blocks, SUMS * keeps as u64];
        fit(batch, &sought) && fits.iter().all(|&bytes| bytes <= batch.gpu.window)
    };
    for pack in packs(&sought, fits) {
        let (jobs, sought): (Vec<usize>, Vec<Sought<'_>>) = pack.iter().copied().unzip();
        record(batch, &sought, results).map_err(of_job(jobs[0]))?;
    }
    Ok(())
}

/// Number of written values of a tensor, padded to a multiple of 32. A piece of the next tensor can begin only at such
/// a multiple.
fn room_of(sought: &Sought<'_>) -> usize {
    sought.keeps.last().map_or(0, |&most| (most as usize).next_multiple_of(32))
}

fn kept_of(sought: &[Sought<'_>]) -> usize {
    sought.iter().map(room_of).sum()
}

fn record<'a>(batch: &mut Batch<'_>, sought: &'a [Sought<'a>], results: &Buffer) -> Result<(), Error> {
    let state = select(batch, sought, results)?;
    let kept = Tensor::scratch(batch, Scratch::Kept, kept_of(sought))?;
    let (mut layers, mut first_keep, mut first_kept) = (Vec::new(), 0, 0);
    for sought in sought {
        layers.push(Layer { sought, first_keep, first_kept });
        first_keep += sought.keeps.len();
        first_kept += room_of(sought);
    }
    let of_largest = |layer: &Layer<'a>| {
        let largest = layer.first_keep + layer.sought.keeps.len() - 1;
        let (first_keep, values_word) = (largest as u32, layer.first_kept as u32);
        let (dtype, bits) = (layer.sought.tensor.dtype as u32, MOST_BITS as u32);
        (layer.sought.tensor, Params { dtype, first_keep, values_word, bits, ..Params::default() })
    };
    let blocks = count(batch, &state, &layers.iter().map(of_largest).collect::<Vec<_>>())?;
    let mut window = 0;
    for part in kept.parts() {
        batch.clear(&part.buffer, part.size);
        let window_len = part.size / 4;
        // `bits: 0` writes the values as f32. The last window may end at word 2^32.
        let within = |params| Params { bits: 0, window: window as u32, window_len: window_len as u32, ..params };
        // Positions are not written, so their binding is never used.
        write(batch, &blocks, &state, [&part, &results.into()], within);
        window += window_len;
    }
    let together = MOST_KEEPS.min(batch.gpu.most_groups());
    let most = sought.iter().map(|sought| sought.keeps.len()).max().unwrap_or(0);
    let of_some =
        |first: usize| sought.iter().map(move |sought| sought.keeps.len().saturating_sub(first).min(together));
    let sums = batch.scratch(Scratch::BinSums, SUMS * of_some(0).sum::<usize>() as u64)?;
    for first in (0..most).step_by(together) {
        let (mut added, mut told, mut first_sum) = (Vec::new(), Vec::new(), 0);
        let of = [(6, (&state).into()), (16, (&sums).into()), (18, (&blocks.bins).into())];
        for ((layer, keeps), bins) in layers.iter().zip(of_some(first)).zip(0..) {
            let behind = layer.sought.result + topk::result_words(layer.sought.keeps.len());
            let base = Params {
                bins,
                first_sum: first_sum as u32,
                first_keep: (layer.first_keep + first) as u32,
                result: (behind + 2 * MOST_BITS * first) as u32,
                ..Params::default()
            };
            first_sum += keeps;
            let most = layer.sought.keeps.last().map_or(0, |&most| most as usize);
            for piece in kept.pieces(batch, layer.first_kept..layer.first_kept + most) {
                let params = Params { offset: piece.skip, count: piece.count as u32, ..base };
                let bindings = [&[(1, piece.part.clone())], &of[..]].concat();
                added.push(Task { params, bindings, groups: [keeps, tally_groups(&piece), 1] });
            }
            told.push(Task::new(base, &[&[(9, results.into())], &of[..]].concat(), keeps));
        }
        batch.clear(&sums, SUMS * first_sum as u64);
        batch.run(kernel("add_to_sums"), added);
        batch.run(kernel("few_bits_errors"), told);
    }
    Ok(())
}

/// A tensor, with the index of its first k in `state` and the index of its first value among the written values.
struct Layer<'a> {
    sought: &'a Sought<'a>,
    first_keep: usize,
    first_kept: usize,
}

/// Reads the squared errors from the words that [`measure`] wrote. There is one error for each pair of a k in `keeps`
/// and a width in `bits`.
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
