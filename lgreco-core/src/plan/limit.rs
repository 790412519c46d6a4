//! The limit of a plan, and the proved bound of the quantity that the solver minimises.

#[cfg(doc)]
use super::Summary;
use crate::{Error, Result, num::Sum};

/// A limit on the sum of a plan's errors, or of its sizes, over all layers. With a limit on the error, solvers minimise
/// the size; with a limit on the size, they minimise the error.
///
/// An `f64` converts into an error budget.
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
    /// An error budget: the largest allowed error, finite and at least 0. The size is minimised.
    Error(f64),
    /// A size limit: the largest allowed number of bits. The error is minimised.
    Size(u64),
}

impl From<f64> for Limit {
    fn from(budget: f64) -> Limit {
        Limit::Error(budget)
    }
}

impl Limit {
    /// Returns the limit, or an error for a budget that is NaN, infinite or negative.
    pub(super) fn checked(self) -> Result<Limit> {
        match self {
            Limit::Error(value) if value.is_finite() && value >= 0.0 => Ok(Limit::Error(value.abs())),
            Limit::Error(value) => Err(Error::Budget { value }),
            Limit::Size(_) => Ok(self),
        }
    }

    /// Fails if no plan is within the limit. `error` and `size` belong to the plan of least error under an error
    /// budget, or of least size under a size limit.
    pub(super) fn expect_met(self, error: Sum, size: u64) -> Result<()> {
        match self {
            Limit::Error(budget) if !error.at_most(budget) => Err(Error::infeasible(budget, error, size)),
            Limit::Size(limit) if size > limit => Err(Error::size_infeasible(limit, size, error)),
            _ => Ok(()),
        }
    }

    /// The proof with the trivial lower bound 0.
    #[cfg(any(feature = "alloc", test))]
    pub(super) const fn unproved(self) -> Proof {
        match self {
            Limit::Error(budget) => Proof::Size { lower_bound: 0, budget },
            Limit::Size(size_limit) => Proof::Error { lower_bound: 0.0, size_limit },
        }
    }
}

/// The limit of a plan, and a lower bound of the minimised quantity for all plans within this limit.
///
/// ```
/// use lgreco_core::plan::{Limit, Proof};
/// assert_eq!(Proof::Size { lower_bound: 1000, budget: 0.5 }.limit(), Limit::Error(0.5));
/// assert_eq!(Proof::Error { lower_bound: 0.5, size_limit: 1000 }.limit(), Limit::Size(1000));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Proof {
    /// The size was minimised within an error budget.
    Size {
        /// No plan within the budget is smaller than this many bits.
        lower_bound: u64,
        /// The largest error that the plan may have.
        budget: f64,
    },
    /// The error was minimised within a size limit.
    Error {
        /// No plan within the limit has less error than this number.
        lower_bound: f64,
        /// The largest number of bits that the plan may have.
        size_limit: u64,
    },
}

impl Proof {
    /// Errors are treated as equal if their relative difference is at most this number.
    ///
    /// A plan is [proven](Summary::proven) optimal if its error exceeds its lower bound by at most this fraction. The
    /// solvers round errors down to multiples of a unit, so that sums have 63 bits. So an exact proof can leave a gap
    /// of one unit per layer.
    pub const RESOLUTION: f64 = 1.0 / (1u64 << 40) as f64;

    /// The limit for which the plan was made.
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
