//! Brings both problems (least size and least error) into one form: minimise an integer, called the objective, while
//! the other quantity is limited.
//!
//! Under an error budget the objective is the size in bits. Under a size limit the objective is the error, rounded down
//! to a multiple of a power of two. The sum of a plan's integers is exact, and never exceeds the plan's error.

use super::{Limit, Proof};
use crate::num::Sum;
use crate::table::{Choice, Table};
use core::cmp::Ordering;

/// Largest ratio of the sum of the layers' largest errors to the sum of their smallest errors for which `Goal::new`
/// needs no known plan.
const NEAR: f64 = (1u32 << 16) as f64;

/// A limit on one quantity, and the conversion of the other quantity to an integer objective.
#[derive(Clone, Copy, Debug)]
pub(super) struct Goal {
    pub(super) limit: Limit,
    /// Under a size limit, errors are counted in units of `2^exponent`.
    exponent: i32,
    /// Largest error of an option that an optimal plan can contain.
    ceiling: f64,
}

/// Mantissa and exponent of a finite `x` without its sign: `|x| = mantissa · 2^(exponent − 1075)`.
pub(super) fn parts(x: f64) -> (u64, i32) {
    let (fraction, exponent) = (x.to_bits() & ((1 << 52) - 1), (x.to_bits() >> 52 & 0x7ff) as i32);
    if exponent == 0 { (fraction, 1) } else { (fraction | 1 << 52, exponent) }
}

/// `2^exponent`, for exponents from −1074 to 1023.
fn power(exponent: i32) -> f64 {
    if exponent < -1022 {
        f64::from_bits(1 << (exponent + 1074))
    } else {
        f64::from_bits(((exponent + 1023) as u64) << 52)
    }
}

/// The smallest exponent, at least −1074, for which `2^exponent` exceeds `x`.
fn exponent_above(x: f64) -> i32 {
    let (mantissa, exponent) = parts(x);
    exponent - 1075 + (64 - mantissa.leading_zeros()) as i32
}

impl Goal {
    /// Chooses the unit of errors. Under a size limit, the objective of every plan that can be optimal is below
    /// `2^bits` in this unit.
    ///
    /// # Complexity
    /// O(options) under a size limit.
    pub(super) fn new(table: &Table, limit: Limit, bits: u32) -> Goal {
        let Limit::Size(size) = limit else { return Goal { limit, exponent: 0, ceiling: f64::INFINITY } };
        let sum = |pick: fn(f64, f64) -> f64, start: f64, ceiling: f64| -> f64 {
            let errors = |row: &[Choice]| {
                let errors = row.iter().map(|choice| choice.error).filter(|&error| error <= ceiling);
                errors.fold(start, pick)
            };
            table.iter().map(errors).sum()
        };
        let mut ceiling = f64::INFINITY;
        let mut total = sum(f64::max, 0.0, ceiling);
        if total > NEAR * sum(f64::min, f64::INFINITY, ceiling) {
            ceiling = known_plan(table, size);
            total = sum(f64::max, 0.0, ceiling);
        }
        let above = if total.is_finite() { exponent_above(total) } else { 1024 + table.layers().ilog2() as i32 + 1 };
        // Adds one bit, because `total` is rounded.
        Goal { limit, exponent: (above + 1 - bits as i32).max(-1074), ceiling }
    }

    /// The objective of an option. Returns `None` if no optimal plan can contain the option.
    #[inline]
    pub(super) fn objective(&self, choice: &Choice) -> Option<u64> {
        match self.limit {
            Limit::Error(_) => Some(choice.size),
            Limit::Size(_) if choice.error > self.ceiling => None,
            Limit::Size(_) => {
                let (mantissa, exponent) = parts(choice.error);
                let shift = exponent - 1075 - self.exponent;
                Some(match shift {
                    0.. if mantissa > 0 => mantissa << shift,
                    -63..0 => mantissa >> -shift,
                    _ => 0,
                })
            }
        }
    }

    /// Compares how much of the limit two options need. If both need the same amount, compares the options' other
    /// quantity, which is not limited.
    pub(super) fn need_less(&self, a: &Choice, b: &Choice) -> Ordering {
        let (size, error) = (a.size.cmp(&b.size), a.error.partial_cmp(&b.error).unwrap_or(Ordering::Equal));
        match self.limit {
            Limit::Error(_) => error.then(size),
            Limit::Size(_) => size.then(error),
        }
    }

    /// Index of the option in a row that needs least of the limit.
    pub(super) fn least(&self, row: &[Choice]) -> usize {
        (0..row.len()).min_by(|&a, &b| self.need_less(&row[a], &row[b])).unwrap_or(0)
    }

    /// Whether the option alone is within the limit.
    #[inline]
    pub(super) fn allows(&self, choice: &Choice) -> bool {
        match self.limit {
            Limit::Error(budget) => choice.error <= budget,
            Limit::Size(limit) => choice.size <= limit,
        }
    }

    /// Number of cells that an option needs: the smallest `k` with `limited quantity <= k · limit / levels`. The option
    /// must be within the limit.
    pub(super) fn cells(&self, choice: &Choice, levels: u32) -> u32 {
        match self.limit {
            Limit::Error(budget) => cells(choice.error, budget, levels),
            Limit::Size(limit) => {
                (u128::from(choice.size) * u128::from(levels)).div_ceil(u128::from(limit.max(1))) as u32
            }
        }
    }

    /// The proof that no plan within the limit has an objective below `bound`.
    pub(super) fn proof(&self, bound: u64) -> Proof {
        match self.limit {
            Limit::Error(budget) => Proof::Size { lower_bound: bound, budget },
            Limit::Size(size_limit) => {
                // Keeps only the upper 53 bits, so that the conversion to f64 does not round up.
                let spare = 11u32.saturating_sub(bound.leading_zeros());
                Proof::Error { lower_bound: (bound >> spare << spare) as f64 * power(self.exponent), size_limit }
            }
        }
    }
}

/// The error of one plan within `size` bits, or infinity if no plan fits.
///
/// The result is at most about 2·layers times the smallest possible error. The search bisects over thresholds that are
/// powers of two. The plan for a threshold takes each layer's smallest option with at most that error. The result is
/// the error of the plan for the smallest threshold that gives a plan within `size` bits.
///
/// # Complexity
/// O(options), in about 12 passes.
fn known_plan(table: &Table, size: u64) -> f64 {
    let smallest = |threshold: f64| {
        table.iter().try_fold((0u64, Sum::default()), |(size, mut error), row| {
            let allowed = row.iter().filter(|choice| choice.error <= threshold);
            let chosen = allowed.min_by(|a, b| a.size.cmp(&b.size).then(a.error.total_cmp(&b.error)))?;
            error.add(chosen.error);
            Some((size + chosen.size, error))
        })
    };
    let threshold = |exponent: i32| match exponent {
        ..-1074 => 0.0,
        1024.. => f64::MAX,
        _ => power(exponent),
    };
    let (mut low, mut high) = (-1075, 1024);
    while low < high {
        let middle = low + (high - low) / 2;
        if smallest(threshold(middle)).is_some_and(|(found, _)| found <= size) {
            high = middle
        } else {
            low = middle + 1
        }
    }
    let found = smallest(threshold(high)).filter(|&(found, _)| found <= size);
    found.map(|(_, error)| error.rounded_up()).filter(|error| error.is_finite()).unwrap_or(f64::INFINITY)
}

/// The smallest `k` with `error <= k · budget / levels`, in exact arithmetic. Requires `0 <= error <= budget`.
fn cells(error: f64, budget: f64, levels: u32) -> u32 {
    if error == 0.0 {
        return 0;
    }
    let ((error_mantissa, error_exponent), (budget_mantissa, budget_exponent)) = (parts(error), parts(budget));
    let shift = (budget_exponent - error_exponent) as u32;
    let needed = u128::from(error_mantissa) * u128::from(levels);
    // `needed` is below 2^85. If `shift` is 43 or more, the budget's mantissa is at least 2^52, so a single cell covers
    // `needed`.
    let covers = |k: u32| k > 0 && (shift >= 43 || (u128::from(budget_mantissa) * u128::from(k)) << shift >= needed);
    let guess = num_traits::Float::ceil(error / budget * f64::from(levels));
    let mut k = (guess as u32).clamp(1, levels);
    while !covers(k) {
        k += 1;
    }
    while covers(k - 1) {
        k -= 1;
    }
    k
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn cells_on_the_grid_points_are_not_rounded_further() {
        assert_eq!(cells(1.0, 10.0, 10_000), 1000);
        assert_eq!(cells(1f64.next_up(), 10.0, 10_000), 1001);
        assert_eq!(cells(1f64.next_down(), 10.0, 10_000), 1000);
        assert_eq!(cells(10.0, 10.0, u32::MAX), u32::MAX);
        let tiny = f64::from_bits(1);
        assert_eq!((cells(tiny, tiny, 7), cells(tiny, f64::MAX, 7), cells(0.0, 0.0, 7)), (7, 1, 0));
        assert_eq!(cells(f64::from_bits(2), f64::from_bits(3), 9), 6);
    }

    proptest! {
        #[test]
        fn cells_are_the_least_that_cover(
            error in 1u64..1 << 53, more in 0u64..1 << 53, shift in 0i32..60, levels in 1u32..,
        ) {
            // Uses integers, so that the products are exact in 128 bits.
            let (error, budget) = (error as f64, (error + more).min(1 << 53) as f64 * 2f64.powi(shift.min(20)));
            let k = cells(error, budget, levels);
            let needed = error as u128 * u128::from(levels);
            prop_assert!(k <= levels && budget as u128 * u128::from(k) >= needed);
            prop_assert!(budget as u128 * u128::from(k - 1) < needed);
        }
    }
}
