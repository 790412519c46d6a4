//! Scatter-reduce with a second compression: each rank averages a part of the bucket for everybody.

use super::bucket::{Input, Layer, Moment};
use super::division::{Division, Piece, is_scattered};
use super::gather::decode_from;
use super::mean::average;
use super::reduce::widen;
use super::slip::{self, Slip, judge};
use super::workspace::{Room, messages};
use crate::compress::wire::Payload;
use crate::compress::{Compressor, check_finite, decode};
use crate::feedback::is_finite;
use crate::gradient::{Gradient, Values};
use crate::internal::payload::{Combine, combine, combine_values};
use crate::rng::Stream;
use crate::{CoreError, Error};

fn division(layers: &[Layer<'_>], world: u32) -> Division {
    Division::new(layers.iter().map(|layer| (layer.setting, layer.gradient.shape())), world)
}

/// Calls `visit` with each of `owner`'s pieces, its layer, and where its payload begins in the share.
fn for_each(
    division: Division,
    owner: u32,
    layers: &mut [Layer<'_>],
    mut visit: impl FnMut(Piece, &mut Layer<'_>, usize) -> Result<(), Error>,
) -> Result<(), Error> {
    let (mut cursor, mut at) = (division.cursor(owner), 0);
    for layer in layers {
        if let Some(piece) = cursor.next(layer.setting, layer.gradient.shape())? {
            let payload_len = piece.payload_len;
            visit(piece, layer, at)?;
            at += payload_len;
        }
    }
    Ok(())
}

/// Bytes of the message about `owner`'s share: a slip and the payloads of its pieces.
fn message_len(division: Division, owner: u32, layers: &mut [Layer<'_>]) -> Result<usize, Error> {
    let mut len = slip::LEN;
    for_each(division, owner, layers, |piece, _, at| {
        len = slip::LEN + at + piece.payload_len;
        Ok(())
    })?;
    Ok(len)
}

/// The part of `gradient` that `piece` is.
fn cut<'a>(gradient: &Gradient<'a>, piece: &Piece) -> Result<Gradient<'a>, Error> {
    let range = piece.range.clone();
    let values = match gradient.values() {
        Values::F32(v) => Values::F32(&v[range]),
        Values::F16(v) => Values::F16(&v[range]),
        Values::Bf16(v) => Values::Bf16(&v[range]),
    };
    Ok(Gradient::new(values, piece.shape)?)
}

/// The random bits of rank `rank` for `owner`'s piece of a layer; the owner's own are those of the second compression.
fn stream(moment: Moment, layer: u32, rank: u32, owner: u32) -> Stream {
    moment.stream(layer, rank.wrapping_mul(moment.world_size).wrapping_add(owner))
}

/// Writes the messages about the other owners' shares, but for their slips.
pub(super) fn begin(layers: &mut [Layer<'_>], moment: Moment, room: &mut Room<'_>) -> Result<(), Error> {
    let Moment { rank, world_size: world, .. } = moment;
    let division = division(layers, world);
    // Of the whole tensors: this rank's share is not encoded yet, and positions are to be those in the tensor.
    layers
        .iter()
        .filter(|layer| is_scattered(&layer.setting))
        .try_for_each(|layer| Ok::<_, Error>(check_finite(&layer.gradient.get()?)?))?;
    let mut first = 0;
    for owner in (0..world).filter(|&owner| owner != rank) {
        let mut end = first + slip::LEN;
        for_each(division, owner, layers, |piece, layer, at| {
            let whole = layer.gradient.get()?;
            let gradient = cut(&whole, &piece)?;
            let start = first + slip::LEN + at;
            end = start + piece.payload_len;
            let payload = &mut room.shares[start..end];
            piece.setting.encode(&gradient, stream(moment, layer.index, rank, owner), room.encode, payload)?;
            if let Some(own) = &mut layer.own {
                decode(payload, &mut own[piece.range.clone()])?;
            }
            if let Input::Compensated { values, .. } = &mut layer.gradient {
                combine(&Payload::parse(payload)?, Combine::Subtract, &mut values[piece.range], room.decoded)?;
            }
            Ok(())
        })?;
        first = end;
    }
    Ok(())
}

/// Puts slips on the messages about shares, and writes down how long they are: those that this rank sends to
/// `room.ranks.lens`, those that it receives to `room.ranks.spare`.
pub(super) fn put(own: Slip, layers: &mut [Layer<'_>], moment: Moment, room: &mut Room<'_>) -> Result<(), Error> {
    let Moment { rank, world_size: world, .. } = moment;
    let division = division(layers, world);
    let received = &mut room.ranks.spare[..world as usize];
    received.fill(message_len(division, rank, layers)? as u64);
    received[rank as usize] = 0;
    let mut at = 0;
    for (owner, len) in (0..world).zip(&mut *room.ranks.lens) {
        *len = if owner == rank { 0 } else { message_len(division, owner, layers)? as u64 };
        if owner != rank {
            own.write(&mut room.shares[at..]);
        }
        at += *len as usize;
    }
    Ok(())
}

/// Averages this rank's share, compresses the mean into the front of `room.shares` and keeps what that decodes to.
/// Every rank has other messages, so what is wrong with them is told with the means.
pub(super) fn reduce(
    own: Option<Error>,
    fingerprint: u64,
    layers: &mut [Layer<'_>],
    moment: Moment,
    room: &mut Room<'_>,
) -> Result<(), Error> {
    let Moment { rank, world_size: world, .. } = moment;
    let division = division(layers, world);
    let len = message_len(division, rank, layers)?;
    let received = &*room.received;
    let message = |peer: u32| &received[(peer as usize - (peer > rank) as usize) * len..][..len];
    let slip = |peer| if peer == rank { Slip::new(own, fingerprint) } else { Slip::read(message(peer)) };
    judge(own, (0..world).map(slip))?;
    for_each(division, rank, layers, |piece, layer, at| {
        let whole = layer.gradient.get()?;
        let gradient = cut(&whole, &piece)?;
        let mean = &mut layer.mean[piece.range.clone()];
        let decoded = &mut room.decoded[..mean.len()];
        for peer in 0..world {
            let values = if peer == 0 { &mut *mean } else { &mut *decoded };
            if peer == rank {
                widen(&gradient, values);
            } else {
                let payload = &message(peer)[slip::LEN + at..][..piece.payload_len];
                decode_from(peer, payload, &piece.setting, piece.shape, values)?;
            }
            if peer > 0 {
                combine_values(mean, Combine::Add, decoded);
            }
        }
        average(mean, world)?;
        let payload = &mut room.shares[at..at + piece.payload_len];
        let exact = Gradient::new(Values::F32(mean), piece.shape)?;
        piece.setting.encode(&exact, stream(moment, layer.index, rank, rank), room.encode, payload)?;
        decode(payload, decoded)?;
        let contribution =
            |value: f32, mean: f32, decoded: f32| (value as f64 + world as f64 * (decoded as f64 - mean as f64)) as f32;
        if let Some(own) = &mut layer.own {
            let own = &mut own[piece.range.clone()];
            widen(&gradient, own);
            for ((own, &mean), &decoded) in own.iter_mut().zip(&*mean).zip(&*decoded) {
                *own = contribution(*own, mean, decoded);
            }
        }
        if let Input::Compensated { values, .. } = &mut layer.gradient {
            for ((x, &mean), &decoded) in values[piece.range].iter_mut().zip(&*mean).zip(&*decoded) {
                *x -= contribution(*x, mean, decoded);
            }
        }
        mean.copy_from_slice(decoded);
        Ok(())
    })?;
    for layer in layers.iter_mut().filter(|layer| is_scattered(&layer.setting)) {
        if let Input::Compensated { values, .. } = &layer.gradient
            && !is_finite(values)
        {
            layer.late = Some(Error::Core(CoreError::Overflow { what: "what is to be remembered" }));
        }
    }
    Ok(())
}

/// Puts this rank's mean of its share among all.
pub(super) fn put_means(own: Slip, layers: &mut [Layer<'_>], moment: Moment, room: &mut Room<'_>) -> Result<(), Error> {
    let division = division(layers, moment.world_size);
    let mut at = 0;
    for (owner, len) in (0..moment.world_size).zip(&mut *room.ranks.lens) {
        *len = message_len(division, owner, layers)? as u64;
        if owner == moment.rank {
            let (head, payloads) = room.received[at..at + *len as usize].split_at_mut(slip::LEN);
            own.write(head);
            payloads.copy_from_slice(&room.shares[..payloads.len()]);
        }
        at += *len as usize;
    }
    Ok(())
}

/// Takes in the means of the others' shares.
pub(super) fn take_in(
    own: Option<Error>,
    layers: &mut [Layer<'_>],
    moment: Moment,
    room: &mut Room<'_>,
) -> Result<(), Error> {
    let division = division(layers, moment.world_size);
    let received = messages(room.ranks.lens, room.received);
    judge(own, received.clone().map(Slip::read))?;
    for (owner, message) in (0..).zip(received).filter(|(owner, _)| *owner != moment.rank) {
        for_each(division, owner, layers, |piece, layer, at| {
            let payload = &message[slip::LEN + at..][..piece.payload_len];
            decode_from(owner, payload, &piece.setting, piece.shape, &mut layer.mean[piece.range])
        })?;
    }
    Ok(())
}
