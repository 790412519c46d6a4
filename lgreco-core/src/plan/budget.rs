//! A budget states the largest allowed error or the largest allowed size of a plan. The limit is an absolute number, or
//! a multiple of a reference plan's error or size.

use super::{Limit, goal::parts};
use crate::{Error, Result, num::Sum, table::Table};

/// A limit on a plan's error or size. With a limit on the error, solvers minimise the size; with a limit on the size,
/// they minimise the error.
///
/// ```
/// use lgreco_core::{plan::{Limit, budget::Budget}, table::{Choice, Table}};
/// let choices = [Choice { size: 8, error: 0.5 }, Choice { size: 4, error: 1.5 }, Choice { size: 9, error: 0.25 }];
/// let table = Table::new(&choices, &[2, 3])?;
/// assert_eq!(Budget::Absolute(3.0).limit(&table)?, Limit::Error(3.0));
/// assert_eq!(Budget::Defaults { alpha: 2.0, options: &[1, 0] }.limit(&table)?, Limit::Error(3.5));
/// assert_eq!(Budget::Size(15).limit(&table)?, Limit::Size(15));
/// assert_eq!(Budget::DefaultSize { alpha: 1.0, options: &[1, 0] }.limit(&table)?, Limit::Size(13));
/// # Ok::<(), lgreco_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Budget<'a> {
    /// The largest error, in the table's metric.
    Absolute(f64),
    /// A multiple of a reference plan's error. Choose a reference plan that is known to keep the model's accuracy.
    /// Usually the reference plan has one setting for all layers.
    Defaults {
        /// The factor, finite and at least 0. With a factor of at least 1, the reference plan is within the budget.
        alpha: f64,
        /// The reference plan: one option per layer.
        options: &'a [u32],
    },
    /// The largest size in bits.
    Size(u64),
    /// A multiple of a reference plan's size. With factor 1, solvers minimise the error among all plans that are not
    /// larger than the reference plan.
    DefaultSize {
        /// The factor, finite and at least 0. With a factor of at least 1, the reference plan is within the budget.
        alpha: f64,
        /// The reference plan: one option per layer.
        options: &'a [u32],
    },
}

impl From<Limit> for Budget<'_> {
    fn from(limit: Limit) -> Self {
        match limit {
            Limit::Error(budget) => Budget::Absolute(budget),
            Limit::Size(size) => Budget::Size(size),
        }
    }
}

impl<'a> Budget<'a> {
    /// The reference plan, if the budget names one.
    pub const fn reference(&self) -> Option<&'a [u32]> {
        match *self {
            Budget::Defaults { options, .. } | Budget::DefaultSize { options, .. } => Some(options),
            Budget::Absolute(_) | Budget::Size(_) => None,
        }
    }

    /// The limit for plans of `table`: a finite error of at least 0, rounded up, or a number of bits, rounded down.
    ///
    /// ```
    /// # use lgreco_core::{Error, plan::{Limit, budget::Budget}, table::{Choice, Table}};
    /// let choices = [Choice { size: 8, error: 0.1 }; 3];
    /// let table = Table::new(&choices, &[1, 2, 3])?;
    /// let limit = Budget::Defaults { alpha: 1.0, options: &[0; 3] }.limit(&table)?;
    /// assert!(matches!(limit, Limit::Error(budget) if budget > 0.3)); // the f64 nearest to 0.1 is above 1/10
    /// assert_eq!(Budget::DefaultSize { alpha: 0.9, options: &[0; 3] }.limit(&table)?, Limit::Size(21));
    /// assert_eq!(Budget::Absolute(-1.0).limit(&table), Err(Error::Budget { value: -1.0 }));
    /// # Ok::<(), lgreco_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Parameter`] when `alpha` is NaN, infinite or negative, or when the product overflows f64 or 64 bits.
    /// [`Error::Budget`] when an absolute budget is NaN, infinite or negative. [`Error::Length`] and [`Error::NoSuchOption`]
    /// when the reference plan does not fit the table.
    ///
    /// # Complexity
    /// O(layers).
    pub fn limit(&self, table: &Table) -> Result<Limit> {
        match *self {
            Budget::Absolute(value) => Limit::Error(value).checked(),
            Budget::Size(size) => Ok(Limit::Size(size)),
            Budget::Defaults { alpha, options } => {
                expect_factor(alpha)?;
                let sum = table.chosen(options)?.map(|choice| choice.error).collect::<Sum>().rounded_up();
                // Rounding is monotone: for alpha >= 1 the product is not below the rounded-up sum.
                let value = alpha * sum;
                let what = "alpha times the error of the defaults";
                Error::require(value.is_finite(), what, f64::INFINITY, "a finite number")?;
                Limit::Error(value).checked()
            }
            Budget::DefaultSize { alpha, options } => {
                expect_factor(alpha)?;
                let size = table.chosen(options)?.map(|choice| choice.size).sum();
                let beyond = || {
                    let (what, value) = ("alpha times the size of the defaults", alpha * size as f64);
                    Error::Parameter { what, value, expected: "below 2^64 bits" }
                };
                times(alpha, size).map(Limit::Size).ok_or_else(beyond)
            }
        }
    }
}

fn expect_factor(alpha: f64) -> Result<()> {
    Error::require(alpha.is_finite() && alpha >= 0.0, "alpha", alpha, "a finite number >= 0")
}

/// `alpha` times `size`, rounded down. `None` if the product is 2^64 or more.
fn times(alpha: f64, size: u64) -> Option<u64> {
    let (mantissa, exponent) = parts(alpha);
    let product = u128::from(mantissa) * u128::from(size);
    let whole = match exponent - 1075 {
        _ if product == 0 => 0,
        // A nonzero product that is shifted by 64 bits or more reaches 2^64.
        left @ 0..64 => product.checked_mul(1 << left)?,
        64.. => return None,
        right @ -127..0 => product >> -right,
        _ => 0,
    };
    u64::try_from(whole).ok()
}

#[cfg(test)]
mod tests {
    use super::{Budget, times};
    use crate::plan::Limit;
    use crate::{Error, table::Choice, table::Table};

    #[test]
    fn the_sum_is_rounded_up_and_overflow_is_an_error() {
        let error = |error| Choice { size: 1, error };
        let choices = [error(1.0), error(1e-40), error(f64::MAX), error(f64::MAX)];
        let table = Table::new(&choices, &[2, 4]).unwrap();
        let small = Table::new(&choices[..2], &[1, 2]).unwrap();
        let sum = Budget::Defaults { alpha: 1.0, options: &[0, 0] }.limit(&small).unwrap();
        assert_eq!(sum, Limit::Error(1f64.next_up()));
        let what = "alpha times the error of the defaults";
        let overflow = Err(Error::Parameter { what, value: f64::INFINITY, expected: "a finite number" });
        assert_eq!(Budget::Defaults { alpha: 2.0, options: &[0, 0] }.limit(&table), overflow);
        let large = Table::new(&choices, &[1, 2, 3, 4]).unwrap();
        assert_eq!(Budget::Defaults { alpha: 1.0, options: &[0; 4] }.limit(&large), overflow);
    }

    #[test]
    fn what_is_not_a_budget_is_an_error() {
        let choices = [Choice { size: 1, error: 1.0 }];
        let table = Table::new(&choices, &[1]).unwrap();
        for bad in [f64::NAN, f64::INFINITY, -1.0, -f64::MIN_POSITIVE] {
            assert!(matches!(Budget::Absolute(bad).limit(&table), Err(Error::Budget { .. })));
            let defaults = Budget::Defaults { alpha: bad, options: &[0] };
            assert!(matches!(defaults.limit(&table), Err(Error::Parameter { .. })));
        }
        let missing = Budget::Defaults { alpha: 1.0, options: &[1] };
        assert_eq!(missing.limit(&table), Err(Error::NoSuchOption { layer: 0, option: 1, options: 1 }));
        assert!(matches!(Budget::Absolute(-0.0).limit(&table), Ok(Limit::Error(zero)) if zero.to_bits() == 0));
        for bad in [f64::NAN, f64::INFINITY, -1.0] {
            let sizes = Budget::DefaultSize { alpha: bad, options: &[0] };
            assert!(matches!(sizes.limit(&table), Err(Error::Parameter { what: "alpha", .. })));
        }
        let missing = Budget::DefaultSize { alpha: 1.0, options: &[1] };
        assert_eq!(missing.limit(&table), Err(Error::NoSuchOption { layer: 0, option: 1, options: 1 }));
    }

    #[test]
    fn multiples_of_sizes_are_exact_and_rounded_down() {
        for size in [0, 1, 7, (1 << 53) + 1, u64::MAX - 1, u64::MAX] {
            assert_eq!(
                (times(1.0, size), times(0.0, size), times(f64::MIN_POSITIVE, size)),
                (Some(size), Some(0), Some(0))
            );
            assert_eq!((times(0.5, size), times(2.0, size)), (Some(size / 2), size.checked_mul(2)));
            assert_eq!(times(1f64.next_down(), size), Some(size - size.div_ceil(1 << 53)));
            assert_eq!(times(f64::MAX, size), (size == 0).then_some(0));
            assert_eq!(times(5e-324, size), Some(0));
        }
        let choices = [Choice { size: u64::MAX - 1, error: 1.0 }];
        let table = Table::new(&choices, &[1]).unwrap();
        let found = Budget::DefaultSize { alpha: 1.5, options: &[0] }.limit(&table);
        assert!(matches!(found, Err(Error::Parameter { what: "alpha times the size of the defaults", .. })));
    }
}
