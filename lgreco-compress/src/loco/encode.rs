//! Encodes LoCo: values to codes. Also measures the error.

use crate::Result;
use crate::bits;
use crate::gradient::Element;
use crate::qsgd::{Scale, grid::Grid};
use crate::rng::block::BLOCK;

/// The code of a value, −8 to 7.
#[inline(always)]
fn code(grid: &Grid, value: f32) -> i32 {
    // Adding 1.5 · 2^23 rounds to the nearest integer, ties to even, and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let scaled = grid.fraction(value) * 8.0;
    let scaled = if scaled > 7.0 { 7.0 } else { scaled };
    ((scaled + ROUND).to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32)
}

/// The value that a code decodes to.
#[inline(always)]
pub(super) fn value(code: i32, largest: f32) -> f32 {
    code as f32 * 0.125 * largest
}

/// The grid of the group that begins at element `start`, or an error with the first NaN or infinity.
#[inline(always)]
fn grid<E: Element>(values: &[E], start: usize, group: usize) -> Result<Grid> {
    let end = values.len().min(start.saturating_add(group));
    Grid::of(&values[start..end], start, Scale::MaxNorm, true)
}

/// Writes `scales` and `codes`, which must have exactly the required lengths.
#[inline(always)]
pub(super) fn encode<E: Element>(
    (group, values, scales, codes): (usize, &[E], &mut [[u8; 4]], &mut [u8]),
) -> Result<()> {
    let all = values;
    let mut found = Grid::default();
    let mut block_codes = [0u8; BLOCK];
    let packed = codes.chunks_mut(BLOCK / 2);
    for ((block, values), packed) in all.chunks(BLOCK).enumerate().zip(packed) {
        let mut at = 0;
        while at < values.len() {
            let start = block * BLOCK + at;
            let within = start % group;
            if within == 0 {
                found = grid(all, start, group)?;
                scales[start / group] = found.high.to_le_bytes();
            }
            let end = values.len().min(at.saturating_add(group - within));
            for (&x, to) in values[at..end].iter().zip(&mut block_codes[at..end]) {
                *to = (code(&found, x.to_f32()) & 15) as u8;
            }
            at = end;
        }
        block_codes[at..].fill(0);
        bits::pack(4, &block_codes, packed);
    }
    Ok(())
}

/// Squared error of encoding and decoding.
#[inline(always)]
pub(super) fn squared_error<E: Element>((group_len, values): (usize, &[E])) -> Result<f64> {
    const LANES: usize = 16;
    let mut sums = [0.0; LANES];
    for (index, group) in values.chunks(group_len).enumerate() {
        let grid = grid(values, index * group_len, group_len)?;
        for chunk in group.chunks(LANES) {
            for (sum, &x) in sums.iter_mut().zip(chunk) {
                let error = x.to_f32() as f64 - value(code(&grid, x.to_f32()), grid.high) as f64;
                *sum += error * error;
            }
        }
    }
    Ok(sums.iter().sum())
}
