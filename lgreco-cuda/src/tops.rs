//! Tables of layers under TopK, which `tops.cu` reads, and the layout of the memory that TopK's kernels use.

use crate::device::{BLOCK, Part};
use crate::gpu::{Blocks, Gpu, looping_pieces};
use crate::{Error, Result};
use bytemuck::{Pod, Zeroable};
use lgreco::compress::quantised_topk::Keep;
use lgreco::compress::topk::Coding;
use lgreco::compress::wire::HEADER_LEN;
use lgreco::gradient::Dtype;

/// The struct `Params` in `tops.cu`, with the same layout.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    pub(crate) dtype: u32,
    pub(crate) layers: u32,
    pub(crate) spans: u32,
    pub(crate) chunks: u32,
    pub(crate) remembers: u32,
}

#[cfg(test)]
impl Params {
    pub(crate) const FIELDS: &[&'static str] = &["dtype", "layers", "spans", "chunks", "remembers"];
}

impl Params {
    /// Parameters for an exchange with these numbers of layers, spans and chunks.
    pub(crate) fn of_exchange(dtype: Dtype, [layers, spans, chunks]: [u32; 3]) -> Params {
        Params { dtype: dtype as u32, layers, spans, chunks, remembers: 1 }
    }

    /// Parameters for rows. For rows, the table of layers has one entry per measured k. The measured values are f32.
    pub(crate) fn of_rows([layers, spans]: [u32; 2]) -> Params {
        Params { dtype: Dtype::F32 as u32, layers, spans, chunks: 0, remembers: 0 }
    }

    /// Number of blocks. Each block processes several spans, one after another.
    pub(crate) fn blocks(&self) -> Blocks {
        looping_pieces(self.spans.into())
    }
}

/// The struct `Top` in `tops.cu`, with the same layout.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Top {
    first: u64,
    payload: u64,
    header_low: u64,
    header_high: u64,
    bits_at: u64,
    low_at: u64,
    high_at: u64,
    pub(crate) end: u64,
    room: u64,
    pub(crate) room_size: u32,
    layer: u32,
    count: u32,
    keep: u32,
    sent: u32,
    placement: u32,
    low_bits: u32,
    pub(crate) first_span: u32,
    pub(crate) spans: u32,
    first_chunk: u32,
    chunks: u32,
    bits: u32,
    few: u32,
    start: u32,
}

#[cfg(test)]
impl Top {
    pub(crate) const FIELDS: &[(&'static str, usize)] = &[
        ("first", std::mem::offset_of!(Top, first)),
        ("payload", std::mem::offset_of!(Top, payload)),
        ("header_low", std::mem::offset_of!(Top, header_low)),
        ("header_high", std::mem::offset_of!(Top, header_high)),
        ("bits_at", std::mem::offset_of!(Top, bits_at)),
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
        ("bits", std::mem::offset_of!(Top, bits)),
        ("few", std::mem::offset_of!(Top, few)),
        ("start", std::mem::offset_of!(Top, start)),
    ];
}

/// Position of a layer or of a shard: the index of the first value, the offset of the payload in bytes, and the
/// payload's header. `start` is the offset of the shard in its layer, in values.
pub(crate) struct Place {
    pub(crate) layer: u32,
    pub(crate) first: u64,
    pub(crate) start: u32,
    pub(crate) payload: u64,
    pub(crate) header: [u64; 2],
}

impl Top {
    /// Returns a table entry for the measurement of `count` values, which begin at index `first`. Measurement gathers
    /// no values. `errors` is the index of the row's first error.
    pub(crate) fn of_row(keep: u32, bits: u32, (first, count): (u64, u32), errors: u64) -> Top {
        let spans = u64::from(count).div_ceil(SPAN) as u32;
        Top { keep, bits, first, count, spans, payload: errors, ..Top::zeroed() }
    }

    /// Number of spans.
    pub(crate) fn spans(&self) -> usize {
        self.spans as usize
    }

    /// Returns the table entry for a layer of `count` values, as if this layer were the first.
    pub(crate) fn new(place: Place, keep: Keep, count: u32) -> Result<Top> {
        let Keep { top, bits } = keep;
        let layout = top.layout(count)?;
        let header = HEADER_LEN as u64;
        let [means, values] = keep.bytes();
        let low = header + means + values;
        let chunks = match layout.coding {
            Coding::All => u64::from(count).div_ceil(SPAN),
            _ => layout.high_bytes.div_ceil(CHUNK),
        };
        Ok(Top {
            first: place.first,
            payload: place.payload,
            header_low: place.header[0],
            header_high: place.header[1],
            bits_at: 8 * if bits == 0 { low } else { header + means },
            low_at: 8 * low,
            high_at: 8 * (low + layout.low_bytes),
            end: 8 * (low + layout.bytes()),
            room_size: room_of(top.keep, count),
            layer: place.layer,
            start: place.start,
            count,
            keep: top.keep,
            sent: top.values as u32,
            placement: layout.coding as u32,
            low_bits: layout.low_bits,
            spans: u64::from(count).div_ceil(SPAN).max(1) as u32,
            chunks: chunks.max(1) as u32,
            bits: bits.into(),
            ..Top::zeroed()
        })
    }
}

/// Number of values per span, the unit of work of a block. The kernels use the same number.
const SPAN: u64 = 4096;
/// Number of windows per span. The kernels use the same number.
const WINDOWS: u64 = 4;
/// Number of bytes of the bitmap per chunk. The kernels use the same number.
const CHUNK: u64 = 4 * BLOCK as u64;
/// Number of bins per layer. The kernels use the same number.
pub(crate) const BINS: u64 = 1 << 13;
/// Size of `Cut` in bytes.
pub(crate) const CUT: u64 = 44;
/// Size of a span in `Spans` in bytes.
pub(crate) const KEPT: u64 = 20;
/// Size of an entry in bytes. An entry is a gathered value.
pub(crate) const ENTRY: u64 = 8;
/// Size of `Few` in bytes.
pub(crate) const FEW: u64 = 20 * 128;
/// Alignment of the parts, in bytes.
const ALIGN: u64 = 16;

/// Returns the number of entries (gathered values) for which a layer gets memory. A layer of up to eight spans of 4096
/// values gets memory for all of its values. A larger layer gets memory for k values, a 32nd of the layer, and a
/// margin. The margin is nine standard deviations of the sampling error. The error exists because the sample contains a
/// random number of the k largest values. If k plus the 32nd exceeds a quarter of the layer, the layer gets no memory.
/// The entries of 8 bytes would otherwise take more than 2 bytes per element.
fn room_of(keep: u32, count: u32) -> u32 {
    let wanted = u64::from(keep) + u64::from(count) / 32;
    if u64::from(count) <= 8 * SPAN {
        count
    } else if wanted <= u64::from(count) / 4 {
        wanted as u32 + 36 * keep.isqrt() + 160
    } else {
        0
    }
}

/// All layers under TopK.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tops {
    layers: Vec<Top>,
    /// Number of the layer to which each span belongs.
    top_of: Vec<u32>,
    /// Number of the layer to which each chunk belongs.
    chunk_of: Vec<u32>,
    /// Number of entries for which all layers have memory.
    room: u64,
    /// Number of layers that send codes in few bits.
    few: u32,
    /// Numbers of layers, of spans and of chunks that this rank averages. In the tables, the layers that this rank
    /// averages come first.
    pub(crate) own: [u32; 3],
}

/// The parts of the memory that TopK's kernels use.
pub(crate) struct Parts {
    pub(crate) layers: Part,
    pub(crate) top_of: Part,
    pub(crate) chunk_of: Part,
    pub(crate) cuts: Part,
    pub(crate) bins: Part,
    pub(crate) spans: Part,
    pub(crate) entries: Part,
    pub(crate) few: Part,
    pub(crate) counts: Part,
    pub(crate) before: Part,
    pub(crate) done: Part,
    pub(crate) starts: Part,
}

impl Tops {
    pub(crate) fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// Whether this rank averages any layer.
    pub(crate) fn has_own(&self) -> bool {
        self.own[0] > 0
    }

    /// Marks the end of the layers that this rank averages.
    pub(crate) fn end_own(&mut self) {
        self.own = self.lens();
    }

    /// Returns the numbers of layers, of spans and of chunks.
    pub(crate) fn lens(&self) -> [u32; 3] {
        [self.layers.len(), self.top_of.len(), self.chunk_of.len()].map(|len| len as u32)
    }

    /// Adds a layer of `count` values.
    pub(crate) fn push(&mut self, place: Place, keep: Keep, count: u32) -> Result<()> {
        let too_many = |_| Error::from(lgreco::Error::TooManyElements { rows: count as usize, cols: 1 });
        let number = self.layers.len() as u32;
        let layer = Top {
            room: self.room,
            first_span: u32::try_from(self.top_of.len()).map_err(too_many)?,
            first_chunk: u32::try_from(self.chunk_of.len()).map_err(too_many)?,
            few: self.few,
            ..Top::new(place, keep, count)?
        };
        self.top_of.extend(std::iter::repeat_n(number, layer.spans as usize));
        self.chunk_of.extend(std::iter::repeat_n(number, layer.chunks as usize));
        self.room += u64::from(layer.room_size);
        self.few += u32::from(layer.bits != 0);
        self.layers.push(layer);
        Ok(())
    }

    /// Returns the offset at which the last layer's payload ends in a message, including the zeros up to a multiple of
    /// 16.
    pub(crate) fn end(&self) -> u64 {
        self.layers.last().map_or(0, |layer| layer.payload + layer.end.div_ceil(128) * 16)
    }

    /// Bytes of each part, in order.
    fn sizes(&self, world: u32) -> [u64; 12] {
        let [layers, spans, chunks] = [self.layers.len(), self.top_of.len(), self.chunk_of.len()].map(|len| len as u64);
        let [own_layers, own_spans, own_chunks] = self.own.map(u64::from);
        let world = u64::from(world);
        [
            size_of_val(&*self.layers) as u64,
            4 * spans,
            4 * chunks,
            CUT * layers,
            4 * BINS * layers,
            KEPT * spans,
            ENTRY * self.room,
            FEW * u64::from(self.few),
            4 * own_chunks * world,
            4 * own_chunks * world,
            4 * own_layers * world,
            4 * (WINDOWS * own_spans + own_layers) * world,
        ]
    }

    /// Bytes of all parts.
    pub(crate) fn bytes(&self, world: u32) -> u64 {
        self.sizes(world).into_iter().map(|bytes| bytes.next_multiple_of(ALIGN)).sum()
    }

    pub(crate) fn parts(&self, world: u32, memory: Part) -> Parts {
        let mut rest = memory;
        let [layers, top_of, chunk_of, cuts, bins, spans, entries, few, counts, before, done, starts] =
            self.sizes(world).map(|bytes| {
                let part = rest.cut(0, bytes);
                rest = rest.from(bytes.next_multiple_of(ALIGN));
                part
            });
        Parts { layers, top_of, chunk_of, cuts, bins, spans, entries, few, counts, before, done, starts }
    }

    /// Enqueued: uploads the tables to `memory`, and sets the counts to zeros.
    pub(crate) fn begin(&self, gpu: &mut Gpu, world: u32, memory: Part) -> Result<()> {
        let parts = self.parts(world, memory);
        gpu.write(bytemuck::cast_slice(&self.layers), parts.layers)?;
        gpu.write(bytemuck::cast_slice(&self.top_of), parts.top_of)?;
        gpu.write(bytemuck::cast_slice(&self.chunk_of), parts.chunk_of)?;
        [parts.cuts, parts.bins, parts.few, parts.done].into_iter().try_for_each(|part| gpu.clear(part))
    }
}
