//! EDEN at a cut. A batch is one tensor, and the body of the batch's message is that tensor's payload.

use super::digest;
use crate::CoreError;
use crate::Error;
use crate::compress::Compressor;
use crate::compress::eden::{self, Eden};
use crate::compress::wire::Payload;
use crate::gradient::{Dtype, Gradient, Shape, Values};
use crate::rng::Stream;

/// Bytes of a body; 0 without samples.
pub(super) fn body_len(bits: u8, samples: usize, features: usize) -> Result<usize, Error> {
    let shape = Shape::new(samples, features)?;
    let len = Eden { bits, ..Eden::default() }.payload_len(shape, Dtype::F32)?;
    Ok(if samples == 0 { 0 } else { len })
}

/// Bytes that suffice for the body of every batch with at most this many samples. A smaller batch can have a longer
/// body, because the last elements of a batch are rotated in blocks whose lengths are powers of two. Each block has a
/// scale, and a smaller batch may have more of these blocks.
pub(super) fn longest_body(bits: u8, samples: usize, features: usize) -> Result<usize, Error> {
    let elements = Shape::new(samples, features)?.elements();
    let small_blocks = eden::BLOCK.min(elements + 1).ilog2() - (elements % eden::BLOCK).count_ones();
    Ok(body_len(bits, samples, features)?.saturating_add(4 * small_blocks as usize))
}

/// Writes the payload of a batch. The payload's seed is a checksum of the values. So the two ends need no counter, and
/// different batches have different random signs.
pub(super) fn encode(bits: u8, values: &[f32], features: usize, body: &mut [u8]) -> Result<(), CoreError> {
    if values.is_empty() {
        return Ok(());
    }
    let gradient = Gradient::new(Values::F32(values), Shape::new(values.len() / features, features)?)?;
    let stream = Stream { seed: digest::of_values(values).into(), ..Stream::default() };
    Eden { bits, ..Eden::default() }.encode(&gradient, stream, &mut [], body).map(drop)
}

/// Decodes the payload of a batch.
///
/// # Errors
/// [`CoreError::PayloadBody`] on a body that no encoder writes, and on a payload of another method, bit width or shape.
/// [`CoreError::Overflow`] when a value is too large for f32.
pub(super) fn decode(bits: u8, body: &[u8], features: usize, values: &mut [f32]) -> Result<(), CoreError> {
    if values.is_empty() {
        return Ok(());
    }
    let shape = Shape::new(values.len() / features, features)?;
    let expected = Eden { bits, ..Eden::default() }.header(shape)?;
    match Payload::parse(body) {
        Ok(payload) if payload.header == expected => eden::decode(&payload, values),
        _ => CoreError::require_body(false, "it is not of EDEN with the cut's bits and shape"),
    }
}
