//! The instructions of an exchange, in order: ops on this rank's memory, and collectives.
//!
//! The list is the same for all kinds of memory and all buckets. A bucket skips instructions for parts that it lacks. A
//! [`Space`](super::Space) executes the ops. [`Program`] describes the exchange of one bucket.

use super::division::{Division, Piece};
use super::layout::{Layout, is_in_place};
use super::moment::Agreement;
use super::moment::{Moment, Route};
use super::request::Round;
use super::slip::{GREETING, Slip};
use super::spec::Spec;
use crate::Error;
use crate::checksum::Hash;
use crate::compress::Setting;
use crate::gradient::Dtype;

/// The values or bytes of one collective. Parts are in the order of their collectives. Buckets have only the parts that their
/// settings need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// Status records, which show whether all ranks have the same layers and settings, and the lengths of messages; an all-gather.
    Greetings,
    /// Positions of the leader's largest values (CLT-k); a broadcast.
    Positions,
    /// Dense values, PowerSGD's `P` and values at the leader's positions; an all-reduce.
    Sums,
    /// PowerSGD's `Q`; an all-reduce.
    Factors,
    /// Payloads for all ranks; an all-gather.
    Payloads,
    /// Payloads of pieces for their owners; an all-to-all.
    Pieces,
    /// The means of all pieces, compressed again by their owners; an all-gather.
    Means,
    /// The values of one large dense layer that is summed in place; an all-reduce.
    Dense {
        /// The layer's index in the bucket.
        place: u32,
    },
    /// Dense values, summed for the ranks whose shards contain them; a reduce-scatter.
    Shards,
    /// Payloads of shards for their ranks; an all-to-all.
    ShardPayloads,
}

impl Part {
    /// All parts in order. The parts of single dense layers come last, and are not in this list.
    const ALL: [Part; 9] = [
        Part::Greetings,
        Part::Positions,
        Part::Sums,
        Part::Factors,
        Part::Payloads,
        Part::Pieces,
        Part::Means,
        Part::Shards,
        Part::ShardPayloads,
    ];
}

/// An operation of a [`Space`](super::Space), on all layers of the bucket with settings that need it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op {
    /// CLT-k: the leader writes the positions of its largest values. The other ranks check that their values are finite.
    Lead,
    /// Dense: writes the values as f32 to the sums, rounded if they are summed as bf16. The values of layers that are summed in
    /// place are multiplied by a power of two, so that sums of finite values stay finite.
    Widen,
    /// PowerSGD: writes `P = M Q` to the sums. `Q` comes from the last step, with random columns in place of columns of zeros.
    Project,
    /// Encodes payloads for all ranks into this rank's message.
    Encode,
    /// Encodes each piece of a layer into the message for the rank that averages the piece. A rank does not encode its own pieces.
    EncodePieces,
    /// CLT-k: writes this rank's values at the leader's positions to the sums.
    Pick,
    /// PowerSGD: orthonormalises the summed `P`, writes `Q = Mᵀ P̂` to the factors, and subtracts this worker's contribution.
    BackProject,
    /// PowerSGD: averages `Q`.
    AverageFactors,
    /// PowerSGD: writes the mean, `P̂ Qᵀ`; with shards, only this rank's shard of it.
    Reconstruct,
    /// Dense: writes the mean.
    Average,
    /// CLT-k: writes the mean; with shards, only this rank's shard of it.
    Place,
    /// Adds decoded payloads in the order of ranks, and writes the mean. Whole layers are decoded, also with shards, so that an
    /// invalid payload or an overflow is an error on all ranks.
    SumPayloads,
    /// Adds the pieces that this rank owns, and compresses their mean.
    AveragePieces,
    /// Decodes the means of all pieces.
    DecodeMeans,
    /// Dense: writes the values as f32 to the buffer of the reduce-scatter.
    WidenShards,
    /// Dense: writes the mean of this rank's shard.
    AverageShards,
    /// Encodes payloads of shards into the messages for their owners. Each rank's message to itself comes last.
    EncodeShards,
    /// Adds the decoded payloads of this rank's shard in the order of ranks, and writes its mean.
    SumShards,
    /// PowerSGD: keeps this step's `Q` as the start of the next step.
    Remember,
    /// Writes this rank's status record into a part: at the head of each message, or as numbers after the values to be
    /// summed. Also rounds these values if they are summed as bf16. In [`Part::Greetings`], the length of this rank's
    /// message follows.
    PutSlip {
        /// The part.
        part: Part,
        /// The status record.
        slip: Slip,
    },
    /// Reads the status records of all ranks. `Err` if a rank has failed, or if ranks differ: [`judge`](super::judge).
    Judge {
        /// The part.
        part: Part,
        /// This rank's error.
        own: Option<Error>,
    },
}

impl Op {
    /// Whether the op replaces values by means.
    pub(super) fn is_mean(&self) -> bool {
        use Op::*;
        matches!(self, Reconstruct | Average | Place | SumPayloads | DecodeMeans | AverageShards | SumShards)
    }
}

/// An instruction of an exchange.
#[derive(Clone, Copy, Debug)]
pub(super) enum Instruction {
    /// An op on this rank's own values, whose error the next message reports.
    Own(Op),
    /// An op on data that is the same on all ranks, so that it fails on all ranks or on none.
    All(Op),
    /// Writes status records, and asks for the collective.
    Exchange,
    Judge,
}

use Instruction::{All, Exchange, Judge, Own};

/// The instructions of every exchange. Each bucket skips instructions for parts that it lacks.
pub(super) const PROGRAM: [(Part, Instruction); 37] = [
    (Part::Sums, Own(Op::Lead)),
    (Part::Sums, Own(Op::Widen)),
    (Part::Factors, Own(Op::Project)),
    (Part::Payloads, Own(Op::Encode)),
    (Part::Pieces, Own(Op::EncodePieces)),
    (Part::Shards, Own(Op::WidenShards)),
    (Part::ShardPayloads, Own(Op::EncodeShards)),
    (Part::Greetings, Exchange),
    (Part::Greetings, Judge),
    (Part::Positions, Exchange),
    (Part::Sums, Own(Op::Pick)),
    (Part::Sums, Exchange),
    (Part::Sums, Judge),
    (Part::Factors, Own(Op::BackProject)),
    (Part::Factors, Exchange),
    (Part::Factors, Judge),
    (Part::Payloads, Exchange),
    (Part::Payloads, Judge),
    (Part::Pieces, Exchange),
    (Part::Pieces, Judge),
    (Part::Pieces, Own(Op::AveragePieces)),
    (Part::Means, Exchange),
    (Part::Means, Judge),
    (Part::Shards, Exchange),
    (Part::Shards, Judge),
    (Part::ShardPayloads, Exchange),
    (Part::ShardPayloads, Judge),
    (Part::Dense { place: 0 }, Exchange),
    // No collective follows. Means replace values as late as possible.
    (Part::Factors, All(Op::AverageFactors)),
    (Part::Factors, Own(Op::Reconstruct)),
    (Part::Sums, All(Op::Average)),
    (Part::Sums, Own(Op::Place)),
    (Part::Payloads, All(Op::SumPayloads)),
    (Part::Means, All(Op::DecodeMeans)),
    (Part::Shards, Own(Op::AverageShards)),
    (Part::ShardPayloads, Own(Op::SumShards)),
    (Part::Factors, All(Op::Remember)),
];

/// Describes one rank's exchange of one bucket: its step and options, the memory of its parts, and a checksum of everything that
/// all ranks must have in common.
///
/// ```
/// use lgreco_train::compress::{Setting, qsgd::Qsgd};
/// use lgreco_train::exchange::{Agreement, Moment, Part, Program, Round, Route, Spec};
/// use lgreco_train::gradient::{Dtype, Shape};
/// let (route, reduce_dtype) = (Route::AllGather, Dtype::F32);
/// let moment = Moment { rank: 0, world_size: 4, route, reduce_dtype, seed: 7, step: 0, terms: 0 };
/// let layer = Spec::from((Setting::Qsgd(Qsgd::default()), Shape::new(16, 16)?, Dtype::F32));
/// let program = Program::new([layer].into_iter(), moment, Agreement::Reached, 0)?;
/// assert_eq!(program.round(Part::Payloads), Some(Round::AllGather { bytes: 16 + 16 + 4 + 128 }));
/// assert_eq!(program.round(Part::Sums), None);
/// # Ok::<(), lgreco_train::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// The step and the options of the exchange.
    pub moment: Moment,
    /// Sizes of the memory for the parts.
    pub layout: Layout,
    /// Checksum of everything that ranks must have in common.
    pub fingerprint: u64,
    agreement: Agreement,
    /// Bytes of a message with the pieces that this rank owns; 0 if nothing travels in pieces.
    piece: usize,
    /// Values of this rank's part of [`Part::Shards`].
    shard: usize,
}

impl Program {
    /// Describes the exchange of these layers. `remembered` is [`Space::remembered`](super::Space::remembered).
    ///
    /// # Errors
    /// [`CoreError::Parameter`](crate::CoreError::Parameter) when the rank is not below the number of workers, or a
    /// setting does not fit its shape.
    pub fn new<'a>(
        layers: impl Iterator<Item = Spec<'a>> + Clone,
        moment: Moment,
        agreement: Agreement,
        remembered: u64,
    ) -> Result<Program, Error> {
        moment.check()?;
        let layout = Layout::new(layers.clone(), moment.route, moment.world_size, moment.reduce_dtype)?;
        let fingerprint = fingerprint(moment, layers.clone(), remembered);
        // Ranks must also agree on the layers that are summed in place, and on whether one collective sums them all.
        let joined = u64::from(layers.clone().any(|spec| spec.joined)) << 63;
        let fingerprint = Hash(fingerprint).add(layout.in_place as u64 | joined).0;
        let mut program = Program { moment, layout, fingerprint, agreement, piece: 0, shard: 0 };
        if layout.pieces > 0 {
            program.piece = program.part_len(Part::Pieces, layers.clone(), moment.rank)?;
        }
        program.shard = program.part_len(Part::Shards, layers, moment.rank)?;
        Ok(program)
    }

    /// Describes an exchange of only the first message. A rank needs this description if its layers do not fit together, or if its
    /// [`Space`](super::Space) does not fit the layers.
    pub(super) fn unknown<'a>(layers: impl Iterator<Item = Spec<'a>> + Clone, moment: Moment) -> Program {
        let layout = Layout { world: moment.world_size as usize, ..Layout::default() };
        let fingerprint = fingerprint(moment, layers, 0);
        Program { moment, layout, fingerprint, agreement: Agreement::Needed, piece: 0, shard: 0 }
    }

    /// Whether a layer is summed in place: by a separate all-reduce on the memory of its values.
    pub fn is_in_place(&self, spec: &Spec<'_>) -> bool {
        let Moment { route, reduce_dtype, .. } = self.moment;
        self.layout.in_place > 0 && is_in_place(spec, route, reduce_dtype)
    }

    /// Whether this bucket has this part.
    pub(super) fn has(&self, part: Part) -> bool {
        match part {
            Part::Dense { .. } => self.layout.in_place > 0,
            part => self.round(part).is_some(),
        }
    }

    /// The collective of a part, with its size; `None` if this bucket lacks the part. [`rounds`](Program::rounds) returns the
    /// collectives of single layers.
    pub fn round(&self, part: Part) -> Option<Round> {
        let Layout { world, sums, in_place, factors, positions, message, varies, pieces, shards, .. } = self.layout;
        let sharded = self.moment.route == Route::Sharded;
        let (half, slips) = (self.moment.reduce_dtype == Dtype::Bf16, self.slips());
        let reduce = |values| match half {
            true => Round::AllReduceSumBf16 { values: values + slips },
            false => Round::AllReduceSum { values: values + slips },
        };
        let round = match part {
            Part::Greetings => Round::AllGather { bytes: GREETING },
            Part::Positions => Round::Broadcast { bytes: positions },
            Part::Sums => reduce(sums),
            Part::Factors => reduce(factors),
            Part::Payloads if varies => Round::AllGatherEach { bytes: message.saturating_mul(world), exact: false },
            Part::Payloads => Round::AllGather { bytes: message },
            Part::Pieces | Part::ShardPayloads => {
                Round::AllToAll { send: pieces - self.piece, received: self.piece * (world - 1) }
            }
            Part::Means => Round::AllGatherEach { bytes: pieces, exact: true },
            Part::Shards if half => Round::ReduceScatterSumBf16 { values: shards + slips * world, own: self.shard },
            Part::Shards => Round::ReduceScatterSum { values: shards + slips * world, own: self.shard },
            Part::Dense { .. } => return None,
        };
        let has = match part {
            Part::Greetings => self.agreement == Agreement::Needed || varies,
            Part::Positions => positions > 0,
            // Status records are exchanged before layers are summed in place.
            Part::Sums => sums > 0 || in_place > 0,
            Part::Factors => factors > 0,
            Part::Payloads => message > 0,
            Part::Pieces | Part::Means => pieces > 0 && !sharded,
            Part::Shards => shards > 0,
            Part::Dense { .. } => in_place > 0,
            Part::ShardPayloads => pieces > 0 && sharded,
        };
        has.then_some(round)
    }

    /// Number of values that all ranks' status records take after the values to be summed.
    pub(super) fn slips(&self) -> usize {
        self.layout.world * Slip::values(self.moment.reduce_dtype)
    }

    /// The collectives of this exchange, in order, with their parts, for callers that reserve or register memory. All ranks have
    /// the same collectives, with the same sizes except for [`Round::AllToAll`] and the reduce-scatters.
    pub fn rounds<'a>(self, layers: impl Iterator<Item = Spec<'a>>) -> impl Iterator<Item = (Part, Round)> {
        let all = Part::ALL.into_iter().filter_map(move |part| self.round(part).map(|round| (part, round)));
        all.chain(
            (0..)
                .zip(layers)
                .filter(move |(_, spec)| self.is_in_place(spec))
                .map(|(place, spec)| (Part::Dense { place }, Round::AllReduceSum { values: spec.shape.elements() })),
        )
    }

    /// The length of `owner`'s share of a part whose shares differ in length; 0 for other parts. For pieces and payloads of
    /// shards, the length is the bytes of the message with the owner's pieces. `owner` receives such a message from each other
    /// rank, and sends one in [`Part::Means`]. For [`Part::Shards`], the length is the number of values, including status records.
    ///
    /// # Errors
    /// The errors of [`Program::new`].
    pub fn part_len<'a>(
        &self,
        part: Part,
        layers: impl Iterator<Item = Spec<'a>> + Clone,
        owner: u32,
    ) -> Result<usize, Error> {
        let Moment { route, world_size, .. } = self.moment;
        match part {
            Part::Pieces | Part::Means | Part::ShardPayloads => {
                Division::new(layers.clone(), route, world_size).message_len(layers, owner)
            }
            Part::Shards => {
                let dense = layers.filter(|spec| spec.setting == Setting::Dense);
                Ok(dense.map(|spec| spec.shard(owner).len()).sum::<usize>() + self.slips())
            }
            _ => Ok(0),
        }
    }

    /// The pieces that `owner` owns, with the indices of their layers in the bucket, in the order of their payloads in
    /// messages.
    pub fn pieces<'a>(
        &self,
        layers: impl Iterator<Item = Spec<'a>> + Clone,
        owner: u32,
    ) -> impl Iterator<Item = Result<(usize, Piece), Error>> {
        let mut cursor = Division::new(layers.clone(), self.moment.route, self.moment.world_size).cursor(owner);
        let piece = move |(place, spec)| cursor.next(&spec).map(|piece| piece.map(|piece| (place, piece))).transpose();
        layers.enumerate().filter_map(piece)
    }
}

/// The checksum of everything that ranks must have in common, which is the same on every machine.
fn fingerprint<'a>(moment: Moment, layers: impl Iterator<Item = Spec<'a>>, remembered: u64) -> u64 {
    let Moment { world_size, route, reduce_dtype, seed, step, terms, .. } = moment;
    let words = [world_size as u64, route as u64, reduce_dtype as u64, seed, step as u64, terms, remembered];
    let mut hash = words.into_iter().fold(Hash::START, Hash::add);
    for Spec { index, setting, shape, shards, .. } in layers {
        let (method, parameters) = setting.agreed();
        let setting = [u64::from(method)].into_iter().chain(parameters.map(u64::from));
        let place = [index as u64, shape.rows() as u64, shape.cols() as u64];
        hash = place.into_iter().chain(setting).chain(shards.iter().copied()).fold(hash, Hash::add);
    }
    hash.0
}
