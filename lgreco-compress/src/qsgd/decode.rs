//! Decodes QSGD: codes to values.

use super::grid::{inverse_levels, point};
use super::{Qsgd, Rounding, Scale};
use crate::bits;
use crate::combine::Combine;
use crate::error::{expect_len, expect_room};
use crate::rng::block::BLOCK;
use crate::spread::{Per, Start, spread_parts};
use crate::wire::{Header, Method, Payload};
use crate::{Error, Result};

impl Qsgd {
    /// The compressor that a header describes. The header does not state the rounding, which decoding does not need.
    fn from_header(header: &Header) -> Result<Self> {
        header.expect_method(Method::Qsgd)?;
        let scale = match header.variant >> 3 {
            0 => Scale::MaxNorm,
            1 => Scale::MinMax,
            _ => return Err(Error::PayloadHeader { what: "variant", expected: 15, found: header.variant as u64 }),
        };
        let qsgd =
            Qsgd { bits: (header.variant & 7) + 1, bucket: header.parameter, scale, rounding: Rounding::Nearest };
        qsgd.check()?;
        Ok(qsgd)
    }
}

/// Decodes a payload of [`Qsgd`]. `values` has one entry per element.
///
/// ```
/// use lgreco_compress::{Compressor, qsgd::{self, Qsgd, Scale}, wire::Payload};
/// use lgreco_core::gradient::{Gradient, Shape, Values};
/// use lgreco_core::rng::Stream;
/// let gradient = Gradient::new(Values::F32(&[3.0, -1.0, -1.0, 3.0]), Shape::new(2, 2)?)?;
/// let one_bit = Qsgd { bits: 1, scale: Scale::MinMax, ..Qsgd::default() };
/// let mut payload = [0; 16 + 8 + 1];
/// one_bit.encode(&gradient, Stream::default(), &mut [], &mut payload)?;
/// let mut values = [f32::NAN; 4];
/// qsgd::decode(&Payload::parse(&payload)?, &mut values)?;
/// assert_eq!(values, [3.0, -1.0, -1.0, 3.0]); // the ends of a bucket's interval are exact
/// # Ok::<(), lgreco_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Length`] when `values` or the payload's body has the wrong length. [`Error::PayloadHeader`],
/// [`Error::Parameter`] or [`Error::PayloadBody`] when the payload was not made by [`Qsgd`]. If no error is returned,
/// all decoded values are finite. After an error, `values` must not be used.
///
/// # Complexity
/// O(elements). Needs no workspace.
pub fn decode(payload: &Payload<'_>, values: &mut [f32]) -> Result<()> {
    let (qsgd, scales, codes) = open(payload)?;
    expect_len("decoded values", payload.header.shape.elements(), values.len())?;
    qsgd.put(scales, codes, 0, values, |place, value| *place = value)
}

/// Splits a payload into its compressor, its scales and its codes.
fn open<'a>(payload: &Payload<'a>) -> Result<(Qsgd, &'a [u8], &'a [u8])> {
    let qsgd = Qsgd::from_header(&payload.header)?;
    let elements = payload.header.shape.elements();
    let (scales_len, codes_len) = qsgd.body_lens(elements)?;
    let (scales, codes) = payload.body_of_len(scales_len + codes_len)?.split_at(scales_len);
    qsgd.check_padding(codes, elements)?;
    Ok((qsgd, scales, codes))
}

/// Adds or subtracts a payload's values. Returns the errors of [`decode`].
pub(crate) fn combine(payload: &Payload<'_>, how: Combine, values: &mut [f32]) -> Result<()> {
    let (qsgd, scales, codes) = open(payload)?;
    expect_len("decoded values", payload.header.shape.elements(), values.len())?;
    match how {
        Combine::Add => qsgd.put(scales, codes, 0, values, |place, value| *place += value),
        Combine::Subtract => qsgd.put(scales, codes, 0, values, |place, value| *place -= value),
    }
}

/// Adds the values of the elements from `start` on, or writes them if `replace` is set. `start` is a multiple of
/// [`BLOCK`].
pub(crate) fn combine_stretch(payload: &Payload<'_>, replace: bool, start: usize, values: &mut [f32]) -> Result<()> {
    let (qsgd, scales, codes) = open(payload)?;
    expect_room("elements", start.saturating_add(values.len()), payload.header.shape.elements())?;
    let codes = &codes[start / 8 * qsgd.bits as usize..];
    match replace {
        true => qsgd.put(scales, codes, start, values, |place, value| *place = value),
        false => qsgd.put(scales, codes, start, values, |place, value| *place += value),
    }
}

impl Qsgd {
    /// The inverse of [`encode_body`](Qsgd::encode_body). `body` must have exactly the length that `values` implies.
    #[doc(hidden)]
    pub fn decode_body(&self, body: &[u8], values: &mut [f32]) -> Result<()> {
        let (scales, codes) = body.split_at(self.body_lens(values.len())?.0);
        self.check_padding(codes, values.len())?;
        self.put(scales, codes, 0, values, |place, value| *place = value)
    }

    /// Decodes the elements from `start` on and passes each to `put`. `codes` and `values` begin at element `start`.
    fn put(
        &self,
        scales: &[u8],
        codes: &[u8],
        start: usize,
        values: &mut [f32],
        put: impl Fn(&mut f32, f32) + Copy + Send,
    ) -> Result<()> {
        let (elements, with) = (values.len(), (*self, scales.as_chunks::<4>().0, put));
        spread_parts!(elements, self.unit(), (Start(start), Per(codes, self.bits.into(), 8), values), with, decode_part,)
    }

    fn check_padding(&self, codes: &[u8], elements: usize) -> Result<()> {
        let used = (elements as u64 * self.bits as u64 % 8) as u32;
        let unused = used == 0 || codes.last().is_none_or(|&last| last >> used == 0);
        Error::require_body(unused, "unused bits of the last byte are set")
    }
}

/// The compressor that made `payload`, for decoders on other devices, such as GPUs. If this function succeeds,
/// [`decode`] accepts the payload. The payload does not state the rounding, so the result always has
/// [`Rounding::Nearest`].
///
/// ```
/// use lgreco_compress::{Compressor, qsgd::{self, Qsgd}, wire::Payload};
/// use lgreco_core::gradient::{Gradient, Shape, Values};
/// use lgreco_core::rng::Stream;
/// let gradient = Gradient::new(Values::F32(&[3.0, -1.0, -1.0]), Shape::new(3, 1)?)?;
/// let mut payload = [0; 16 + 4 + 2];
/// Qsgd::default().encode(&gradient, Stream::default(), &mut [], &mut payload)?;
/// assert_eq!(qsgd::of_payload(&Payload::parse(&payload)?)?.bits, 4);
/// payload[21] |= 0xf0; // three codes of 4 bits leave half a byte
/// assert!(qsgd::of_payload(&Payload::parse(&payload)?).is_err());
/// # Ok::<(), lgreco_core::Error>(())
/// ```
///
/// # Errors
/// The errors of [`decode`].
///
/// # Complexity
/// O(buckets).
pub fn of_payload(payload: &Payload<'_>) -> Result<Qsgd> {
    let (qsgd, scales, _) = open(payload)?;
    let scales = scales.as_chunks::<4>().0;
    for bucket in 0..payload.header.shape.elements().div_ceil(qsgd.bucket as usize) {
        read_scales(qsgd.scale, bucket, scales)?;
    }
    Ok(qsgd)
}

/// Bytes of the body that a header implies.
pub(crate) fn stated(header: &Header) -> Result<usize> {
    let (scales, codes) = Qsgd::from_header(header)?.body_lens(header.shape.elements())?;
    Ok(scales + codes)
}

/// A part of the tensor: the index of its first value, its codes, and the slice that receives its decoded values.
type Part<'a> = (Start, Per<&'a [u8]>, &'a mut [f32]);

/// Decodes a part. `put` writes, adds or subtracts each decoded value.
#[inline(always)]
fn decode_part<F: Fn(&mut f32, f32)>(part: Part<'_>, (qsgd, scales, put): (Qsgd, &[[u8; 4]], F)) -> Result<()> {
    if qsgd.sign_magnitude() {
        decode_as::<true>(part, qsgd, scales, put)
    } else {
        decode_as::<false>(part, qsgd, scales, put)
    }
}

#[inline(always)]
fn decode_as<const SIGN_MAGNITUDE: bool>(
    (Start(start), Per(codes, ..), values): Part<'_>,
    qsgd: Qsgd,
    scales: &[[u8; 4]],
    put: impl Fn(&mut f32, f32),
) -> Result<()> {
    let (bucket_len, log_levels) = (qsgd.bucket as usize, qsgd.log_levels());
    let inverse = inverse_levels(log_levels);
    let (mut low, mut high) = match values {
        [] => (0.0, 0.0),
        _ => read_scales(qsgd.scale, start / bucket_len, scales)?,
    };
    let mut block_codes = [0u8; BLOCK];
    let packed_blocks = codes.chunks(BLOCK / 8 * qsgd.bits as usize);
    for ((block, block_values), packed) in values.chunks_mut(BLOCK).enumerate().zip(packed_blocks) {
        bits::unpack(qsgd.bits, packed, &mut block_codes);
        let first = start + block * BLOCK;
        let mut at = 0;
        while at < block_values.len() {
            let within = (first + at) % bucket_len;
            if within == 0 {
                (low, high) = read_scales(qsgd.scale, (first + at) / bucket_len, scales)?;
            }
            let end = block_values.len().min(at.saturating_add(bucket_len - within));
            for (&code, value) in block_codes[at..end].iter().zip(&mut block_values[at..end]) {
                let code = code as i32;
                let level = if SIGN_MAGNITUDE {
                    let negative = code >> log_levels;
                    ((code & ((1 << log_levels) - 1)) ^ -negative) + negative
                } else {
                    code
                };
                put(value, point::<SIGN_MAGNITUDE>(level, inverse, low, high));
            }
            at = end;
        }
    }
    Ok(())
}

/// The two ends of a bucket's interval.
#[inline(always)]
fn read_scales(scale: Scale, bucket: usize, scales: &[[u8; 4]]) -> Result<(f32, f32)> {
    let (low, high) = match scale {
        Scale::MaxNorm => {
            let norm = f32::from_le_bytes(scales[bucket]);
            (-norm, norm)
        }
        Scale::MinMax => (f32::from_le_bytes(scales[2 * bucket]), f32::from_le_bytes(scales[2 * bucket + 1])),
    };
    if low <= high && low > f32::NEG_INFINITY && high < f32::INFINITY {
        Ok((low, high))
    } else {
        Err(Error::PayloadBody { what: "a bucket's scale is not finite or out of order" })
    }
}
