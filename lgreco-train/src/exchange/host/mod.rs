//! An exchange in host memory.

mod lanes;
mod leader;
mod mean;
mod payloads;
mod pieces;
mod room;
mod shards;
mod sum;
mod summed;
mod sums;

use super::layer::Layer;
use super::layout::Layout;
use super::moment::Moment;
use super::program::{Op, Part, Program};
use super::request::Request;
use super::slip::{self, GREETING, Slip, judge};
use super::space::Space;
use super::spec::Spec;
use crate::checksum::Hash;
use crate::gradient::{Bf16, Dtype, ValuesMut};
use crate::{CoreError, Error};
use lanes::Scratch;
use lgreco::error::expect_room;
use room::{Ranks, Room, messages, sum};
use summed::{Wire, halves};
pub(crate) use sums::scale_part;

/// A bucket in host memory: a [`Space`] that computes immediately. [`Flight`](super::Flight) has an example.
#[derive(Debug)]
pub struct Host<'a, 'l> {
    /// The layers, in the same order on all ranks.
    pub layers: &'a mut [Layer<'l>],
    /// At least [`workspace_len`](super::workspace_len) words, with any content.
    pub workspace: &'a mut [u64],
    /// Scratch memory, which is used only within one call, so each call may get different memory. With `None`, the end of
    /// the workspace is the scratch memory.
    pub scratch: Option<&'a mut [u64]>,
}

impl<'l> Host<'_, 'l> {
    /// The layers, and the workspace divided into its parts. Scratch memory is empty unless the op `computes`.
    fn parts(&mut self, layout: &Layout, computes: bool) -> Result<(&mut [Layer<'l>], Room<'_>), Error> {
        let (workspace, scratch) = match &mut self.scratch {
            None => self.workspace.split_at_mut(layout.words().min(self.workspace.len())),
            Some(scratch) => (&mut *self.workspace, &mut **scratch),
        };
        let scratch = if computes { Scratch::new(layout, scratch)? } else { Scratch::default() };
        Ok((self.layers, Room::new(layout, workspace, scratch)?))
    }
}

impl Space for Host<'_, '_> {
    type Values<'b>
        = &'b mut [f32]
    where
        Self: 'b;
    type Halves<'b>
        = &'b mut [Bf16]
    where
        Self: 'b;
    type Bytes<'b>
        = &'b mut [u8]
    where
        Self: 'b;

    fn layers(&self) -> impl Iterator<Item = Spec<'_>> + Clone {
        self.layers.iter().map(|layer| layer.spec)
    }

    fn remembered(&self) -> u64 {
        let factors = self.layers.iter().flat_map(|layer| layer.factor.chunks(2));
        let pairs = factors.map(|pair| pair.iter().fold(0, |word, x| word << 32 | x.to_bits() as u64));
        pairs.fold(Hash::START, Hash::add).0
    }

    fn check(&self, program: &Program) -> Result<(), Error> {
        self.layers.iter().try_for_each(Layer::check)?;
        // Scratch memory is not checked here. If scratch memory is too short, an op fails, and messages report the error to
        // all ranks.
        let scratch = if self.scratch.is_none() { program.layout.scratch_words() } else { 0 };
        Ok(expect_room("workspace words", program.layout.words().saturating_add(scratch), self.workspace.len())?)
    }

    fn run(&mut self, op: Op, program: &Program) -> Result<(), Error> {
        let moment = program.moment;
        let computes = !matches!(op, Op::PutSlip { .. } | Op::Judge { .. });
        let (layers, mut room) = self.parts(&program.layout, computes)?;
        let room = &mut room;
        match op {
            Op::Lead => leader::lead(layers, moment, room),
            Op::Widen => sums::dense(layers, program, room),
            Op::Project => sums::start(layers, program, room),
            Op::Encode => payloads::encode(layers, program, room),
            Op::EncodePieces | Op::EncodeShards => pieces::encode(layers, moment, room),
            Op::Pick => leader::pick(layers, program, room),
            Op::BackProject => sums::between(layers, program, room),
            Op::AverageFactors => sums::average_factors(layers, program, room),
            Op::Reconstruct => sums::products(layers, program, room),
            Op::Average => sums::dense_means(layers, program, room),
            Op::Place => leader::place(layers, program, room),
            Op::SumPayloads => payloads::means(layers, program, room),
            Op::AveragePieces => pieces::average_own(layers, moment, room),
            Op::DecodeMeans => pieces::decode_means(layers, moment, room),
            Op::WidenShards => shards::dense(layers, moment, room),
            Op::AverageShards => shards::means(layers, program, room),
            Op::SumShards => pieces::sum_shards(layers, moment, room),
            Op::Remember => sums::remember(layers, program, room),
            Op::PutSlip { part, slip } => put(part, slip, layers, program, room),
            Op::Judge { part, own } => judge_part(part, own, layers, program, room),
        }
    }

    fn request(&mut self, part: Part, program: &Program) -> Result<Request<'_>, Error> {
        match part {
            Part::Dense { place } => request_of(&mut self.layers[place as usize].values),
            part => request_in(part, program, self.workspace),
        }
    }
}

/// The collective on a layer that is summed in place.
pub(crate) fn request_of<'v>(values: &'v mut ValuesMut<'_>) -> Result<Request<'v>, Error> {
    let (dtype, expected) = (values.values().dtype(), "f32 values");
    let values =
        values.as_f32().ok_or(CoreError::Parameter { what: "element type", value: dtype as u32 as f64, expected })?;
    Ok(Request::AllReduceSum { values })
}

/// The collective on a part in the workspace.
pub(crate) fn request_in<'w>(part: Part, program: &Program, workspace: &'w mut [u64]) -> Result<Request<'w>, Error> {
    let Room { ranks, sums, factors, shards, positions, pieces, received, arrived, .. } =
        Room::new(&program.layout, workspace, Scratch::default())?;
    let Ranks { lens, sent, spare } = ranks;
    let half = program.moment.reduce_dtype == Dtype::Bf16;
    let reduce = |memory: &'w mut [f32], values| match (half, values + program.slips()) {
        (true, values) => Request::AllReduceSumBf16 { values: &mut halves(memory)[..values] },
        (false, values) => Request::AllReduceSum { values: &mut memory[..values] },
    };
    Ok(match part {
        Part::Greetings => Request::AllGather { buffer: bytemuck::cast_slice_mut(spare) },
        Part::Positions => Request::Broadcast { root: program.moment.leader(), bytes: positions },
        Part::Dense { .. } => {
            return Err(
                CoreError::Parameter { what: "part", value: 0.0, expected: "one that is in the workspace" }.into()
            );
        }
        Part::Sums => reduce(sums, program.layout.sums),
        Part::Factors => reduce(factors, program.layout.factors),
        Part::Payloads if !program.layout.varies => Request::AllGather { buffer: &mut received[..sum(lens)] },
        Part::Payloads => Request::AllGatherEach { lens, buffer: &mut received[..sum(lens)] },
        Part::Means => Request::AllGatherEach { lens: sent, buffer: &mut arrived[..sum(sent)] },
        Part::Shards if half => Request::ReduceScatterSumBf16 { lens: sent, values: &mut halves(shards)[..sum(sent)] },
        Part::Shards => Request::ReduceScatterSum { lens: sent, values: &mut shards[..sum(sent)] },
        Part::Pieces | Part::ShardPayloads => {
            let received_lens = &spare[..sent.len()];
            let received = &mut arrived[..sum(received_lens)];
            Request::AllToAll { send: &mut pieces[..sum(sent)], send_lens: sent, received, received_lens }
        }
    })
}

/// Writes this rank's status record to a part.
fn put(part: Part, slip: Slip, layers: &[Layer<'_>], program: &Program, room: &mut Room<'_>) -> Result<(), Error> {
    let Program { moment, layout, .. } = program;
    match part {
        Part::Greetings => {
            let len = if slip.code == 0 && layout.message > 0 { room.ranks.lens[moment.rank as usize] } else { 0 };
            let own = &mut bytemuck::cast_slice_mut(room.ranks.spare)[moment.rank as usize * GREETING..][..GREETING];
            slip.write(own);
            own[slip::LEN..].copy_from_slice(&len.to_le_bytes());
        }
        Part::Positions | Part::Dense { .. } => {}
        Part::Sums => Wire::of(moment).put(room.sums, 0..layout.sums, 0, slip),
        Part::Factors => Wire::of(moment).put(room.factors, 0..layout.factors, 0, slip),
        Part::Payloads => payloads::put(slip, program, room),
        Part::Pieces | Part::ShardPayloads => pieces::put(slip, layers, *moment, room)?,
        Part::Shards => shards::put(slip, layers, program, room)?,
        Part::Means => pieces::put_means(slip, layers, *moment, room)?,
    }
    Ok(())
}

/// Reads the status records of all ranks in a part, and returns the error that follows from them.
fn judge_part(
    part: Part,
    own: Option<Error>,
    layers: &[Layer<'_>],
    program: &Program,
    room: &mut Room<'_>,
) -> Result<(), Error> {
    let Program { moment, layout, fingerprint, .. } = program;
    match part {
        Part::Greetings => hear(own, program, &mut room.ranks),
        Part::Positions | Part::Dense { .. } => Ok(()),
        Part::Sums => judge_sums(own, *moment, room.sums, layout.sums),
        Part::Factors => judge_sums(own, *moment, room.factors, layout.factors),
        Part::Payloads => judge(own, messages(room.ranks.lens, room.received).map(Slip::read)),
        Part::Means => judge(own, messages(room.ranks.sent, room.arrived).map(Slip::read)),
        Part::Pieces | Part::ShardPayloads => judge(own, pieces::slips(Slip::new(own, *fingerprint), *moment, room)),
        Part::Shards => judge(own, shards::heard(layers, program, room)?),
    }
}

/// Like [`judge_part`], for sums, which are also converted from bf16 to f32 if necessary.
fn judge_sums(own: Option<Error>, moment: Moment, memory: &mut [f32], values: usize) -> Result<(), Error> {
    let wire = Wire::of(&moment);
    judge(own, wire.slips(memory, values))?;
    wire.take(memory, 0..values);
    Ok(())
}

/// Reads the first messages of all ranks: their status records, and the lengths of their next messages.
fn hear(own: Option<Error>, program: &Program, Ranks { lens, spare, .. }: &mut Ranks<'_>) -> Result<(), Error> {
    let greetings = bytemuck::cast_slice::<u64, u8>(spare).as_chunks::<GREETING>().0.iter();
    judge(own, greetings.clone().map(|greeting| Slip::read(greeting)))?;
    // At this point, all ranks have the same settings. So a length differs only if it depends on values, and never exceeds
    // the largest length.
    let (most, varies) = (program.layout.message, program.layout.varies);
    let least = if varies { slip::LEN } else { most };
    for ((rank, greeting), to) in (0..).zip(greetings).zip(&mut **lens) {
        *to = greeting[slip::LEN..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        if !(least as u64..=most as u64).contains(to) {
            let error = Error::Core(CoreError::Length { what: "message bytes", expected: most, found: *to as usize });
            return Err(Error::PeerMessage { rank, code: error.code() });
        }
    }
    Ok(())
}
