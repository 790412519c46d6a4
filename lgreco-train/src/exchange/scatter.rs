//! Scatter-reduce with a second compression: each rank averages a part of the bucket for everybody.

use super::bucket::{Layer, Moment};
use super::collective::{Collective, Place};
use super::division::{Division, Piece, is_scattered};
use super::gather::decode_from;
use super::mean::{add, average};
use super::reduce::widen;
use super::workspace::Room;
use crate::Error;
use crate::compress::{Compressor, check_finite, decode};
use crate::gradient::{Gradient, Values};
use crate::rng::Stream;

fn division(layers: &[Layer<'_>], place: Place) -> Division {
    Division::new(layers.iter().map(|layer| (layer.setting, layer.gradient.shape())), place.world)
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

/// Bytes of `owner`'s share.
fn share_len(division: Division, owner: u32, layers: &mut [Layer<'_>]) -> Result<usize, Error> {
    let mut len = 0;
    for_each(division, owner, layers, |piece, _, at| {
        len = at + piece.payload_len;
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
    moment.stream(layer, rank.wrapping_mul(moment.place.world).wrapping_add(owner))
}

/// Writes the other owners' shares.
pub(super) fn begin(layers: &mut [Layer<'_>], moment: Moment, room: &mut Room<'_>) -> Result<(), Error> {
    let Place { rank, world } = moment.place;
    let division = division(layers, moment.place);
    // Of the whole tensors: this rank's share is not encoded yet, and positions are to be those in the tensor.
    layers.iter().filter(|layer| is_scattered(&layer.setting)).try_for_each(|layer| check_finite(&layer.gradient))?;
    let mut first = 0;
    for owner in (0..world).filter(|&owner| owner != rank) {
        let mut end = first;
        for_each(division, owner, layers, |piece, layer, at| {
            let gradient = cut(&layer.gradient, &piece)?;
            end = first + at + piece.payload_len;
            let payload = &mut room.shares[first + at..end];
            piece.setting.encode(&gradient, stream(moment, layer.index, rank, owner), room.encode, payload)?;
            if let Some(own) = &mut layer.own {
                decode(payload, &mut own[piece.range])?;
            }
            Ok(())
        })?;
        first = end;
    }
    Ok(())
}

/// Exchanges the shares, averages this rank's and hands it out.
pub(super) fn finish<C: Collective + ?Sized>(
    collective: &mut C,
    layers: &mut [Layer<'_>],
    moment: Moment,
    words: &mut [u64],
    room: &mut Room<'_>,
) -> Result<(), Error> {
    let Place { rank, world } = moment.place;
    let division = division(layers, moment.place);
    let (lens, words) = words.split_at_mut(world as usize);
    for (owner, len) in (0..world).zip(&mut *lens) {
        *len = share_len(division, owner, layers)? as u64;
    }
    let share = lens[rank as usize] as usize;
    let all = room.shares.len();

    let received_lens = &mut words[..world as usize];
    received_lens.fill(share as u64);
    received_lens[rank as usize] = 0;
    lens[rank as usize] = 0;
    let received = &mut room.received[..share * (world as usize - 1)];
    collective.all_to_all(&room.shares[..all - share], lens, received, received_lens)?;
    lens[rank as usize] = share as u64;

    let local = reduce(division, layers, moment, share, room);
    if let Err(error) = local {
        refuse(&mut room.shares[..share], error);
    }
    collective.all_gather(&room.shares[..share], lens, &mut room.received[..all])?;
    local?;

    let mut first = 0;
    for (owner, &len) in (0..world).zip(&*lens) {
        let payloads = &room.received[first..first + len as usize];
        if owner != rank {
            check_refusal(owner, payloads)?;
            for_each(division, owner, layers, |piece, layer, at| {
                let payload = &payloads[at..at + piece.payload_len];
                decode_from(owner, payload, &piece.setting, piece.shape, &mut layer.mean[piece.range])
            })?;
        }
        first += len as usize;
    }
    Ok(())
}

/// Where payloads begin with their magic, the share of an owner that failed has this, and the error's code.
const REFUSAL: [u8; 4] = [0; 4];

fn refuse(share: &mut [u8], error: Error) {
    let head = REFUSAL.into_iter().chain(error.code().to_le_bytes());
    share.iter_mut().zip(head).for_each(|(to, byte)| *to = byte);
}

fn check_refusal(owner: u32, share: &[u8]) -> Result<(), Error> {
    match share.as_chunks().0 {
        [REFUSAL, code, ..] => Err(Error::Peer { rank: owner, code: u32::from_le_bytes(*code) }),
        _ => Ok(()),
    }
}

/// Averages this rank's share, compresses the mean into the front of `room.shares` and keeps what that decodes to.
fn reduce(
    division: Division,
    layers: &mut [Layer<'_>],
    moment: Moment,
    share: usize,
    room: &mut Room<'_>,
) -> Result<(), Error> {
    let Place { rank, world } = moment.place;
    for_each(division, rank, layers, |piece, layer, at| {
        let gradient = cut(&layer.gradient, &piece)?;
        let mean = &mut layer.mean[piece.range.clone()];
        let decoded = &mut room.decoded[..mean.len()];
        for peer in 0..world {
            let values = if peer == 0 { &mut *mean } else { &mut *decoded };
            if peer == rank {
                widen(&gradient, values);
            } else {
                let message = peer as usize - (peer > rank) as usize;
                let payload = &room.received[message * share + at..][..piece.payload_len];
                decode_from(peer, payload, &piece.setting, piece.shape, values)?;
            }
            if peer > 0 {
                add(mean, decoded);
            }
        }
        average(mean, world)?;
        let payload = &mut room.shares[at..at + piece.payload_len];
        let exact = Gradient::new(Values::F32(mean), piece.shape)?;
        piece.setting.encode(&exact, stream(moment, layer.index, rank, rank), room.encode, payload)?;
        decode(payload, decoded)?;
        if let Some(own) = &mut layer.own {
            let own = &mut own[piece.range];
            widen(&gradient, own);
            for ((own, &mean), &decoded) in own.iter_mut().zip(&*mean).zip(&*decoded) {
                *own = (*own as f64 + world as f64 * (decoded as f64 - mean as f64)) as f32;
            }
        }
        mean.copy_from_slice(decoded);
        Ok(())
    })
}
