//! Rotates values to coordinates that are close to N(0, 1).

use super::BLOCK;
use super::transform::transform;
use crate::gradient::{Dtype, Element};
use crate::num::sqrt;
use crate::rng::Stream;
use crate::rng::block::fill_words;
use crate::{Error, Result};
use core::f32::consts::FRAC_1_SQRT_2;
use core::ops::Add;

/// Number of partial sums. The compiler would unroll a loop over fewer sums before vectorising the loop.
pub(super) const LANES: usize = 64;

/// Splits up to [`BLOCK`] values into blocks. The blocks' lengths are different powers of two, in descending order.
/// [`BLOCK`] values are a single block. Yields the first index and the length of each block.
#[inline(always)]
pub(super) fn blocks(values: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut at = 0;
    core::iter::from_fn(move || {
        let len = 1 << (values - at).checked_ilog2()?;
        at += len;
        Some((at - len, len))
    })
}

/// Computes `1 / √len` for a power of two, rounded once.
#[inline(always)]
pub(super) fn inverse_root(len: usize) -> f32 {
    let log = len.ilog2();
    let power = f32::from_bits((127 - log / 2) << 23);
    if log.is_multiple_of(2) { power } else { power * FRAC_1_SQRT_2 }
}

/// Number of words that hold the signs of [`BLOCK`] values, one bit each.
const WORDS: usize = BLOCK / 32;

/// Random signs of [`BLOCK`] values. Value `i` changes its sign if bit `i / WORDS` of word `i % WORDS` is set.
pub(super) struct Signs([u32; WORDS]);

impl Signs {
    /// Makes the signs for the elements from `start` on. `start` is a multiple of [`BLOCK`].
    #[inline(always)]
    pub(super) fn new(seed: u64, start: usize) -> Self {
        let mut words = [0; WORDS];
        fill_words(&Stream { seed, ..Stream::default() }, start / 32, &mut words);
        Signs(words)
    }

    /// Applies `value` to each element of `from`, then the random signs, and writes the results to `to`. The elements
    /// are a block that begins at value `at`.
    #[inline(always)]
    pub(super) fn apply(&self, at: usize, from: &[f32], to: &mut [f32], value: impl Fn(f32) -> f32) {
        // A block shorter than `WORDS` does not extend beyond the last word.
        let words = &self.0[at % WORDS..];
        for (i, (from, to)) in from.chunks(WORDS).zip(to.chunks_mut(WORDS)).enumerate() {
            let bit = (at / WORDS + i) as u32 % 32;
            for ((&from, to), &word) in from.iter().zip(to).zip(words) {
                *to = f32::from_bits(value(from).to_bits() ^ ((word >> bit) << 31));
            }
        }
    }
}

/// The values as f32: the same slice, or a copy in the buffer `room`.
#[inline(always)]
pub(super) fn as_f32<'a, E: Element>(values: &'a [E], room: &'a mut [f32; BLOCK]) -> &'a [f32] {
    if E::DTYPE == Dtype::F32 {
        return bytemuck::cast_slice(values);
    }
    let room = &mut room[..values.len()];
    room.iter_mut().zip(values).for_each(|(to, value)| *to = value.to_f32());
    room
}

/// The l2 norm of a block, and the factors that normalise it.
#[derive(Clone, Copy)]
pub(super) struct Norm {
    /// The l2 norm ‖x‖.
    pub(super) norm: f64,
    /// Power of two by which the values are multiplied, so that the products and their inverse norm are in the range of
    /// f32. Usually 1.
    power: f32,
    /// Inverse of the norm of the multiplied values; 0 if all values are 0.
    inverse: f32,
}

impl Norm {
    /// Computes the norm of a block that begins at element `start` of the tensor.
    ///
    /// # Errors
    /// [`Error::NonFinite`] with the first NaN or infinity.
    #[inline(always)]
    pub(super) fn of(values: &[f32], start: usize) -> Result<Norm> {
        let mut sums = [0.0f64; LANES];
        let (chunks, rest) = values.as_chunks::<LANES>();
        for chunk in chunks {
            for lane in 0..LANES {
                let x = chunk[lane] as f64;
                sums[lane] += x * x;
            }
        }
        for (sum, &x) in sums.iter_mut().zip(rest) {
            let x = x as f64;
            *sum += x * x;
        }
        let norm = sqrt(total(sums));
        if !norm.is_finite() {
            return Err(first_offender(values, start));
        }
        const LARGE: f64 = (1u128 << 100) as f64;
        let power = match norm {
            _ if norm > LARGE => 1.0 / (1u64 << 60) as f32,
            _ if norm < 1.0 / LARGE => LARGE as f32,
            _ => 1.0,
        };
        let inverse = if norm > 0.0 { (1.0 / (norm * power as f64)) as f32 } else { 0.0 };
        Ok(Norm { norm, power, inverse })
    }

    /// Whether all values are 0.
    #[inline(always)]
    pub(super) fn is_zero(&self) -> bool {
        self.norm == 0.0
    }

    /// Whether scales and decoded values safely stay in the range of normal f32 numbers.
    #[inline(always)]
    pub(super) fn is_moderate(&self) -> bool {
        self.power == 1.0
    }

    /// Fills `coordinates` with `H D x / ‖x‖`. The sum of squares of the coordinates equals their number. The block
    /// begins at value `at` of `signs`.
    #[inline(always)]
    pub(super) fn rotate(&self, values: &[f32], signs: &Signs, at: usize, coordinates: &mut [f32]) {
        let Norm { power, inverse, .. } = *self;
        signs.apply(at, values, coordinates, |x| x * power * inverse);
        transform(coordinates);
    }
}

#[cold]
#[inline(never)]
fn first_offender(values: &[f32], start: usize) -> Error {
    let mut all = values.iter().copied().enumerate();
    let (index, value) = all.find(|(_, x)| !x.is_finite()).unwrap_or((0, f32::NAN));
    Error::NonFinite { index: start + index, value }
}

/// Adds partial sums: halves their number until eight are left, then adds these in f64.
#[inline(always)]
pub(super) fn total<T: Copy + Add<Output = T> + Into<f64>>(mut sums: [T; LANES]) -> f64 {
    let mut left = LANES;
    while left > 8 {
        left /= 2;
        for lane in 0..left {
            sums[lane] = sums[lane] + sums[lane + left];
        }
    }
    let [a, b, c, d, e, f, g, h, ..] = sums.map(T::into);
    ((a + e) + (b + f)) + ((c + g) + (d + h))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn blocks_are_powers_of_two_and_fill_a_part() {
        assert_eq!(blocks(BLOCK).collect::<Vec<_>>(), [(0, BLOCK)]);
        let lens: Vec<usize> = blocks(1000).map(|(_, len)| len).collect();
        assert_eq!(lens, [512, 256, 128, 64, 32, 8]);
        for values in 0..=BLOCK {
            let mut end = 0;
            for (at, len) in blocks(values) {
                assert!(at == end && len.is_power_of_two() && (at % WORDS == 0 || at % WORDS + len <= WORDS));
                end += len;
            }
            assert_eq!((end, blocks(values).count()), (values, values.count_ones() as usize));
        }
    }

    #[test]
    fn inverse_roots_are_rounded_once() {
        for log in 0..=BLOCK.ilog2() {
            let exact = 1.0 / ((1u64 << log) as f64).sqrt();
            assert_eq!(inverse_root(1 << log), exact as f32, "2^{log}");
        }
    }

    #[test]
    fn norms_are_right_for_all_magnitudes() {
        for magnitude in [f32::MAX, 1e38, 1e30, 1.0, 1e-30, 1e-38, 1e-40, f32::from_bits(1)] {
            let values = [magnitude; BLOCK];
            let norm = Norm::of(&values, 0).unwrap();
            let expected = 64.0 * magnitude as f64;
            assert!((norm.norm / expected - 1.0).abs() < 1e-12);
            let mut coordinates = [0.0; BLOCK];
            norm.rotate(&values, &Signs([0; WORDS]), 0, &mut coordinates);
            assert!((coordinates[0] - 64.0).abs() < 1e-4 && coordinates[1..].iter().all(|&z| z == 0.0));
        }
        assert!(Norm::of(&[0.0f32, -0.0], 0).unwrap().is_zero());
    }

    #[test]
    fn the_first_value_that_is_not_finite_is_named() {
        let mut values = [f32::MAX; 100];
        (values[70], values[40]) = (f32::NAN, f32::NEG_INFINITY);
        let expected = Err(Error::NonFinite { index: 4136, value: f32::NEG_INFINITY });
        assert_eq!(Norm::of(&values, BLOCK).map(drop), expected);
    }
}
