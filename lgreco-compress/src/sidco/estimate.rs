//! Estimates the threshold in stages. Each stage fits a distribution to the elements above the last threshold.

use super::gamma::inverse_upper_gamma;
use super::{Fit, Sidco};
use crate::gradient::Element;
use crate::num::{exp, ln, sqrt};
use crate::simd::dispatch_with;

/// Fraction of the elements above the threshold of the first stage, if there are several stages.
const FIRST_DENSITY: f64 = 0.25;

/// Bits of the smallest magnitude above the threshold. `None` when no distribution fits the magnitudes.
pub(super) fn threshold<T: Element>(sidco: &Sidco, values: &[T]) -> Option<u32> {
    let density = sidco.density;
    let several = sidco.stages > 1 && density < FIRST_DENSITY;
    let all = Moments::of(values, 0.0, -1.0);
    let first = if several { FIRST_DENSITY } else { density };
    let mut threshold = match sidco.fit {
        Fit::Exponential => exponential(all.mean(), first),
        Fit::GammaPareto => gamma(all.mean(), mean_ln(values, &all), first),
        Fit::Pareto => pareto(all.mean(), all.variance(), first),
    }?;
    if several {
        let ratio = exp(ln(density / FIRST_DENSITY) / (sidco.stages - 1) as f64);
        for _ in 1..sidco.stages {
            let above = Moments::of(values, threshold, threshold);
            let raised = match sidco.fit {
                _ if above.count < 3.0 => None,
                Fit::Exponential => exponential(above.excess(threshold), ratio),
                Fit::GammaPareto | Fit::Pareto => pareto(above.excess(threshold), above.variance(), ratio),
            };
            // Keeps the threshold if too few elements are left or all are equal.
            let Some(raised) = raised else { break };
            threshold = above.least + raised;
        }
    }
    // Converts "above the threshold" to "at least the next larger f32".
    let nearest = threshold as f32;
    let least = if nearest as f64 <= threshold { nearest.next_up() } else { nearest };
    Some(least.to_bits())
}

/// Returns `x` if it is positive and finite, else `None`.
fn sound(x: f64) -> Option<f64> {
    if x > 0.0 && x.is_finite() { Some(x) } else { None }
}

fn exponential(mean: f64, density: f64) -> Option<f64> {
    Some(-sound(mean)? * ln(density))
}

fn pareto(mean: f64, variance: f64, density: f64) -> Option<f64> {
    let q = sound(mean * mean / sound(variance)?)?;
    let (scale, shape) = (0.5 * mean * (q + 1.0), 0.5 * (q - 1.0));
    // For κ near 0, rounding makes (1 − δ^κ) / κ inaccurate, so this code uses the limit −ln δ.
    let quotient = if shape.abs() < 1e-9 { -ln(density) } else { (1.0 - exp(shape * ln(density))) / shape };
    Some(scale * quotient)
}

fn gamma(mean: f64, mean_ln: f64, density: f64) -> Option<f64> {
    // Limits the shape to 10^6. With larger shapes, magnitudes are within about 0.1 % of each other.
    let s = sound(ln(sound(mean)?) - mean_ln)?.max(0.5e-6);
    let shape = (3.0 - s + sqrt((s - 3.0) * (s - 3.0) + 24.0 * s)) / (12.0 * s);
    Some(mean / shape * inverse_upper_gamma(shape, density))
}

/// Mean logarithm of the magnitudes. Before taking the logarithm, adds 2^-52 of the l2 norm to each magnitude, so that
/// none is 0.
fn mean_ln<T: Element>(values: &[T], all: &Moments) -> f64 {
    let least = f64::EPSILON * sqrt(all.squares);
    values.iter().map(|x| ln(x.to_f32().abs() as f64 + least)).sum::<f64>() / all.count
}

/// Sums over the magnitudes above a floor, each reduced by a shift.
struct Moments {
    count: f64,
    sum: f64,
    squares: f64,
    /// Smallest and largest magnitude, not reduced by the shift.
    least: f64,
    largest: f64,
}

impl Moments {
    fn of<T: Element>(values: &[T], shift: f64, floor: f64) -> Moments {
        dispatch_with!((values, shift, floor), moments)
    }

    fn mean(&self) -> f64 {
        self.sum / self.count
    }

    /// Mean of the magnitudes minus the smallest one; exactly 0 when all are equal. `shift` is the shift with which the
    /// sums were computed.
    fn excess(&self, shift: f64) -> f64 {
        if self.least < self.largest { self.mean() - (self.least - shift) } else { 0.0 }
    }

    /// Unbiased estimate of the variance; exactly 0 when all magnitudes are equal.
    fn variance(&self) -> f64 {
        let squares = self.squares - self.sum * self.mean();
        if self.least < self.largest { squares / (self.count - 1.0) } else { 0.0 }
    }
}

#[inline(always)]
fn moments<T: Element>((values, shift, floor): (&[T], f64, f64)) -> Moments {
    const LANES: usize = 8;
    let (mut count, mut sum, mut squares) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
    let (mut least, mut largest) = ([f64::INFINITY; LANES], [0.0; LANES]);
    let mut add = |lane: usize, x: T| {
        let magnitude = x.to_f32().abs() as f64;
        let above = magnitude > floor;
        let excess = if above { magnitude - shift } else { 0.0 };
        count[lane] += if above { 1.0 } else { 0.0 };
        sum[lane] += excess;
        squares[lane] += excess * excess;
        least[lane] = if above && magnitude < least[lane] { magnitude } else { least[lane] };
        largest[lane] = if magnitude > largest[lane] { magnitude } else { largest[lane] };
    };
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &x) in chunk.iter().enumerate() {
            add(lane, x);
        }
    }
    rest.iter().enumerate().for_each(|(lane, &x)| add(lane, x));
    Moments {
        count: count.iter().sum(),
        sum: sum.iter().sum(),
        squares: squares.iter().sum(),
        least: least.into_iter().fold(f64::INFINITY, f64::min),
        largest: largest.into_iter().fold(0.0, f64::max),
    }
}
