//! Codes to values.

use super::grid::{LARGEST, point};
use super::rotate::{Signs, blocks, inverse_root};
use super::transform::transform;
use super::{BLOCK, Eden, SEED_LEN, Scale};
use crate::bits::{self, with_width};
use crate::combine::Combine;
use crate::error::{expect_len, expect_room};
use crate::spread::{Per, Start, spread_parts};
use crate::wire::{Header, Method, Payload};
use crate::{Error, Result};

/// Writes the values that `payload`, made by [`Eden`], stands for; `values` has one entry per element.
///
/// ```
/// use lgreco_compress::{eden, wire::Payload};
/// let bytes = [
///     b'L', 1, 10, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, // 1 bit for each of 1 × 2 values
///     0, 0, 0, 0, 0, 0, 0, 0, // the seed, of which the signs come
///     0, 0, 0x80, 0x3f, // scale 1
///     0b10, // a positive and a negative code
/// ];
/// let mut values = [f32::NAN; 2];
/// eden::decode(&Payload::parse(&bytes)?, &mut values)?;
/// assert_eq!((values[0].abs(), values[1].abs()), (0.0, 0.7978846 * 2f32.sqrt()));
/// # Ok::<(), lgreco_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Length`] when `values` or the payload's body has the wrong length; [`Error::PayloadHeader`] when the payload is not
/// EDEN's; [`Error::Parameter`] when it does not have 1 to 8 bits; [`Error::PayloadBody`] when a scale is not finite and at
/// least 0 or when padding is not zero; [`Error::Overflow`] when a value is too large for f32. Every payload for which no error
/// is returned decodes to finite values. Nothing of `values` may be used when an error is returned.
///
/// # Complexity
/// O(elements · log 4096), no workspace.
pub fn decode(payload: &Payload<'_>, values: &mut [f32]) -> Result<()> {
    let body = Body::open(payload)?;
    expect_len("decoded values", payload.header.shape.elements(), values.len())?;
    body.put(0, values, None)
}

/// The compressor whose payloads are decoded as this one, for decoders on other devices; its scale is the default.
///
/// ```
/// use lgreco_compress::{eden, wire::Payload};
/// let bytes = [
///     b'L', 1, 10, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, // 1 bit for each of 1 × 2 values
///     0, 0, 0, 0, 0, 0, 0, 0, // the seed
///     0, 0, 0x80, 0x3f, // scale 1
///     0b10, // codes
/// ];
/// assert_eq!(eden::of_payload(&Payload::parse(&bytes)?)?.bits, 1);
/// # Ok::<(), lgreco_core::Error>(())
/// ```
///
/// # Errors
/// As [`decode`], but for scales and decoded values, at which it does not look.
pub fn of_payload(payload: &Payload<'_>) -> Result<Eden> {
    let body = Body::open(payload)?;
    Ok(Eden { bits: body.bits, ..Eden::default() })
}

/// Combines what a payload stands for with `values`. Same errors as [`decode`].
pub(crate) fn combine(payload: &Payload<'_>, how: Combine, values: &mut [f32]) -> Result<()> {
    let body = Body::open(payload)?;
    expect_len("decoded values", payload.header.shape.elements(), values.len())?;
    body.put(0, values, Some(how))
}

/// The same of the elements from `start` on, a multiple of [`BLOCK`]. `values` end with a block.
pub(crate) fn combine_stretch(payload: &Payload<'_>, replace: bool, start: usize, values: &mut [f32]) -> Result<()> {
    let body = Body::open(payload)?;
    expect_room("elements", start.saturating_add(values.len()), payload.header.shape.elements())?;
    body.put(start, values, (!replace).then_some(Combine::Add))
}

/// Bytes of the body that a header implies.
pub(crate) fn stated(header: &Header) -> Result<usize> {
    let (scales, codes) = Eden::from_header(header)?.body_lens(header.shape.elements())?;
    Ok(SEED_LEN + scales + codes)
}

impl Eden {
    /// The compressor that a header describes, but for the scale, which only encoding needs.
    fn from_header(header: &Header) -> Result<Self> {
        header.expect_method(Method::Eden)?;
        header.expect_variant(0)?;
        Error::require((1..=8).contains(&header.parameter), "bits", header.parameter.into(), "1 to 8")?;
        Ok(Eden { bits: header.parameter as u8, scale: Scale::default() })
    }
}

/// The parts of a payload's body.
struct Body<'a> {
    bits: u8,
    seed: u64,
    scales: &'a [u8],
    codes: &'a [u8],
}

impl<'a> Body<'a> {
    fn open(payload: &Payload<'a>) -> Result<Self> {
        let body = payload.body_of_len(stated(&payload.header)?)?;
        let eden = Eden::from_header(&payload.header)?;
        let elements = payload.header.shape.elements();
        let (seed, body) =
            body.split_first_chunk::<SEED_LEN>().ok_or(Error::PayloadBody { what: "there is no seed" })?;
        let (scales, codes) = body.split_at(eden.body_lens(elements)?.0);
        let used = (elements as u64 * eden.bits as u64 % 8) as u32;
        let unused = used == 0 || codes.last().is_none_or(|&last| last >> used == 0);
        Error::require_body(unused, "unused bits of the last byte are set")?;
        Ok(Body { bits: eden.bits, seed: u64::from_le_bytes(*seed), scales, codes })
    }

    /// Combines what the payload stands for with the values from element `start` on, or replaces them by it.
    fn put(&self, start: usize, values: &mut [f32], how: Option<Combine>) -> Result<()> {
        let block_bytes = BLOCK / 8 * self.bits as usize;
        let (scales, codes) = (&self.scales[start / BLOCK * 4..], &self.codes[start / BLOCK * block_bytes..]);
        let parts = ((Start(start), values), Per(scales, 4, BLOCK), Per(codes, block_bytes, BLOCK));
        let elements = parts.0.1.len();
        spread_parts!(elements, BLOCK, parts, (self.bits, self.seed, how), decode_part,)
    }
}

/// [`decode`] by the target's baseline instructions.
#[cfg(test)]
pub(super) fn decode_baseline(payload: &Payload<'_>, values: &mut [f32]) -> Result<()> {
    let Body { bits, seed, scales, codes } = Body::open(payload)?;
    decode_part(((Start(0), values), Per(scales, 0, 1), Per(codes, 0, 1)), (bits, seed, None))
}

/// The first value's number in the tensor, values, and their scales and codes.
type Part<'a> = ((Start, &'a mut [f32]), Per<&'a [u8]>, Per<&'a [u8]>);

#[inline(always)]
fn decode_part(
    ((Start(start), values), Per(scales, ..), Per(codes, ..)): Part<'_>,
    (bits, seed, how): (u8, u64, Option<Combine>),
) -> Result<()> {
    let mut coordinates = [0.0; BLOCK];
    let mut all_codes = [0u8; BLOCK];
    let mut room = [0.0; BLOCK];
    let mut scales = scales.as_chunks::<4>().0.iter();
    let packed = codes.chunks(BLOCK / 8 * bits as usize);
    for ((i, values), packed) in values.chunks_mut(BLOCK).enumerate().zip(packed) {
        let signs = Signs::new(seed, start + i * BLOCK);
        bits::unpack(bits, packed, &mut all_codes);
        let decoded = if how.is_none() { &mut *values } else { &mut room[..values.len()] };
        for ((at, len), &scale) in blocks(decoded.len()).zip(&mut scales) {
            let scale = f32::from_le_bytes(scale);
            // Anything above the bits of the largest finite number is infinite, NaN or negative.
            Error::require_body(scale.to_bits() <= f32::MAX.to_bits(), "a scale is not finite and at least 0")?;
            let (coordinates, decoded) = (&mut coordinates[..len], &mut decoded[at..at + len]);
            if scale == 0.0 {
                decoded.fill(0.0);
                continue;
            }
            unquantise(bits, &all_codes[at..at + len], coordinates);
            put_back(coordinates, scale, &signs, at, decoded);
            if scale >= f32::MAX / (BLOCK as f32 * LARGEST) {
                let finite = largest_decoded(coordinates, scale).is_finite();
                Error::require_finite(finite, "a decoded value")?;
            }
        }
        match how {
            None => {}
            Some(Combine::Add) => values.iter_mut().zip(&room).for_each(|(value, decoded)| *value += decoded),
            Some(Combine::Subtract) => values.iter_mut().zip(&room).for_each(|(value, decoded)| *value -= decoded),
        }
    }
    Ok(())
}

/// Fills `coordinates` with the transform of what codes stand for.
#[inline(always)]
pub(super) fn unquantise(bits: u8, codes: &[u8], coordinates: &mut [f32]) {
    // Of each width, nothing more is compiled than what depends on it.
    with_width!(bits, points(codes, coordinates));
    transform(coordinates);
}

#[inline(always)]
fn points<const BITS: usize>(codes: &[u8], coordinates: &mut [f32]) {
    for (to, &code) in coordinates.iter_mut().zip(codes) {
        *to = point::<BITS>(code);
    }
}

/// Fills `values` with what transformed grid points stand for.
#[inline(always)]
pub(super) fn put_back(coordinates: &[f32], scale: f32, signs: &Signs, at: usize, values: &mut [f32]) {
    let inverse_root = inverse_root(coordinates.len());
    signs.apply(at, coordinates, values, |z| z * inverse_root * scale);
}

/// The largest magnitude among the values that [`put_back`] puts.
#[inline(always)]
pub(super) fn largest_decoded(coordinates: &[f32], scale: f32) -> f32 {
    let inverse_root = inverse_root(coordinates.len());
    coordinates.iter().fold(0.0, |largest, z| largest.max((z * inverse_root * scale).abs()))
}
