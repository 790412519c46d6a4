//! What an exchange does, in order: ops on a rank's own memory, and collectives.
//!
//! The list is the same for all memory and all buckets; a bucket leaves out what it has no part for. A
//! [`Space`](super::Space) does the ops.

use super::division::{Division, Piece};
use super::fingerprint::fingerprint;
use super::layer::Spec;
use super::layout::{Layout, is_in_place};
use super::moment::Agreement;
use super::moment::{Moment, Route};
use super::round::Round;
use super::slip::{GREETING, Slip};
use crate::Error;
use crate::checksum::Hash;
use crate::compress::Setting;
use crate::gradient::Dtype;

/// What travels by one collective, in the order in which they come. Buckets have only the parts that their settings
/// need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// Whether all ranks bring the same layers and settings, and how long their messages are; an all-gather.
    Greetings,
    /// Positions of the leader's largest values (CLT-k); a broadcast.
    Positions,
    /// Dense values, PowerSGD's `P` and values at the leader's positions; an all-reduce.
    Sums,
    /// PowerSGD's `Q`; an all-reduce.
    Factors,
    /// Payloads for everybody; an all-gather.
    Payloads,
    /// Payloads of pieces for their owners; an all-to-all.
    Pieces,
    /// The owners' means, compressed again; an all-gather.
    Means,
    /// The values of one large dense layer, where they are; an all-reduce.
    Dense {
        /// The layer's place in the bucket.
        place: u32,
    },
    /// Dense values for the ranks whose shards they are in; a reduce-scatter.
    Shards,
    /// Payloads for the ranks whose shards they are; an all-to-all.
    ShardPayloads,
}

impl Part {
    /// In order, but for those of dense layers, which come last.
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

/// What a [`Space`](super::Space) does, each for all layers of the bucket that it concerns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op {
    /// CLT-k: the leader writes the positions of its largest values; the others look for what is not finite.
    Lead,
    /// Dense: the values, as f32, into the sums; rounded if they travel as bf16. Those that are summed in their place are divided
    /// by the number of workers, which makes their sum the mean.
    Widen,
    /// PowerSGD: `P = M Q` of the last step's `Q`, or of random columns where that is zero, into the sums.
    Project,
    /// Payloads that everybody gets whole into this rank's message.
    Encode,
    /// The same in pieces, into the messages for the other owners.
    EncodePieces,
    /// CLT-k: this rank's values at the leader's positions into the sums.
    Pick,
    /// PowerSGD: orthonormalises the summed `P`, `Q = Mᵀ P̂` into the factors; this worker's contribution.
    BackProject,
    /// PowerSGD: averages `Q`.
    AverageFactors,
    /// PowerSGD: the mean, `P̂ Qᵀ`; by shards, this rank's.
    Reconstruct,
    /// Dense: the mean.
    Average,
    /// CLT-k: the mean; by shards, this rank's.
    Place,
    /// Adds up what payloads hold, in the order of ranks: the mean; by shards too that of the whole layer, so that a bad
    /// payload or an overflow fails on all ranks alike.
    SumPayloads,
    /// Adds up the pieces that this rank owns and compresses their mean.
    AveragePieces,
    /// The means of all pieces.
    DecodeMeans,
    /// Dense: the values, as f32, into the sums by shards.
    WidenShards,
    /// Dense: the mean of this rank's shard.
    AverageShards,
    /// Payloads of shards into the messages for their owners, this rank's own behind those.
    EncodeShards,
    /// Adds up what the payloads of this rank's shard hold, in the order of ranks: its mean.
    SumShards,
    /// PowerSGD: this step's `Q` is the next one's start.
    Remember,
    /// Says how this rank fares wherever a part tells it: a slip at the head of each message, or numbers behind what is
    /// summed, which is rounded now if it travels as bf16. In [`Part::Greetings`] the length of its message follows.
    PutSlip {
        /// Which.
        part: Part,
        /// What to say.
        slip: Slip,
    },
    /// Reads what all ranks have said, and goes on only if all fare well and agree: [`judge`](super::judge).
    Judge {
        /// Which.
        part: Part,
        /// What has gone wrong on this rank.
        own: Option<Error>,
    },
}

impl Op {
    /// Whether it writes means in the place of values.
    pub(super) fn is_mean(&self) -> bool {
        use Op::*;
        matches!(self, Reconstruct | Average | Place | SumPayloads | DecodeMeans | AverageShards | SumShards)
    }
}

/// A step of a program.
#[derive(Clone, Copy, Debug)]
pub(super) enum Instruction {
    /// What this rank alone does; if it fails, the next message tells.
    Own(Op),
    /// What all ranks do with what all have got alike, so that it fails on all or none.
    All(Op),
    /// Puts slips and asks for the collective.
    Exchange,
    Judge,
}

use Instruction::{All, Exchange, Judge, Own};

/// Every bucket's program: what concerns parts that a bucket has not is left out.
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
    // Here no collective comes any more: means take the place of values as late as they can.
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

/// One rank's exchange of one bucket: where it is in a run, what its parts take, and what all ranks must agree on.
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
    /// Where in a run it happens.
    pub moment: Moment,
    /// What the parts take.
    pub layout: Layout,
    /// What ranks must agree on, as a checksum.
    pub fingerprint: u64,
    agreement: Agreement,
    /// Bytes of a message about the pieces that this rank owns; 0 where nothing travels in pieces.
    piece: usize,
    /// Values of this rank's part of [`Part::Shards`].
    shard: usize,
}

impl Program {
    /// The exchange of these layers; `remembered` is [`Space::remembered`](super::Space::remembered).
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
        // All ranks sum the same layers in their place, or none.
        let fingerprint = Hash(fingerprint).add(layout.in_place as u64).0;
        let mut program = Program { moment, layout, fingerprint, agreement, piece: 0, shard: 0 };
        if layout.pieces > 0 {
            program.piece = program.part_len(Part::Pieces, layers.clone(), moment.rank)?;
        }
        program.shard = program.part_len(Part::Shards, layers, moment.rank)?;
        Ok(program)
    }

    /// A program of which nothing is known, because this rank's layers do not fit together.
    pub(super) fn unknown<'a>(layers: impl Iterator<Item = Spec<'a>> + Clone, moment: Moment) -> Program {
        let layout = Layout { world: moment.world_size as usize, ..Layout::default() };
        let fingerprint = fingerprint(moment, layers, 0);
        Program { moment, layout, fingerprint, agreement: Agreement::Needed, piece: 0, shard: 0 }
    }

    /// Whether a layer is summed where its values are.
    pub fn is_in_place(&self, spec: &Spec<'_>) -> bool {
        let Moment { route, reduce_dtype, .. } = self.moment;
        self.layout.in_place > 0 && is_in_place(spec, route, reduce_dtype)
    }

    /// Whether this bucket has such a part.
    pub(super) fn has(&self, part: Part) -> bool {
        match part {
            Part::Dense { .. } => self.layout.in_place > 0,
            part => self.round(part).is_some(),
        }
    }

    /// The collective by which a part travels, with its size; `None` if this bucket has none. Those of single layers
    /// [`rounds`](Program::rounds) tells.
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
            // Slips come before values that are summed in their place.
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

    /// Values that all ranks' slips take behind what is summed.
    pub(super) fn slips(&self) -> usize {
        self.layout.world * Slip::values(self.moment.reduce_dtype)
    }

    /// The collectives of this exchange, in order, and what travels by them: for embedders that reserve or register
    /// memory. All ranks have the same ones, of the same sizes but for [`Round::AllToAll`] and
    /// [`Round::ReduceScatterSum`].
    pub fn rounds<'a>(self, layers: impl Iterator<Item = Spec<'a>>) -> impl Iterator<Item = (Part, Round)> {
        let all = Part::ALL.into_iter().filter_map(move |part| self.round(part).map(|round| (part, round)));
        all.chain(
            (0..)
                .zip(layers)
                .filter(move |(_, spec)| self.is_in_place(spec))
                .map(|(place, spec)| (Part::Dense { place }, Round::AllReduceSum { values: spec.shape.elements() })),
        )
    }

    /// How much of a part is for or from `owner`, where ranks' parts differ: bytes of the message about its pieces,
    /// which is what it gets from each of the others (its own being empty there) and what it hands out in
    /// [`Part::Means`]; values of its part of [`Part::Shards`], slips included. 0 for other parts.
    ///
    /// # Errors
    /// As [`Program::new`].
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

    /// The pieces that `owner` owns, with the places of their layers in the bucket, in the order of their payloads in
    /// each message about them.
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
