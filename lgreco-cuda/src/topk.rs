//! TopK's rows, and where the k largest end: what `bins.cu` and `topk.cu` are asked to do.
//!
//! TopK selects by three histograms, of 15, 9 and 8 bits, for all k of a row together and without asking the host in
//! between. Rows take one pass: blocks count by exponent and 7 bits of the significand in shared memory, with sums of
//! the lower bits, all of them integers. A bin that some k divides is known by count and mean; where that leaves a
//! row uncertain by more than 2^-14 of itself (ties, few values), a second pass divides such bins further, and
//! otherwise ends at once.

use crate::Error;
use crate::device::Part;
use crate::gpu::{Gpu, Scratch, looping_blocks};
use crate::kernels::{Kernel, Module};
use crate::tensor::Tensor;
use bytemuck::{Pod, Zeroable};
use lgreco_core::gradient::Dtype;

/// `Params` of `bins.cu`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    dtype: u32,
    count: u32,
    sent: u32,
    rounds: u32,
    energies: u32,
    keeps: u32,
    fine_bits: u32,
}

#[cfg(test)]
impl Params {
    pub(crate) const FIELDS: &[&'static str] = &["dtype", "count", "sent", "rounds", "energies", "keeps", "fine_bits"];
}

const EXPONENTS: u64 = 280;
const BINS: u64 = 128 * EXPONENTS;
/// Bytes of a `Cut`.
const CUT: u64 = 16;
/// Threads of a block that counts, values of a chunk, and chunks that a block takes at most.
const READERS: u32 = 1024;
const CHUNK: u64 = 32 * READERS as u64;
const TURNS: u64 = 32;
/// Blocks that count, unless each would take more than its chunks: enough to fill any device. Those for which nothing
/// is left end at once.
const READING: u64 = 512;
/// Warps of a block.
const WARPS: u64 = 8;
/// Bits by which bins are refined.
const ROW_BITS: u32 = 8;

const fn kernel(entry: &'static str) -> Kernel {
    Kernel { module: Module::TopK, entry }
}

/// The magnitude from which on values become infinite when sent as `dtype`.
pub(crate) fn overflow(dtype: Dtype) -> u32 {
    match dtype {
        Dtype::F32 => crate::magnitude::INFINITY,
        Dtype::F16 => 0x477f_f000,
        Dtype::Bf16 => 0x7f7f_8000,
    }
}

/// Memory that every kernel begins or ends with.
struct Tables {
    lows: Part,
    errors: Part,
    counts: Part,
    slots: Part,
    next: Part,
    wanted: Part,
    exponents: [Part; 3],
    fine_errors: Part,
    fine_counts: Part,
    keeps: Part,
    cuts: Part,
}

impl Tables {
    /// Enqueued: all that adds up begins as zeros.
    fn new(gpu: &mut Gpu, keeps: &[u32], fine_bits: u32) -> Result<Tables, Error> {
        let fine = (keeps.len() as u64) << fine_bits;
        let part = gpu.scratch(Scratch::Bins, 24 * BINS + 8 + 12 * fine)?;
        gpu.clear(part)?;
        let (lows, rest) = (part.cut(0, 8 * BINS), part.from(8 * BINS));
        let (errors, rest) = (rest.cut(0, 8 * BINS), rest.from(8 * BINS));
        let (fine_errors, rest) = (rest.cut(0, 8 * fine), rest.from(8 * fine));
        let (counts, rest) = (rest.cut(0, 4 * BINS), rest.from(4 * BINS));
        let (slots, rest) = (rest.cut(0, 4 * BINS), rest.from(4 * BINS));
        let (fine_counts, rest) = (rest.cut(0, 4 * fine), rest.from(4 * fine));
        let exponents = gpu.scratch(Scratch::Exponents, 20 * EXPONENTS)?;
        let of_exponents = |at: u64, size: u64| exponents.cut(at * EXPONENTS, size * EXPONENTS);
        Ok(Tables {
            lows,
            errors,
            counts,
            slots,
            next: rest.cut(0, 4),
            wanted: rest.cut(4, 4),
            exponents: [of_exponents(16, 4), of_exponents(0, 8), of_exponents(8, 8)],
            fine_errors,
            fine_counts,
            keeps: gpu.upload(Scratch::Keeps, bytemuck::cast_slice(keeps))?,
            cuts: gpu.scratch(Scratch::Cuts, CUT * keeps.len() as u64)?,
        })
    }
}

/// Enqueued: finds the bins in which the k largest end for all `keeps`, and what the values there are. The first word of
/// `largest` becomes at least the largest magnitude; `rows`, with `params.energies`, has a place for every row.
fn select(
    gpu: &mut Gpu,
    tensor: &Tensor,
    params: Params,
    keeps: &[u32],
    largest: Part,
    rows: Part,
) -> Result<Tables, Error> {
    let tables = Tables::new(gpu, keeps, params.fine_bits)?;
    let Tables { lows, errors, counts, slots, wanted, exponents, fine_errors, fine_counts, .. } = tables;
    let count = u64::from(tensor.elements);
    let chunks = count.div_ceil(CHUNK);
    let readers = chunks.min(READING.max(chunks.div_ceil(TURNS)));
    let parts = [tensor.part, tables.next, counts, lows, errors, largest];
    let entry = match (params.energies, params.rounds) {
        (0, _) => "count",
        (_, 0) => "count_exact",
        _ => "count_rounded",
    };
    gpu.launch_of(kernel(entry), params, &parts, readers, READERS)?;
    let [in_all, energies, rounding] = exponents;
    let parts = [counts, lows, errors, in_all, energies, rounding];
    gpu.launch(kernel("exponents"), params, &parts, EXPONENTS / WARPS)?;
    let parts = [tables.keeps, counts, lows, errors, in_all, energies, rounding, slots, wanted, tables.cuts, rows];
    gpu.launch(kernel("choose"), params, &parts, (keeps.len() as u64).div_ceil(WARPS))?;
    let parts = [tensor.part, wanted, slots, fine_counts, fine_errors];
    gpu.launch(kernel("refine"), params, &parts, looping_blocks(count.div_ceil(4)))?;
    Ok(tables)
}

/// Words of results that [`measure`] writes: the largest magnitude, then the rows' numbers.
pub(crate) const fn result_words(keeps: usize) -> usize {
    1 + keeps
}

/// Enqueued: the measurement of `keeps`, of which there are some, all from 1 to the number of elements.
pub(crate) fn measure(gpu: &mut Gpu, tensor: &Tensor, sent: Dtype, keeps: &[u32], results: Part) -> Result<(), Error> {
    let params = Params {
        dtype: tensor.dtype as u32,
        count: tensor.elements,
        sent: sent as u32,
        rounds: (sent != Dtype::F32 && tensor.dtype != sent) as u32,
        energies: 1,
        keeps: keeps.len() as u32,
        fine_bits: ROW_BITS,
    };
    let rows = results.from(8);
    let tables = select(gpu, tensor, params, keeps, results, rows)?;
    let Tables { wanted, slots, fine_errors, fine_counts, cuts, .. } = tables;
    let parts = [wanted, slots, fine_counts, fine_errors, cuts, rows];
    gpu.launch(kernel("refined_rows"), params, &parts, (keeps.len() as u64).div_ceil(WARPS))
}

/// The squared errors in the words that [`measure`] wrote.
pub(crate) fn errors(words: &[u64]) -> impl Iterator<Item = f64> + '_ {
    words[1..].iter().map(|&word| f64::from_bits(word))
}
