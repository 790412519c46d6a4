//! Payloads to everybody.

use super::Route;
use super::bucket::{Layer, Moment};
use super::collective::{Collective, Place};
use super::mean::{add, average};
use super::workspace::Room;
use crate::compress::wire::{Method, Payload};
use crate::compress::{Compressor, Setting, decode, stated_len};
use crate::error::expect_room;
use crate::gradient::Shape;
use crate::internal::{adacomp, payload::decode_parsed, topk};
use crate::{CoreError, Error};

/// Writes this rank's message and returns its length.
pub(super) fn begin(
    layers: &mut [Layer<'_>],
    route: Route,
    moment: Moment,
    room: &mut Room<'_>,
) -> Result<usize, Error> {
    let mut at = 0;
    for layer in layers.iter_mut().filter(|layer| layer.is_gathered(route)) {
        let stream = moment.stream(layer.index, moment.place.rank);
        let payload = &mut room.message[at..];
        let len = match (layer.setting, &layer.fresh) {
            (Setting::AdaComp(ada), Some(fresh)) => ada.encode_compensated(&layer.gradient, fresh, payload)?,
            _ => layer.setting.encode(&layer.gradient, stream, room.encode, payload)?,
        };
        layer.sent = len as u64;
        at += len;
    }
    Ok(at)
}

/// Exchanges the messages, which have these lengths, and sums what they hold, in rank order.
pub(super) fn finish<C: Collective + ?Sized>(
    collective: &mut C,
    layers: &mut [Layer<'_>],
    route: Route,
    place: Place,
    lens: &[u64],
    room: &mut Room<'_>,
) -> Result<(), Error> {
    if room.message.is_empty() {
        return Ok(());
    }
    // Everybody's greeting was checked to announce no more than there is room for.
    let own = lens[place.rank as usize] as usize;
    let mut rest = &mut room.received[..lens.iter().sum::<u64>() as usize];
    collective.all_gather(&room.message[..own], lens, rest)?;
    for (rank, &len) in (0..).zip(lens) {
        let message;
        (message, rest) = rest.split_at_mut(len as usize);
        let mut unread = &*message;
        for layer in layers.iter_mut().filter(|layer| layer.is_gathered(route)) {
            let failed = |error: Error| Error::PeerMessage { rank, code: error.code() };
            let payload;
            (payload, unread) = split(unread, layer).map_err(failed)?;
            sum_from(rank, payload, layer, room.decoded)?;
            if let (true, Some(own)) = (rank == place.rank, &mut layer.own) {
                decode(payload, own)?;
            }
        }
        if !unread.is_empty() {
            return Err(Error::PeerMessage { rank, code: CoreError::PayloadBody { what: "" }.code() });
        }
    }
    layers.iter_mut().filter(|layer| layer.is_gathered(route)).try_for_each(|layer| average(layer.mean, place.world))
}

/// Cuts a layer's payload off a message.
fn split<'a>(message: &'a [u8], layer: &Layer<'_>) -> Result<(&'a [u8], &'a [u8]), Error> {
    let len = match layer.setting.has_fixed_len() {
        true => layer.setting.payload_len(layer.gradient.shape(), layer.gradient.values().dtype())?,
        false => stated_len(message)?,
    };
    expect_room("payload bytes", len, message.len())?;
    Ok(message.split_at(len))
}

/// Adds what `rank` contributes to the sum, which rank 0 begins.
fn sum_from(rank: u32, payload: &[u8], layer: &mut Layer<'_>, decoded: &mut [f32]) -> Result<(), Error> {
    let shape = layer.gradient.shape();
    let add_sparse = match method(&layer.setting) {
        Method::TopK => Some(topk::add as fn(&Payload<'_>, &mut [f32]) -> _),
        Method::AdaComp => Some(adacomp::add as _),
        _ => None,
    };
    if let Some(add_sparse) = add_sparse {
        if rank == 0 {
            layer.mean.fill(0.0);
        }
        return read_from(rank, payload, &layer.setting, shape, |payload| add_sparse(payload, layer.mean));
    }
    if rank == 0 {
        return decode_from(rank, payload, &layer.setting, shape, layer.mean);
    }
    let decoded = &mut decoded[..shape.elements()];
    decode_from(rank, payload, &layer.setting, shape, decoded)?;
    add(layer.mean, decoded);
    Ok(())
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
