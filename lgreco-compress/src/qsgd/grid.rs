//! The grid of one bucket, computed from its values, and the fixed-point position of a value on it.

use super::{Qsgd, Scale};
use crate::gradient::Element;
use crate::{Error, Result};

/// Number of fraction bits of a fixed-point position.
pub(super) const FRACTION_BITS: u32 = 23;
/// Mask of the fraction bits.
pub(super) const FRACTION: u32 = (1 << FRACTION_BITS) - 1;
/// Half of the distance between two levels, in fixed point.
pub(super) const HALF: u32 = 1 << (FRACTION_BITS - 1);
/// Bits of 1.0.
pub(super) const ONE: u32 = 0x3f80_0000;

/// Below this magnitude, decoded levels of a bucket may be rounded to subnormal numbers.
const FAINT: f32 = f32::from_bits((127 - 100) << FRACTION_BITS);

const LANES: usize = 32;
const INFINITY: u32 = 0x7f80_0000;
const MAGNITUDE: u32 = 0x7fff_ffff;

/// `1/s` for `s = 2^log_levels − 1`. The product of `s` and the result rounds to exactly 1.
#[inline(always)]
pub(super) fn inverse_levels(log_levels: u32) -> f32 {
    1.0 / ((1u32 << log_levels) - 1) as f32
}

/// The grid of a bucket, and the factors that map values onto the grid. For sign-magnitude codes, the grid holds
/// magnitudes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Grid {
    /// First and last level.
    pub(super) low: f32,
    pub(crate) high: f32,
    /// Power of two that scales the largest magnitude to about 1.
    pub(super) power: f32,
    /// `low` and `high` times `power`.
    pub(super) scaled_low: f32,
    pub(super) scaled_high: f32,
    /// Reciprocal of `scaled_high − scaled_low`.
    inverse: f32,
}

impl Grid {
    #[inline(always)]
    fn new(low: f32, high: f32, largest: u32) -> Self {
        let exponent = largest >> FRACTION_BITS;
        let power = f32::from_bits((254 - exponent).max(1) << FRACTION_BITS);
        let (scaled_low, scaled_high) = (low * power, high * power);
        let length = scaled_high - scaled_low;
        let inverse = if length > 0.0 { 1.0 / length } else { 0.0 };
        Grid { low, high, power, scaled_low, scaled_high, inverse }
    }

    /// Computes the grid of the bucket that begins at element `start` of the tensor.
    ///
    /// # Errors
    /// [`Error::NonFinite`] with the first NaN or infinity.
    #[inline(always)]
    pub(crate) fn of<E: Element>(values: &[E], start: usize, scale: Scale, sign_magnitude: bool) -> Result<Self> {
        let (largest, (low, high)) = match scale {
            Scale::MaxNorm => {
                let largest = largest_magnitude(values);
                let norm = f32::from_bits(largest);
                (largest, if sign_magnitude { (0.0, norm) } else { (-norm, norm) })
            }
            Scale::MinMax => {
                let (low, high) = extremes(values);
                // Adding 0 turns −0 into +0, so that the bits do not depend on which zero comes first.
                (largest_magnitude(values), (low + 0.0, high + 0.0))
            }
        };
        if largest >= INFINITY {
            return Err(first_offender(values, start));
        }
        Ok(Grid::new(low, high, largest))
    }

    /// `value` as a fraction of the largest magnitude, for a grid of magnitudes. The fraction is between −1 and 1, up
    /// to the rounding of a product and a reciprocal. In a bucket of zeros, the fraction is 0.
    #[inline(always)]
    pub(crate) fn fraction(&self, value: f32) -> f32 {
        value * self.power * self.inverse
    }

    /// Whether the interval contains zero. In this case, no magnitude on the grid exceeds the grid's length.
    #[inline(always)]
    pub(super) fn holds_zero(&self) -> bool {
        self.low <= 0.0 && self.high >= 0.0
    }

    /// Whether rounding to subnormal numbers may change decoded values noticeably, relative to the grid's length.
    #[inline(always)]
    pub(super) fn is_faint(&self) -> bool {
        self.high.max(-self.low) < FAINT
    }

    /// The first and the last level for the measurement's decoder, and the factor from its decoded values to scaled
    /// values. Usually both levels are scaled, so that nothing overflows or becomes subnormal. The levels of faint
    /// grids are not scaled, so that the measurement rounds as the real decoder does.
    #[inline(always)]
    pub(super) fn ends(&self) -> (f32, f32, f32) {
        if self.is_faint() { (self.low, self.high, self.power) } else { (self.scaled_low, self.scaled_high, 1.0) }
    }

    /// Position of a scaled value between the ends, from 0 to 2^23. For sign-magnitude codes, `scaled` is the
    /// magnitude.
    #[inline(always)]
    pub(super) fn position(&self, scaled: f32) -> u32 {
        let part = (scaled - self.scaled_low) * self.inverse;
        (part + 1.0).to_bits().wrapping_sub(ONE)
    }
}

/// `position · s`: the position in units of 2^-23 levels.
#[inline(always)]
pub(super) fn in_levels(position: u32, log_levels: u32) -> u32 {
    (position << log_levels).wrapping_sub(position)
}

/// Decodes `level`. For sign-magnitude codes, negative values have negative levels.
#[inline(always)]
pub(super) fn point<const SIGN_MAGNITUDE: bool>(level: i32, inverse_levels: f32, low: f32, high: f32) -> f32 {
    let part = level as f32 * inverse_levels;
    if SIGN_MAGNITUDE { part * high } else { low * (1.0 - part) + high * part }
}

#[inline(always)]
fn magnitude<E: Element>(value: E) -> u32 {
    value.to_f32().to_bits() & MAGNITUDE
}

/// Bits of the largest magnitude. The bits of NaN are larger than those of infinity.
#[inline(always)]
fn largest_magnitude<E: Element>(values: &[E]) -> u32 {
    let mut largest = [0u32; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            largest[lane] = largest[lane].max(magnitude(chunk[lane]));
        }
    }
    let largest = largest.into_iter().fold(0, u32::max);
    rest.iter().fold(largest, |largest, &value| largest.max(magnitude(value)))
}

/// Smallest and largest value. The result is meaningless if a value is NaN.
#[inline(always)]
fn extremes<E: Element>(values: &[E]) -> (f32, f32) {
    let (mut low, mut high) = ([f32::INFINITY; LANES], [f32::NEG_INFINITY; LANES]);
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            let value = chunk[lane].to_f32();
            low[lane] = if value < low[lane] { value } else { low[lane] };
            high[lane] = if value > high[lane] { value } else { high[lane] };
        }
    }
    let rest = || rest.iter().map(|value| value.to_f32());
    let smallest = low.into_iter().chain(rest()).fold(f32::INFINITY, |a, b| if b < a { b } else { a });
    let largest = high.into_iter().chain(rest()).fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a });
    (smallest, largest)
}

#[cold]
#[inline(never)]
fn first_offender<E: Element>(values: &[E], start: usize) -> Error {
    let (index, value) = values
        .iter()
        .enumerate()
        .map(|(i, value)| (start + i, value.to_f32()))
        .find(|(_, value)| !value.is_finite())
        .unwrap_or((start, f32::NAN));
    Error::NonFinite { index, value }
}

impl Qsgd {
    /// The grid of the bucket that begins at element `start`.
    #[inline(always)]
    pub(super) fn grid<E: Element>(&self, values: &[E], start: usize) -> Result<Grid> {
        let end = values.len().min(start.saturating_add(self.bucket as usize));
        Grid::of(&values[start..end], start, self.scale, self.sign_magnitude())
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_number_of_levels_times_its_inverse_is_one() {
        for log_levels in 1..=8 {
            assert_eq!(((1u32 << log_levels) - 1) as f32 * super::inverse_levels(log_levels), 1.0);
        }
    }
}
