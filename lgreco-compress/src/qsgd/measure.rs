//! Measures QSGD's row of the error table: the squared error of every bit width, block by block, while a block is in
//! the cache.

use super::grid::{FRACTION, FRACTION_BITS, Grid, HALF, ONE, in_levels, inverse_levels, point};
use super::{Qsgd, Rounding};
use crate::Error;
use crate::error::expect_len;
use crate::gradient::{Element, Gradient, with_elements};
use crate::rng::block::BLOCK;
use crate::select::check_finite;
use crate::simd::dispatch_with;

const LANES: usize = 32;

/// Measures the squared error of compressing `gradient` with each bit width in `bits`. All other parameters come from
/// `base`; `base.bits` is ignored. The result is exact for [`Rounding::Nearest`]. For [`Rounding::Stochastic`], the
/// result is the exact expectation over the random bits.
///
/// For stochastic rounding, the error is Σ Δ²·f·(1 − f), where Δ is the step of the grid and `f` is the fraction that
/// the encoder rounds. The error is computed from decoded values for nearest rounding, and in two kinds of buckets. In
/// buckets with all values on one side of zero, decoded values may be much larger than Δ. In buckets with magnitudes
/// below 2^-100, decoded values may be rounded to subnormal numbers.
///
/// The result differs from the real error only by rounding of f32 arithmetic. The relative difference is below 1e-5,
/// unless the tensor has only a few values. For every tensor, the relative difference is at most `2e-6 + s·2^-21` for
/// stochastic and 2e-6 for nearest rounding. In addition, each value has an absolute difference of at most `2^-44` of
/// the squared length of the bucket's interval. On GPUs, the absolute difference may be larger by `Δ·2^-148 + 2^-298`,
/// because GPUs do not model rounding to subnormal numbers.
///
/// # Errors
/// [`Error::Length`] when `squared_errors` is not as long as `bits`. [`Error::Parameter`] when a parameter is out of
/// range. [`Error::NonFinite`] with the first NaN or infinity. After an error, `squared_errors` must not be used.
///
/// # Complexity
/// O(elements · widths), one pass over the gradient. Needs no workspace.
///
/// # Source
/// The closed form is the variance of stochastic rounding: Alistarh et al., NeurIPS 2017, proof of Lemma 3.1.
///
/// ```
/// use lgreco_compress::qsgd::{self, Qsgd};
/// use lgreco_core::gradient::{Gradient, Shape, Values};
/// let values = [1.0f32, 0.25, -0.75, 0.0];
/// let gradient = Gradient::new(Values::F32(&values), Shape::new(4, 1)?)?;
/// let mut errors = [0.0; 2];
/// qsgd::measure(&gradient, Qsgd::default(), &[2, 8], &mut errors)?;
/// assert_eq!(errors[0], 2.0 * 0.25 * 0.75); // two values a quarter away from levels 0 and 1
/// assert!(errors[1] < 1e-4);
/// # Ok::<(), lgreco_core::Error>(())
/// ```
pub fn measure(gradient: &Gradient<'_>, base: Qsgd, bits: &[u8], squared_errors: &mut [f64]) -> Result<(), Error> {
    expect_len("squared errors, one per width", bits.len(), squared_errors.len())?;
    for &bits in bits {
        Qsgd { bits, ..base }.check()?;
    }
    squared_errors.fill(0.0);
    if bits.is_empty() {
        return with_elements!(gradient.values(), values => check_finite(values));
    }
    with_elements!(gradient.values(), values => dispatch_with!((base, bits, values, squared_errors), measure_all))
}

#[inline(always)]
pub(super) fn measure_all<E: Element>(
    (base, bits, values, squared_errors): (Qsgd, &[u8], &[E], &mut [f64]),
) -> Result<(), Error> {
    measure_as::<E, true>(base, bits, values, squared_errors)?;
    measure_as::<E, false>(base, bits, values, squared_errors)
}

/// One block of values, padded to whole lanes with values on the lowest level.
struct Block {
    positions: [u32; BLOCK],
    scaled: [f32; BLOCK],
}

/// Adds the errors of the bit widths with sign-magnitude codes if `SIGN_MAGNITUDE`, else of all other bit widths.
#[inline(always)]
fn measure_as<E: Element, const SIGN_MAGNITUDE: bool>(
    base: Qsgd,
    widths: &[u8],
    values: &[E],
    squared_errors: &mut [f64],
) -> Result<(), Error> {
    let with_bits = |bits: u8| Qsgd { bits, ..base };
    let Some(&bits) = widths.iter().find(|&&bits| with_bits(bits).sign_magnitude() == SIGN_MAGNITUDE) else {
        return Ok(());
    };
    let mut block = Block { positions: [0; BLOCK], scaled: [0.0; BLOCK] };
    for (index, bucket) in values.chunks(base.bucket as usize).enumerate() {
        let grid = with_bits(bits).grid(values, index * base.bucket as usize)?;
        let unit = (grid.scaled_high - grid.scaled_low) as f64 / grid.power as f64;
        let residual_unit = 1.0 / grid.power as f64;
        for values in bucket.chunks(BLOCK) {
            let len = block.fill::<E, SIGN_MAGNITUDE>(&grid, values);
            for (&bits, error) in widths.iter().zip(squared_errors.iter_mut()) {
                let qsgd = with_bits(bits);
                if qsgd.sign_magnitude() != SIGN_MAGNITUDE {
                    continue;
                }
                let log_levels = qsgd.log_levels();
                *error += match base.rounding {
                    Rounding::Stochastic if grid.holds_zero() && !grid.is_faint() => {
                        let step = unit / ((1u32 << log_levels) - 1) as f64;
                        block.variance(len, log_levels) * (step * step)
                    }
                    Rounding::Stochastic => {
                        let expected = block.expected_residual::<SIGN_MAGNITUDE>(len, log_levels, &grid);
                        expected * (residual_unit * residual_unit)
                    }
                    Rounding::Nearest => {
                        block.residual::<SIGN_MAGNITUDE>(len, log_levels, &grid) * (residual_unit * residual_unit)
                    }
                };
            }
        }
    }
    Ok(())
}

impl Block {
    /// Loads at most `BLOCK` values, and returns their number, rounded up to whole lanes.
    #[inline(always)]
    fn fill<E: Element, const SIGN_MAGNITUDE: bool>(&mut self, grid: &Grid, values: &[E]) -> usize {
        for ((&value, position), scaled) in values.iter().zip(&mut self.positions).zip(&mut self.scaled) {
            let value = value.to_f32();
            *scaled = if SIGN_MAGNITUDE { value.abs() } else { value } * grid.power;
            *position = grid.position(*scaled);
        }
        let len = values.len().next_multiple_of(LANES);
        self.positions[values.len()..len].fill(0);
        self.scaled[values.len()..len].fill(grid.scaled_low);
        len
    }

    /// Σ f·(1 − f) over the block.
    #[inline(always)]
    fn variance(&self, len: usize, log_levels: u32) -> f64 {
        let mut sums = [0.0; LANES];
        for positions in self.positions[..len].as_chunks::<LANES>().0 {
            for lane in 0..LANES {
                let above = f32::from_bits((in_levels(positions[lane], log_levels) & FRACTION) | ONE);
                sums[lane] += (above - 1.0) * (2.0 - above);
            }
        }
        total(sums)
    }

    /// Expected squared error: Σ (1 − f)·(lower level − value)² + f·(upper level − value)², in scaled units.
    #[inline(always)]
    fn expected_residual<const SIGN_MAGNITUDE: bool>(&self, len: usize, log_levels: u32, grid: &Grid) -> f64 {
        let inverse = inverse_levels(log_levels);
        let (low, high, power) = grid.ends();
        let mut sums = [0.0; LANES];
        let positions = self.positions[..len].as_chunks::<LANES>().0;
        for (positions, scaled) in positions.iter().zip(self.scaled.as_chunks::<LANES>().0) {
            for lane in 0..LANES {
                let levels = in_levels(positions[lane], log_levels);
                let fraction = f32::from_bits((levels & FRACTION) | ONE) - 1.0;
                let level = (levels >> FRACTION_BITS) as i32;
                let below = point::<SIGN_MAGNITUDE>(level, inverse, low, high) * power - scaled[lane];
                let above = point::<SIGN_MAGNITUDE>(level + 1, inverse, low, high) * power - scaled[lane];
                sums[lane] += (1.0 - fraction) * (below * below) + fraction * (above * above);
            }
        }
        total(sums)
    }

    /// Squared error of nearest rounding: Σ (nearest level − value)², in scaled units.
    #[inline(always)]
    fn residual<const SIGN_MAGNITUDE: bool>(&self, len: usize, log_levels: u32, grid: &Grid) -> f64 {
        let inverse = inverse_levels(log_levels);
        let (low, high, power) = grid.ends();
        let mut sums = [0.0; LANES];
        let positions = self.positions[..len].as_chunks::<LANES>().0;
        for (positions, scaled) in positions.iter().zip(self.scaled.as_chunks::<LANES>().0) {
            for lane in 0..LANES {
                let level = ((in_levels(positions[lane], log_levels) + HALF) >> FRACTION_BITS) as i32;
                let residual = point::<SIGN_MAGNITUDE>(level, inverse, low, high) * power - scaled[lane];
                sums[lane] += residual * residual;
            }
        }
        total(sums)
    }
}

/// Adds the lane sums: halves their number twice in f32, then adds the remaining sums in f64.
#[inline(always)]
fn total(sums: [f32; LANES]) -> f64 {
    let mut halves = [0.0f64; LANES / 4];
    for (lane, half) in halves.iter_mut().enumerate() {
        let (a, b) = (sums[lane] + sums[lane + LANES / 2], sums[lane + LANES / 4] + sums[lane + 3 * LANES / 4]);
        *half = (a + b) as f64;
    }
    let [a, b, c, d, e, f, g, h] = halves;
    ((a + e) + (b + f)) + ((c + g) + (d + h))
}
