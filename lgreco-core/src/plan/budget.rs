//! Error budgets: absolute, or a multiple of what the default options cost.

use crate::{Error, num::Sum, table::Table};

/// How much error a plan may have, in the table's metric.
///
/// ```
/// use lgreco_core::{plan::budget::Budget, table::{Choice, Table}};
/// let choices = [Choice { size: 8, error: 0.5 }, Choice { size: 4, error: 1.5 }, Choice { size: 9, error: 0.25 }];
/// let table = Table::new(&choices, &[2, 3])?;
/// assert_eq!(Budget::Absolute(3.0).limit(&table)?, 3.0);
/// assert_eq!(Budget::Defaults { alpha: 2.0, options: &[1, 0] }.limit(&table)?, 3.5);
/// # Ok::<(), lgreco_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget<'a> {
    /// This much.
    Absolute(f64),
    /// `alpha` times the error of a reference plan known to keep accuracy, usually the same setting everywhere.
    Defaults {
        /// The factor, finite and at least 0. From 1 on the reference plan itself is feasible.
        alpha: f64,
        /// The reference plan: one option per layer.
        options: &'a [u32],
    },
}

impl Budget<'_> {
    /// The largest error a plan for `table` may have: finite, at least 0, rounded up.
    ///
    /// ```
    /// # use lgreco_core::{Error, plan::budget::Budget, table::{Choice, Table}};
    /// let choices = [Choice { size: 8, error: 0.1 }; 3];
    /// let table = Table::new(&choices, &[1, 2, 3])?;
    /// let limit = Budget::Defaults { alpha: 1.0, options: &[0; 3] }.limit(&table)?;
    /// assert!(limit > 0.3); // the f64 nearest to 0.1 is above 1/10, and the sum is rounded up
    /// assert_eq!(Budget::Absolute(-1.0).limit(&table), Err(Error::Budget { value: -1.0 }));
    /// # Ok::<(), lgreco_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Parameter`] when `alpha` is NaN, infinite or negative, or when `alpha` times the error of the defaults is
    /// beyond f64; [`Error::Budget`] when a budget that was given is NaN, infinite or negative;
    /// [`Error::Length`] and [`Error::NoSuchOption`] when the reference plan does not fit the table.
    ///
    /// # Complexity
    /// O(layers).
    pub fn limit(&self, table: &Table) -> Result<f64, Error> {
        let value = match *self {
            Budget::Absolute(value) => value,
            Budget::Defaults { alpha, options } => {
                if !(alpha.is_finite() && alpha >= 0.0) {
                    return Err(Error::Parameter { what: "alpha", value: alpha, expected: "a finite number >= 0" });
                }
                let sum = table.chosen(options)?.map(|choice| choice.error).collect::<Sum>().rounded_up();
                // Rounding is monotone: for alpha >= 1 the product is not below the rounded-up sum.
                let value = alpha * sum;
                if !value.is_finite() {
                    let (what, value) = ("alpha times the error of the defaults", f64::INFINITY);
                    return Err(Error::Parameter { what, value, expected: "a finite number" });
                }
                value
            }
        };
        if value.is_finite() && value >= 0.0 { Ok(value.abs()) } else { Err(Error::Budget { value }) }
    }
}

#[cfg(test)]
mod tests {
    use super::Budget;
    use crate::{Error, table::Choice, table::Table};

    #[test]
    fn the_sum_is_rounded_up_and_overflow_is_an_error() {
        let error = |error| Choice { size: 1, error };
        let choices = [error(1.0), error(1e-40), error(f64::MAX), error(f64::MAX)];
        let table = Table::new(&choices, &[2, 4]).unwrap();
        let small = Table::new(&choices[..2], &[1, 2]).unwrap();
        let sum = Budget::Defaults { alpha: 1.0, options: &[0, 0] }.limit(&small).unwrap();
        assert_eq!(sum, 1f64.next_up());
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
        assert_eq!(Budget::Absolute(-0.0).limit(&table).map(f64::to_bits), Ok(0));
    }
}
