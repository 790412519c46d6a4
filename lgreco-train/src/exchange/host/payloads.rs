//! Payloads to everybody.

use super::mean::average;
use super::room::{Room, messages, sum};
use crate::compress::wire::{Method, Payload};
use crate::compress::{Compressor, Setting, stated_len};
use crate::error::expect_room;
use crate::exchange::bucket::{Layer, Moment};
use crate::exchange::program::Program;
use crate::exchange::slip::{self, Slip};
use crate::gradient::Shape;
use crate::internal::payload::{Combine, combine, decode_parsed};
use crate::{CoreError, Error};

/// Encodes this rank's payloads, where lengths are fixed into the message's place among all, and writes down the length of
/// the message.
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

/// Sums what the messages hold, in rank order.
pub(super) fn means(layers: &mut [Layer<'_>], moment: Moment, room: &mut Room<'_>) -> Result<(), Error> {
    let received = messages(room.ranks.lens, room.received);
    for (rank, message) in (0..).zip(received) {
        let mut unread = &message[slip::LEN..];
        for layer in layers.iter_mut().filter(|layer| layer.is_gathered(moment.route)) {
            let failed = |error: Error| Error::PeerMessage { rank, code: error.code() };
            let payload;
            (payload, unread) = split(unread, layer).map_err(failed)?;
            sum_from(rank, payload, &layer.setting, layer.gradient.shape(), layer.mean, room.decoded)?;
            if rank == moment.rank {
                layer.contribute(payload, room.decoded)?;
            }
        }
        if !unread.is_empty() {
            return Err(Error::PeerMessage { rank, code: CoreError::PayloadBody { what: "" }.code() });
        }
    }
    let mut gathered = layers.iter_mut().filter(|layer| layer.is_gathered(moment.route));
    gathered.try_for_each(|layer| average(layer.mean, moment.world_size))
}

/// Cuts a layer's payload off a message.
fn split<'a>(message: &'a [u8], layer: &Layer<'_>) -> Result<(&'a [u8], &'a [u8]), Error> {
    let len = match layer.setting.has_fixed_len() {
        true => layer.setting.payload_len(layer.gradient.shape(), layer.gradient.dtype())?,
        false => stated_len(message)?,
    };
    expect_room("payload bytes", len, message.len())?;
    Ok(message.split_at(len))
}

/// Adds what `rank` contributes to the sum, which rank 0 begins.
pub(super) fn sum_from(
    rank: u32,
    payload: &[u8],
    setting: &Setting,
    shape: Shape,
    sum: &mut [f32],
    decoded: &mut [f32],
) -> Result<(), Error> {
    let sparse = matches!(method(setting), Method::TopK | Method::AdaComp);
    if rank == 0 && !sparse {
        return decode_from(rank, payload, setting, shape, sum);
    }
    if rank == 0 {
        sum.fill(0.0);
    }
    read_from(rank, payload, setting, shape, |payload| combine(payload, Combine::Add, sum, decoded))
}

/// What payloads of `setting` say they are.
const fn method(setting: &Setting) -> Method {
    match setting {
        Setting::Dense => Method::Dense,
        Setting::Qsgd(_) => Method::Qsgd,
        Setting::TopK(_) | Setting::CltK(_) | Setting::HardThreshold(_) | Setting::Sidco(_) => Method::TopK,
        Setting::PowerSgd(_) => Method::PowerSgd,
        Setting::AdaComp(_) => Method::AdaComp,
        Setting::LoCo(_) => Method::LoCo,
    }
}

/// Decodes a payload that `rank` sent for a tensor of this setting and shape.
pub(super) fn decode_from(
    rank: u32,
    payload: &[u8],
    setting: &Setting,
    shape: Shape,
    values: &mut [f32],
) -> Result<(), Error> {
    read_from(rank, payload, setting, shape, |payload| decode_parsed(payload, values))
}

/// Lets `read` read a payload that `rank` sent for a tensor of this setting and shape.
fn read_from(
    rank: u32,
    payload: &[u8],
    setting: &Setting,
    shape: Shape,
    read: impl FnOnce(&Payload<'_>) -> Result<(), CoreError>,
) -> Result<(), Error> {
    let checked = || {
        let payload = Payload::parse(payload)?;
        if (payload.header.method, payload.header.shape) != (method(setting), shape) {
            return Err(CoreError::PayloadBody { what: "its method or shape is not that of the layer" });
        }
        read(&payload)
    };
    checked().map_err(|error| Error::PeerMessage { rank, code: error.code() })
}
