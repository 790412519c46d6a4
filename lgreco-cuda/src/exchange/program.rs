//! The description of an exchange: its layers, their settings, and the layout of its memory. The device gets this
//! description once.

use super::layer::{Layer, PROGRAM, Program};
use super::rotated;
use super::summed::{self, Places, Summed, slip_values};
use crate::device::Part;
use crate::powersgd;
use crate::qsgd::Params;
use crate::tops::{Place, Tops};
use crate::{Error, Result};
use bytemuck::Zeroable;
use lgreco::compress::powersgd::effective_rank;
use lgreco::compress::{Compressor, Setting};
use lgreco::gradient::{Dtype, Shape};
use lgreco::rng::Stream;

/// Number of values in a span, the unit of work of a CUDA block. `SPAN` in `buckets.cu` has the same value.
const SPAN: usize = 4096;
/// Length of a message's header in bytes. Payloads begin at multiples of this length.
const MESSAGE_HEADER: u64 = 16;

/// Value of the means after a rank has failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFault {
    /// Zeros: the step changes parameters only by momentum and weight decay.
    #[default]
    Zeros,
    /// NaN, which no optimiser mistakes for a gradient.
    Nan,
}

/// Options of all layers of an exchange.
///
/// ```
/// use lgreco_cuda::ExchangeConfig;
/// let config = ExchangeConfig { world: 8, ..ExchangeConfig::default() };
/// assert_eq!(config.gain, 1.0);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ExchangeConfig {
    /// The type of gradients and means.
    pub dtype: Dtype,
    /// The type of summed values, f32 or bf16. The ranks sum uncompressed layers and PowerSGD's factors. The residual
    /// keeps the rounding errors of this rank's uncompressed values and of its factor `Q`.
    pub reduce_dtype: Dtype,
    /// Number of ranks, at least 1.
    pub world: u32,
    /// Selects the random words of the first layer in the first step. Each further layer increases the stream's layer
    /// number by 1, and each further step increases its step number by 1. All ranks have the same seed and step.
    pub stream: Stream,
    /// The fraction of the compression error that becomes the residual, in (0, 1].
    pub gain: f32,
    /// Value of the means after a rank has failed.
    pub on_fault: OnFault,
}

impl Default for ExchangeConfig {
    fn default() -> Self {
        ExchangeConfig {
            dtype: Dtype::F32,
            reduce_dtype: Dtype::F32,
            world: 1,
            stream: Stream::default(),
            gain: 1.0,
            on_fault: OnFault::default(),
        }
    }
}

/// A layer, or one rank's shard of a layer. Each piece is compressed separately, and is sent to the rank that owns the
/// shard or to all ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// Index of the piece's layer in the bucket.
    pub(super) layer: u32,
    /// The layer number that selects the piece's random words.
    pub(super) id: u32,
    /// The rank that selects the piece's random words.
    pub(super) rank: u32,
    /// Index of the piece's first value among the values of all layers.
    pub(super) first: u64,
    /// Index of the piece's first value in the layer.
    pub(super) start: u32,
    pub(super) shape: Shape,
    pub(super) setting: Setting,
}

/// Describes the exchange of a bucket: its layers, their settings, and the layout of its memory, which the caller
/// provides.
///
/// ```
/// use lgreco::{compress::{Setting, qsgd::Qsgd}, gradient::Shape};
/// use lgreco_cuda::{ExchangeConfig, ExchangeProgram};
/// let layers = [(Shape::new(512, 512)?, Setting::Qsgd(Qsgd::default())), (Shape::new(512, 1)?, Setting::Dense)];
/// let program = ExchangeProgram::new(&layers, ExchangeConfig::default())?;
/// assert_eq!(program.residual_bytes(), 2 * 4 * (512 * 512 + 512)); // both halves in f32
/// assert_eq!(program.message_bytes() % 16, 0);
/// # Ok::<(), lgreco_cuda::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ExchangeProgram {
    pub(super) head: Program,
    pub(super) layers: Vec<Layer>,
    /// The layer of each span of 4096 values under QSGD.
    pub(super) layer_of: Vec<u32>,
    /// The layer of each span of 4096 values under EDEN.
    pub(super) rotated_of: Vec<u32>,
    pub(super) tops: Tops,
    pub(super) params: Params,
    pub(super) summed: Summed,
    pub(super) sums_params: summed::Params,
    pub(super) rotated_params: rotated::Params,
    pub(super) dtype: Dtype,
    pub(super) reduce_dtype: Dtype,
    /// Bytes of the message for each owner.
    #[cfg(feature = "train")]
    pub(super) messages: Vec<u64>,
    /// Offset of each owner's message in bytes, relative to the message for this rank itself.
    pub(super) heads: Vec<u64>,
    /// For each owner, the index in the buffer of the first sum at which the status records begin, after the owner's
    /// summed values.
    pub(super) slips: Vec<u64>,
}

impl ExchangeProgram {
    /// Describes the exchange of `layers`. The gradients of the layers follow one another without gaps, as in a DDP
    /// bucket.
    ///
    /// # Errors
    /// * [`Error::Method`] for methods other than QSGD, EDEN, TopK with full values or in few bits, PowerSGD and
    ///   [`Setting::Dense`]. [`Error::Method`] also for QSGD unless bucket sizes are powers of two from 64 to 4096, and
    ///   for PowerSGD beyond the limits of [`takes`](crate::CudaBackend::takes) for ranks and sides.
    /// * [`Parameter`](lgreco::Error::Parameter) unless the gain is in (0, 1], the rank is below the number of ranks,
    ///   and `reduce_dtype` is f32 or bf16.
    /// * [`TooManyElements`](lgreco::Error::TooManyElements) if a layer has 2^32 elements or more, or all layers
    ///   together about 2^44.
    /// * Errors of [`payload_len`](Compressor::payload_len).
    pub fn new(layers: &[(Shape, Setting)], config: ExchangeConfig) -> Result<Self> {
        let ids = (0..).map(|number| config.stream.layer.wrapping_add(number));
        Self::of_layers(ids.zip(layers).map(|(id, &(shape, setting))| (id, shape, setting)), config)
    }

    /// Like [`new`](Self::new), but the caller passes the number that selects each layer's random words.
    pub(super) fn of_layers(
        layers: impl Iterator<Item = (u32, Shape, Setting)>,
        config: ExchangeConfig,
    ) -> Result<Self> {
        let (rank, mut elements) = (config.stream.rank, 0);
        let piece = |(layer, (id, shape, setting)): (u32, (u32, Shape, Setting))| {
            let first = elements;
            elements += shape.elements() as u64;
            Piece { layer, id, rank, first, start: 0, shape, setting }
        };
        let pieces: Vec<Piece> = (0..).zip(layers).map(piece).collect();
        Self::of_pieces(&[pieces], elements, config)
    }

    /// Like [`new`](Self::new), but the caller passes pieces, listed by owner. With shards, `owners` has one list per
    /// rank, with the pieces of that rank's shards. If every rank averages all pieces, `owners` has a single list.
    /// `elements` is the number of elements of all layers.
    pub(super) fn of_pieces(owners: &[Vec<Piece>], elements: u64, config: ExchangeConfig) -> Result<Self> {
        let parameter = |what, value, expected| lgreco::Error::Parameter { what, value, expected };
        if !(config.gain > 0.0 && config.gain <= 1.0) {
            return Err(parameter("residual gain", config.gain.into(), "in (0, 1]").into());
        }
        if config.world == 0 {
            return Err(parameter("ranks", 0.0, "at least 1").into());
        }
        if config.stream.rank >= config.world {
            return Err(parameter("rank", config.stream.rank.into(), "below the number of ranks").into());
        }
        if config.reduce_dtype == Dtype::F16 {
            let code = config.reduce_dtype as u8;
            return Err(parameter("code of the reduce dtype", code.into(), "f32 (0) or bf16 (2)").into());
        }
        let (mut table, mut layer_of, mut rotated_of, mut tops) = (Vec::new(), Vec::new(), Vec::new(), Tops::default());
        let mut summed = Summed::default();
        // This rank's own pieces come first.
        let own = if owners.len() > 1 { config.stream.rank as usize } else { 0 };
        let (mut payload, mut own_spans, mut own_rotated) = (0, 0, 0);
        let (mut heads, mut messages, mut slips) =
            (vec![0; owners.len()], vec![0; owners.len()], vec![0; owners.len()]);
        let starts = starts(owners, slip_values(config.reduce_dtype) * u64::from(config.world));
        for owner in std::iter::once(own).chain((0..owners.len()).filter(|&owner| owner != own)) {
            heads[owner] = payload;
            payload += MESSAGE_HEADER;
            summed.begin(starts[owner]);
            for &Piece { layer: number, id, rank, first, start, shape, setting } in &owners[owner] {
                let (rows, cols) = (shape.rows(), shape.cols());
                let too_many = |_| Error::from(lgreco::Error::TooManyElements { rows, cols });
                let spans_of = if matches!(setting, Setting::Eden(_)) { &mut rotated_of } else { &mut layer_of };
                let place = Layer {
                    first,
                    payload,
                    first_span: u32::try_from(spans_of.len()).map_err(too_many)?,
                    count: u32::try_from(shape.elements()).map_err(too_many)?,
                    id,
                    rank,
                    number,
                    start,
                    ..Layer::zeroed()
                };
                let len = setting.payload_len(shape, config.dtype)? as u64;
                let layer = Layer::new(place, &setting, shape)?;
                let header = [layer.header_low, layer.header_high];
                let top = Place { layer: number, first, start, payload, header };
                let gathered = len.next_multiple_of(MESSAGE_HEADER);
                payload += match setting {
                    Setting::Dense => {
                        summed.add_dense(layer.count, (first, start), number);
                        0
                    }
                    Setting::PowerSgd(power) => {
                        powersgd::check(shape, power.rank)?;
                        let columns = effective_rank(shape, power.rank) as u32;
                        summed.add_matrix(shape, columns, first, (number, id))?;
                        0
                    }
                    Setting::TopK(keep) => {
                        tops.push(top, keep.into(), layer.count)?;
                        gathered
                    }
                    Setting::QuantisedTopK(keep) => {
                        tops.push(top, keep.into(), layer.count)?;
                        gathered
                    }
                    _ => {
                        // A layer without elements still has a header.
                        let spans = shape.elements().div_ceil(SPAN).max(1);
                        spans_of.extend(std::iter::repeat_n(table.len() as u32, spans));
                        gathered
                    }
                };
                table.push(layer);
            }
            messages[owner] = payload - heads[owner];
            slips[owner] = summed.end();
            if owner == own {
                (own_spans, own_rotated) = (layer_of.len() as u32, rotated_of.len() as u32);
                tops.end_own();
            }
        }
        let Stream { seed, step, rank, .. } = config.stream;
        let nan = f32::NAN.to_bits();
        let [_, factors] = summed.lens();
        let head = Program {
            elements,
            apart: messages[own],
            sums: slips[own],
            factors,
            step,
            spans: layer_of.len() as u32,
            own_spans,
            rotated: rotated_of.len() as u32,
            own_rotated,
            world: config.world,
            rank,
            fingerprint: fingerprint(owners, config),
            judged: config.world,
            faulty_rank: config.world,
            gain: config.gain,
            keep: 1.0 - config.gain,
            fill: if config.on_fault == OnFault::Nan { nan } else { 0 },
            sharded: u32::from(owners.len() > 1),
            ..Program::zeroed()
        };
        let params = Params::of_exchange(config.dtype, seed);
        let ends = layer_of.is_empty() && rotated_of.is_empty() && tops.is_empty() && summed.lens()[0] > 0;
        let ExchangeConfig { dtype, reduce_dtype, .. } = config;
        let sums_params = summed.params([dtype, reduce_dtype], seed, ends)?;
        Ok(ExchangeProgram {
            head,
            layers: table,
            layer_of,
            rotated_of,
            tops,
            params,
            summed,
            sums_params,
            rotated_params: rotated::Params::new(dtype, seed),
            dtype,
            reduce_dtype,
            #[cfg(feature = "train")]
            messages,
            heads,
            slips,
        })
    }

    /// Bytes of the device memory of the exchange. This memory begins at a multiple of 16. Its parts are:
    /// * For each layer under TopK: 32 KiB for counts, or 34.5 KiB in few bits.
    /// * For values that TopK gathers from a layer of up to 32,768 elements: 8 bytes per element. A larger layer takes
    ///   8 bytes per kept element, 0.25 bytes per element, 288 bytes times the square root of the number of kept
    ///   elements, and 1,280 bytes. A larger layer that keeps more than 7 of 32 elements takes no bytes for gathered
    ///   values.
    /// * For each span of 4096 elements: 24 bytes, and 16 bytes per rank. For each chunk of 1 KiB of positions: 4
    ///   bytes, and 8 bytes per rank.
    /// * For each layer under PowerSGD: its factors, two copies of the remembered factors, and its products.
    pub fn memory_bytes(&self) -> u64 {
        self.summed_at() + self.summed.bytes()
    }

    /// Bytes of the memory before TopK's part.
    pub(super) fn table_bytes(&self) -> u64 {
        let places = size_of_val(&*self.heads) + size_of_val(&*self.slips);
        let spans = size_of_val(&*self.layer_of) + size_of_val(&*self.rotated_of);
        let tables = places + size_of_val(&*self.layers) + spans;
        (PROGRAM + tables as u64).next_multiple_of(MESSAGE_HEADER)
    }

    /// Bytes of the memory for residuals: two copies in f32. This memory begins at a multiple of 16.
    pub fn residual_bytes(&self) -> u64 {
        2 * 4 * self.head.elements
    }

    /// Bytes of a rank's message, a multiple of 16; 0 if all layers are uncompressed or under PowerSGD.
    pub fn message_bytes(&self) -> usize {
        if self.is_gathered() { self.head.apart as usize } else { 0 }
    }

    /// Bytes of all messages in a rank's memory. Without shards, these are one message from each rank. With shards,
    /// these are the messages to this rank and this rank's messages to the other ranks.
    #[cfg(feature = "train")]
    pub(super) fn messages_bytes(&self) -> u64 {
        let Program { apart, world, .. } = self.head;
        let sent = self.messages.iter().sum::<u64>() - apart;
        if self.is_gathered() { apart * u64::from(world) + sent } else { 0 }
    }

    /// For each owner, the number of values of its part of the first sum, including status records. An owner is a rank
    /// that averages one of the parts. Without shards, the buffer has a single part, which every rank averages.
    #[cfg(feature = "train")]
    pub(super) fn sum_lens(&self) -> Vec<u64> {
        let ends: Vec<u64> = self.slips.iter().map(|&values| self.with_slips(values) as u64).collect();
        std::iter::once(0).chain(ends.iter().copied()).zip(&ends).map(|(start, end)| end - start).collect()
    }

    /// This rank's number.
    #[cfg(feature = "train")]
    pub(super) fn rank(&self) -> u32 {
        self.head.rank
    }

    /// Whether ranks exchange messages. If so, the averaging of messages ends the step. Otherwise the averaging of sums
    /// ends the step.
    pub(super) fn is_gathered(&self) -> bool {
        self.sums_params.ends == 0
    }

    /// Returns the parts of the exchange's memory that summed layers use.
    pub(super) fn places(&self, memory: Part) -> Places {
        self.summed.places(memory.from(self.summed_at()))
    }

    /// Bytes of the exchange's memory before the part of summed layers.
    fn summed_at(&self) -> u64 {
        self.table_bytes() + self.tops.bytes(self.head.world)
    }

    /// Bytes of the values of all layers.
    pub(super) fn value_bytes(&self) -> u64 {
        self.head.elements * self.dtype.bytes() as u64
    }
}

/// Returns the index at which each owner's summed values begin. Each owner's status records follow the owner's values.
fn starts(owners: &[Vec<Piece>], slips: u64) -> Vec<u64> {
    let mut next = 0;
    let start = |pieces: &Vec<Piece>| {
        let dense = pieces.iter().filter(|piece| piece.setting == Setting::Dense);
        let start = next;
        next += dense.map(|piece| piece.shape.elements() as u64).sum::<u64>() + slips;
        start
    };
    owners.iter().map(start).collect()
}

/// FNV-1a hash of the options, layers and settings that must be equal on all ranks.
fn fingerprint(owners: &[Vec<Piece>], config: ExchangeConfig) -> u32 {
    let common = [config.dtype as u8, config.reduce_dtype as u8, (config.on_fault == OnFault::Nan) as u8];
    let mut bytes = [&common[..], &config.stream.seed.to_le_bytes()].concat();
    for pieces in owners {
        bytes.extend((pieces.len() as u64).to_le_bytes());
        for Piece { id, start, shape, setting, .. } in pieces {
            let numbers = [u64::from(*id), u64::from(*start), shape.rows() as u64, shape.cols() as u64];
            bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
            bytes.extend(setting.to_string().bytes());
        }
    }
    bytes.iter().fold(0x811c_9dc5, |hash: u32, &byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}
