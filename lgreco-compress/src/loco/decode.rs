//! Decodes LoCo: codes to values.

use super::LoCo;
use super::encode::value;
use crate::bits;
use crate::error::expect_len;
use crate::rng::block::BLOCK;
use crate::simd::dispatch_with;
use crate::wire::{Header, Method, Payload};
use crate::{Error, Result};

/// Decodes a payload of [`LoCo`]. `values` has one entry per element.
///
/// ```
/// use lgreco_compress::{loco, wire::Payload};
/// let bytes = [b'L', 1, 5, 0, 9, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0x41, 0x87]; // M = 8, codes 7 and −8
/// let mut values = [f32::NAN; 2];
/// loco::decode(&Payload::parse(&bytes)?, &mut values)?;
/// assert_eq!(values, [7.0, -8.0]);
/// # Ok::<(), lgreco_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Length`] when `values` or the body does not have the length that the header implies.
/// [`Error::PayloadHeader`] when the payload is not LoCo's. [`Error::Parameter`] on a group size of 0.
/// [`Error::PayloadBody`] when a scale is negative or not finite, or when padding is not zero.
///
/// # Complexity
/// O(elements). Needs no workspace.
pub fn decode(payload: &Payload<'_>, values: &mut [f32]) -> Result<()> {
    let header = payload.header;
    let len = stated(&header)?;
    let elements = header.shape.elements();
    expect_len("decoded values", elements, values.len())?;
    let loco = LoCo { group: header.parameter };
    let (scales, codes) = payload.body_of_len(len)?.split_at(loco.body_lens(elements)?.0);
    let padded = elements % 2 == 1 && codes.last().is_some_and(|&last| last >> 4 != 0);
    Error::require_body(!padded, "padding is not zero")?;
    let scales = scales.as_chunks::<4>().0;
    // Infinity, NaN and numbers with a minus sign have larger bit patterns than `f32::MAX`.
    let sound = scales.iter().all(|&scale| u32::from_le_bytes(scale) <= f32::MAX.to_bits());
    Error::require_body(sound, "a scale is not finite and positive")?;
    dispatch_with!((loco.group as usize, scales, codes, values), put);
    Ok(())
}

/// Bytes of the body that a header implies.
pub(crate) fn stated(header: &Header) -> Result<usize> {
    header.expect_method(Method::LoCo)?;
    header.expect_variant(0)?;
    let (scales, codes) = LoCo { group: header.parameter }.body_lens(header.shape.elements())?;
    Ok(scales + codes)
}

#[inline(always)]
fn put((group, scales, codes, values): (usize, &[[u8; 4]], &[u8], &mut [f32])) {
    let mut block_codes = [0u8; BLOCK];
    for ((block, values), packed) in values.chunks_mut(BLOCK).enumerate().zip(codes.chunks(BLOCK / 2)) {
        bits::unpack(4, packed, &mut block_codes);
        let mut at = 0;
        while at < values.len() {
            let start = block * BLOCK + at;
            let end = values.len().min(at.saturating_add(group - start % group));
            let largest = f32::from_le_bytes(scales[start / group]);
            for (to, &code) in values[at..end].iter_mut().zip(&block_codes[at..end]) {
                *to = value((code as i32 ^ 8) - 8, largest);
            }
            at = end;
        }
    }
}
