//! QSGD and CGX: bucketed quantisation to 1–8 bits per element.
//!
//! A tensor is cut into buckets of consecutive elements. Each bucket has a grid of `s + 1` equally spaced levels that
//! covers its values. Every element is sent as the number of one of the two levels around it.
//!
//! # Numerics
//! The encoder rounds with integers, so that every instruction set and every backend sends the same bits:
//!
//! 1. `p` is a power of two that scales the bucket's largest magnitude `M` into [1, 2). The exponent field of `p` is
//!    `max(254 − exponent field of M, 1)`. (For `M ≥ 2^127` the range is [2, 4); for subnormal `M` the result is below
//!    1.) Products with `p` are exact, unless they are too small to change `Y`. So buckets of any magnitude work.
//! 2. `y = (x·p − origin)·c`, where `origin` is the lowest level times `p`. The factor `c` is the correctly rounded
//!    reciprocal of `p` times the grid's length. If `p` times the grid's length is 0, `c` is 0.
//!    `Y = bits(y + 1.0) − bits(1.0)` is `y` in 23-bit fixed point. The two ends of the grid give exactly `Y = 0` and
//!    `Y = 2^23`.
//! 3. `level = (Y·s + r) >> 23`. For [`Rounding::Nearest`], `r = 2^22`. For [`Rounding::Stochastic`], `r = word >> 9`,
//!    with word `i` of the stream for element `i`.
//!
//! | scale | sent per bucket | code | `s` | level `l` decodes to |
//! |---|---|---|---|---|
//! | [`Scale::MaxNorm`] | `N = max abs x` | sign in the top bit, level of abs x in [0, N] below | `2^(b−1) − 1` | `± (l·(1/s))·N` |
//! | [`Scale::MaxNorm`], 1 bit | `N` | level of x in [−N, N] | 1 | `−N` or `N` |
//! | [`Scale::MinMax`] | `min`, `max` | level of x in [min, max] | `2^b − 1` | `min·(1 − a) + max·a`, `a = l·(1/s)` |
//!
//! With max norm, the element of largest magnitude therefore decodes exactly. With min–max, the smallest and the
//! largest element decode exactly, and constant buckets decode to the constant. Buckets of zeros decode to zeros. The
//! body has the scales of all buckets as little-endian f32. Then come the codes of all elements, packed little-endian
//! without gaps. Unused bits of the last byte are 0.
//!
//! # Source
//! Alistarh et al., "QSGD", NeurIPS 2017, §3 (stochastic rounding) and §5 (max norm, buckets). Markov et al., "CGX",
//! Middleware 2022 (min–max). Deviations: (1) Codes have a fixed width instead of Elias codes, so that the size does
//! not depend on the values. (2) The minimum and the maximum are sent instead of the minimum and the step, so that both
//! are exact. (3) We treat a bucket as constant when its minimum equals its maximum, and CGX when the step is below
//! 1e-10.

mod decode;
mod encode;
pub(super) mod grid;
mod measure;
mod setting;
mod tails;

pub(super) use decode::{combine, combine_stretch, stated};
pub use decode::{decode, of_payload};
pub use measure::measure;
pub(crate) use setting::{KNOWN, PLANNED, READER};

use super::wire::{HEADER_LEN, Header, Method};
use super::{Compressor, Cost, ResidualKind, Traits, bits};
use crate::error::expect_room;
use crate::gradient::{Dtype, Element, Gradient, Shape, with_elements};
use crate::rng::Stream;
use crate::spread::{Per, Start, spread_parts};
use crate::{Error, Result};

/// The interval that a bucket's levels divide. The discriminants are part of payload headers and never change.
///
/// ```
/// use lgreco_compress::qsgd::{self, Qsgd, Rounding, Scale};
/// use lgreco_core::gradient::{Gradient, Shape, Values};
/// let gradient = Gradient::new(Values::F32(&[1.0, 2.0, 3.0, 4.0]), Shape::new(4, 1)?)?;
/// let mut error = [0.0];
/// for (scale, expected) in [(Scale::MaxNorm, 6.0), (Scale::MinMax, 0.0)] {
///     let base = Qsgd { scale, rounding: Rounding::Nearest, ..Qsgd::default() };
///     qsgd::measure(&gradient, base, &[2], &mut error)?; // levels -4, 0, 4 and 1, 2, 3, 4
///     assert!((error[0] - expected).abs() < 1e-9);
/// }
/// # Ok::<(), lgreco_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Scale {
    /// Symmetric: from minus to plus the largest magnitude (as in QSGD's experiments). Sends one f32 per bucket.
    #[default]
    MaxNorm = 0,
    /// From the smallest to the largest value (CGX). Sends two f32 per bucket. Zero is in general not a level.
    MinMax = 1,
}

/// How a value between two levels is rounded.
///
/// ```
/// use lgreco_compress::qsgd::{self, Qsgd, Rounding};
/// use lgreco_core::gradient::{Gradient, Shape, Values};
/// let gradient = Gradient::new(Values::F32(&[1.0, 0.25]), Shape::new(2, 1)?)?;
/// let mut error = [0.0];
/// for (rounding, expected) in [(Rounding::Nearest, 0.25 * 0.25), (Rounding::Stochastic, 0.25 * 0.75)] {
///     qsgd::measure(&gradient, Qsgd { rounding, ..Qsgd::default() }, &[2], &mut error)?; // levels -1, 0, 1
///     assert_eq!(error, [expected]);
/// }
/// # Ok::<(), lgreco_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Rounding {
    /// Rounds to the nearer level, and ties to the level with the larger number. Nearest rounding has the smallest
    /// error, but is biased.
    Nearest,
    /// Rounds to one of the two levels at random, so that the expected decoded value equals the original value.
    #[default]
    Stochastic,
}

/// QSGD with all parameters fixed. Every use checks the parameters.
///
/// ```
/// use lgreco_compress::{Compressor, qsgd::{self, Qsgd}, wire::Payload};
/// use lgreco_core::gradient::{Dtype, Gradient, Shape, Values};
/// use lgreco_core::rng::Stream;
///
/// let values = [0.5f32, -1.0, 0.0, 0.25];
/// let gradient = Gradient::new(Values::F32(&values), Shape::new(2, 2)?)?;
/// let compressor = Qsgd { bits: 4, bucket: 512, ..Qsgd::default() };
///
/// let mut payload = [0; 64];
/// let length = compressor.encode(&gradient, Stream::default(), &mut [], &mut payload)?;
/// assert_eq!(length, compressor.payload_len(gradient.shape(), Dtype::F32)?); // 16 + 4 + 4 · 4 / 8
/// assert_eq!(length, 22);
///
/// let mut decoded = [f32::NAN; 4];
/// qsgd::decode(&Payload::parse(&payload[..length])?, &mut decoded)?;
/// assert_eq!(decoded[1..3], [-1.0, 0.0]);
/// assert!((decoded[0] - 0.5).abs() <= 1.0 / 7.0);
/// # Ok::<(), lgreco_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Qsgd {
    /// Bits per element, 1 to 8. With [`Scale::MaxNorm`], one of these bits is the sign. A code of 1 bit chooses
    /// between plus and minus the norm.
    pub bits: u8,
    /// Elements per bucket, at least 1; the last bucket may be shorter.
    pub bucket: u32,
    /// Interval that the levels divide.
    pub scale: Scale,
    /// How values between two levels are rounded.
    pub rounding: Rounding,
}

impl Default for Qsgd {
    /// Default: 4 bits, buckets of 512, max norm, stochastic rounding. This is the uniform setting from which L-GreCo
    /// starts.
    fn default() -> Self {
        Qsgd { bits: 4, bucket: 512, scale: Scale::default(), rounding: Rounding::default() }
    }
}

impl Qsgd {
    /// Returns an error unless bits and bucket are in range.
    #[doc(hidden)]
    pub fn check(&self) -> Result<()> {
        Error::require((1..=8).contains(&self.bits), "bits", self.bits.into(), "1 to 8")?;
        Error::require(self.bucket > 0, "bucket size", 0.0, "at least 1")
    }

    /// Whether codes are a sign and the level of the magnitude.
    #[doc(hidden)]
    pub const fn sign_magnitude(&self) -> bool {
        matches!(self.scale, Scale::MaxNorm) && self.bits > 1
    }

    /// `log2(s + 1)`.
    #[doc(hidden)]
    pub const fn log_levels(&self) -> u32 {
        self.bits as u32 - self.sign_magnitude() as u32
    }

    /// The header of a payload.
    ///
    /// # Errors
    /// [`Error::Parameter`] when the bits are not 1 to 8 or the bucket is 0.
    pub fn header(&self, shape: Shape) -> Result<Header> {
        self.check()?;
        let variant = (self.bits - 1) | (self.scale as u8) << 3;
        Ok(Header { method: Method::Qsgd, variant, parameter: self.bucket, shape })
    }

    /// Bytes of a payload's body. Messages may contain bodies without headers.
    #[doc(hidden)]
    pub fn body_len(&self, elements: usize) -> Result<usize> {
        self.check()?;
        self.body_lens(elements).map(|(scales, codes)| scales + codes)
    }

    /// Writes a payload's body.
    #[doc(hidden)]
    pub fn encode_body<E: Element>(&self, values: &[E], stream: Stream, body: &mut [u8]) -> Result<()> {
        let (scales, codes) = body.split_at_mut(self.body_lens(values.len())?.0);
        let scales = Per(scales, self.scale_bytes(), self.bucket as usize);
        let part = ((Start(0), values), scales, Per(codes, self.bits.into(), 8));
        spread_parts!(values.len(), self.unit(), part, (*self, stream), encode::encode,)
    }

    /// Bytes of one bucket's scale.
    #[doc(hidden)]
    pub const fn scale_bytes(&self) -> usize {
        4 << self.scale as u32
    }

    /// Bytes of the scales and bytes of the codes of `elements` elements.
    fn body_lens(&self, elements: usize) -> Result<(usize, usize)> {
        let scales = (elements as u64).div_ceil(self.bucket as u64) * self.scale_bytes() as u64;
        let codes = bits::packed_len(elements as u64, self.bits);
        let fits = HEADER_LEN as u64 + scales + codes <= isize::MAX as u64;
        Error::require(fits, "bucket size", self.bucket.into(), "large enough for the payload to fit memory")?;
        Ok((scales as usize, codes as usize))
    }
}

/// QSGD's payload size does not depend on the element type, because scales are always f32. It needs no workspace.
///
/// # Complexity
/// O(elements), one pass over the gradient. At 4 bits, encoding takes as long as about four plain passes over the
/// gradient, mostly to make random bits.
impl Compressor for Qsgd {
    fn traits(&self) -> Traits {
        let piece = Some(self.bucket.max(1) as usize);
        let unbiased = self.rounding == Rounding::Stochastic;
        Traits { unbiased, piece, residual: ResidualKind::Optional, ..Traits::payloads(Cost::of_elements(1, 4.0, 1.0)) }
    }

    fn heavy_tailed_error(&self, elements: usize) -> Result<f64> {
        self.check()?;
        Ok(tails::squared_error(self, elements))
    }

    fn payload_len(&self, shape: Shape, _: Dtype) -> Result<usize> {
        self.check()?;
        let (scales, codes) = self.body_lens(shape.elements())?;
        Ok(HEADER_LEN + scales + codes)
    }

    fn encode(
        &self,
        gradient: &Gradient<'_>,
        stream: Stream,
        _workspace: &mut [u64],
        payload: &mut [u8],
    ) -> Result<usize> {
        let shape = gradient.shape();
        let length = self.payload_len(shape, gradient.values().dtype())?;
        expect_room("payload bytes", length, payload.len())?;
        self.header(shape)?.write(payload)?;
        let body = &mut payload[HEADER_LEN..length];
        with_elements!(gradient.values(), values => self.encode_body(values, stream, body))?;
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient::Values;
    use crate::spread::{Per, Start};
    use std::{vec, vec::Vec};

    #[test]
    fn the_baseline_instructions_give_the_same_bits() {
        let stream = Stream { seed: 0x1234_5678_9abc, step: 17, layer: 3, rank: 2 };
        // Bell-shaped values with a spread that changes every 100 values.
        let bell = |i: usize| {
            let sum: f32 = stream.word(i as u64).to_le_bytes().map(|byte| byte as f32 - 127.5).iter().sum();
            sum * (1 + i / 100 % 7) as f32
        };
        let values: Vec<f32> = (0..5003).map(bell).collect();
        let gradient = Gradient::new(Values::F32(&values), Shape::new(5003, 1).unwrap()).unwrap();
        let scales = [Scale::MaxNorm, Scale::MinMax].into_iter();
        let kinds =
            scales.flat_map(|scale| [Rounding::Nearest, Rounding::Stochastic].map(|rounding| (scale, rounding)));
        for (bits, (scale, rounding)) in kinds.flat_map(|kind| (1..=8).map(move |bits| (bits, kind))) {
            let qsgd = Qsgd { bits, bucket: 512, scale, rounding };
            let mut payload = vec![0; qsgd.payload_len(gradient.shape(), Dtype::F32).unwrap()];
            qsgd.encode(&gradient, Stream::default(), &mut [], &mut payload).unwrap();
            let mut again = vec![0; payload.len()];
            again[..HEADER_LEN].copy_from_slice(&payload[..HEADER_LEN]);
            let (scales, codes) = again[HEADER_LEN..].split_at_mut(qsgd.body_lens(5003).unwrap().0);
            let part = ((Start(0), &values[..]), Per(scales, 0, 1), Per(codes, 0, 1));
            encode::encode(part, (qsgd, Stream::default())).unwrap();
            assert_eq!(payload, again);
            let (mut row, mut row_again) = ([0.0; 8], [0.0; 8]);
            let bits = [1, 2, 3, 4, 5, 6, 7, 8];
            measure(&gradient, qsgd, &bits, &mut row).unwrap();
            measure::measure_all((qsgd, &bits, &values[..], &mut row_again)).unwrap();
            assert_eq!(row.map(f64::to_bits), row_again.map(f64::to_bits));
        }
    }
}
