//! From an error table and a budget to one option per layer.
//!
//! All solvers minimise `Σ size` subject to `Σ error ≤ budget` over the same [`Table`]:
//! [`exact`] proves its answer, [`dp`] is the published Algorithm 1, [`baseline`] holds what others do, and [`check`]
//! verifies any of them without sharing their code.

pub mod baseline;
pub mod budget;
pub mod check;
pub mod dp;
pub mod exact;
#[cfg(feature = "alloc")]
mod owned;
#[cfg(feature = "alloc")]
mod solve;

#[cfg(feature = "alloc")]
pub use owned::Plan;
#[cfg(feature = "alloc")]
pub use solve::{Solver, solve, solve_against};

use crate::{Error, num::Sum, table::Table};

/// What a solver states about the choices it made; [`check`] verifies it.
///
/// ```
/// use lgreco_core::plan::Summary;
/// let summary = Summary { size: 1010, lower_bound: 1000, error: 0.9, budget: 1.0 };
/// assert_eq!((summary.proven(), summary.gap()), (false, 0.01)); // at most 1 % above the optimum
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Bits of the chosen options, summed.
    pub size: u64,
    /// No feasible plan is smaller than this many bits.
    pub lower_bound: u64,
    /// Error of the chosen options, summed in 106 bits and rounded to nearest.
    pub error: f64,
    /// The budget the plan was made for.
    pub budget: f64,
}

impl Summary {
    /// What `options`, one per layer, cost and achieve.
    ///
    /// `lower_bound` is the caller's: no feasible plan may be smaller.
    ///
    /// ```
    /// # use lgreco_core::{Error, plan::Summary, table::{Choice, Table}};
    /// let choices = [(8, 0.5), (4, 1.5), (9, 0.25)].map(|(size, error)| Choice { size, error });
    /// let table = Table::new(&choices, &[2, 3])?;
    /// let summary = Summary::of(&table, &[1, 0], 2.0, 0)?;
    /// assert_eq!((summary.size, summary.error), (13, 1.75));
    /// assert_eq!(Summary::of(&table, &[1, 0], 1.0, 0), Err(Error::OverBudget { error: 1.75, budget: 1.0 }));
    /// # Ok::<(), lgreco_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OverBudget`] when the errors sum to more than `budget`; [`Error::Length`] unless `options` has one entry
    /// per layer; [`Error::NoSuchOption`].
    ///
    /// # Complexity
    /// O(layers), without an allocator.
    pub fn of(table: &Table, options: &[u32], budget: f64, lower_bound: u64) -> Result<Summary, Error> {
        let chosen = table.chosen(options)?;
        let sum: Sum = chosen.clone().map(|choice| choice.error).collect();
        if !sum.at_most(budget) {
            return Err(Error::OverBudget { error: sum.value(), budget });
        }
        Ok(Summary { size: chosen.map(|choice| choice.size).sum(), lower_bound, error: sum.value(), budget })
    }

    /// Whether the plan is proved optimal.
    pub const fn proven(&self) -> bool {
        self.size <= self.lower_bound
    }

    /// How much larger than the optimum the plan can be at most, relative to the lower bound: 0 when proved.
    pub fn gap(&self) -> f64 {
        if self.proven() { 0.0 } else { (self.size - self.lower_bound) as f64 / self.lower_bound.max(1) as f64 }
    }
}
