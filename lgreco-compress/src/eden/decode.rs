//! Decodes EDEN: codes to values.

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

/// Decodes a payload of [`Eden`]. `values` has one entry per element.
///
/// ```
/// use lgreco_compress::{eden, wire::Payload};
/// let bytes = [
///     b'L', 1, 10, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, // 1 bit for each of 1 × 2 values
///     0, 0, 0, 0, 0, 0, 0, 0, // the seed of the random signs
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
/// [`Error::Length`] when `values` or the payload's body has the wrong length. [`Error::PayloadHeader`] when the
/// payload is not EDEN's. [`Error::Parameter`] when the header's number of bits is not 1 to 8. [`Error::PayloadBody`]
/// when a scale is negative or not finite, or when padding is not zero. [`Error::Overflow`] when a value is too large
/// for f32. If no error is returned, all decoded values are finite. After an error, `values` must not be used.
///
/// # Complexity
/// O(elements · log 4096). Needs no workspace.
pub fn decode(payload: &Payload<'_>, values: &mut [f32]) -> Result<()> {
    let body = Body::open(payload)?;
    expect_len("decoded values", payload.header.shape.elements(), values.len())?;
    body.put(0, values, None)
}

/// The compressor of a payload, for decoders on other devices. The result's field `scale` has the default value,
/// because decoders do not use this field.
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
/// The errors of [`decode`]. Scales and decoded values are not checked.
pub fn of_payload(payload: &Payload<'_>) -> Result<Eden> {
    let body = Body::open(payload)?;
    Ok(Eden { bits: body.bits, ..Eden::default() })
}

/// Adds or subtracts a payload's values. Returns the errors of [`decode`].
pub(crate) fn combine(payload: &Payload<'_>, how: Combine, values: &mut [f32]) -> Result<()> {
    let body = Body::open(payload)?;
    expect_len("decoded values", payload.header.shape.elements(), values.len())?;
    body.put(0, values, Some(how))
}

/// Adds the values of the elements from `start` on, or writes them if `replace` is set. `start` is a multiple of
/// [`BLOCK`]. `values` ends at a multiple of [`BLOCK`], too, or at the end of the tensor.
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
    /// The compressor that a header describes. The result's field `scale` has the default value, because only encoders
    /// use this field.
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

    /// Decodes the values from element `start` on, and adds them to `values` or subtracts them. If `how` is `None`, the
    /// decoded values replace `values`.
    fn put(&self, start: usize, values: &mut [f32], how: Option<Combine>) -> Result<()> {
        let block_bytes = BLOCK / 8 * self.bits as usize;
        let (scales, codes) = (&self.scales[start / BLOCK * 4..], &self.codes[start / BLOCK * block_bytes..]);
        let parts = ((Start(start), values), Per(scales, 4, BLOCK), Per(codes, block_bytes, BLOCK));
        let elements = parts.0.1.len();
        spread_parts!(elements, BLOCK, parts, (self.bits, self.seed, how), decode_part,)
    }
}

/// Decodes like [`decode`], but only with the target's baseline instructions.
#[cfg(test)]
pub(super) fn decode_baseline(payload: &Payload<'_>, values: &mut [f32]) -> Result<()> {
    let Body { bits, seed, scales, codes } = Body::open(payload)?;
    decode_part(((Start(0), values), Per(scales, 0, 1), Per(codes, 0, 1)), (bits, seed, None))
}

/// A part of the tensor: the index of its first value, its values, its scales and its codes.
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
            // Bit patterns above that of the largest finite number are infinite, NaN or negative.
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

/// Fills `coordinates` with the transformed grid points of `codes`.
#[inline(always)]
pub(super) fn unquantise(bits: u8, codes: &[u8], coordinates: &mut [f32]) {
    // Only the code inside `points` is compiled once per bit width.
    with_width!(bits, points(codes, coordinates));
    transform(coordinates);
}

#[inline(always)]
fn points<const BITS: usize>(codes: &[u8], coordinates: &mut [f32]) {
    for (to, &code) in coordinates.iter_mut().zip(codes) {
        *to = point::<BITS>(code);
    }
}

/// Fills `values` with the decoded values of transformed grid points.
#[inline(always)]
pub(super) fn put_back(coordinates: &[f32], scale: f32, signs: &Signs, at: usize, values: &mut [f32]) {
    let inverse_root = inverse_root(coordinates.len());
    signs.apply(at, coordinates, values, |z| z * inverse_root * scale);
}

/// Largest magnitude of the values that [`put_back`] writes.
#[inline(always)]
pub(super) fn largest_decoded(coordinates: &[f32], scale: f32) -> f32 {
    let inverse_root = inverse_root(coordinates.len());
    coordinates.iter().fold(0.0, |largest, z| largest.max((z * inverse_root * scale).abs()))
}
