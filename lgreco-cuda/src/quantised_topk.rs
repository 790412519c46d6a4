//! TopK in few bits: the device selects and places what is kept, as for TopK in full; bins, means and codes of that little
//! are made by the core's own functions on the host, so that the bytes are the core's.

use crate::codec::{STATUS, checked_len, decode, encode, enqueue_decoding};
use crate::device::Part;
use crate::gpu::{Gpu, Scratch};
use crate::tensor::{Input, Tensor, Work};
use crate::{Error, topk};
use lgreco_core::compress::quantised_topk::{QuantisedTopK, measure_workspace_len};
use lgreco_core::compress::wire::{HEADER_LEN, Payload};
use lgreco_core::compress::{Compressor, Setting};
use lgreco_core::gradient::{Dtype, Shape};
use lgreco_core::internal::quantised_topk::{from_topk, in_full, measure_from_topk, to_topk};
use lgreco_core::rng::Stream;

/// The payload of TopK in full.
fn whole(gpu: &mut Gpu, top: QuantisedTopK, input: &Input<'_>, stream: Stream) -> Result<Vec<u8>, Error> {
    let full = in_full(&top);
    let mut whole = vec![0; full.payload_len(input.shape(), Dtype::F32)?];
    encode(gpu, &Setting::TopK(full), input, stream, &mut whole)?;
    Ok(whole)
}

/// Done: [`encode`].
pub(crate) fn encode_few_bits(
    gpu: &mut Gpu,
    top: QuantisedTopK,
    input: &Input<'_>,
    stream: Stream,
    payload: &mut [u8],
) -> Result<usize, Error> {
    checked_len(&Setting::QuantisedTopK(top), input, payload.len())?;
    let whole = whole(gpu, top, input, stream)?;
    Ok(from_topk(&top, &whole, &mut vec![0; top.keep as usize], payload)?)
}

/// Done: [`decode`], as that of the same values in full.
pub(crate) fn decode_few_bits(gpu: &mut Gpu, payload: &Payload<'_>, target: Part) -> Result<bool, Error> {
    let mut whole = vec![0; HEADER_LEN + 4 * payload.header.parameter as usize + payload.body.len()];
    let len = to_topk(payload, &mut whole)?;
    let whole = &whole[..len];
    decode(gpu, whole, &Payload::parse(whole)?, target)
}

/// All that [`encode_few_bits`] asks of the device.
pub(crate) fn rehearse_encoding(
    gpu: &mut Gpu,
    top: QuantisedTopK,
    input: &Input<'_>,
    stream: Stream,
) -> Result<(), Error> {
    Setting::QuantisedTopK(top).payload_len(input.shape(), input.dtype())?;
    whole(gpu, top, input, stream).map(drop)
}

/// All that [`decode_few_bits`] asks of the device.
pub(crate) fn rehearse_decoding(gpu: &mut Gpu, top: QuantisedTopK, shape: Shape, target: &Tensor) -> Result<(), Error> {
    let full = Setting::TopK(in_full(&top));
    let payload = gpu.scratch(Scratch::Payload, full.payload_len(shape, Dtype::F32)? as u64)?;
    let status = gpu.scratch(Scratch::Results, STATUS)?;
    enqueue_decoding(gpu, &full, shape, payload, target, status).map(drop)
}

/// Done: makes a row of what TopK's measurement of the same `keeps` has written, and of the payload of the most of them.
pub(crate) fn take_row(
    gpu: &mut Gpu,
    job: &Work<'_>,
    (keeps, bits): (&[u32], &[u8]),
    words: &[u64],
    row: &mut [f64],
) -> Result<(), Error> {
    if keeps.is_empty() {
        return Ok(());
    }
    let dropped: Vec<f64> = topk::errors(words).collect();
    let whole = most(gpu, job, keeps)?;
    let mut workspace = vec![0; measure_workspace_len(job.gradient.shape(), keeps)];
    Ok(measure_from_topk(keeps, bits, &dropped, &whole, &mut workspace, row)?)
}

/// All that [`take_row`] asks of the device.
pub(crate) fn rehearse_row(gpu: &mut Gpu, job: &Work<'_>, keeps: &[u32]) -> Result<(), Error> {
    if keeps.is_empty() || job.gradient.shape().elements() == 0 {
        return Ok(());
    }
    most(gpu, job, keeps).map(drop)
}

/// The payload in full of the most of `keeps`.
fn most(gpu: &mut Gpu, job: &Work<'_>, keeps: &[u32]) -> Result<Vec<u8>, Error> {
    let keep = keeps.iter().copied().max().unwrap_or(0);
    whole(gpu, QuantisedTopK { keep, bits: 2 }, &job.gradient, job.stream)
}
