//! Measures rows of TopK in few bits, by launches of `kept_errors.cu`.
//!
//! The error of dropped values is measured as for TopK with full values. Five launches write the values that the
//! largest k keeps, as in a payload. Four more launches measure all k from the written values. For each k, these
//! launches first find the cut, which is the k-th largest magnitude. For each k, the launches then sort the kept values
//! into the bins of the codes. All layers and all values of k share the launches, up to a limit on the workspace.
//!
//! The bins of TopK with full values cannot replace these launches, because an error from these bins assumes that
//! values are evenly spread within a bin. Errors would be up to 0.4 % off, and some plans would change. In the plan for
//! the built-in sample, 2 of 15 layers would get other settings.

use crate::Result;
use crate::device::Part;
use crate::gpu::{Gpu, Scratch};
use crate::selection::{self, PROGRAM, find_cuts};
use crate::tensor::Tensor;
use crate::topk;
use crate::tops::{BINS, CUT, KEPT, Params, Place, Top, Tops};
use lgreco::compress::topk::TopK;
use lgreco::compress::wire::HEADER_LEN;
use lgreco::gradient::Dtype;

/// Largest number of bits of a code.
const MOST_BITS: usize = 8;
/// Bytes of `BinSquares`.
const SQUARES: u64 = 128 * (3 * 8 + 4);
/// Bytes of the two words for the largest magnitudes. The measurement of rows ignores these words.
const TOLD: u64 = 8;
/// If a set of launches needs this many bytes of workspace or more, no further layer or value of k is added to the set.
pub(crate) const TOGETHER: u64 = 512 << 20;

/// Number of result words of a row. First come the words of the row of TopK with full values. Then each k has one error
/// for each number of bits.
pub(crate) const fn result_words(keeps: usize) -> usize {
    topk::result_words(keeps) + MOST_BITS * keeps
}

/// A layer to measure.
#[derive(Clone, Copy)]
pub(crate) struct Layer<'a> {
    pub(crate) tensor: Tensor,
    /// The values of k: at least one, each from 1 to the number of elements.
    pub(crate) keeps: &'a [u32],
    /// Index of the layer's first word among all results.
    pub(crate) word: usize,
}

impl Layer<'_> {
    /// Returns the table entries of all k. The entries refer to the values in the payload of the largest k.
    fn rows(&self, payload: u64, most: u32) -> impl Iterator<Item = Top> {
        let (kept, errors) = ((payload + HEADER_LEN as u64) / 4, self.word + topk::result_words(self.keeps.len()));
        let row = move |(number, &keep): (usize, &u32)| {
            Top::of_row(keep, MOST_BITS as u32, (kept, most), (errors + MOST_BITS * number) as u64)
        };
        self.keeps.iter().enumerate().map(row)
    }
}

/// Enqueued: measures, for each k, the error of sending the bins' means instead of the k kept values. In a layer's
/// results, these errors follow the words of the row of TopK with full values. Layers and values of k share launches
/// until the launches need `together` bytes of workspace or more.
pub(crate) fn measure(gpu: &mut Gpu, layers: &[Layer<'_>], together: u64, results: Part) -> Result<()> {
    let mut rest = layers;
    while let Some(Layer { tensor, .. }) = rest.first() {
        let dtype = tensor.dtype;
        let alike = || rest.iter().take_while(|layer| layer.tensor.dtype == dtype);
        // The indices of values count from the lowest address of the layers that share launches.
        let base = alike().map(|layer| layer.tensor.part.address).min().unwrap_or(0);
        let (mut tops, mut rows, mut count) = (Tops::default(), Vec::new(), 0);
        for (layer, number) in alike().zip(0u32..) {
            let keep = layer.keeps.iter().copied().max().unwrap_or(0);
            let (first, payload) = ((layer.tensor.part.address - base) / dtype.bytes() as u64, tops.end());
            let place = Place { layer: number, first, start: 0, payload, header: [0; 2] };
            tops.push(place, TopK { keep, values: Dtype::F32 }.into(), layer.tensor.elements)?;
            rows.extend(layer.rows(payload, keep));
            count += 1;
            if tops.bytes(1) + tops.end() >= together {
                break;
            }
        }
        let sizes = [PROGRAM + TOLD, tops.bytes(1)];
        let [state, memory] = gpu.scratch(Scratch::Bins, sizes.iter().sum())?.split(sizes);
        gpu.clear(state)?;
        tops.begin(gpu, 1, memory)?;
        let message = gpu.scratch(Scratch::Bits, tops.end())?;
        let values = Part { address: base, bytes: 0 };
        tops.write_down(gpu, dtype, memory, [state, values, state.from(PROGRAM), message])?;
        measure_rows(gpu, rows, together, message, results)?;
        rest = &rest[count..];
    }
    Ok(())
}

/// Enqueued: measures the errors of each k from the values in `message`, which the largest k keeps.
fn measure_rows(gpu: &mut Gpu, rows: Vec<Top>, together: u64, message: Part, results: Part) -> Result<()> {
    let mut rest = rows.into_iter().peekable();
    while rest.peek().is_some() {
        let (mut tops, mut top_of, mut bytes) = (Vec::new(), Vec::new(), 0);
        while let Some(mut row) = rest.next_if(|_| bytes < together) {
            row.first_span = top_of.len() as u32;
            top_of.extend(std::iter::repeat_n(tops.len() as u32, row.spans()));
            tops.push(row);
            bytes = (SQUARES + CUT + 4 * BINS) * tops.len() as u64 + (KEPT + 4) * top_of.len() as u64;
        }
        let (layers, spans) = (tops.len() as u64, top_of.len() as u64);
        let tables: [&[u8]; 2] = [bytemuck::cast_slice(&tops), bytemuck::cast_slice(&top_of)];
        let [tops, top_of] = gpu.upload(Scratch::Layers, &tables.concat())?.split(tables.map(|t| t.len() as u64));
        let sizes = [PROGRAM, SQUARES * layers, CUT * layers, 4 * BINS * layers];
        let state = gpu.scratch(Scratch::Bins, sizes.iter().sum())?;
        gpu.clear(state)?;
        let [program, squares, cuts, bins] = state.split(sizes);
        let of_spans = gpu.scratch(Scratch::Records, KEPT * spans)?;
        let params = Params::of_rows([layers, spans].map(|count| count as u32));
        // Rows have no residuals, gathered values or payloads, so other parts fill the kernels' arguments for these.
        find_cuts(gpu, params, [tops, top_of, program, message, message, cuts], [bins, of_spans, tops, tops])?;
        selection::measure_kept(gpu, params, [tops, top_of, message, cuts, squares, results])?;
    }
    Ok(())
}

/// Makes a row for `keeps` values of k, from the words that [`measure`] and the row of TopK with full values wrote.
pub(crate) fn read(keeps: usize, bits: &[u8], words: &[u64], row: &mut [f64]) {
    let (in_full, by_bits) = words.split_at(topk::result_words(keeps));
    let rows = row.chunks_mut(bits.len()).zip(topk::errors(in_full).zip(by_bits.as_chunks::<MOST_BITS>().0));
    for (row, (left_out, by_bits)) in rows {
        for (place, &width) in row.iter_mut().zip(bits) {
            *place = left_out + f64::from_bits(by_bits[usize::from(width) - 1]);
        }
    }
}
