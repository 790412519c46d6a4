//! Payloads to everybody.

use super::room::{Ranks, Room, sum};
use super::sum::{Scratch, mean_of};
use crate::compress::{Compressor, Setting, stated_len};
use crate::error::expect_room;
use crate::exchange::layer::{Layer, Spec};
use crate::exchange::moment::Moment;
use crate::exchange::program::Program;
use crate::exchange::slip::{self, Slip};
use crate::{CoreError, Error};

/// Encodes this rank's payloads, where lengths are fixed into the message's place among all, and writes down the length
/// of the message.
pub(super) fn encode(layers: &mut [Layer<'_>], program: &Program, room: &mut Room<'_>) -> Result<(), Error> {
    let Program { moment, layout, .. } = program;
    let message = match layout.varies {
        true => &mut *room.message,
        false => &mut room.received[moment.rank as usize * layout.message..][..layout.message],
    };
    let mut at = slip::LEN;
    for layer in layers.iter_mut().filter(|layer| layer.is_gathered(moment.route)) {
        let stream = moment.stream(layer.index, moment.rank);
        let payload = &mut message[at..];
        let len = match (layer.setting, &layer.fresh) {
            (Setting::AdaComp(ada), Some(fresh)) => ada.encode_compensated(&layer.gradient.get()?, fresh, payload)?,
            _ => layer.setting.encode(&layer.gradient.get()?, stream, room.encode, payload)?,
        };
        layer.sent = len as u64;
        at += len;
    }
    room.ranks.lens[moment.rank as usize] = at as u64;
    Ok(())
}

/// Puts this rank's message, or if it has failed its slip alone, among all.
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

/// The means of what the messages hold.
pub(super) fn means(layers: &mut [Layer<'_>], moment: Moment, room: &mut Room<'_>) -> Result<(), Error> {
    let Room { ranks: Ranks { lens, spare }, received, wide, decoded, .. } = room;
    let (places, read) = spare.split_at_mut(2 * lens.len());
    let unread = |rank: u32, read: u64| {
        let before = sum(&lens[..rank as usize]);
        &received[before..][..lens[rank as usize] as usize][read as usize..]
    };
    read.fill(slip::LEN as u64);
    for layer in layers.iter_mut().filter(|layer| layer.is_gathered(moment.route)) {
        let Spec { setting, shape, dtype, .. } = layer.spec();
        let spec = Spec::from((setting, shape, dtype));
        let len = |rank: u32, read: u64| {
            payload_len(unread(rank, read), &spec).map_err(|error| Error::PeerMessage { rank, code: error.code() })
        };
        for (rank, &read) in (0..).zip(&*read) {
            len(rank, read)?;
        }
        let payload_of = |rank: u32| {
            let unread = unread(rank, read[rank as usize]);
            &unread[..payload_len(unread, &spec).unwrap_or(0)]
        };
        let scratch = Scratch { places, wide, decoded };
        mean_of(moment.world_size, payload_of, &setting, shape, &mut layer.mean, scratch)?;
        layer.contribute(payload_of(moment.rank), decoded)?;
        for (rank, read) in (0..).zip(&mut *read) {
            *read += len(rank, *read)? as u64;
        }
    }
    match (0..).zip(&*read).find(|&(rank, &read)| !unread(rank, read).is_empty()) {
        Some((rank, _)) => Err(Error::PeerMessage { rank, code: CoreError::PayloadBody { what: "" }.code() }),
        None => Ok(()),
    }
}

/// Bytes of the layer's payload that a message goes on with, which are there.
fn payload_len(message: &[u8], spec: &Spec<'_>) -> Result<usize, Error> {
    let len = match spec.setting.has_fixed_len() {
        true => spec.setting.payload_len(spec.shape, spec.dtype)?,
        false => stated_len(message)?,
    };
    expect_room("payload bytes", len, message.len())?;
    Ok(len)
}
