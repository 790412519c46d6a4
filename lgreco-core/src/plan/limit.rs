//! What a plan keeps within, and what is proved about what it minimises.

#[cfg(doc)]
use super::Summary;
use crate::{Error, Result, num::Sum};

/// What a plan must keep within, all layers together; of the plans that do, solvers look for the one with least of the
/// other quantity.
///
/// A plain number converts into an error budget.
///
/// ```
/// use lgreco_core::{plan::{Limit, exact}, table::{Choice, Table}};
/// let choices = [(80, 0.0), (40, 1.0), (60, 0.0), (30, 2.0)].map(|(size, error)| Choice { size, error });
/// let table = Table::new(&choices, &[2, 4])?;
/// let limits = exact::Limits::default();
/// let (mut workspace, mut options) = (vec![0; exact::workspace_len(&table, limits)], [0; 2]);
/// let smallest = exact::solve(&table, 2.0, limits, &mut workspace, &mut options)?;
/// assert_eq!((smallest.size, smallest.error, options), (100, 1.0, [1, 0]));
/// let most_exact = exact::solve(&table, Limit::Size(110), limits, &mut workspace, &mut options)?;
/// assert_eq!((most_exact.size, most_exact.error, options), (100, 1.0, [1, 0]));
/// # Ok::<(), lgreco_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// An error budget: at most this much error, finite and at least 0. The size is minimised.
    Error(f64),
    /// A size limit: at most so many bits. The error is minimised.
    Size(u64),
}

impl From<f64> for Limit {
    fn from(budget: f64) -> Limit {
        Limit::Error(budget)
    }
}

impl Limit {
    /// The limit, unless it is a budget that is NaN, infinite or negative.
    pub(super) fn checked(self) -> Result<Limit> {
        match self {
            Limit::Error(value) if value.is_finite() && value >= 0.0 => Ok(Limit::Error(value.abs())),
            Limit::Error(value) => Err(Error::Budget { value }),
            Limit::Size(_) => Ok(self),
        }
    }

    /// `Err` unless the plan that needs least of what is limited, of this error and size, is within the limit.
    pub(super) fn expect_met(self, error: Sum, size: u64) -> Result<()> {
        match self {
            Limit::Error(budget) if !error.at_most(budget) => Err(Error::infeasible(budget, error, size)),
            Limit::Size(limit) if size > limit => Err(Error::size_infeasible(limit, size, error)),
            _ => Ok(()),
        }
    }

    /// Nothing is proved yet.
    #[cfg(any(feature = "alloc", test))]
    pub(super) const fn unproved(self) -> Proof {
        match self {
            Limit::Error(budget) => Proof::Size { lower_bound: 0, budget },
            Limit::Size(size_limit) => Proof::Error { lower_bound: 0.0, size_limit },
        }
    }
}

/// What was minimised, within what, and what no plan within that is below.
///
/// ```
/// use lgreco_core::plan::{Limit, Proof};
/// assert_eq!(Proof::Size { lower_bound: 1000, budget: 0.5 }.limit(), Limit::Error(0.5));
/// assert_eq!(Proof::Error { lower_bound: 0.5, size_limit: 1000 }.limit(), Limit::Size(1000));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Proof {
    /// The size, within an error budget.
    Size {
        /// No plan within the budget is smaller than this many bits.
        lower_bound: u64,
        /// The most error that the plan may have.
        budget: f64,
    },
    /// The error, within a size limit.
    Error {
        /// No plan within the limit has less error than this.
        lower_bound: f64,
        /// The most bits that the plan may have.
        size_limit: u64,
    },
}

impl Proof {
    /// Errors that differ by less than this part count as equal: a plan whose error is so close to its lower bound is
    /// [proven](Summary::proven) optimal. The solvers add errors as integers of 63 bits, rounded down, so that an exact
    /// proof leaves up to one such unit per layer open.
    pub const RESOLUTION: f64 = 1.0 / (1u64 << 40) as f64;

    /// What the plan was made for.
    pub const fn limit(&self) -> Limit {
        match *self {
            Proof::Size { budget, .. } => Limit::Error(budget),
            Proof::Error { size_limit, .. } => Limit::Size(size_limit),
        }
    }

    /// The stronger of two proofs for the same limit.
    #[cfg(any(feature = "alloc", test))]
    pub(super) fn stronger(self, other: Proof) -> Proof {
        match (self, other) {
            (Proof::Size { lower_bound, budget }, Proof::Size { lower_bound: rival, .. }) => {
                Proof::Size { lower_bound: lower_bound.max(rival), budget }
            }
            (Proof::Error { lower_bound, size_limit }, Proof::Error { lower_bound: rival, .. }) => {
                Proof::Error { lower_bound: lower_bound.max(rival), size_limit }
            }
            _ => self,
        }
    }
}
