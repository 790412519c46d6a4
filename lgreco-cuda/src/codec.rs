//! Encodes gradients into payloads and decodes payloads, for all methods.

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

/// Size in bytes of the status that a call leaves on the device: two words. The first word has the bits of the largest
/// magnitude, or 0 if all values are known to be finite. The second word has the k-th largest magnitude under TopK, or
/// the faults under PowerSGD or EDEN.
pub(crate) const STATUS: u64 = 8;

const NO_ENCODER: Error = Error::Method("this setting");

/// Returns the header of the payload for a gradient under this setting.
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

/// Length of the payload in bytes; `Err` if the length exceeds `room`, the number of bytes that the caller provides.
pub(crate) fn checked_len(setting: &Setting, input: &Input<'_>, room: usize) -> Result<usize> {
    let len = setting.payload_len(input.shape(), input.dtype())?;
    expect_room("payload bytes", len, room)?;
    Ok(len)
}

/// Enqueued: writes the body of a payload into `payload`, after the bytes of the header. Writes the status into
/// `status`, which must be zero before the call.
pub(crate) fn enqueue(
    gpu: &mut Gpu,
    setting: &Setting,
    input: &Input<'_>,
    stream: Stream,
    payload: Part,
    status: Part,
) -> Result<()> {
    if input.shape().elements() == 0 {
        // A payload of TopK in few bits has means even if the gradient has no elements; these means are zeros.
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

/// Enqueued: decodes a payload that [`enqueue`] wrote for a gradient of this shape, without reading the payload's
/// header. `status` must be zeros before the call. Returns the status that a valid payload leaves, which
/// [`check_decoded`] expects. Returns `None` if any bytes of the right length are a valid payload.
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

/// Returns the error that a status reports for the gradient, if any.
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

/// Bytes of an extended status: two more words have the position and the value of the first invalid element.
pub(crate) const TOLD: u64 = STATUS + 8;

/// The smallest magnitude that cannot be encoded, as bits of f32.
fn limit(setting: &Setting) -> u32 {
    match *setting {
        Setting::TopK(TopK { values, .. }) => overflow_from(values),
        _ => INFINITY,
    }
}

/// Enqueued: like [`enqueue`], but also writes the header. If an element is invalid, its position and value go to the
/// second half of `status`, which has [`TOLD`] bytes.
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

/// Returns the error that a status of [`TOLD`] bytes reports. This check does not read the gradient, so the gradient's
/// memory may already be freed.
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

/// `Err` unless decoding has left the status `expected`, which every payload from an encoder leaves. If `expected` is
/// `None`, any status is accepted.
pub(crate) fn check_decoded(status: &[u32], expected: Option<[u32; 2]>) -> Result<()> {
    if expected.is_none_or(|expected| status == expected) {
        return Ok(());
    }
    Err(lgreco::Error::PayloadBody { what: "it is not what an encoder writes" }.into())
}

/// Done: like [`Compressor::encode`], but for values on the host or the device.
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

/// Enqueued for QSGD, done for other methods: decodes `bytes`, parsed as `payload`, into the f32 values of `target`.
/// Returns `false` if the core must decode instead. The core decodes in three cases: no kernel supports the method or
/// the size, the payload has no values, or no encoder can have written the payload.
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

/// Returns a setting that decodes this payload, or `None` if the core must decode the payload.
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
