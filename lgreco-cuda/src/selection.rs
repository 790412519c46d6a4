//! Makes TopK's payloads, for one layer or for all layers of an exchange, and the means of these payloads. This module
//! launches the kernels of `sample.cu`, `selection.cu`, `kept.cu`, `kept_means.cu` and `kept_errors.cu`.
//!
//! In the usual case, the kernels read all values once. Before that, a kernel draws a random sample of each layer: a
//! sixteenth of the values, at most 65,536. Each step of an exchange draws a new sample. From the sample, the kernel
//! estimates the bound: a magnitude that slightly more than k values reach. The probability that fewer than k values
//! reach the bound is below 1 in 10^8. A kernel gathers the values that reach the bound, in order, and counts their
//! magnitudes in 4096 bins. Most bins are narrow: they have 8192 magnitudes each, and together span four powers of two.
//! The next kernel counts the values in the bin of the k-th largest magnitude by exact magnitude. All later kernels
//! read the gathered values instead of the gradient. The memory for gathered values has room for k values, a 32nd of
//! the layer and a margin for the sampling error. For a layer of up to eight spans, this memory has room for all
//! values.
//!
//! If there is no room for the values of a span, these values are not gathered. Their sums of gradient and residual are
//! kept in the memory of the next residuals. Each of the next three launches reads these sums again, so the kernels
//! read such values four times in all. Layers of more than eight spans that keep more than 7 of 32 values have no
//! gathered values. Room also runs out if many values are equal, or if fewer than k values are nonzero. For other
//! layers, the probability that room runs out is below 1 in 10^8.
//!
//! The payloads do not depend on the sample. If the k-th largest magnitude is below the bound, or in a bin that is not
//! narrow, a single block finds the cut: the k-th largest magnitude. If the bound is too high, or gathered values do
//! not fit, this block alone reads all values three times. If only the bin is not narrow, this block reads the gathered
//! values. The bin can be too wide in layers so small that the sample has hardly any of the k largest values. For TopK
//! in few bits, one block may read the kept values once more. This happens if the bin of a code spans seven or more
//! powers of two, and has no values in the upper four.

use crate::Result;
use crate::device::Part;
use crate::gpu::{Gpu, Scratch, looping_pieces};
use crate::kernels::{Kernel, Module};
use crate::tensor::Tensor;
use crate::tops::{BINS, CUT, ENTRY, FEW, KEPT, Params, Parts, Place, Top, Tops};
use lgreco::compress::quantised_topk::Keep;
use lgreco::compress::wire::HEADER_LEN;
use lgreco::gradient::Dtype;

/// Number of blocks that draw a layer's sample.
const DRAWS: u64 = 64;
/// Number of QSGD spans that a block checks together.
const WARP: u64 = 32;
/// Bytes of `Program`.
pub(crate) const PROGRAM: u64 = 128;

const fn kernel(entry: &'static str) -> Kernel {
    Kernel { module: Module::Selection, entry }
}

/// Enqueued, in three launches: finds the cut of each layer, which is the k-th largest magnitude. `common` has the
/// first arguments of all kernels: the tables of layers and spans, the exchange's `Program`, the values, the residuals
/// and the cuts.
pub(crate) fn find_cuts(
    gpu: &mut Gpu,
    params: Params,
    common: [Part; 6],
    [bins, spans, entries, message]: [Part; 4],
) -> Result<()> {
    let sampling = looping_pieces(u64::from(params.layers) * DRAWS);
    gpu.launch_capturable(kernel("sample"), params, &[&common[..], &[bins]].concat(), sampling)?;
    let mut launch = |entry: &'static str, parts: &[Part]| {
        gpu.launch_capturable(kernel(entry), params, &[&common, parts].concat(), params.blocks())
    };
    launch("offer", &[bins, spans, entries])?;
    launch("refine", &[bins, spans, entries, message])
}

/// Enqueued, in five launches: writes the payloads of layers.
fn select(
    gpu: &mut Gpu,
    params: Params,
    common: [Part; 6],
    [bins, spans, entries, few, message]: [Part; 5],
) -> Result<()> {
    find_cuts(gpu, params, common, [bins, spans, entries, message])?;
    let mut launch = |entry: &'static str, parts: &[Part]| {
        gpu.launch_capturable(kernel(entry), params, &[&common, parts].concat(), params.blocks())
    };
    launch("count_kept", &[spans, entries, few, message])?;
    launch("write_kept", &[spans, entries, few, message])
}

/// Enqueued: measures the errors for each k of each layer and each number of bits. [`find_cuts`] must be enqueued
/// before this call.
pub(crate) fn measure_kept(gpu: &mut Gpu, params: Params, parts: [Part; 6]) -> Result<()> {
    gpu.launch(kernel("measure_kept"), params, &parts, params.blocks())
}

/// Enqueued: makes a payload of one layer by [`make`], and copies its body to `payload`.
pub(crate) fn encode(gpu: &mut Gpu, tensor: &Tensor, keep: Keep, payload: Part, status: Part) -> Result<()> {
    let made = make(gpu, tensor, keep, status)?;
    let (body, len) = (HEADER_LEN as u64, payload.bytes);
    gpu.copy(made.cut(body, len - body), payload.from(body))
}

/// Enqueued, in five launches: makes a payload of one layer in the workspace, without its header. The first word of
/// `status` becomes at least the largest magnitude, and the second word becomes the k-th largest magnitude. `keep` must
/// keep at least one element.
pub(crate) fn make(gpu: &mut Gpu, tensor: &Tensor, keep: Keep, status: Part) -> Result<Part> {
    let place = Place { layer: 0, first: 0, start: 0, payload: 0, header: [0; 2] };
    let layer = Top::new(place, keep, tensor.elements)?;
    let tables = [bytemuck::bytes_of(&layer), &[0; PROGRAM as usize]];
    let [table, program] = gpu.upload(Scratch::Layers, &tables.concat())?.split(tables.map(|part| part.len() as u64));
    // Some memory must be zero at the start of each call. The kernels restore these zeros for the next call.
    let sizes = [FEW, CUT, 4 * BINS];
    let [few, cut, bins] = gpu.zeros(Scratch::Selected, sizes.iter().sum())?.split(sizes);
    let spans = gpu.scratch(Scratch::Records, KEPT * u64::from(layer.spans))?;
    let entries = gpu.scratch(Scratch::Entries, ENTRY * u64::from(layer.room_size))?;
    // After the payload, the kernels write zeros up to a multiple of 16 bytes.
    let words = gpu.scratch(Scratch::Bits, layer.end.div_ceil(128) * 16)?;
    let params = Params { dtype: tensor.dtype as u32, layers: 1, spans: layer.spans, chunks: 0, remembers: 0 };
    // A single layer has no table of spans, so the table of layers fills that argument. A single layer has no residuals
    // either, so `status` takes the place of the residuals, and the kernels write the largest magnitude to `status`.
    let common = [table, table, program, tensor.part, status, cut];
    select(gpu, params, common, [bins, spans, entries, few, words])?;
    gpu.are_zeros_again(Scratch::Selected);
    Ok(words)
}

/// The kernel that checks the payloads of all exchanges, with or without layers under TopK.
pub(crate) const CHECK: Kernel = kernel("check_payloads");

/// The other kernels that an exchange launches from this module. The exchange loads these kernels before the first
/// step.
pub(crate) const KERNELS: [Kernel; 7] = [
    kernel("sample"),
    kernel("offer"),
    kernel("refine"),
    kernel("count_kept"),
    kernel("write_kept"),
    kernel("check_kept"),
    kernel("average_kept"),
];

impl Tops {
    /// Enqueued, in five launches: writes the payloads of all layers under TopK, and their next residuals. The last
    /// launch writes this rank's status for the other ranks.
    pub(crate) fn encode(&self, gpu: &mut Gpu, dtype: Dtype, of: (u32, Part), parts: [Part; 4]) -> Result<()> {
        self.write(gpu, Params::of_exchange(dtype, self.lens()), of, parts)
    }

    /// Like [`encode`](Tops::encode), but without residuals. In `parts`, a part of two words for the largest magnitudes
    /// replaces the residuals.
    pub(crate) fn write_down(&self, gpu: &mut Gpu, dtype: Dtype, memory: Part, parts: [Part; 4]) -> Result<()> {
        let params = Params { remembers: 0, ..Params::of_exchange(dtype, self.lens()) };
        self.write(gpu, params, (1, memory), parts)
    }

    fn write(
        &self,
        gpu: &mut Gpu,
        params: Params,
        (world, memory): (u32, Part),
        [program, gradients, residuals, message]: [Part; 4],
    ) -> Result<()> {
        let Parts { layers, top_of, cuts, bins, spans, entries, few, .. } = self.parts(world, memory);
        let common = [layers, top_of, program, gradients, residuals, cuts];
        select(gpu, params, common, [bins, spans, entries, few, message])
    }

    /// Enqueued: checks that encoders wrote all payloads of layers under TopK and QSGD. Under TopK, the kernels also
    /// find where the kept values of each window of 1024 positions begin. Under QSGD, the kernel checks `spans` spans;
    /// `of_layers` and `layer_of` are the tables of these spans. The check must run before any mean is written.
    pub(crate) fn check(
        &self,
        gpu: &mut Gpu,
        (world, memory): (u32, Part),
        (spans, [program, messages, of_layers, layer_of]): (u32, [Part; 4]),
    ) -> Result<()> {
        let Parts { layers, chunk_of, counts, before, done, starts, .. } = self.parts(world, memory);
        let chunks = u64::from(self.own[2]) * u64::from(world);
        let params = Params::of_exchange(Dtype::F32, self.own);
        let common = [layers, chunk_of, program, messages];
        let parts = [&common[..], &[counts, before, done, of_layers, layer_of]].concat();
        let pieces = chunks.max(u64::from(spans).div_ceil(WARP)).max(1);
        gpu.launch_capturable(CHECK, params, &parts, looping_pieces(pieces))?;
        if !self.has_own() {
            return Ok(());
        }
        let parts = [&common[..], &[before, starts]].concat();
        gpu.launch_capturable(kernel("check_kept"), params, &parts, looping_pieces(chunks))
    }

    /// Enqueued: makes the means of layers under TopK. The kernel also ends the step if this rank averages no layer
    /// under QSGD.
    pub(crate) fn average(
        &self,
        gpu: &mut Gpu,
        dtype: Dtype,
        (world, memory): (u32, Part),
        [program, messages, means]: [Part; 3],
    ) -> Result<()> {
        let Parts { layers, top_of, starts, .. } = self.parts(world, memory);
        let (params, parts) =
            (Params::of_exchange(dtype, self.own), [layers, top_of, program, messages, starts, means]);
        gpu.launch_capturable(kernel("average_kept"), params, &parts, params.blocks())
    }
}
