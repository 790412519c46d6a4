//! Layers under TopK in an exchange: what `exchange_topk.cu` and `exchange_topk_means.cu` are asked to do.
//!
//! A layer's k largest are found by counts of the upper 12, the next 10 and the last 9 bits of magnitudes. Only the first is
//! of all values; what may be among the k largest after it is gathered, in order, and the rest is done with that. For the
//! gathered there is room for k and a 32nd of the layer. What does not fit, where very many magnitudes share 12 bits (all
//! are equal, say), stays where the sums are and is read there again by each of the three launches that follow; so is the
//! whole of a layer that keeps a quarter or more, for which that costs less.

use crate::Error;
use crate::device::{BLOCK, Part};
use crate::gpu::{Gpu, looping_blocks};
use crate::kernels::{Kernel, Module};
use bytemuck::{Pod, Zeroable};
use lgreco_core::compress::topk::{Coding, TopK};
use lgreco_core::compress::wire::HEADER_LEN;
use lgreco_core::gradient::Dtype;

/// `Params` of `exchange_topk.cu`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    dtype: u32,
    layers: u32,
    spans: u32,
    chunks: u32,
    remembers: u32,
}

#[cfg(test)]
impl Params {
    pub(crate) const FIELDS: &[&'static str] = &["dtype", "layers", "spans", "chunks", "remembers"];
}

/// `Top` of `exchange_topk.cu`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Top {
    first: u64,
    payload: u64,
    header_low: u64,
    header_high: u64,
    low_at: u64,
    high_at: u64,
    end: u64,
    room: u64,
    room_size: u32,
    layer: u32,
    count: u32,
    keep: u32,
    sent: u32,
    placement: u32,
    low_bits: u32,
    first_span: u32,
    spans: u32,
    first_chunk: u32,
    chunks: u32,
    unused: u32,
}

#[cfg(test)]
impl Top {
    pub(crate) const FIELDS: &[(&'static str, usize)] = &[
        ("first", std::mem::offset_of!(Top, first)),
        ("payload", std::mem::offset_of!(Top, payload)),
        ("header_low", std::mem::offset_of!(Top, header_low)),
        ("header_high", std::mem::offset_of!(Top, header_high)),
        ("low_at", std::mem::offset_of!(Top, low_at)),
        ("high_at", std::mem::offset_of!(Top, high_at)),
        ("end", std::mem::offset_of!(Top, end)),
        ("room", std::mem::offset_of!(Top, room)),
        ("room_size", std::mem::offset_of!(Top, room_size)),
        ("layer", std::mem::offset_of!(Top, layer)),
        ("count", std::mem::offset_of!(Top, count)),
        ("keep", std::mem::offset_of!(Top, keep)),
        ("sent", std::mem::offset_of!(Top, sent)),
        ("placement", std::mem::offset_of!(Top, placement)),
        ("low_bits", std::mem::offset_of!(Top, low_bits)),
        ("first_span", std::mem::offset_of!(Top, first_span)),
        ("spans", std::mem::offset_of!(Top, spans)),
        ("first_chunk", std::mem::offset_of!(Top, first_chunk)),
        ("chunks", std::mem::offset_of!(Top, chunks)),
        ("unused", std::mem::offset_of!(Top, unused)),
    ];
}

/// Where a layer's values and its payload begin, and its header.
pub(super) struct Place {
    pub(super) layer: u32,
    pub(super) first: u64,
    pub(super) payload: u64,
    pub(super) header: [u64; 2],
}

/// As in the sources: values of a span, bytes of ones in a chunk, bins of a layer.
const SPAN: u64 = 4096;
const CHUNK: u64 = 4 * BLOCK as u64;
const BINS: u64 = 1 << 12;
/// Bytes of `Cut`, of `Kept` and of an entry.
const CUT: u64 = 16;
const KEPT: u64 = 24;
const ENTRY: u64 = 8;
/// Parts begin at multiples of it.
const ALIGN: u64 = 16;

const fn kernel(entry: &'static str) -> Kernel {
    Kernel { module: Module::ExchangeTopK, entry }
}

/// The entry points, which are loaded before there is work.
pub(super) const KERNELS: [Kernel; 8] = [
    kernel("offer"),
    kernel("gather"),
    kernel("refine"),
    kernel("count_kept"),
    kernel("write_kept"),
    kernel("count_ones"),
    kernel("check_kept"),
    kernel("average_kept"),
];

/// All layers under TopK.
#[derive(Clone, Debug, Default)]
pub(super) struct Tops {
    layers: Vec<Top>,
    /// Of each span, and of each chunk.
    top_of: Vec<u32>,
    chunk_of: Vec<u32>,
    /// Entries that there is room for.
    room: u64,
}

/// Where everything lies.
struct Parts {
    layers: Part,
    top_of: Part,
    chunk_of: Part,
    cuts: Part,
    bins: Part,
    spans: Part,
    entries: Part,
    counts: Part,
    before: Part,
    done: Part,
    starts: Part,
}

impl Tops {
    pub(super) fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// Adds a layer of `count` values.
    pub(super) fn push(&mut self, place: Place, top: TopK, count: u32) -> Result<(), Error> {
        let too_many = |_| Error::from(lgreco_core::Error::TooManyElements { rows: count as usize, cols: 1 });
        let layout = top.layout(count)?;
        let values = u64::from(top.keep) * top.values.bytes() as u64;
        let low = HEADER_LEN as u64 + values;
        let chunks = match layout.coding {
            Coding::All => u64::from(count).div_ceil(SPAN),
            _ => layout.high_bytes.div_ceil(CHUNK),
        };
        let (number, wanted) = (self.layers.len() as u32, u64::from(top.keep) + u64::from(count) / 32);
        let room = if wanted <= u64::from(count) / 4 { wanted } else { 0 };
        let layer = Top {
            first: place.first,
            payload: place.payload,
            header_low: place.header[0],
            header_high: place.header[1],
            low_at: 8 * low,
            high_at: 8 * (low + layout.low_bytes),
            end: 8 * (low + layout.bytes()),
            room: self.room,
            room_size: room as u32,
            layer: place.layer,
            count,
            keep: top.keep,
            sent: top.values as u32,
            placement: layout.coding as u32,
            low_bits: layout.low_bits,
            first_span: u32::try_from(self.top_of.len()).map_err(too_many)?,
            spans: u64::from(count).div_ceil(SPAN).max(1) as u32,
            first_chunk: u32::try_from(self.chunk_of.len()).map_err(too_many)?,
            chunks: chunks.max(1) as u32,
            unused: 0,
        };
        self.top_of.extend(std::iter::repeat_n(number, layer.spans as usize));
        self.chunk_of.extend(std::iter::repeat_n(number, layer.chunks as usize));
        self.room += room;
        self.layers.push(layer);
        Ok(())
    }

    /// Bytes of each part, in order.
    fn sizes(&self, world: u32) -> [u64; 11] {
        let [layers, spans, chunks] = [self.layers.len(), self.top_of.len(), self.chunk_of.len()].map(|len| len as u64);
        let world = u64::from(world);
        [
            size_of_val(&*self.layers) as u64,
            4 * spans,
            4 * chunks,
            CUT * layers,
            4 * BINS * layers,
            KEPT * spans,
            ENTRY * self.room,
            4 * chunks * world,
            4 * chunks * world,
            4 * layers * world,
            4 * (spans + layers) * world,
        ]
    }

    /// Bytes of memory that all of it takes.
    pub(super) fn bytes(&self, world: u32) -> u64 {
        self.sizes(world).into_iter().map(|bytes| bytes.next_multiple_of(ALIGN)).sum()
    }

    fn parts(&self, world: u32, memory: Part) -> Parts {
        let mut rest = memory;
        let [layers, top_of, chunk_of, cuts, bins, spans, entries, counts, before, done, starts] =
            self.sizes(world).map(|bytes| {
                let part = rest.cut(0, bytes);
                rest = rest.from(bytes.next_multiple_of(ALIGN));
                part
            });
        Parts { layers, top_of, chunk_of, cuts, bins, spans, entries, counts, before, done, starts }
    }

    /// Enqueued: brings the tables to `memory`; counts begin as zeros.
    pub(super) fn begin(&self, gpu: &mut Gpu, world: u32, memory: Part) -> Result<(), Error> {
        let parts = self.parts(world, memory);
        gpu.write(bytemuck::cast_slice(&self.layers), parts.layers)?;
        gpu.write(bytemuck::cast_slice(&self.top_of), parts.top_of)?;
        gpu.write(bytemuck::cast_slice(&self.chunk_of), parts.chunk_of)?;
        [parts.cuts, parts.bins, parts.done].into_iter().try_for_each(|part| gpu.clear(part))
    }

    fn params(&self, dtype: Dtype) -> Params {
        let [layers, spans, chunks] = [self.layers.len(), self.top_of.len(), self.chunk_of.len()].map(|len| len as u32);
        Params { dtype: dtype as u32, layers, spans, chunks, remembers: 1 }
    }

    /// Enqueued, in five launches: all payloads, and what is to be remembered; then what the other ranks are told of this one.
    pub(super) fn encode(
        &self,
        gpu: &mut Gpu,
        dtype: Dtype,
        (world, memory): (u32, Part),
        [program, gradients, residuals, message]: [Part; 4],
    ) -> Result<(), Error> {
        let Parts { layers, top_of, cuts, bins, spans, entries, .. } = self.parts(world, memory);
        let (params, blocks) = (self.params(dtype), looping_blocks(self.top_of.len() as u64 * u64::from(BLOCK)));
        let mut launch = |entry: &'static str, parts: &[Part]| {
            let common = [layers, top_of, program, gradients, residuals, cuts];
            gpu.launch_capturable(kernel(entry), params, &[&common, parts].concat(), blocks)
        };
        launch("offer", &[bins])?;
        launch("gather", &[bins, spans, entries])?;
        launch("refine", &[bins, spans, entries, message])?;
        launch("count_kept", &[spans, entries])?;
        launch("write_kept", &[spans, entries, message])
    }

    /// Enqueued: whether encoders wrote all payloads, and where in them each span begins. Comes before any mean is written.
    pub(super) fn check(
        &self,
        gpu: &mut Gpu,
        (world, memory): (u32, Part),
        [program, messages]: [Part; 2],
    ) -> Result<(), Error> {
        let Parts { layers, chunk_of, counts, before, done, starts, .. } = self.parts(world, memory);
        let chunks = self.chunk_of.len() as u64 * u64::from(world);
        let (params, blocks) = (self.params(Dtype::F32), looping_blocks(chunks * u64::from(BLOCK)));
        let common = [layers, chunk_of, program, messages];
        let parts = [&common[..], &[counts, before, done]].concat();
        gpu.launch_capturable(kernel("count_ones"), params, &parts, blocks)?;
        gpu.launch_capturable(kernel("check_kept"), params, &[&common[..], &[before, starts]].concat(), blocks)
    }

    /// Enqueued: the means, and the step's end.
    pub(super) fn average(
        &self,
        gpu: &mut Gpu,
        dtype: Dtype,
        (world, memory): (u32, Part),
        [program, messages, means]: [Part; 3],
    ) -> Result<(), Error> {
        let Parts { layers, top_of, starts, .. } = self.parts(world, memory);
        let blocks = looping_blocks(self.top_of.len() as u64 * u64::from(BLOCK));
        let parts = [layers, top_of, program, messages, starts, means];
        gpu.launch_capturable(kernel("average_kept"), self.params(dtype), &parts, blocks)
    }
}
