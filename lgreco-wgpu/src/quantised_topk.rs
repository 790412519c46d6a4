//! TopK in few bits: the device selects and places what is kept, as for TopK in full; bins, means and codes of that little
//! are made by the core's own functions on the host, so that the bytes are the core's.

use crate::codec::{decode, encode};
use crate::gpu::Gpu;
use crate::tensor::{Input, Tensor, Work};
use crate::{Error, topk};
use lgreco_core::compress::quantised_topk::{QuantisedTopK, measure_workspace_len};
use lgreco_core::compress::wire::{HEADER_LEN, Payload};
use lgreco_core::compress::{Compressor, Setting};
use lgreco_core::gradient::Dtype;
use lgreco_core::internal::quantised_topk::{from_topk, in_full, measure_from_topk, to_topk};
use lgreco_core::rng::Stream;

/// The payload of TopK in full.
fn whole(gpu: &mut Gpu, top: QuantisedTopK, input: &Input<'_>, stream: Stream) -> Result<Vec<u8>, Error> {
    let full = in_full(&top);
    let mut whole = vec![0; full.payload_len(input.shape(), Dtype::F32)?];
    encode(gpu, &Setting::TopK(full), input, stream, &mut whole)?;
    Ok(whole)
}

/// [`Compressor::encode`]; `payload` is long enough.
pub(crate) fn encode_few_bits(
    gpu: &mut Gpu,
    top: QuantisedTopK,
    input: &Input<'_>,
    stream: Stream,
    payload: &mut [u8],
) -> Result<usize, Error> {
    let whole = whole(gpu, top, input, stream)?;
    Ok(from_topk(&top, &whole, &mut vec![0; top.keep as usize], payload)?)
}

/// As [`decode`] of the same values in full.
pub(crate) fn decode_few_bits(
    gpu: &mut Gpu,
    payload: &Payload<'_>,
    target: Option<Tensor>,
) -> Result<Option<Vec<u8>>, Error> {
    let room = 4 * payload.header.parameter as usize + payload.body.len();
    let mut whole = vec![0; HEADER_LEN + room];
    let len = to_topk(payload, &mut whole)?;
    decode(gpu, &Payload::parse(&whole[..len])?, target)
}

/// Makes a row of what TopK's measurement of the same `keeps` has written, and of the payload of the most of them.
pub(crate) fn take_row(
    gpu: &mut Gpu,
    job: &Work<'_>,
    (keeps, bits): (&[u32], &[u8]),
    words: &[u32],
    row: &mut [f64],
) -> Result<(), Error> {
    if keeps.is_empty() {
        return Ok(());
    }
    let mut dropped = vec![0.0; keeps.len()];
    topk::errors(keeps, words, &mut dropped);
    let whole = most(gpu, job, keeps)?;
    let mut workspace = vec![0; measure_workspace_len(job.gradient.shape(), keeps)];
    Ok(measure_from_topk(keeps, bits, &dropped, &whole, &mut workspace, row)?)
}

/// The payload in full of the most of `keeps`.
pub(crate) fn most(gpu: &mut Gpu, job: &Work<'_>, keeps: &[u32]) -> Result<Vec<u8>, Error> {
    let keep = keeps.iter().copied().max().unwrap_or(0);
    whole(gpu, QuantisedTopK { keep, bits: 2 }, &job.gradient, job.stream)
}
