//! Measures TopK's rows, with the kernels of `bins.cu` and `topk.cu`.
//!
//! A row takes one pass over the values, for any number of values of k. In shared memory, blocks count values in bins
//! (exponent and 7 bits of the significand), and add up the lower bits of the values in each bin. All sums are
//! integers. If the k-th largest value lies within a bin, the first pass knows only the bin's count and mean. The error
//! for this k may then be uncertain by more than 2^-14 of its value. Examples are layers with many equal values, and
//! layers with few values. If an error is this uncertain, a second pass divides such bins further. In all other cases,
//! the second pass ends immediately.
//!
//! Layers share three launches while their bins take at most 128 MiB in all. The bins of a layer take 0.6 MB, and 1 KiB
//! for each k. If values are rounded before they are sent, the bins take 0.9 MB, and 3 KiB for each k. Sums are
//! integers, and a single block makes each row. So the bits of a row do not depend on the number of layers. The backend
//! fills the bins with zeros once. After that, kernels clear only the bins that they have used, because a small layer,
//! such as a bias, has far more bins than values.

use crate::Result;
use crate::device::Part;
use crate::gpu::{Gpu, Scratch, looping_pieces};
use crate::kernels::{Kernel, Module};
use crate::tensor::Tensor;
use bytemuck::{Pod, Zeroable};
use lgreco::gradient::Dtype;

/// The struct `Params` in `bins.cu`, with the same layout.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    sent: u32,
    rounds: u32,
    chunks: u32,
}

#[cfg(test)]
impl Params {
    pub(crate) const FIELDS: &[&'static str] = &["sent", "rounds", "chunks"];
}

/// The struct `Row` in `bins.cu`, with the same layout.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Row {
    values: u64,
    results: u64,
    dtype: u32,
    count: u32,
    first_chunk: u32,
    chunks: u32,
    first_keep: u32,
    keeps: u32,
}

#[cfg(test)]
impl Row {
    pub(crate) const FIELDS: &[(&'static str, usize)] = &[
        ("values", std::mem::offset_of!(Row, values)),
        ("results", std::mem::offset_of!(Row, results)),
        ("dtype", std::mem::offset_of!(Row, dtype)),
        ("count", std::mem::offset_of!(Row, count)),
        ("first_chunk", std::mem::offset_of!(Row, first_chunk)),
        ("chunks", std::mem::offset_of!(Row, chunks)),
        ("first_keep", std::mem::offset_of!(Row, first_keep)),
        ("keeps", std::mem::offset_of!(Row, keeps)),
    ];
}

/// Number of elements per layer in each array of `Bins` in `bins.cu`: first one element per bin, and then one element
/// per exponent.
const PLACES: u64 = (128 + 1) * 280;
/// Number of parts into which a refined bin is divided.
const PARTS: u64 = 256;
/// Size of a `Cut`, in bytes.
const CUT: u64 = 16;
/// Number of threads in a block.
const READERS: u32 = 1024;
/// Number of values in a chunk.
const CHUNK: u64 = 32 * READERS as u64;
/// Largest number of blocks in a launch: enough to fill any device.
const MOST: u64 = 512;
/// Largest total size, in bytes, of the bins of layers that share launches.
const TOGETHER: u64 = 128 << 20;

const fn kernel(entry: &'static str) -> Kernel {
    Kernel { module: Module::TopK, entry }
}

/// Whether values of the type `values` are rounded when they are sent in the type `sent`.
pub(crate) fn rounds(values: Dtype, sent: Dtype) -> bool {
    sent != Dtype::F32 && values != sent
}

/// Number of result words of [`measure`] for a layer: one word for the largest magnitude, and then one word per k.
pub(crate) const fn result_words(keeps: usize) -> usize {
    1 + keeps
}

/// Sizes, in bytes, of the parts of a memory that is zero before and after each call. Sums have 8 bytes, and all other
/// numbers have 4 bytes. Kernels load some parts 16 bytes at a time; these parts come first.
struct Zeros {
    lows: u64,
    errors: u64,
    counts: u64,
    fine_errors: u64,
    slots: u64,
    fine_counts: u64,
    wanted: u64,
    done: u64,
}

impl Zeros {
    fn new(layers: u64, keeps: u64, rounds: bool) -> Zeros {
        let rounded = u64::from(rounds);
        Zeros {
            lows: 8 * PLACES * layers,
            errors: 8 * PLACES * layers * rounded,
            counts: 4 * PLACES * layers,
            fine_errors: 8 * PARTS * keeps * rounded,
            slots: 4 * PLACES * layers,
            fine_counts: 4 * PARTS * keeps,
            wanted: 4 * layers,
            done: 4 * layers,
        }
    }

    fn sizes(&self) -> [u64; 8] {
        let Zeros { lows, errors, counts, fine_errors, slots, fine_counts, wanted, done } = *self;
        [lows, errors, counts, fine_errors, slots, fine_counts, wanted, done]
    }

    fn bytes(&self) -> u64 {
        self.sizes().iter().sum()
    }
}

/// A layer to measure.
pub(crate) struct Layer<'a> {
    pub(crate) tensor: Tensor,
    /// The values of k: at least one, each from 1 to the number of elements.
    pub(crate) keeps: &'a [u32],
    /// Number of words of the layer's results, which begin with the words of [`measure`].
    pub(crate) words: usize,
}

/// Enqueued: measures all layers. The results of the layers lie one after another. Sending must [round](rounds) the
/// values of all tensors or of none.
pub(crate) fn measure(gpu: &mut Gpu, layers: &[Layer<'_>], sent: Dtype, results: Part) -> Result<()> {
    let (mut rest, mut results) = (layers, results);
    while let Some(Layer { tensor, .. }) = rest.first() {
        let rounds = rounds(tensor.dtype, sent);
        let (group, others) = rest.split_at(together(rest, rounds));
        measure_group(gpu, group, (sent, rounds), results)?;
        let words: usize = group.iter().map(|layer| layer.words).sum();
        (rest, results) = (others, results.from(8 * words as u64));
    }
    Ok(())
}

/// Returns how many of the first layers share launches.
fn together(layers: &[Layer<'_>], rounds: bool) -> usize {
    let mut all_keeps = 0;
    let fits = |&(index, layer): &(usize, &Layer<'_>)| {
        all_keeps += layer.keeps.len() as u64;
        index == 0 || Zeros::new(index as u64 + 1, all_keeps, rounds).bytes() <= TOGETHER
    };
    layers.iter().enumerate().take_while(fits).count()
}

fn measure_group(gpu: &mut Gpu, layers: &[Layer<'_>], (sent, rounds): (Dtype, bool), results: Part) -> Result<()> {
    let (mut rows, mut row_of, mut keeps, mut words) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for (&Layer { tensor, keeps: own, words: own_words }, number) in layers.iter().zip(0u32..) {
        let chunks = u64::from(tensor.elements).div_ceil(CHUNK) as u32;
        rows.push(Row {
            values: tensor.part.address,
            results: words,
            dtype: tensor.dtype as u32,
            count: tensor.elements,
            first_chunk: row_of.len() as u32,
            chunks,
            first_keep: keeps.len() as u32,
            keeps: own.len() as u32,
        });
        row_of.extend(std::iter::repeat_n(number, chunks as usize));
        keeps.extend_from_slice(own);
        words += own_words as u64;
    }
    let tables: [&[u8]; 3] = [bytemuck::cast_slice(&rows), bytemuck::cast_slice(&row_of), bytemuck::cast_slice(&keeps)];
    let [rows, row_of, all_keeps] =
        gpu.upload(Scratch::Layers, &tables.concat())?.split(tables.map(|t| t.len() as u64));
    let (layers, chunks) = (layers.len() as u64, tables[1].len() as u64 / 4);
    let zeros = Zeros::new(layers, keeps.len() as u64, rounds);
    let part = gpu.zeros(Scratch::RowBins, zeros.bytes())?;
    let [lows, errors, counts, fine_errors, slots, fine_counts, wanted, done] = part.split(zeros.sizes());
    let cuts = gpu.scratch(Scratch::Cuts, CUT * keeps.len() as u64)?;
    let params = Params { sent: sent as u32, rounds: rounds.into(), chunks: chunks as u32 };
    let blocks = looping_pieces(chunks.min(MOST));
    let count = kernel(if rounds { "count_rounded" } else { "count_exact" });
    gpu.launch_of(count, params, &[rows, row_of, counts, lows, errors, results], blocks, READERS)?;
    let parts = [rows, all_keeps, counts, lows, errors, slots, wanted, cuts, results];
    gpu.launch(kernel("choose"), params, &parts, layers)?;
    let parts = [rows, row_of, slots, wanted, done, fine_counts, fine_errors, cuts, results];
    gpu.launch_of(kernel("refine"), params, &parts, blocks, READERS)?;
    gpu.are_zeros_again(Scratch::RowBins);
    Ok(())
}

/// Reads the squared errors from the words that [`measure`] wrote for a layer.
pub(crate) fn errors(words: &[u64]) -> impl Iterator<Item = f64> + '_ {
    words[1..].iter().map(|&word| f64::from_bits(word))
}
