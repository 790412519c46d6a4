//! Payloads: gradients to bytes and back, whatever the method.

use crate::device::Part;
use crate::gpu::{Gpu, Scratch};
use crate::magnitude::{INFINITY, check_finite, overflow};
use crate::tensor::{Input, Tensor};
use crate::{Error, Result, eden, magnitude, positions, powersgd, qsgd, selection};
use lgreco::compress::wire::{HEADER_LEN, Header, Method, Payload};
use lgreco::compress::{
    Compressor, Setting,
    powersgd::{PowerSgd, effective_rank},
    qsgd::Qsgd,
    topk::TopK,
};
use lgreco::compress::{quantised_topk, topk::overflow as overflow_from};
use lgreco::error::expect_room;
use lgreco::gradient::Shape;
use lgreco::rng::Stream;

/// Bytes of a status: two words, the first the bits of the largest magnitude (or 0 where it is known to be finite), the
/// second TopK's k-th largest, or PowerSGD's or EDEN's faults.
pub(crate) const STATUS: u64 = 8;

const NO_ENCODER: Error = Error::Method("this setting");

/// A payload's header.
pub(crate) fn header(setting: &Setting, input: &Input<'_>) -> Result<Header> {
    let shape = input.shape();
    Ok(match *setting {
        Setting::Dense => Header { method: Method::Dense, variant: input.dtype() as u8, parameter: 0, shape },
        Setting::Qsgd(c) => c.header(shape)?,
        Setting::TopK(c) => c.header(shape)?,
        Setting::PowerSgd(c) => c.header(shape)?,
        Setting::QuantisedTopK(c) => quantised_topk::header(&c, shape)?,
        Setting::Eden(c) => c.header(shape)?,
        _ => return Err(NO_ENCODER),
    })
}

/// Bytes of the payload, when there is `room` for it.
pub(crate) fn checked_len(setting: &Setting, input: &Input<'_>, room: usize) -> Result<usize> {
    let len = setting.payload_len(input.shape(), input.dtype())?;
    expect_room("payload bytes", len, room)?;
    Ok(len)
}

/// Enqueued: a payload's body at its place in `payload`, and its status, zeros before.
pub(crate) fn enqueue(
    gpu: &mut Gpu,
    setting: &Setting,
    input: &Input<'_>,
    stream: Stream,
    payload: Part,
    status: Part,
) -> Result<()> {
    if input.shape().elements() == 0 {
        // There may be means of nothing.
        return gpu.clear(payload.from(HEADER_LEN as u64));
    }
    let tensor = input.tensor(gpu)?;
    match *setting {
        Setting::Dense => {
            magnitude::largest(gpu, &tensor, status)?;
            gpu.copy(tensor.part, payload.from(HEADER_LEN as u64))
        }
        Setting::Qsgd(c) => qsgd::encode(gpu, &tensor, c, stream, payload, status),
        Setting::TopK(c) => selection::encode(gpu, &tensor, c.into(), payload, status),
        Setting::QuantisedTopK(c) => selection::encode(gpu, &tensor, c.into(), payload, status),
        Setting::PowerSgd(c) => {
            let layer = powersgd::Layer { tensor: &tensor, shape: input.shape(), stream };
            powersgd::encode(gpu, &layer, (c.rank, c.iterations), payload, status)
        }
        Setting::Eden(c) => eden::encode(gpu, &tensor, c, stream, payload, status),
        _ => Err(NO_ENCODER),
    }
}

/// Enqueued: decodes a payload that [`enqueue`] wrote, with any header, of a gradient of this shape. Returns what
/// `status`, zeros before, must be afterwards, which [`check_decoded`] compares; `None` when any bytes do.
pub(crate) fn enqueue_decoding(
    gpu: &mut Gpu,
    setting: &Setting,
    shape: Shape,
    payload: Part,
    target: &Tensor,
    status: Part,
) -> Result<Option<[u32; 2]>> {
    match *setting {
        Setting::Qsgd(c) => qsgd::decode(gpu, c, payload, target).map(|()| None),
        Setting::TopK(c) => positions::decode(gpu, c.into(), payload, target, status).map(Some),
        Setting::QuantisedTopK(c) => positions::decode(gpu, c.into(), payload, target, status).map(Some),
        Setting::PowerSgd(c) => {
            powersgd::check_sides(shape)?;
            let rank = effective_rank(shape, c.rank) as u32;
            powersgd::decode(gpu, rank, payload, shape, target.part, status).map(|()| Some([0, 0]))
        }
        Setting::Eden(c) => eden::decode(gpu, c, payload, target, status).map(|()| Some([0, 0])),
        _ => Err(Error::Method("decoding this setting's payloads")),
    }
}

/// What a status says of the gradient.
pub(crate) fn check(gpu: &mut Gpu, setting: &Setting, input: &Input<'_>, status: &[u32]) -> Result<()> {
    let finite = check_finite(gpu, input, status[0]);
    if let Setting::Eden(_) = setting {
        return eden::check(finite, status[1]);
    }
    finite?;
    match *setting {
        Setting::TopK(_) if status[0] >= limit(setting) => Err(overflow(gpu, input, status[1].max(limit(setting)))?),
        Setting::PowerSgd(_) => powersgd::fault(status[1]),
        _ => Ok(()),
    }
}

/// Bytes of a status with room for what is at fault: two words more.
pub(crate) const TOLD: u64 = STATUS + 8;

/// The magnitude from which on a gradient cannot be encoded.
fn limit(setting: &Setting) -> u32 {
    match *setting {
        Setting::TopK(TopK { values, .. }) => overflow_from(values),
        _ => INFINITY,
    }
}

/// Enqueued: [`enqueue`] with the header, and what is at fault, if anything is, to the second half of `status`, of [`TOLD`] bytes.
pub(crate) fn enqueue_told(
    gpu: &mut Gpu,
    setting: &Setting,
    input: &Input<'_>,
    stream: Stream,
    payload: Part,
    status: Part,
) -> Result<()> {
    let mut bytes = [0; HEADER_LEN];
    header(setting, input)?.write(&mut bytes)?;
    let header = [0, 1, 2, 3].map(|word| u32::from_le_bytes(bytes.as_chunks::<4>().0[word]));
    enqueue(gpu, setting, input, stream, payload, status)?;
    if input.shape().elements() == 0 {
        return gpu.write_words(&header, payload);
    }
    let tensor = input.tensor(gpu)?;
    magnitude::end_payload(gpu, &tensor, limit(setting), [status, status.from(STATUS)], (header, payload))
}

/// What a status of [`TOLD`] bytes says of a gradient that may have gone.
pub(crate) fn check_told(setting: &Setting, [largest, second, low, high]: [u32; 4]) -> Result<()> {
    let (index, value) = magnitude::told([low, high]);
    let is_finite = largest < INFINITY;
    let finite = if is_finite { Ok(()) } else { Err(lgreco::Error::NonFinite { index, value }.into()) };
    if let Setting::Eden(_) = setting {
        return eden::check(finite, second);
    }
    finite?;
    if largest >= limit(setting) {
        return Err(lgreco::Error::ElementOverflow { index, value }.into());
    }
    if let Setting::PowerSgd(_) = setting { powersgd::fault(second) } else { Ok(()) }
}

/// `Err` when a status is not the one that decoding an encoder's payload leaves.
pub(crate) fn check_decoded(status: &[u32], expected: Option<[u32; 2]>) -> Result<()> {
    if expected.is_none_or(|expected| status == expected) {
        return Ok(());
    }
    Err(lgreco::Error::PayloadBody { what: "it is not what an encoder writes" }.into())
}

/// Done: [`Compressor::encode`], of values on either side.
pub(crate) fn encode(
    gpu: &mut Gpu,
    setting: &Setting,
    input: &Input<'_>,
    stream: Stream,
    payload: &mut [u8],
) -> Result<usize> {
    let len = checked_len(setting, input, payload.len())?;
    if let (Setting::Qsgd(Qsgd { bucket, .. }), Input::Host(gradient)) = (setting, input)
        && !qsgd::holds(*bucket)
    {
        let mut workspace = vec![0; setting.encode_workspace_len(gradient.shape(), input.dtype())];
        return Ok(setting.encode(gradient, stream, &mut workspace, payload)?);
    }
    let header = header(setting, input)?;
    let part = gpu.scratch(Scratch::Payload, len as u64)?;
    let status = gpu.scratch(Scratch::Results, STATUS)?;
    gpu.clear(status)?;
    enqueue(gpu, setting, input, stream, part, status)?;
    let status = gpu.read::<u32>(status)?;
    check(gpu, setting, input, &status)?;
    header.write(payload)?;
    gpu.read_into(part.from(HEADER_LEN as u64), &mut payload[HEADER_LEN..len])?;
    Ok(len)
}

/// Decodes `bytes`, parsed as `payload`, into the f32 values of `target`: enqueued for QSGD, done for the others. `false`,
/// and done, when that is left to the core: dense payloads, those that hold nothing, and those that no encoder writes.
pub(crate) fn decode(gpu: &mut Gpu, bytes: &[u8], payload: &Payload<'_>, target: Part) -> Result<bool> {
    let Some(setting) = setting_of(payload)? else { return Ok(false) };
    let bytes = gpu.upload(Scratch::Payload, bytes)?;
    let status = gpu.scratch(Scratch::Results, STATUS)?;
    gpu.clear(status)?;
    let target = Tensor::of_part(target);
    let good = match enqueue_decoding(gpu, &setting, payload.header.shape, bytes, &target, status)? {
        Some(expected) => gpu.read::<u32>(status)? == expected,
        None => true,
    };
    #[cfg(test)]
    {
        gpu.decoded += usize::from(good);
    }
    Ok(good)
}

/// A setting whose payloads are decoded as this one is, or `None` when the core has to do that.
fn setting_of(payload: &Payload<'_>) -> Result<Option<Setting>> {
    Ok(match payload.header.method {
        Method::Qsgd => Some(Setting::Qsgd(lgreco::compress::qsgd::of_payload(payload)?)),
        Method::TopK => {
            let top = lgreco::compress::topk::of_payload(payload)?.top;
            (top.keep > 0).then_some(Setting::TopK(top))
        }
        Method::QuantisedTopK => {
            let few = quantised_topk::of_payload(payload)?.top;
            (few.keep > 0).then_some(Setting::QuantisedTopK(few))
        }
        Method::PowerSgd => {
            let rank = lgreco::compress::powersgd::of_payload(payload)?.rank;
            let fits = powersgd::check_sides(payload.header.shape).is_ok();
            fits.then_some(Setting::PowerSgd(PowerSgd { rank, iterations: 1 }))
        }
        Method::Eden => Some(Setting::Eden(lgreco::compress::eden::of_payload(payload)?)),
        _ => None,
    })
}

/// Bytes of the decoded values.
pub(crate) fn decoded_bytes(shape: Shape) -> u64 {
    4 * shape.elements() as u64
}
