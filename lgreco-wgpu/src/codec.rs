//! Encodes gradients into payloads and decodes payloads, for all methods.

use crate::batch::{Batch, Part};
use crate::gpu::Gpu;
use crate::magnitude::{check_finite, overflow};
use crate::memory::Scratch;
use crate::tensor::{Input, Tensor};
use crate::{Error, eden, positions, powersgd, qsgd, reconstruct, topk_encode};
use lgreco::compress::powersgd::NEAR_OVERFLOW;
use lgreco::compress::quantised_topk::{self, Keep};
use lgreco::compress::topk::overflow as overflow_from;
use lgreco::compress::wire::{HEADER_LEN, Method, Payload};
use lgreco::compress::{
    Compressor, Setting, dense::Dense, eden::Eden, powersgd::effective_rank, qsgd::Qsgd, topk::TopK,
};
use lgreco::error::expect_room;
use lgreco::gradient::{Bf16, Dtype, F16, Gradient, Values};
use lgreco::rng::Stream;

/// [`Compressor::encode`] for values on the host or the device.
pub(crate) fn encode(
    gpu: &mut Gpu,
    setting: &Setting,
    input: &Input<'_>,
    stream: Stream,
    payload: &mut [u8],
) -> Result<usize, Error> {
    let (shape, dtype) = (input.shape(), input.dtype());
    let len = setting.payload_len(shape, dtype)?;
    expect_room("payload bytes", len, payload.len())?;
    let header = match *setting {
        Setting::Dense => return encode_dense(gpu, input, stream, payload),
        Setting::Qsgd(c) => c.header(shape)?,
        Setting::TopK(c) => c.header(shape)?,
        Setting::QuantisedTopK(c) => quantised_topk::header(&c, shape)?,
        Setting::PowerSgd(c) => c.header(shape)?,
        Setting::Eden(c) => c.header(shape)?,
        _ => return Err(Error::Method(setting.name())),
    };
    header.write(payload)?;
    if shape.elements() == 0 {
        // A payload of TopK in few bits has means even if the gradient has no elements; these means are zeros.
        payload[HEADER_LEN..len].fill(0);
        if let Setting::Eden(_) = setting {
            payload[HEADER_LEN..len].copy_from_slice(&lgreco::compress::eden::seed(stream).to_le_bytes());
        }
        return Ok(len);
    }
    let kept: Option<Keep> = match *setting {
        Setting::TopK(c) => Some(c.into()),
        Setting::QuantisedTopK(c) => Some(c.into()),
        _ => None,
    };
    let mut batch = Batch::new(gpu)?;
    let results = batch.scratch(Scratch::Results, 16)?;
    batch.clear(&results, 16);
    let tensor = input.tensor(&mut batch)?;
    let with_results = |mut written: Vec<Part>| {
        written.insert(0, Part { buffer: results.clone(), offset: 0, size: 16 });
        written
    };
    let written = match (*setting, kept) {
        (_, Some(kept)) => of_topk(&topk_encode::encode(&mut batch, &tensor, kept, len, &results)?),
        (Setting::Qsgd(c), _) => body(&qsgd::encode(&mut batch, &tensor, c, stream, len, &results)?),
        (Setting::Eden(c), _) => body(&eden::encode(&mut batch, &tensor, c, stream, len, &results)?),
        (Setting::PowerSgd(c), _) => {
            let rank = effective_rank(shape, c.rank);
            powersgd::encode(&mut batch, &tensor, shape, (rank, c.iterations), stream, &results)?
        }
        _ => return Err(Error::Method(setting.name())),
    };
    let mut bytes = batch.read(&with_results(written))?;
    let found = |bytes: &[u8]| -> [u32; 4] { bytemuck::pod_read_unaligned(&bytes[..16]) };
    let finite = check_finite(gpu, input, found(&bytes)[0]);
    match setting {
        Setting::Eden(_) => eden::check(finite, &found(&bytes))?,
        _ => finite?,
    }
    if let Some(kept) = kept
        && found(&bytes)[2] != 0
    {
        let mut batch = Batch::new(gpu)?;
        let tensor = input.tensor(&mut batch)?;
        let written = of_topk(&topk_encode::encode_lost(&mut batch, &tensor, kept, len, &results)?);
        bytes = batch.read(&with_results(written))?;
        #[cfg(test)]
        {
            gpu.lost_cuts += 1;
        }
    }
    let (words, body) = (found(&bytes), &bytes[16..]);
    if let Setting::TopK(TopK { values, .. }) = *setting
        && words[0] >= overflow_from(values)
    {
        return Err(overflow(gpu, input, words[1].max(overflow_from(values)))?);
    }
    let sent = kept.map_or(len - HEADER_LEN, |kept| kept.bytes().iter().sum::<u64>() as usize);
    let (values, positions) = payload[HEADER_LEN..len].split_at_mut(sent);
    values.copy_from_slice(&body[..sent]);
    // Positions begin at a whole word.
    positions.copy_from_slice(&body[sent.next_multiple_of(4)..][..positions.len()]);
    if matches!(setting, Setting::PowerSgd(_)) && words[0] >= NEAR_OVERFLOW {
        check_product(&payload[..len], shape.elements())?;
    }
    Ok(len)
}

/// Returns the parts with the words of a TopK payload after the header.
fn of_topk(written: &topk_encode::Written) -> Vec<Part> {
    body(&written.sent).into_iter().chain(written.positions.parts()).collect()
}

/// Returns the parts with the words of a payload after the header.
fn body(payload: &Tensor) -> Vec<Part> {
    let mut parts: Vec<Part> = payload.parts().collect();
    parts[0].offset += HEADER_LEN as u64;
    parts[0].size -= HEADER_LEN as u64;
    parts
}

/// `Err` if a factor of a PowerSGD payload, or the product of both factors, is not finite.
fn check_product(payload: &[u8], elements: usize) -> Result<(), Error> {
    let body = payload[HEADER_LEN..].as_chunks::<4>().0;
    if !body.iter().all(|&bytes| f32::from_le_bytes(bytes).is_finite()) {
        return Err(lgreco::Error::Overflow { what: "PowerSGD factor Q" }.into());
    }
    lgreco::compress::decode(payload, &mut vec![0.0; elements])?;
    Ok(())
}

/// Makes an uncompressed payload. The core writes the header and the values.
fn encode_dense(gpu: &mut Gpu, input: &Input<'_>, stream: Stream, payload: &mut [u8]) -> Result<usize, Error> {
    let gradient = match input {
        Input::Host(gradient) => return Ok(Dense.encode(gradient, stream, &mut [], payload)?),
        Input::Device(gradient) => gradient,
    };
    let mut batch = Batch::new(gpu)?;
    input.tensor(&mut batch)?;
    let elements = gradient.shape.elements();
    let size = (elements * gradient.dtype.bytes()).next_multiple_of(4) as u64;
    let bytes = batch.read(&[Part { buffer: gradient.buffer.clone(), offset: gradient.offset, size }])?;
    let bytes = &bytes[..elements * gradient.dtype.bytes()];
    let (single, half, brain): (Vec<f32>, Vec<F16>, Vec<Bf16>);
    let values = match gradient.dtype {
        Dtype::F32 => {
            single = bytemuck::pod_collect_to_vec(bytes);
            Values::F32(&single)
        }
        Dtype::F16 => {
            half = bytemuck::pod_collect_to_vec(bytes);
            Values::F16(&half)
        }
        Dtype::Bf16 => {
            brain = bytemuck::pod_collect_to_vec(bytes);
            Values::Bf16(&brain)
        }
    };
    Ok(Dense.encode(&Gradient::new(values, gradient.shape)?, stream, &mut [], payload)?)
}

/// The body of a payload that the device can decode, by method.
enum Body<'p> {
    Qsgd(Qsgd),
    TopK(positions::Body<'p>),
    PowerSgd(reconstruct::Factors),
    Eden(Eden),
}

impl<'p> Body<'p> {
    /// Returns `None` if the core must decode. The core decodes payloads of methods without kernels (such as dense,
    /// AdaComp and LoCo), empty payloads, and payloads that no encoder writes. The core also decodes PowerSGD payloads
    /// with sides or ranks above the kernels' limits, or with values near the limits of f32.
    fn of(payload: &Payload<'p>) -> Result<Option<Body<'p>>, Error> {
        Ok(match payload.header.method {
            Method::Qsgd => Some(Body::Qsgd(lgreco::compress::qsgd::of_payload(payload)?)),
            Method::TopK => positions::of_payload(payload)?.map(Body::TopK),
            Method::QuantisedTopK => positions::of_few_bits(payload)?.map(Body::TopK),
            Method::PowerSgd => reconstruct::of_payload(payload)?.map(Body::PowerSgd),
            Method::Eden => Some(Body::Eden(lgreco::compress::eden::of_payload(payload)?)),
            _ => None,
        })
    }
}

/// Decodes into `target`. Without a target, decodes into a new buffer and returns the decoded bytes. Returns `None` if
/// the core must decode, for the reasons in [`Body::of`] or because the device has found an error in the payload.
pub(crate) fn decode(gpu: &mut Gpu, payload: &Payload<'_>, target: Option<Tensor>) -> Result<Option<Vec<u8>>, Error> {
    let Some(body) = Body::of(payload)? else { return Ok(None) };
    let mut batch = Batch::new(gpu)?;
    let results = batch.scratch(Scratch::Results, 16)?;
    batch.clear(&results, 16);
    let mut parts = vec![Part { buffer: results.clone(), offset: 0, size: 16 }];
    let target = match target {
        Some(target) => target,
        None => {
            let room = Tensor::room(&mut batch, payload.header.shape.elements())?;
            parts.extend(room.parts());
            room
        }
    };
    match body {
        Body::Qsgd(qsgd) => qsgd::decode(&mut batch, qsgd, payload.body, &target)?,
        Body::TopK(top) => positions::decode(&mut batch, &top, &target, &results)?,
        Body::Eden(eden) => eden::decode(&mut batch, eden, payload.body, &target, &results)?,
        Body::PowerSgd(factors) => reconstruct::decode(&mut batch, &factors, payload.header.shape, &target)?,
    }
    let mut read = batch.read(&parts)?;
    let values = read.split_off(16);
    let good = bytemuck::pod_read_unaligned::<u32>(&read[..4]) == 0;
    #[cfg(test)]
    {
        gpu.decoded += usize::from(good);
    }
    Ok(good.then_some(values))
}
