//! EDEN: rotated quantisation to 1–8 bits per element.
//!
//! The coordinates of a randomly rotated vector are close to normally distributed, for any vector. Each coordinate is
//! rounded to the nearest point of the optimal grid for a normal distribution. The receiver rotates back.
//!
//! A tensor is cut into blocks of 4096 elements. The remaining elements are cut into powers of two, in descending
//! order. For each block x of d values:
//!
//! 1. `r = H D x / √d`. `D` changes random signs; `H` is the Walsh–Hadamard matrix of d rows, in natural order.
//! 2. `z = √d r / ‖x‖`.
//! 3. Each coordinate of z is rounded to the nearest point of the Lloyd–Max grid of N(0, 1) with `2^bits` points. This gives q.
//! 4. The scale `S` is `‖x‖² / ⟨r, q⟩` ([`Scale::Unbiased`]) or `⟨r, q⟩ / ‖q‖²` ([`Scale::LeastSquares`]).
//! 5. The block decodes to `D H (S q) / √d`.
//!
//! | bits | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 |
//! |---|--:|--:|--:|--:|--:|--:|--:|--:|
//! | squared error ÷ ‖x‖², unbiased | .571 | .133 | .0358 | .00959 | .00251 | .000645 | .000163 | .0000412 |
//! | least squares | .363 | .1175 | .0345 | .0095 | .0025 | .000644 | .000163 | .0000412 |
//!
//! The errors in the table hold for long blocks in which no value dominates. With the unbiased scale, the decoded block
//! x̂ satisfies `⟨x̂, x⟩ = ‖x‖²` for every seed and every block. If z is normal, the components of x̂ orthogonal to x
//! average to zero over the seeds. The coordinates z are nearly normal for long blocks, but not for short blocks or
//! blocks with a few dominating values. A block with one value other than 0 decodes to itself, up to rounding. For
//! example, consider blocks of zeros except for a few values, at 1 bit. The squared bias, from 4000 seeds, is 25 % of
//! ‖x‖² for the two values 1 and 0.5. For 16 normal values the squared bias is .3 % of ‖x‖², and for 64 normal values
//! .01 %.
//!
//! # Numerics
//! Norms and scales are computed in f64. Coordinates are computed in f32 from values divided by the norm, so blocks of
//! any magnitude work. Every sum has one fixed order, so all instruction sets and numbers of threads give the same
//! bits. A block of zeros has scale 0 and codes 0.
//!
//! # Payload body
//! `parameter` is the number of bits, `variant` is 0. The header does not state the kind of scale, because the receiver
//! does not need the kind.
//!
//! | bytes | content |
//! |---|---|
//! | 8 | seed, little-endian: words 0 and 1 of the encoder's stream |
//! | 4 per block | `S`, f32 little-endian |
//! | remaining | codes of all elements, packed little-endian without gaps; unused bits of the last byte are 0 |
//!
//! `n` elements have `⌊n / 4096⌋ + popcount(n mod 4096)` blocks and `⌈n · bits / 8⌉` bytes of codes. The top bit of a
//! code is the sign; the other bits are the number of the level, counted from zero outwards. `D` changes the sign of
//! element `4096 j + 128 k + l` of the tensor (`k < 32`, `l < 128`) if bit `k` of word `128 j + l` of
//! `Stream { seed, step: 0, layer: 0, rank: 0 }` is set.
//!
//! # Source
//! Vargaftik et al., "EDEN: Communication-efficient and robust distributed mean estimation for federated learning",
//! ICML 2022. For 1 bit: "DRIVE", NeurIPS 2021. Deviations: we use blocks of 4096 elements instead of padded vectors,
//! and only whole bits per element.

mod decode;
mod encode;
mod grid;
#[rustfmt::skip]
mod levels;
mod measure;
mod rotate;
mod setting;
#[cfg(test)]
mod tests;
mod transform;

pub(super) use decode::{combine, combine_stretch, stated};
pub use decode::{decode, of_payload};
pub use grid::LEVELS;
pub use measure::measure;
pub(crate) use setting::{KNOWN, PLANNED, READER};

use self::encode::{Part, encode, encode_chunk};
use super::bits::packed_len;
use super::wire::{HEADER_LEN, Header, Method};
use super::{Compressor, Cost, ResidualKind, Traits};
use crate::error::expect_room;
use crate::gradient::{Dtype, Element, Gradient, Shape, with_elements};
use crate::rng::Stream;
use crate::simd::dispatch_with;
use crate::spread::{Per, Start, spread_parts};
use crate::{Error, Result};

/// Number of elements in a block.
pub const BLOCK: usize = 4096;

/// Bytes of the seed.
const SEED_LEN: usize = 8;

/// How the scale of a block is computed.
///
/// ```
/// use lgreco_compress::eden::{self, Scale};
/// use lgreco_core::gradient::{Gradient, Shape, Values};
/// use lgreco_core::rng::Stream;
/// let values: Vec<f32> = (0..4096).map(|i| (i % 17) as f32 - 8.0).collect();
/// let gradient = Gradient::new(Values::F32(&values), Shape::new(64, 64)?)?;
/// let (mut unbiased, mut least) = ([0.0], [0.0]);
/// eden::measure(&gradient, Scale::Unbiased, &[1], Stream::default(), &mut unbiased)?;
/// eden::measure(&gradient, Scale::LeastSquares, &[1], Stream::default(), &mut least)?;
/// assert!(least[0] < unbiased[0]);
/// # Ok::<(), lgreco_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Scale {
    /// Makes `⟨x̂, x⟩ = ‖x‖²` for a block x that decodes to x̂. With this scale, means over many seeds or workers have
    /// a smaller error.
    #[default]
    Unbiased,
    /// Minimises the squared error.
    LeastSquares,
}

/// EDEN with all parameters fixed. Every use checks the parameters.
///
/// ```
/// use lgreco_compress::{Compressor, decode, eden::Eden};
/// use lgreco_core::gradient::{Dtype, Gradient, Shape, Values};
/// use lgreco_core::rng::Stream;
///
/// let values: Vec<f32> = (0..4096).map(|i| (i % 17) as f32 - 8.0).collect();
/// let gradient = Gradient::new(Values::F32(&values), Shape::new(64, 64)?)?;
/// let compressor = Eden { bits: 4, ..Eden::default() };
///
/// let mut payload = vec![0; compressor.payload_len(gradient.shape(), Dtype::F32)?];
/// assert_eq!(payload.len(), 16 + 8 + 4 + 4096 * 4 / 8);
/// compressor.encode(&gradient, Stream::default(), &mut [], &mut payload)?;
///
/// let mut decoded = vec![0.0; 4096];
/// decode(&payload, &mut decoded)?;
/// let squared = |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x * x)).sum::<f64>();
/// let error = squared(&mut values.iter().zip(&decoded).map(|(x, y)| x - y)) / squared(&mut values.iter().copied());
/// assert!((error / 0.0096 - 1.0).abs() < 0.1);
/// # Ok::<(), lgreco_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Eden {
    /// Bits per element, 1 to 8.
    pub bits: u8,
    /// How the scale of a block is computed.
    pub scale: Scale,
}

impl Default for Eden {
    /// Default: 3 bits, unbiased.
    fn default() -> Self {
        Eden { bits: 3, scale: Scale::default() }
    }
}

impl Eden {
    pub(super) fn check(&self) -> Result<()> {
        Error::require((1..=8).contains(&self.bits), "bits", self.bits.into(), "1 to 8")
    }

    /// The header of a payload.
    ///
    /// # Errors
    /// [`Error::Parameter`] when the bits are not 1 to 8.
    pub fn header(&self, shape: Shape) -> Result<Header> {
        self.check()?;
        Ok(Header { method: Method::Eden, variant: 0, parameter: self.bits.into(), shape })
    }

    /// Bytes of the scales and bytes of the codes of `elements` elements.
    fn body_lens(&self, elements: usize) -> Result<(usize, usize)> {
        self.check()?;
        let blocks = elements / BLOCK + (elements % BLOCK).count_ones() as usize;
        let (scales, codes) = (4 * blocks as u64, packed_len(elements as u64, self.bits));
        let fits = (HEADER_LEN + SEED_LEN) as u64 + scales + codes <= isize::MAX as u64;
        Error::require(fits, "elements", elements as f64, "few enough for the payload to fit memory")?;
        Ok((scales as usize, codes as usize))
    }
}

/// The seed in a payload: the first two words of the encoder's stream, the first one in the low half. Compressors on
/// other devices, such as GPUs, use this seed.
///
/// ```
/// use lgreco_compress::eden::seed;
/// use lgreco_core::rng::Stream;
/// let stream = Stream { seed: 3, ..Stream::default() };
/// assert_eq!(seed(stream) as u32, stream.word(0));
/// ```
pub fn seed(stream: Stream) -> u64 {
    let [low, high, ..] = stream.block(0);
    u64::from(high) << 32 | u64::from(low)
}

/// EDEN's payload size does not depend on the element type. It needs no workspace.
///
/// # Errors
/// The errors of [`Compressor`], and [`Error::Overflow`] when a scale or a decoded value is too large for f32. A
/// decoded value can overflow only if the gradient has values above 2^94.
///
/// # Complexity
/// O(elements · log 4096), two passes over each block.
impl Compressor for Eden {
    fn traits(&self) -> Traits {
        let unbiased = self.scale == Scale::Unbiased;
        let residual = if unbiased { ResidualKind::Optional } else { ResidualKind::Classic };
        Traits { unbiased, residual, piece: Some(BLOCK), ..Traits::payloads(Cost::of_elements(5, 12.0, 6.0)) }
    }

    fn payload_len(&self, shape: Shape, _: Dtype) -> Result<usize> {
        let (scales, codes) = self.body_lens(shape.elements())?;
        Ok(HEADER_LEN + SEED_LEN + scales + codes)
    }

    fn encode(&self, gradient: &Gradient<'_>, stream: Stream, _: &mut [u64], payload: &mut [u8]) -> Result<usize> {
        let shape = gradient.shape();
        let len = self.payload_len(shape, gradient.values().dtype())?;
        expect_room("payload bytes", len, payload.len())?;
        self.header(shape)?.write(payload)?;
        let seed = seed(stream);
        let (written, body) = payload[HEADER_LEN..len].split_at_mut(SEED_LEN);
        written.copy_from_slice(&seed.to_le_bytes());
        let (scales, codes) = body.split_at_mut(self.body_lens(shape.elements())?.0);
        let (scales, codes) = (Per(scales, 4, BLOCK), Per(codes, BLOCK / 8 * self.bits as usize, BLOCK));
        with_elements!(gradient.values(), values => {
            let part = ((Start(0), values), scales, codes);
            spread_parts!(
                values.len(),
                BLOCK,
                part,
                (*self, seed),
                encode_part,
            )
        })?;
        Ok(len)
    }
}

#[inline(always)]
fn encode_part<E: Element>(part: Part<'_, E>, with: (Eden, u64)) -> Result<()> {
    encode(part, with, |chunk| dispatch_with!(chunk, encode_chunk))
}
