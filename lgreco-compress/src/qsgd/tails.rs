//! Estimates QSGD's error on heavy-tailed values, before any gradient is known.

use super::{Qsgd, Rounding, Scale};
use crate::num::sqrt;

/// Maximum number of a bucket's elements that are sampled.
const LONGEST: usize = 1 << 16;

/// Expected relative squared error on one bucket of a tensor. The values are the quantiles at `(i + 1/4) / (n − 1/2)`
/// of Student's t with two degrees of freedom, for a bucket of `n` elements. At most 65,536 quantiles are used.
pub(super) fn squared_error(qsgd: &Qsgd, elements: usize) -> f64 {
    let bucket = elements.min(qsgd.bucket as usize);
    let quantile = |i: usize, of: usize| {
        let below = (i as f64 + 0.25) / (of as f64 - 0.5);
        (2.0 * below - 1.0) / sqrt(2.0 * below * (1.0 - below))
    };
    // The grid spans the whole bucket, even if only part of it is sampled.
    let largest = quantile(bucket.saturating_sub(1), bucket);
    let len = bucket.min(LONGEST);
    let intervals = (1u32 << qsgd.bits) - 1;
    let (lowest, step) = match qsgd.scale {
        Scale::MaxNorm if qsgd.bits > 1 => (0.0, largest / (intervals >> 1) as f64),
        _ => (-largest, 2.0 * largest / intervals as f64),
    };
    let (mut error, mut norm) = (0.0, 0.0);
    for x in (0..len).map(|i| quantile(i, len)) {
        let place = (x - lowest) / step;
        // Truncating a negative `place` exchanges the distances to the two levels, which does not change the error.
        let up = (place - place as i64 as f64).abs();
        error += match qsgd.rounding {
            Rounding::Nearest => up.min(1.0 - up) * up.min(1.0 - up),
            Rounding::Stochastic => up * (1.0 - up),
        } * (step * step);
        norm += x * x;
    }
    if norm > 0.0 { error / norm } else { 0.0 }
}
