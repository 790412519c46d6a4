//! Encodes EDEN: values to codes.

use super::decode::{largest_decoded, unquantise};
use super::grid::nearest;
use super::rotate::{LANES, Norm, Signs, as_f32, blocks, inverse_root, total};
use super::{BLOCK, Eden, Scale};
use crate::bits::{self, with_width};
use crate::gradient::Element;
use crate::spread::{Per, Start};
use crate::{Error, Result};

/// A part of the tensor: the index of its first value, its values, and the bytes that receive its scales and codes.
pub(super) type Part<'a, E> = ((Start, &'a [E]), Per<&'a mut [u8]>, Per<&'a mut [u8]>);

/// Up to [`BLOCK`] values, the index of the first value, the bytes that receive scales and codes, and scratch memory.
pub(super) struct Chunk<'a> {
    coordinates: &'a mut [f32; BLOCK],
    unpacked: &'a mut [u8; BLOCK],
    eden: Eden,
    seed: u64,
    first: usize,
    values: &'a [f32],
    scales: &'a mut [u8],
    codes: &'a mut [u8],
}

/// Writes `scales` and `codes`, which must have exactly the required lengths. `chunk` is [`encode_chunk`]. The call
/// goes through this argument, so that [`encode_chunk`] is compiled once and not per element type.
#[inline(always)]
pub(super) fn encode<E: Element>(
    ((Start(start), values), Per(mut scales, ..), Per(codes, ..)): Part<'_, E>,
    (eden, seed): (Eden, u64),
    chunk: impl Fn(Chunk<'_>) -> Result<()>,
) -> Result<()> {
    let (mut room, mut coordinates, mut unpacked) = ([0.0; BLOCK], [0.0; BLOCK], [0; BLOCK]);
    for ((i, values), codes) in values.chunks(BLOCK).enumerate().zip(codes.chunks_mut(BLOCK / 8 * eden.bits as usize)) {
        let own;
        (own, scales) = scales.split_at_mut(4 * blocks(values.len()).count());
        let values = as_f32(values, &mut room);
        let (coordinates, unpacked) = (&mut coordinates, &mut unpacked);
        chunk(Chunk { coordinates, unpacked, eden, seed, first: start + i * BLOCK, values, scales: own, codes })?;
    }
    Ok(())
}

#[inline(always)]
pub(super) fn encode_chunk(chunk: Chunk<'_>) -> Result<()> {
    let Chunk { coordinates, unpacked, eden: Eden { bits, scale }, seed, first, values, scales, codes: packed } = chunk;
    let signs = Signs::new(seed, first);
    for ((at, len), place) in blocks(values.len()).zip(scales.as_chunks_mut::<4>().0) {
        let (coordinates, codes) = (&mut coordinates[..len], &mut unpacked[at..at + len]);
        let norm = Norm::of(&values[at..at + len], first + at)?;
        let sent = encode_block(bits, &norm, &values[at..at + len], scale, (&signs, at), coordinates, codes)?;
        *place = sent.to_le_bytes();
    }
    let end = values.len().next_multiple_of(8);
    unpacked[values.len()..end].fill(0);
    bits::pack(bits, &unpacked[..end], packed);
    Ok(())
}

/// Writes the codes of a block and returns its scale.
#[inline(always)]
pub(super) fn encode_block(
    bits: u8,
    norm: &Norm,
    values: &[f32],
    scale: Scale,
    (signs, at): (&Signs, usize),
    coordinates: &mut [f32],
    codes: &mut [u8],
) -> Result<f32> {
    if norm.is_zero() {
        codes.fill(0);
        return Ok(0.0);
    }
    norm.rotate(values, signs, at, coordinates);
    let sums = with_width!(bits, quantise(coordinates, codes));
    let sent = sums.scale(norm, scale, values.len());
    if !norm.is_moderate() {
        // Decoded values may be larger than encoded ones, and may overflow.
        unquantise(bits, codes, coordinates);
        Error::require_finite(largest_decoded(coordinates, sent).is_finite(), "a decoded value")?;
    }
    Ok(sent)
}

/// The sums that determine the scale, over coordinates z and grid points q.
pub(super) struct Sums {
    /// Σ z·q.
    pub(super) product: f64,
    /// Σ q².
    pub(super) square: f64,
}

impl Sums {
    /// Scale of the grid points, relative to the root mean square of the block's values.
    #[inline(always)]
    pub(super) fn relative_scale(&self, scale: Scale, len: usize) -> f64 {
        match scale {
            Scale::Unbiased => len as f64 / self.product,
            Scale::LeastSquares => self.product / self.square,
        }
    }

    /// The scale that is sent.
    #[inline(always)]
    fn scale(&self, norm: &Norm, scale: Scale, len: usize) -> f32 {
        // ‖x‖ / √d, computed with the rounded 1 / √d that decoding uses.
        let root_mean_square = norm.norm / (len as f64 * inverse_root(len) as f64);
        (root_mean_square * self.relative_scale(scale, len)) as f32
    }
}

/// Writes the code of each coordinate, and returns the sums for the scale.
#[inline(always)]
fn quantise<const BITS: usize>(coordinates: &[f32], codes: &mut [u8]) -> Sums {
    let (mut products, mut squares) = ([0.0f32; LANES], [0.0f32; LANES]);
    let (chunks, rest) = coordinates.as_chunks::<LANES>();
    let (to, rest_to) = codes.as_chunks_mut::<LANES>();
    for (chunk, to) in chunks.iter().zip(to) {
        for lane in 0..LANES {
            let level;
            (to[lane], level) = code::<BITS>(chunk[lane]);
            products[lane] += chunk[lane].abs() * level;
            squares[lane] += level * level;
        }
    }
    // Only blocks with fewer than `LANES` values have a remainder.
    for (lane, (&z, to)) in rest.iter().zip(rest_to).enumerate() {
        let level;
        (*to, level) = code::<BITS>(z);
        products[lane] = z.abs() * level;
        squares[lane] = level * level;
    }
    Sums { product: total(products), square: total(squares) }
}

/// The code of a coordinate, and the magnitude of its grid point.
#[inline(always)]
fn code<const BITS: usize>(z: f32) -> (u8, f32) {
    let (index, level) = nearest::<BITS>(z.abs());
    ((index | z.to_bits() >> 31 << (BITS - 1)) as u8, level)
}
