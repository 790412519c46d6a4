//! EDEN's rows: launches of `eden_rows.cu`.
//!
//! The kernel rotates an EDEN block once. Then 64 threads measure each bit width, four widths at a time. The kernel
//! adds up errors in the core's order. Like the core, the kernel measures some EDEN blocks by decoding. These are
//! blocks of fewer than 256 values, and blocks whose error is close to the rounding error of f32.

use crate::Result;
use crate::device::Part;
use crate::eden::{Params, chunks, kernel, seed};
use crate::gpu::{Gpu, Scratch, summing_blocks};
use crate::row_table::RowTable;
use crate::tensor::Tensor;
use bytemuck::{Pod, Zeroable};
use lgreco::compress::eden::Scale;
use lgreco::rng::Stream;

/// Number of bit widths for which a record has error sums.
const WIDTHS: u64 = 8;

/// Result words of a layer: a word of faults, and a record of sums. The first half of the fault word is infinity if a
/// value is not finite. The second half of the fault word is the argument `overflow` of [`check`](crate::eden::check).
pub(crate) const RESULT_WORDS: usize = 1 + WIDTHS as usize;

const RESULTS: u64 = 8 * RESULT_WORDS as u64;

/// A tensor, and the random stream that determines the signs of its rotation.
#[derive(Clone, Copy)]
pub(crate) struct Job {
    pub(crate) tensor: Tensor,
    pub(crate) stream: Stream,
}

impl Job {
    /// Number of thread blocks that read the values. Each block writes one record of sums.
    fn blocks(&self) -> u64 {
        summing_blocks(chunks(self.tensor.elements))
    }

    fn layer(&self, first_block: u32, blocks: u32) -> Layer {
        let ([seed_low, seed_high], Tensor { part, dtype, elements }) = (seed(self.stream), self.tensor);
        Layer { values: part.address, dtype: dtype as u32, count: elements, first_block, blocks, seed_low, seed_high }
    }
}

/// The struct `Layer` in `eden_rows.cu`, with the same layout.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Layer {
    values: u64,
    dtype: u32,
    count: u32,
    first_block: u32,
    blocks: u32,
    seed_low: u32,
    seed_high: u32,
}

#[cfg(test)]
impl Layer {
    pub(crate) const FIELDS: &[(&'static str, usize)] = &[
        ("values", std::mem::offset_of!(Layer, values)),
        ("dtype", std::mem::offset_of!(Layer, dtype)),
        ("count", std::mem::offset_of!(Layer, count)),
        ("first_block", std::mem::offset_of!(Layer, first_block)),
        ("blocks", std::mem::offset_of!(Layer, blocks)),
        ("seed_low", std::mem::offset_of!(Layer, seed_low)),
        ("seed_high", std::mem::offset_of!(Layer, seed_high)),
    ];
}

/// Enqueued: measures the squared errors at the bit widths `bits`, which is not empty, for every job. The results of
/// the jobs lie one after another. `results` must be zeros before the call.
pub(crate) fn measure(gpu: &mut Gpu, jobs: &[Job], scale: Scale, bits: &[u8], results: Part) -> Result<()> {
    let widths = bits.iter().fold(0, |mask, &bits| mask | 1u32 << (bits - 1));
    let params = Params::of_rows(scale, widths);
    let (mut rest, mut results) = (jobs, results);
    while !rest.is_empty() {
        let (group, others) = rest.split_at(RowTable::together(rest, Job::blocks));
        let table = RowTable::new(gpu, group, Job::blocks, Job::layer)?;
        let partials = gpu.scratch(Scratch::Partials, 8 * WIDTHS * table.blocks)?;
        gpu.launch(kernel("rows"), params, &[table.layers, table.layer_of, partials, results], table.blocks)?;
        let parts = [table.layers, partials, results.from(8)];
        gpu.launch(kernel("add_records"), params, &parts, table.count)?;
        (rest, results) = (others, results.from(RESULTS * table.count));
    }
    Ok(())
}

/// Returns the squared errors at the widths `bits`, from the words that [`measure`] wrote.
pub(crate) fn errors<'a>(bits: &'a [u8], words: &'a [u64]) -> impl Iterator<Item = f64> + 'a {
    bits.iter().map(|&bits| f64::from_bits(words[bits as usize]))
}
