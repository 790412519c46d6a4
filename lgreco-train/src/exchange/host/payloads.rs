//! Payloads for all ranks: encodes them, and makes the means.

use super::lanes::{Parts, side_by_side};
use super::room::{Ranks, Room, sum};
use super::sum::mean_of;
use crate::compress::{Compressor, stated_len};
use crate::exchange::layer::{Layer, Rest};
use crate::exchange::moment::Route;
use crate::exchange::program::Program;
use crate::exchange::slip::{self, Slip};
use crate::exchange::spec::Spec;
use crate::gradient::Gradient;
use crate::{CoreError, Error};
use lgreco::error::expect_room;

/// Memory for the payloads of the next layers.
struct Unwritten<'a> {
    bytes: &'a mut [u8],
    route: Route,
}

impl Parts for Unwritten<'_> {
    fn split(self, first: &[Layer<'_>]) -> Result<(Self, Self), Error> {
        let Unwritten { bytes, route } = self;
        let (bytes, others) = bytes.split_at_mut(payloads_len(first, route)?);
        Ok((Unwritten { bytes, route }, Unwritten { bytes: others, route }))
    }
}

/// Bytes of the layers' payloads, which have fixed lengths.
fn payloads_len(layers: &[Layer<'_>], route: Route) -> Result<usize, Error> {
    let gathered = layers.iter().filter(|layer| layer.spec.is_gathered(route)).map(|layer| layer.spec);
    gathered.map(|spec| Ok(spec.setting.payload_len(spec.shape, spec.dtype)?)).sum()
}

/// Encodes this rank's payloads into its message, and records the length of the message. A message of fixed length is
/// encoded directly into its position in the buffer for all ranks' messages.
pub(super) fn encode(layers: &mut [Layer<'_>], program: &Program, room: &mut Room<'_>) -> Result<(), Error> {
    let Program { moment, layout, .. } = program;
    let message = match layout.varies {
        true => &mut *room.message,
        false => &mut room.received[moment.rank as usize * layout.message..][..layout.message],
    };
    let unwritten = Unwritten { bytes: &mut message[slip::LEN..], route: moment.route };
    side_by_side(layers, layout, &mut room.scratch, unwritten, |layers, Unwritten { mut bytes, route }, scratch| {
        for layer in layers.iter_mut().filter(|layer| layer.spec.is_gathered(route)) {
            let stream = moment.stream(layer.spec.index, moment.rank);
            let gradient = layer.get()?;
            let encoded = match &layer.rest {
                Rest::Instead(_) if layer.spec.setting.traits().sees_gradient => {
                    let fresh = Gradient::new(layer.values.values(), layer.spec.shape)?;
                    layer.spec.setting.encode_with_gradient(&gradient, &fresh, stream, scratch.encode, bytes)
                }
                _ => layer.spec.setting.encode(&gradient, stream, scratch.encode, bytes),
            };
            let len = encoded.map_err(|error| Error::from(error).of_layer(layer.spec.index))?;
            layer.sent = len as u64;
            let (payload, others) = bytes.split_at_mut(len);
            layer.contribute(payload, scratch.decoded)?;
            bytes = others;
        }
        Ok(())
    })?;
    let sent = layers.iter().filter(|layer| layer.spec.is_gathered(moment.route)).map(|layer| layer.sent);
    room.ranks.lens[moment.rank as usize] = slip::LEN as u64 + sent.sum::<u64>();
    Ok(())
}

/// Writes this rank's status record to its message, and the message to its position in the buffer for all ranks'
/// messages. After a failure, only the status record is valid.
pub(super) fn put(own: Slip, program: &Program, room: &mut Room<'_>) {
    let (layout, rank) = (&program.layout, program.moment.rank as usize);
    let each = &mut *room.ranks.lens;
    if !layout.varies {
        each.fill(layout.message as u64);
        own.write(&mut room.received[rank * layout.message..]);
        return;
    }
    own.write(room.message);
    let (before, len) = (sum(&each[..rank]), each[rank] as usize);
    room.received[before..][..len].copy_from_slice(&room.message[..len]);
}

/// The payloads of the next layers, which begin at byte `at` of each message if lengths are fixed.
struct Unread {
    at: usize,
    route: Route,
}

impl Parts for Unread {
    fn split(self, first: &[Layer<'_>]) -> Result<(Self, Self), Error> {
        let Unread { at, route } = self;
        Ok((Unread { at, route }, Unread { at: at + payloads_len(first, route)?, route }))
    }
}

/// Writes the means of all ranks' payloads. Even with shards, means of whole layers are written: all ranks must find
/// the same errors, and outside methods can decode only whole tensors.
pub(super) fn means(layers: &mut [Layer<'_>], program: &Program, room: &mut Room<'_>) -> Result<(), Error> {
    let Program { moment, layout, .. } = program;
    let Room { ranks: Ranks { lens, .. }, received, scratch, .. } = room;
    let (lens, received) = (&**lens, &**received);
    let unread = |rank: u32, read: u64| {
        let before = sum(&lens[..rank as usize]);
        &received[before..][..lens[rank as usize] as usize][read as usize..]
    };
    let first = Unread { at: slip::LEN, route: moment.route };
    side_by_side(layers, layout, scratch, first, |layers, Unread { at, route }, scratch| {
        let read = core::mem::take(&mut scratch.read);
        read.fill(at as u64);
        for layer in layers.iter_mut().filter(|layer| layer.spec.is_gathered(route)) {
            let Spec { setting, shape, dtype, .. } = layer.spec;
            let fixed = setting.has_fixed_len().then(|| setting.payload_len(shape, dtype)).transpose()?;
            let len = |rank: u32, read: u64| {
                let len = payload_len(unread(rank, read), fixed);
                len.map_err(|error| Error::PeerMessage { rank, code: error.code() })
            };
            for (rank, &read) in (0..).zip(&*read) {
                len(rank, read)?;
            }
            let payload_of = |rank: u32| {
                let read = read[rank as usize];
                &unread(rank, read)[..len(rank, read).unwrap_or(0)]
            };
            layer.put_rest()?;
            mean_of(moment.world_size, payload_of, &setting, shape, &mut layer.values, scratch)
                .map_err(|error| error.of_layer(layer.spec.index))?;
            for (rank, read) in (0..).zip(&mut *read) {
                *read += len(rank, *read)? as u64;
            }
        }
        match (0..).zip(&*read).find(|&(rank, &read)| layout.varies && !unread(rank, read).is_empty()) {
            Some((rank, _)) => Err(Error::PeerMessage { rank, code: CoreError::PayloadBody { what: "" }.code() }),
            None => Ok(()),
        }
    })
}

/// Length of the payload at the beginning of `message`; `Err` if the message is shorter.
fn payload_len(message: &[u8], fixed: Option<usize>) -> Result<usize, Error> {
    let len = match fixed {
        Some(len) => len,
        None => stated_len(message)?,
    };
    expect_room("payload bytes", len, message.len())?;
    Ok(len)
}
