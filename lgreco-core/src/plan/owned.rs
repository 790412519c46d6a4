//! Plans that own their choices.

use super::{Summary, check};
use crate::{Result, table::Table};
use alloc::vec::Vec;

/// A verified plan: one option per layer, with its summary. [`check::verify`] has accepted every `Plan`.
///
/// ```
/// use lgreco_core::plan::{self, Plan, Solver, budget::Budget};
/// use lgreco_core::table::{Choice, Table};
/// let choices = [(8, 0.5), (4, 1.5), (9, 0.25)].map(|(size, error)| Choice { size, error });
/// let table = Table::new(&choices, &[2, 3])?;
/// let plan: Plan = plan::solve(&table, Budget::Absolute(1.0), Solver::default())?;
/// assert_eq!((plan.options(), plan.summary().size, plan.solver()), ([0, 0].as_slice(), 17, "exact"));
/// # Ok::<(), lgreco_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    options: Vec<u32>,
    summary: Summary,
    solver: &'static str,
}

impl Plan {
    /// Verifies options chosen for `table`, and makes a plan of these options. `solver` is a name for display.
    ///
    /// ```
    /// # use lgreco_core::{Error, plan::{Plan, Proof, Summary}, table::{Choice, Table}};
    /// let choices = [(8, 0.5), (4, 1.5)].map(|(size, error)| Choice { size, error });
    /// let table = Table::new(&choices, &[2])?;
    /// let summary = Summary { size: 4, error: 1.5, proof: Proof::Size { lower_bound: 4, budget: 2.0 } };
    /// assert!(Plan::verified(&table, "by hand", vec![1], summary).is_ok());
    /// let wrong = Plan::verified(&table, "by hand", vec![0], summary).unwrap_err();
    /// assert_eq!(wrong, Error::PlanMismatch { what: "size", stated: 4.0, found: 8.0 });
    /// # Ok::<(), lgreco_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`check::verify`].
    ///
    /// # Complexity
    /// O(layers).
    pub fn verified(table: &Table, solver: &'static str, options: Vec<u32>, summary: Summary) -> Result<Plan> {
        check::verify(table, &options, &summary)?;
        Ok(Plan { options, summary, solver })
    }

    /// The option of each layer.
    pub fn options(&self) -> &[u32] {
        &self.options
    }

    /// Size, error, limit and lower bound.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Name of the solver: `exact`, `dp`, `uniform`, …
    pub fn solver(&self) -> &'static str {
        self.solver
    }
}
