//! Rows of TopK in few bits: what `kept_errors.cu` is asked to do.
//!
//! What is left out is measured as for TopK in full. What the largest k keeps is written down once, as in a payload; among that the cut
//! of each k is found, and what it keeps fills the bins of its range. All k share launches.

use crate::Error;
use crate::device::Part;
use crate::gpu::{Gpu, Scratch};
use crate::selection::{self, PROGRAM, find_cuts};
use crate::tensor::Tensor;
use crate::topk;
use crate::tops::{BINS, CUT, KEPT, Params, Top};
use lgreco_core::compress::topk::TopK;
use lgreco_core::compress::wire::HEADER_LEN;
use lgreco_core::gradient::Dtype;

/// Most bits of a code.
const MOST_BITS: usize = 8;
/// Bytes of `BinSquares`.
const SQUARES: u64 = 128 * (3 * 8 + 4);
/// Numbers of values kept that share launches.
const TOGETHER: usize = if cfg!(test) { 3 } else { 256 };

/// Words of results that a row takes: those of TopK in full, then errors by the number of bits for each k.
pub(crate) const fn result_words(keeps: usize) -> usize {
    topk::result_words(keeps) + MOST_BITS * keeps
}

/// Enqueued: what sending means for what each of `keeps` keeps costs, to `results`, behind what TopK's row in full has written there.
/// There are some, all from 1 to the number of elements.
pub(crate) fn measure(gpu: &mut Gpu, tensor: &Tensor, keeps: &[u32], results: Part) -> Result<(), Error> {
    let errors = results.from(8 * topk::result_words(keeps.len()) as u64);
    let most = keeps.iter().copied().max().unwrap_or(0);
    let top = TopK { keep: most, values: Dtype::F32 };
    // What is known of magnitudes goes where errors will be.
    let payload = selection::make(gpu, tensor, top.into(), errors.cut(0, 8))?;
    let kept = Tensor::of_part(payload.cut(HEADER_LEN as u64, 4 * u64::from(most)));
    let mut rest = errors;
    for keeps in keeps.chunks(TOGETHER) {
        measure_group(gpu, &kept, keeps, rest)?;
        rest = rest.from(8 * (MOST_BITS * keeps.len()) as u64);
    }
    Ok(())
}

fn measure_group(gpu: &mut Gpu, kept: &Tensor, keeps: &[u32], errors: Part) -> Result<(), Error> {
    let (mut tops, mut top_of) = (Vec::new(), Vec::new());
    for (&keep, number) in keeps.iter().zip(0u32..) {
        let top = Top::of_row(keep, MOST_BITS as u32, kept.elements, top_of.len() as u32);
        top_of.extend(std::iter::repeat_n(number, top.spans()));
        tops.push(top);
    }
    let (layers, spans) = (keeps.len() as u64, top_of.len() as u64);
    let tables: [&[u8]; 2] = [bytemuck::cast_slice(&tops), bytemuck::cast_slice(&top_of)];
    let [tops, top_of] = gpu.upload(Scratch::Layers, &tables.concat())?.split(tables.map(|t| t.len() as u64));
    let sizes = [PROGRAM, SQUARES * layers, CUT * layers, 4 * BINS * layers];
    let state = gpu.scratch(Scratch::Bins, sizes.iter().sum())?;
    gpu.clear(state)?;
    let [program, squares, cuts, bins] = state.split(sizes);
    let of_spans = gpu.scratch(Scratch::Records, KEPT * spans)?;
    let params = Params::of_rows([layers, spans].map(|count| count as u32));
    // There are no residuals, nor is anything gathered or sent.
    find_cuts(gpu, params, [tops, top_of, program, kept.part, kept.part, cuts], [bins, of_spans, tops, tops])?;
    selection::measure_kept(gpu, params, [tops, top_of, kept.part, cuts, squares, errors])
}

/// Makes a row of the words that [`measure`] and TopK's row in full wrote, of so many `keeps`.
pub(crate) fn read(keeps: usize, bits: &[u8], words: &[u64], row: &mut [f64]) {
    let (in_full, by_bits) = words.split_at(topk::result_words(keeps));
    let rows = row.chunks_mut(bits.len()).zip(topk::errors(in_full).zip(by_bits.as_chunks::<MOST_BITS>().0));
    for (row, (left_out, by_bits)) in rows {
        for (place, &width) in row.iter_mut().zip(bits) {
            *place = left_out + f64::from_bits(by_bits[usize::from(width) - 1]);
        }
    }
}
