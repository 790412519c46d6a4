//! The mean of what all ranks' payloads of one tensor hold, in the tensor's own element type.

use super::mean::{average, narrow};
use crate::compress::Setting;
use crate::compress::wire::{Method, Payload};
use crate::gradient::{Shape, ValuesMut};
use crate::internal::payload::{Combine, STRETCH, combine, combine_stretch, decode_parsed, reads_stretches};
use crate::{CoreError, Error};

/// What adding up takes of the workspace.
pub(super) struct Scratch<'a> {
    /// Two words per rank: where each payload's next stretch begins.
    pub(super) places: &'a mut [u64],
    /// Room for sums that do not fit where the mean goes.
    pub(super) wide: &'a mut [f32],
    /// Room for one decoded payload.
    pub(super) decoded: &'a mut [f32],
}

/// Adds up the payloads in the order of ranks, in f32, and writes the mean. Where it can it does so a stretch at a
/// time, of all payloads, so that every element of the mean is written once.
///
/// # Errors
/// [`Error::PeerMessage`] names a rank whose payload cannot be decoded; [`CoreError::Overflow`] when the sum leaves
/// f32, [`CoreError::ElementOverflow`] when the mean leaves its element type.
pub(super) fn mean_of<'p>(
    world: u32,
    payload_of: impl Fn(u32) -> &'p [u8],
    setting: &Setting,
    shape: Shape,
    mean: &mut ValuesMut<'_>,
    Scratch { places, wide, decoded }: Scratch<'_>,
) -> Result<(), Error> {
    let (in_stretches, elements) = (reads_stretches(method(setting)), shape.elements());
    places.fill(0);
    let places = places.as_chunks_mut().0;
    let mut add_up = |start: usize, sum: &mut [f32]| {
        for ((rank, place), payload) in (0..world).zip(&mut *places).zip((0..world).map(&payload_of)) {
            if in_stretches {
                let read = |payload: &Payload<'_>| combine_stretch(payload, rank == 0, start, place, sum);
                read_from(rank, payload, setting, shape, read)?;
            } else {
                sum_from(rank, payload, setting, shape, sum, decoded)?;
            }
        }
        average(sum, world)
    };
    let most = if in_stretches { STRETCH } else { elements };
    let mut start = 0;
    // Also of an empty tensor the payloads are looked at.
    loop {
        let end = elements.min(start + most);
        match mean.as_f32() {
            Some(mean) => add_up(start, &mut mean[start..end])?,
            None => {
                let sum = &mut wide[..end - start];
                add_up(start, sum)?;
                narrow(sum, start, mean)?;
            }
        }
        start = end;
        if end == elements {
            return Ok(());
        }
    }
}

/// Adds what `rank` contributes to the sum, which rank 0 begins.
fn sum_from(
    rank: u32,
    payload: &[u8],
    setting: &Setting,
    shape: Shape,
    sum: &mut [f32],
    decoded: &mut [f32],
) -> Result<(), Error> {
    if rank == 0 && method(setting) != Method::AdaComp {
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
