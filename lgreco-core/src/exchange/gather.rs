//! Payloads to everybody.

use super::bucket::{Layer, Moment, Room};
use super::collective::{Collective, Place};
use super::mean::{add, average};
use crate::Error;
use crate::compress::wire::Method;
use crate::compress::{Compressor, Setting, decode};
use crate::gradient::Shape;

/// Writes this rank's message.
pub(super) fn begin(layers: &[Layer<'_>], moment: Moment, room: &mut Room<'_>) -> Result<(), Error> {
    let mut at = 0;
    for layer in layers.iter().filter(|layer| layer.is_message()) {
        let stream = moment.stream(layer.index, moment.place.rank);
        at += layer.setting.encode(&layer.gradient, stream, room.encode, &mut room.send[at..])?;
    }
    Ok(())
}

/// Exchanges the messages and sums what they hold, in rank order.
pub(super) fn finish<C: Collective + ?Sized>(
    collective: &mut C,
    layers: &mut [Layer<'_>],
    place: Place,
    words: &mut [u64],
    room: &mut Room<'_>,
) -> Result<(), Error> {
    let len = room.send.len();
    let lens = &mut words[..place.world as usize];
    lens.fill(len as u64);
    collective.all_gather(room.send, lens, room.received)?;
    let mut at = 0;
    for layer in layers.iter_mut().filter(|layer| layer.is_message()) {
        let shape = layer.gradient.shape();
        let payload_len = layer.setting.payload_len(shape, layer.gradient.values().dtype())?;
        let decoded = &mut room.decoded[..shape.elements()];
        for (rank, message) in (0..).zip(room.received.chunks_exact(len)) {
            let values = if rank == 0 { &mut *layer.mean } else { &mut *decoded };
            decode_from(rank, &message[at..at + payload_len], &layer.setting, shape, values)?;
            if let (true, Some(own)) = (rank == place.rank, &mut layer.own) {
                own.copy_from_slice(values);
            }
            if rank > 0 {
                add(layer.mean, decoded);
            }
        }
        average(layer.mean, place.world)?;
        at += payload_len;
    }
    Ok(())
}

/// Decodes a payload that `rank` sent for a tensor of this setting and shape.
pub(super) fn decode_from(
    rank: u32,
    payload: &[u8],
    setting: &Setting,
    shape: Shape,
    values: &mut [f32],
) -> Result<(), Error> {
    let method = match setting {
        Setting::Dense => Method::Dense,
        Setting::Qsgd(_) => Method::Qsgd,
        Setting::TopK(_) => Method::TopK,
        Setting::PowerSgd(_) => Method::PowerSgd,
    };
    let header = decode(payload, values).map_err(|error| Error::PeerMessage { rank, code: error.code() })?;
    if (header.method, header.shape) == (method, shape) {
        return Ok(());
    }
    Err(Error::PeerMessage { rank, code: Error::PayloadBody { what: "" }.code() })
}
