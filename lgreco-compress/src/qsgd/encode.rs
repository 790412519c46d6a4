//! Encodes QSGD: values to codes.

use super::grid::{FRACTION_BITS, Grid, HALF, in_levels};
use super::{Qsgd, Rounding, Scale};
use crate::bits;
use crate::gradient::Element;
use crate::rng::Stream;
use crate::rng::block::{BLOCK, fill_block};
use crate::spread::{Per, Start};
use crate::{Error, Result};

/// A part of the tensor: the index of its first value, its values, and the bytes that receive its scales and codes.
pub(super) type Part<'a, E> = ((Start, &'a [E]), Per<&'a mut [u8]>, Per<&'a mut [u8]>);

/// Writes `scales` and `codes`, which must have exactly the required lengths.
#[inline(always)]
pub(super) fn encode<E: Element>(part: Part<'_, E>, (qsgd, stream): (Qsgd, Stream)) -> Result<()> {
    if qsgd.sign_magnitude() {
        encode_as::<E, true>(part, qsgd, stream)
    } else {
        encode_as::<E, false>(part, qsgd, stream)
    }
}

#[inline(always)]
fn encode_as<E: Element, const SIGN_MAGNITUDE: bool>(
    ((Start(start), values), Per(scales, ..), Per(codes, ..)): Part<'_, E>,
    qsgd: Qsgd,
    stream: Stream,
) -> Result<()> {
    let (bucket_len, log_levels) = (qsgd.bucket as usize, qsgd.log_levels());
    let mut grid = Grid::default();
    let mut addends = [HALF; BLOCK];
    let mut block_codes = [0u8; BLOCK];
    let packed_blocks = codes.chunks_mut(BLOCK / 8 * qsgd.bits as usize);
    for ((block, block_values), packed) in values.chunks(BLOCK).enumerate().zip(packed_blocks) {
        let first = block * BLOCK;
        if qsgd.rounding == Rounding::Stochastic {
            fill_block(&stream, start + first, &mut addends);
        }
        let mut at = 0;
        while at < block_values.len() {
            let within = (first + at) % bucket_len;
            if within == 0 {
                grid = qsgd.grid(values, first + at).map_err(|error| in_tensor(error, start))?;
                write_scales(qsgd.scale, &grid, (first + at) / bucket_len, scales);
            }
            let end = block_values.len().min(at.saturating_add(bucket_len - within));
            // The addend makes the following truncation round to nearest or stochastically.
            let pairs = block_values[at..end].iter().zip(&addends[at..end]);
            for ((&value, &addend), code) in pairs.zip(&mut block_codes[at..end]) {
                let value = value.to_f32();
                let (scaled, sign) = if SIGN_MAGNITUDE {
                    (value.abs() * grid.power, (value.to_bits() >> 31) << log_levels)
                } else {
                    (value * grid.power, 0)
                };
                let level = (in_levels(grid.position(scaled), log_levels) + addend) >> FRACTION_BITS;
                *code = (level | sign) as u8;
            }
            at = end;
        }
        block_codes[at..].fill(0);
        bits::pack(qsgd.bits, &block_codes, packed);
    }
    Ok(())
}

impl Qsgd {
    /// Smallest number of elements that is a multiple of the bucket size and of [`BLOCK`]. The result may exceed the
    /// tensor's number of elements.
    pub(super) fn unit(&self) -> usize {
        let bucket = self.bucket as usize;
        bucket.saturating_mul(BLOCK >> bucket.trailing_zeros().min(BLOCK.ilog2()))
    }
}

/// Converts the index in an error: from an index in a part to an index in the tensor.
#[inline(always)]
fn in_tensor(error: Error, start: usize) -> Error {
    match error {
        Error::NonFinite { index, value } => Error::NonFinite { index: start + index, value },
        error => error,
    }
}

#[inline(always)]
fn write_scales(scale: Scale, grid: &Grid, bucket: usize, scales: &mut [u8]) {
    match scale {
        Scale::MaxNorm => scales.as_chunks_mut::<4>().0[bucket] = grid.high.to_le_bytes(),
        Scale::MinMax => {
            let words = scales.as_chunks_mut::<4>().0;
            words[2 * bucket] = grid.low.to_le_bytes();
            words[2 * bucket + 1] = grid.high.to_le_bytes();
        }
    }
}
