//! Planners: they take an error table and a limit, and choose one option per layer.
//!
//! All solvers work on the same [`Table`]. Solvers minimise `Σ size` subject to `Σ error ≤ budget`, or `Σ error`
//! subject to `Σ size ≤ limit`.
//! * [`exact`] proves that its plan is optimal.
//! * [`dp`] is Algorithm 1 of the L-GreCo paper.
//! * [`baseline`] has methods of other papers.
//! * [`check`] verifies any plan, and shares no code with the solvers.

pub mod baseline;
pub mod budget;
pub mod check;
#[cfg(feature = "alloc")]
mod constrained;
#[cfg(feature = "alloc")]
mod constraints;
pub mod dp;
pub mod exact;
#[cfg(feature = "alloc")]
mod frontier;
mod goal;
mod limit;
#[cfg(feature = "alloc")]
mod merged;
#[cfg(feature = "alloc")]
mod owned;
#[cfg(feature = "alloc")]
mod solve;

#[cfg(feature = "alloc")]
pub use constraints::Constraints;
#[cfg(feature = "alloc")]
pub use frontier::{Frontier, Point};
pub use limit::{Limit, Proof};
#[cfg(feature = "alloc")]
pub use merged::Merged;
#[cfg(feature = "alloc")]
pub use owned::Plan;
#[cfg(feature = "alloc")]
pub use solve::{Solver, solve, solve_against};

use crate::{Error, Result, num::Sum, table::Table};

/// Size, error and proof of a plan, as its solver states them. [`check`] verifies them.
///
/// ```
/// use lgreco_core::plan::{Proof, Summary};
/// let smallest = Summary { size: 1010, error: 0.9, proof: Proof::Size { lower_bound: 1000, budget: 1.0 } };
/// assert_eq!((smallest.proven(), smallest.gap()), (false, 0.01)); // at most 1 % above the optimum
/// let most_exact = Summary { size: 1010, error: 0.9, proof: Proof::Error { lower_bound: 0.9, size_limit: 1024 } };
/// assert!(most_exact.proven());
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Sum of the chosen options' sizes in bits.
    pub size: u64,
    /// Sum of the chosen options' errors, computed with 106 bits and rounded to nearest.
    pub error: f64,
    /// The limit, and the proved lower bound of the minimised quantity.
    pub proof: Proof,
}

impl Summary {
    /// Sums size and error of `options`, one per layer, and checks the limit.
    ///
    /// The caller guarantees that no plan within the limit of `proof` is below the lower bound of `proof`.
    ///
    /// ```
    /// # use lgreco_core::{Error, plan::{Proof, Summary}, table::{Choice, Table}};
    /// let choices = [(8, 0.5), (4, 1.5), (9, 0.25)].map(|(size, error)| Choice { size, error });
    /// let table = Table::new(&choices, &[2, 3])?;
    /// let within = |budget| Summary::of(&table, &[1, 0], Proof::Size { lower_bound: 0, budget });
    /// assert_eq!(within(2.0).map(|summary| (summary.size, summary.error)), Ok((13, 1.75)));
    /// assert_eq!(within(1.0), Err(Error::OverBudget { error: 1.75, budget: 1.0 }));
    /// let short = Summary::of(&table, &[1, 0], Proof::Error { lower_bound: 0.0, size_limit: 12 });
    /// assert_eq!(short, Err(Error::OverSize { size: 13, limit: 12 }));
    /// # Ok::<(), lgreco_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OverBudget`] when the errors sum to more than the budget. [`Error::OverSize`] when the sizes sum to more
    /// than the size limit. [`Error::Length`] unless `options` has one entry per layer. [`Error::NoSuchOption`] for an
    /// option that its layer lacks. [`Error::Parameter`] when the sum of the errors overflows f64.
    ///
    /// # Complexity
    /// O(layers), without an allocator.
    pub fn of(table: &Table, options: &[u32], proof: Proof) -> Result<Summary> {
        let chosen = table.chosen(options)?;
        let error: Sum = chosen.clone().map(|choice| choice.error).collect();
        let size = chosen.map(|choice| choice.size).sum();
        match proof.limit() {
            Limit::Error(budget) if !error.at_most(budget) => Err(Error::OverBudget { error: error.value(), budget }),
            Limit::Size(limit) if size > limit => Err(Error::OverSize { size, limit }),
            _ => Summary { size, error: error.value(), proof }.finite(),
        }
    }

    /// Returns `self`, or an error when the sum of errors overflows f64.
    fn finite(self) -> Result<Summary> {
        let what = "the plan's error";
        let beyond = Error::Parameter { what, value: f64::INFINITY, expected: "a finite number" };
        if self.error.is_finite() { Ok(self) } else { Err(beyond) }
    }

    /// The limit for which the plan was made.
    pub const fn limit(&self) -> Limit {
        self.proof.limit()
    }

    /// Whether the plan is proved optimal. A minimal size is proved exactly, a minimal error up to a relative
    /// difference of [`Proof::RESOLUTION`].
    pub const fn proven(&self) -> bool {
        match self.proof {
            Proof::Size { lower_bound, .. } => self.size <= lower_bound,
            Proof::Error { lower_bound, .. } => self.error <= lower_bound + lower_bound * Proof::RESOLUTION,
        }
    }

    /// Relative gap: the minimised quantity exceeds the optimum by at most this fraction of the lower bound.
    ///
    /// The gap is 0 when the plan is proved optimal. The gap is infinite when the error is positive and its lower bound
    /// is 0.
    pub fn gap(&self) -> f64 {
        match self.proof {
            _ if self.proven() => 0.0,
            Proof::Size { lower_bound, .. } => (self.size - lower_bound) as f64 / lower_bound.max(1) as f64,
            Proof::Error { lower_bound, .. } => (self.error - lower_bound) / lower_bound,
        }
    }

    /// Whether this plan is better than another one for the same limit.
    fn better_than(&self, other: &Summary) -> bool {
        match self.limit() {
            Limit::Error(_) => self.size < other.size,
            Limit::Size(_) => self.error < other.error,
        }
    }
}
