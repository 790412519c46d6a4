//! TopK's payloads, of all layers of an exchange or of one, and their means: what `selection.cu`, `few_bits.cu`, `kept.cu` and
//! `kept_means.cu` are asked to do.
//!
//! All values are read once. Before that a sample of a layer (a sixteenth at random, up to 65,536 values, others in each
//! step of an exchange) tells a magnitude that at least k values reach but for a chance of less than one in 10^8, and few others: the bound.
//! What reaches it is gathered, in order, and counted in 4096 bins, of which the narrow ones, of 8192 magnitudes each, span four
//! powers of two. What is in the k-th largest's bin is counted by magnitude. The rest is done with what was gathered. For that
//! there is room for k, a 32nd of the layer and what a small sample cannot tell from the k-th largest, or for all of eight spans.
//!
//! What does not fit its room stays where the sums are. Each of the three launches that follow reads it there again, so such values
//! are read four times in all. These are layers of more than eight spans that keep more than 7 of 32 values, layers where many
//! values are the same or fewer than k are not zeros, and others only by that small chance.
//!
//! Whatever the sample, the bits are the same. Where the k-th largest is not where the sample has it, or its bin is not a narrow one,
//! one block finds the cut: in the first case, or where not everything was gathered, among all values, which it reads three
//! times, with no help from other multiprocessors; else among what was gathered, as of layers so small that hardly any of the k largest
//! are in the sample. In few bits one block also reads what is kept once
//! more where a bin spans seven powers of two or more and no value is in the upper four of them.

use crate::Result;
use crate::device::Part;
use crate::gpu::{Gpu, Scratch, looping_pieces};
use crate::kernels::{Kernel, Module};
use crate::tensor::Tensor;
use crate::tops::{BINS, CUT, ENTRY, FEW, KEPT, Params, Parts, Place, Top, Tops};
use lgreco::compress::quantised_topk::Keep;
use lgreco::compress::wire::HEADER_LEN;
use lgreco::gradient::Dtype;

/// Blocks that draw a layer's sample.
const DRAWS: u64 = 64;
/// Spans under QSGD that a block looks at together.
const WARP: u64 = 32;
/// Bytes of `Program`.
pub(crate) const PROGRAM: u64 = 128;

const fn kernel(entry: &'static str) -> Kernel {
    Kernel { module: Module::Selection, entry }
}

/// Enqueued, in three launches: where the k largest of layers end, of which kernels take first the tables, the program, values, residuals
/// and cuts.
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

/// Enqueued, in five launches: the payloads of layers.
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

/// Enqueued: the errors of each k of each layer by width, whose cuts are known.
pub(crate) fn measure_kept(gpu: &mut Gpu, params: Params, parts: [Part; 6]) -> Result<()> {
    gpu.launch(kernel("measure_kept"), params, &parts, params.blocks())
}

/// Enqueued: the body of a payload of one layer, which [`make`] makes.
pub(crate) fn encode(gpu: &mut Gpu, tensor: &Tensor, keep: Keep, payload: Part, status: Part) -> Result<()> {
    let made = make(gpu, tensor, keep, status)?;
    let (body, len) = (HEADER_LEN as u64, payload.bytes);
    gpu.copy(made.cut(body, len - body), payload.from(body))
}

/// Enqueued, in five launches: a payload of one layer without its header, in the workspace. The first
/// word of `status` becomes at least the largest magnitude, the second the k-th largest. From 1 to all of the elements are kept.
pub(crate) fn make(gpu: &mut Gpu, tensor: &Tensor, keep: Keep, status: Part) -> Result<Part> {
    let place = Place { layer: 0, first: 0, start: 0, payload: 0, header: [0; 2] };
    let layer = Top::new(place, keep, tensor.elements)?;
    let tables = [bytemuck::bytes_of(&layer), &[0; PROGRAM as usize]];
    let [table, program] = gpu.upload(Scratch::Layers, &tables.concat())?.split(tables.map(|part| part.len() as u64));
    // Kernels leave zeros of all that has to begin so, as between the steps of an exchange.
    let sizes = [FEW, CUT, 4 * BINS];
    let [few, cut, bins] = gpu.zeros(Scratch::Selected, sizes.iter().sum())?.split(sizes);
    let spans = gpu.scratch(Scratch::Records, KEPT * u64::from(layer.spans))?;
    let entries = gpu.scratch(Scratch::Entries, ENTRY * u64::from(layer.room_size))?;
    // Zeros come up to a multiple of 16 bytes.
    let words = gpu.scratch(Scratch::Bits, layer.end.div_ceil(128) * 16)?;
    let params = Params { dtype: tensor.dtype as u32, layers: 1, spans: layer.spans, chunks: 0, remembers: 0 };
    // Neither is there a table of spans, nor are there residuals.
    let common = [table, table, program, tensor.part, status, cut];
    select(gpu, params, common, [bins, spans, entries, few, words])?;
    gpu.are_zeros_again(Scratch::Selected);
    Ok(words)
}

/// What looks at the payloads of all exchanges, whether they have layers under TopK or not.
pub(crate) const CHECK: Kernel = kernel("check_payloads");

/// The other entry points, which are loaded before there is work.
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
    /// Enqueued, in five launches: all payloads, and what is to be remembered; then what the other ranks are told of this one.
    pub(crate) fn encode(&self, gpu: &mut Gpu, dtype: Dtype, of: (u32, Part), parts: [Part; 4]) -> Result<()> {
        self.write(gpu, Params::of_exchange(dtype, self.lens()), of, parts)
    }

    /// The same where nothing is remembered: where residuals would be are two words for what is known of magnitudes.
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

    /// Enqueued: whether encoders wrote all payloads, also those of `spans` spans under QSGD, whose tables come last, and where in
    /// TopK's each window begins. Comes before any mean is written.
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

    /// Enqueued: the means, and the step's end where there is nothing under QSGD.
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
