//! QSGD: launches of `buckets.cu` and `qsgd.cu`.
//!
//! Buckets are powers of two from 64 to 4096 values. With other bucket sizes, the core compresses host gradients, and
//! the backend refuses device gradients. A kernel reads a gradient once, with one exception: under max norm, an
//! error-table row for both 1 bit and larger widths takes two reads. Codes of 1 bit have no sign, so codes of 1 bit
//! need a different grid. A CUDA block holds 4096 values in shared memory and finds the grids of their buckets. Then
//! the block computes the errors of a row when measuring, or the codes when encoding. The sum of the expected squared
//! errors of n values has a closed form: n/4 − Σ (f − 1/2)². Its unit is the squared distance between two levels, and f
//! is the position of a value between its two levels, from 0 to 1. Rounding changes this sum by up to 2^-24 units per
//! value.
//!
//! In the usual case, a warp holds a bucket in registers. The usual case is buckets of 512 under max norm, with a sign
//! and random rounding.
//!
//! Layers with the same candidates share a launch, up to a limit on the number of blocks. Each block processes values
//! of a single layer.

use crate::device::Part;
use crate::gpu::{Gpu, Scratch, blocks, looping_blocks, summing_blocks};
use crate::kernels::{Kernel, Module};
use crate::row_table::RowTable;
use crate::tensor::Tensor;
use crate::{Error, Result};
use bytemuck::{Pod, Zeroable};
use lgreco::compress::qsgd::{Qsgd, Rounding, Scale};
use lgreco::compress::wire::HEADER_LEN;
use lgreco::gradient::Dtype;
use lgreco::rng::Stream;

/// The struct `Params` in `buckets.cu`, with the same layout.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    dtype: u32,
    count: u32,
    bucket: u32,
    buckets: u32,
    sign_magnitude: u32,
    min_max: u32,
    nearest: u32,
    widths: u32,
    bits: u32,
    log_levels: u32,
    step: u32,
    layer: u32,
    rank: u32,
    seed_low: u32,
    seed_high: u32,
}

impl Params {
    /// Parameters that all layers of an exchange share; kernels fill in the rest.
    pub(crate) fn of_exchange(dtype: Dtype, seed: u64) -> Self {
        Params { dtype: dtype as u32, seed_low: seed as u32, seed_high: (seed >> 32) as u32, ..Params::default() }
    }
}

#[cfg(test)]
impl Params {
    pub(crate) const FIELDS: &[&'static str] = &[
        "dtype",
        "count",
        "bucket",
        "buckets",
        "sign_magnitude",
        "min_max",
        "nearest",
        "widths",
        "bits",
        "log_levels",
        "step",
        "layer",
        "rank",
        "seed_low",
        "seed_high",
    ];
}

/// Number of values per block that measures. Blocks take more values if the limit on the number of blocks requires it.
const PER_READER: u64 = 4 * SPAN;
/// Number of values per thread of an encoder.
const PER_ENCODER: u64 = 16;
/// Number of values per thread of a decoder.
const PER_DECODER: u64 = 4;
/// Number of values in a span. A CUDA block holds one span at a time.
const SPAN: u64 = 4096;
/// The bucket size that a warp holds in registers.
const TILE: u32 = 512;
/// Number of bit widths for which a record has error sums.
const WIDTHS: u32 = 8;

const fn kernel(entry: &'static str) -> Kernel {
    Kernel { module: Module::Qsgd, entry }
}

/// The error for gradients in device memory with buckets that no kernel supports.
pub(crate) const OTHER_BUCKETS: Error = Error::Method("QSGD with buckets that are no power of two from 64 to 4096");

/// Whether kernels support buckets of this size.
pub(crate) fn holds(bucket: u32) -> bool {
    bucket.is_power_of_two() && (64..=4096).contains(&bucket)
}

/// Whether the setting is the usual case, for which `qsgd.cu` has special kernels.
fn is_usual(qsgd: Qsgd) -> bool {
    qsgd.bucket == TILE && qsgd.sign_magnitude() && qsgd.rounding == Rounding::Stochastic
}

fn params(tensor: &Tensor, qsgd: Qsgd) -> Params {
    Params {
        dtype: tensor.dtype as u32,
        count: tensor.elements,
        bucket: qsgd.bucket,
        buckets: tensor.elements.div_ceil(qsgd.bucket),
        sign_magnitude: qsgd.sign_magnitude() as u32,
        min_max: (qsgd.scale == Scale::MinMax) as u32,
        nearest: (qsgd.rounding == Rounding::Nearest) as u32,
        bits: qsgd.bits as u32,
        log_levels: qsgd.log_levels(),
        ..Params::default()
    }
}

/// Number of result words of [`measure`]: one word for the largest magnitude if it is not finite, and two records of
/// error sums. The first record is for bit widths whose codes have a sign, the second for bit widths whose codes have
/// none.
pub(crate) const RESULT_WORDS: usize = 1 + 2 * WIDTHS as usize;

const RESULTS: u64 = 8 * RESULT_WORDS as u64;

/// Number of blocks that read the values. Each block writes one record of sums.
fn reading_blocks(tensor: &Tensor) -> u64 {
    summing_blocks(u64::from(tensor.elements).div_ceil(PER_READER))
}

/// Bit widths that are measured together: either all widths whose codes have a sign, or all widths whose codes have
/// none.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    /// The setting, with one of the bit widths.
    qsgd: Qsgd,
    widths: u32,
    /// Offset in bytes of the record of error sums in the results.
    record: u64,
}

impl Kind {
    fn params(self, tensor: &Tensor) -> Params {
        Params { widths: self.widths, ..params(tensor, self.qsgd) }
    }

    /// Selects one of two kernels. The kernel `closed` uses the closed form for random rounding under max norm, where
    /// every grid contains zero. The kernel `residuals` is for all other settings.
    fn kernel(self, closed: &'static str, residuals: &'static str) -> Kernel {
        let holds = self.qsgd.rounding == Rounding::Stochastic && self.qsgd.scale == Scale::MaxNorm;
        kernel(if holds { closed } else { residuals })
    }
}

/// The struct `Layer` in `qsgd.cu`, with the same layout.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Layer {
    values: u64,
    dtype: u32,
    count: u32,
    first_block: u32,
    blocks: u32,
}

#[cfg(test)]
impl Layer {
    pub(crate) const FIELDS: &[(&'static str, usize)] = &[
        ("values", std::mem::offset_of!(Layer, values)),
        ("dtype", std::mem::offset_of!(Layer, dtype)),
        ("count", std::mem::offset_of!(Layer, count)),
        ("first_block", std::mem::offset_of!(Layer, first_block)),
        ("blocks", std::mem::offset_of!(Layer, blocks)),
    ];
}

/// A tensor's entry in the table.
fn layer(tensor: &Tensor, first_block: u32, blocks: u32) -> Layer {
    let &Tensor { part, dtype, elements } = tensor;
    Layer { values: part.address, dtype: dtype as u32, count: elements, first_block, blocks }
}

/// Enqueued: writes the records of one [`Kind`] for every tensor. The results of the tensors lie one after another. If
/// the largest magnitude of a tensor is not finite, the kernel writes at least this magnitude to the first word of the
/// tensor's results. At the end of a layer, the kernel for the usual case rounds sums differently from the general
/// kernel.
fn measure_kind(gpu: &mut Gpu, tensors: &[Tensor], kind: Kind, results: Part) -> Result<()> {
    let (mut rest, mut results) = (tensors, results);
    let rows =
        if is_usual(kind.qsgd) { kernel("usual_row") } else { kind.kernel("fused_row", "fused_row_of_residuals") };
    while let Some(first) = rest.first() {
        let (group, others) = rest.split_at(RowTable::together(rest, reading_blocks));
        let (table, params) = (RowTable::new(gpu, group, reading_blocks, layer)?, kind.params(first));
        let partials = gpu.scratch(Scratch::Partials, 8 * u64::from(WIDTHS) * table.blocks)?;
        gpu.launch(rows, params, &[table.layers, table.layer_of, partials, results], table.blocks)?;
        let parts = [table.layers, partials, results.from(kind.record)];
        gpu.launch(kernel("add_records"), params, &parts, table.count)?;
        (rest, results) = (others, results.from(RESULTS * table.count));
    }
    Ok(())
}

/// Enqueued: measures every tensor at the widths `bits`, which is not empty. The results of the tensors lie one after
/// another.
pub(crate) fn measure(gpu: &mut Gpu, tensors: &[Tensor], base: Qsgd, bits: &[u8], results: Part) -> Result<()> {
    for (with_sign, record) in [(true, 8), (false, 8 + 8 * u64::from(WIDTHS))] {
        let of_kind = |&&bits: &&u8| Qsgd { bits, ..base }.sign_magnitude() == with_sign;
        let Some(&first) = bits.iter().find(of_kind) else { continue };
        let widths = bits.iter().filter(of_kind).fold(0, |mask, &bits| mask | 1u32 << (bits - 1));
        measure_kind(gpu, tensors, Kind { qsgd: Qsgd { bits: first, ..base }, widths, record }, results)?;
    }
    Ok(())
}

/// Returns the squared errors at the widths `bits`, from the words that [`measure`] wrote.
pub(crate) fn errors<'a>(base: Qsgd, bits: &'a [u8], words: &'a [u64]) -> impl Iterator<Item = f64> + 'a {
    bits.iter().map(move |&bits| {
        let record = if (Qsgd { bits, ..base }).sign_magnitude() { 0 } else { WIDTHS as usize };
        f64::from_bits(words[record + bits as usize])
    })
}

/// Offset in bytes of the codes in a payload.
fn codes_at(qsgd: Qsgd, elements: u32) -> u64 {
    (HEADER_LEN + elements.div_ceil(qsgd.bucket) as usize * qsgd.scale_bytes()) as u64
}

/// Enqueued: writes all of `payload` except the header. If the largest magnitude is not finite, the kernel writes at
/// least this magnitude to the first word of `result`.
pub(crate) fn encode(
    gpu: &mut Gpu,
    tensor: &Tensor,
    qsgd: Qsgd,
    stream: Stream,
    payload: Part,
    result: Part,
) -> Result<()> {
    if !holds(qsgd.bucket) {
        return Err(OTHER_BUCKETS);
    }
    let params = Params {
        step: stream.step,
        layer: stream.layer,
        rank: stream.rank,
        seed_low: stream.seed as u32,
        seed_high: (stream.seed >> 32) as u32,
        ..params(tensor, qsgd)
    };
    let scales = payload.from(HEADER_LEN as u64);
    let codes = payload.from(codes_at(qsgd, tensor.elements));
    let entry = if is_usual(qsgd) { "usual_encode" } else { "fused_encode" };
    let blocks = looping_blocks(u64::from(params.count).div_ceil(PER_ENCODER));
    gpu.launch(kernel(entry), params, &[tensor.part, scales, codes, result], blocks)
}

/// Enqueued: decodes a payload into `target`. The core must have checked the payload.
pub(crate) fn decode(gpu: &mut Gpu, qsgd: Qsgd, payload: Part, target: &Tensor) -> Result<()> {
    let parts = [payload.from(HEADER_LEN as u64), payload.from(codes_at(qsgd, target.elements)), target.part];
    let blocks = blocks(u64::from(target.elements).div_ceil(PER_DECODER));
    gpu.launch(kernel("decode"), params(target, qsgd), &parts, blocks)
}
