//! Payloads in pieces, for scatter-reduce and for shards. Only scatter-reduce compresses the means of pieces again.

use super::mean::{average, average_shares, in_tensor, narrow, to_shares};
use super::room::{Ranks, Room, messages, sum};
use super::sum::{decode_from, mean_of};
use super::sums::scale_part;
use crate::Error;
use crate::compress::wire::Payload;
use crate::compress::{Compressor, check_finite, decode};
use crate::exchange::division::{Division, Piece, is_scattered};
use crate::exchange::layer::Layer;
use crate::exchange::moment::{Moment, Route};
use crate::exchange::slip::{self, Slip};
use crate::gradient::{Gradient, Values};
use lgreco::compress::payload::{Combine, combine, combine_values};

fn division(layers: &[Layer<'_>], moment: Moment) -> Division {
    Division::new(layers.iter().map(|layer| layer.spec), moment.route, moment.world_size)
}

/// Calls `visit` with each of `owner`'s pieces, the piece's layer, and the byte at which the payload begins, counted from the end
/// of the message's status record.
fn for_each(
    division: Division,
    owner: u32,
    layers: &mut [Layer<'_>],
    mut visit: impl FnMut(Piece, &mut Layer<'_>, usize) -> Result<(), Error>,
) -> Result<(), Error> {
    let (mut cursor, mut at) = (division.cursor(owner), 0);
    for layer in layers {
        if let Some(piece) = cursor.next(&layer.spec)? {
            let payload_len = piece.payload_len;
            visit(piece, layer, at).map_err(|error| error.of_layer(layer.spec.index))?;
            at += payload_len;
        }
    }
    Ok(())
}

/// Bytes of the message with `owner`'s pieces.
fn message_len(division: Division, owner: u32, layers: &[Layer<'_>]) -> Result<usize, Error> {
    division.message_len(layers.iter().map(|layer| layer.spec), owner)
}

/// The elements of `gradient` that belong to `piece`.
fn cut<'a>(gradient: &Gradient<'a>, piece: &Piece) -> Result<Gradient<'a>, Error> {
    let range = piece.range.clone();
    let values = match gradient.values() {
        Values::F32(v) => Values::F32(&v[range]),
        Values::F16(v) => Values::F16(&v[range]),
        Values::Bf16(v) => Values::Bf16(&v[range]),
    };
    Ok(Gradient::new(values, piece.shape)?)
}

/// Encodes the messages for the other owners, without their status records. With shards, also encodes this rank's message to
/// itself.
pub(super) fn encode(layers: &mut [Layer<'_>], moment: Moment, room: &mut Room<'_>) -> Result<(), Error> {
    let Moment { rank, world_size: world, .. } = moment;
    let division = division(layers, moment);
    // Whole tensors are checked, because this rank's own pieces are not encoded here, and because an error must have the element's
    // index in the tensor.
    layers.iter().filter(|layer| is_scattered(&layer.spec.setting)).try_for_each(|layer| {
        check_finite(&layer.get()?).map_err(|error| Error::from(error).of_layer(layer.spec.index))
    })?;
    let mut first = 0;
    // With shards, this rank's message to itself comes last, and is summed like the messages of other ranks.
    let own = (moment.route == Route::Sharded).then_some(rank);
    for owner in (0..world).filter(|&owner| owner != rank).chain(own) {
        let mut end = first + slip::LEN;
        for_each(division, owner, layers, |piece, layer, at| {
            let whole = layer.get()?;
            let gradient = cut(&whole, &piece)?;
            let start = first + slip::LEN + at;
            end = start + piece.payload_len;
            let payload = &mut room.pieces[start..end];
            let stream = moment.piece_stream(layer.spec.index, rank, owner);
            let encoded = piece.setting.encode(&gradient, stream, room.scratch.encode, payload);
            encoded.map_err(|error| in_tensor(error.into(), piece.range.start))?;
            if let Some(values) = layer.left() {
                combine(
                    &piece.setting,
                    &Payload::parse(payload)?,
                    Combine::Subtract,
                    &mut values[piece.range],
                    room.scratch.decoded,
                )?;
            }
            Ok(())
        })?;
        first = end;
    }
    Ok(())
}

/// Writes status records to the messages with pieces. Records the lengths of sent messages in `room.ranks.sent`, and of received
/// messages in `room.ranks.spare`.
pub(super) fn put(own: Slip, layers: &[Layer<'_>], moment: Moment, room: &mut Room<'_>) -> Result<(), Error> {
    let Moment { rank, world_size: world, .. } = moment;
    let division = division(layers, moment);
    let received = &mut room.ranks.spare[..world as usize];
    received.fill(message_len(division, rank, layers)? as u64);
    received[rank as usize] = 0;
    let mut at = 0;
    for (owner, len) in (0..world).zip(&mut *room.ranks.sent) {
        *len = if owner == rank { 0 } else { message_len(division, owner, layers)? as u64 };
        if owner != rank {
            own.write(&mut room.pieces[at..]);
        }
        at += *len as usize;
    }
    Ok(())
}

/// The status records of all ranks: this rank's own record, and the other ranks' records from the received messages.
pub(super) fn slips<'a>(own: Slip, moment: Moment, room: &'a Room<'_>) -> impl Iterator<Item = Slip> + Clone + 'a {
    let received = messages(&room.ranks.spare[..moment.world_size as usize], room.arrived);
    (0..).zip(received).map(move |(rank, message)| if rank == moment.rank { own } else { Slip::read(message) })
}

/// Averages this rank's pieces, and compresses their means into the beginning of `room.pieces`.
pub(super) fn average_own(layers: &mut [Layer<'_>], moment: Moment, room: &mut Room<'_>) -> Result<(), Error> {
    let Moment { rank, world_size: world, .. } = moment;
    let division = division(layers, moment);
    let len = message_len(division, rank, layers)?;
    let received = &*room.arrived;
    let message = |peer: u32| &received[(peer as usize - (peer > rank) as usize) * len..][..len];
    for_each(division, rank, layers, |piece, layer, at| {
        let whole = layer.get()?;
        let gradient = cut(&whole, &piece)?;
        let mean = &mut room.scratch.wide[..piece.range.len()];
        let decoded = &mut room.scratch.decoded[..mean.len()];
        let mut add_up = |mean: &mut [f32], in_shares: bool| {
            for peer in 0..world {
                let values = if peer == 0 { &mut *mean } else { &mut *decoded };
                if peer == rank {
                    scale_part(&gradient, 0, 1.0, values);
                } else {
                    let payload = &message(peer)[slip::LEN + at..][..piece.payload_len];
                    decode_from(peer, payload, &piece.setting, piece.shape, values)?;
                }
                if in_shares {
                    to_shares(values, world);
                }
                if peer > 0 {
                    combine_values(mean, Combine::Add, decoded);
                }
            }
            if in_shares { average_shares(mean, world) } else { average(mean, world) }
        };
        // The sum may exceed f32 although the mean does not.
        if add_up(mean, false).is_err() {
            add_up(mean, true)?;
        }
        let payload = &mut room.pieces[at..at + piece.payload_len];
        let exact = Gradient::new(Values::F32(mean), piece.shape)?;
        piece.setting.encode(
            &exact,
            moment.piece_stream(layer.spec.index, rank, rank),
            room.scratch.encode,
            payload,
        )?;
        decode(payload, decoded)?;
        if let Some(values) = layer.left() {
            for ((x, &mean), &decoded) in values[piece.range].iter_mut().zip(&*mean).zip(&*decoded) {
                *x -= (*x as f64 + world as f64 * (decoded as f64 - mean as f64)) as f32;
            }
        }
        Ok(())
    })?;
    check_left(layers);
    Ok(())
}

fn scattered<'s, 'l>(layers: &'s mut [Layer<'l>]) -> impl Iterator<Item = &'s mut Layer<'l>> {
    layers.iter_mut().filter(|layer| is_scattered(&layer.spec.setting))
}

/// Records an error in layers whose next residual is not finite.
fn check_left(layers: &mut [Layer<'_>]) {
    scattered(layers).for_each(Layer::check_left);
}

/// Writes the means of this rank's shards, from payloads in rank order.
pub(super) fn sum_shards(layers: &mut [Layer<'_>], moment: Moment, room: &mut Room<'_>) -> Result<(), Error> {
    let Moment { rank, world_size: world, .. } = moment;
    let division = division(layers, moment);
    let len = message_len(division, rank, layers)?;
    let Room { ranks: Ranks { sent, .. }, pieces, arrived, scratch, .. } = room;
    let own = &pieces[sum(sent)..][..len];
    let message = |peer: u32| match peer {
        _ if peer == rank => own,
        _ => &arrived[(peer as usize - (peer > rank) as usize) * len..][..len],
    };
    check_left(layers);
    scattered(layers).try_for_each(Layer::put_rest)?;
    for_each(division, rank, layers, |piece, layer, at| {
        let payload_of = |peer: u32| &message(peer)[slip::LEN + at..][..piece.payload_len];
        mean_of(world, payload_of, &piece.setting, piece.shape, &mut layer.mean(&moment), scratch)
            .map_err(|error| in_tensor(error, piece.range.start))
    })
}

/// Copies the compressed means of this rank's pieces to their position in the buffer for all ranks' means.
pub(super) fn put_means(own: Slip, layers: &[Layer<'_>], moment: Moment, room: &mut Room<'_>) -> Result<(), Error> {
    let division = division(layers, moment);
    let mut at = 0;
    for (owner, len) in (0..moment.world_size).zip(&mut *room.ranks.sent) {
        *len = message_len(division, owner, layers)? as u64;
        if owner == moment.rank {
            let (head, payloads) = room.arrived[at..at + *len as usize].split_at_mut(slip::LEN);
            own.write(head);
            payloads.copy_from_slice(&room.pieces[..payloads.len()]);
        }
        at += *len as usize;
    }
    Ok(())
}

/// Decodes the means of all pieces.
pub(super) fn decode_means(layers: &mut [Layer<'_>], moment: Moment, room: &mut Room<'_>) -> Result<(), Error> {
    let division = division(layers, moment);
    let received = messages(room.ranks.sent, room.arrived);
    scattered(layers).try_for_each(Layer::put_rest)?;
    for (owner, message) in (0..).zip(received) {
        for_each(division, owner, layers, |piece, layer, at| {
            let payload = &message[slip::LEN + at..][..piece.payload_len];
            if let Some(mean) = layer.values.as_f32() {
                return decode_from(owner, payload, &piece.setting, piece.shape, &mut mean[piece.range]);
            }
            let decoded = &mut room.scratch.decoded[..piece.range.len()];
            decode_from(owner, payload, &piece.setting, piece.shape, decoded)?;
            narrow(decoded, piece.range.start, &mut layer.values)
        })?;
    }
    Ok(())
}
