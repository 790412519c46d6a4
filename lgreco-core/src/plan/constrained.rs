//! Plans for a table with groups and fixed options.

use super::solve::{choose, verified_against};
use super::{Limit, Merged, Plan, Proof, Solver, Summary, budget::Budget};
use crate::{Error, Result};
use alloc::vec::Vec;

impl Merged<'_> {
    /// Works as [`solve_against`](super::solve_against), but the plan keeps the constraints.
    ///
    /// Budget, size and error cover the whole table, fixed layers included. [`check`](super::check) verifies the plan
    /// on the whole table. The lower bound holds for all plans that keep the constraints. A `reference` that breaks the
    /// constraints is ignored.
    ///
    /// ```
    /// use lgreco_core::{Error, plan::{Constraints, Merged, Solver, budget::Budget}, table::{Choice, Table}};
    /// let choices = [(80, 0.5), (40, 1.0), (60, 0.5), (30, 2.0)].map(|(size, error)| Choice { size, error });
    /// let table = Table::new(&choices, &[2, 4])?;
    /// let merged = Merged::new(&table, Constraints::default().group([0, 1]))?;
    /// let plan = merged.solve(Budget::Absolute(2.5), None, Solver::default())?;
    /// assert_eq!((plan.options(), plan.summary().size, plan.summary().proven()), (&[0, 0][..], 140, true));
    /// let failed = merged.solve(Budget::Absolute(0.9), None, Solver::default()).unwrap_err();
    /// assert_eq!(failed, Error::Infeasible { budget: 0.9, smallest: 1.0, size: 140 });
    /// # Ok::<(), lgreco_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`solve_against`](super::solve_against). [`Error::Infeasible`] and [`Error::SizeInfeasible`] state
    /// the smallest error or size within the constraints.
    ///
    /// # Complexity
    /// The complexity of the solver on the merged table. If the rounding of a group's errors decides whether a plan
    /// fits the budget, the solver runs twice.
    pub fn solve(&self, budget: Budget, reference: Option<&[u32]>, solver: Solver) -> Result<Plan> {
        let limit = budget.limit(&self.table)?;
        let kept = match reference.map(|options| self.check(options)).transpose() {
            Err(Error::RuledOut { .. }) => None,
            kept => kept?.and(reference),
        };
        let found = self.choose(limit, solver)?;
        verified_against(&self.table, found, kept, solver)
    }

    fn choose(&self, limit: Limit, solver: Solver) -> Result<(Vec<u32>, Summary)> {
        let most_exact = self.most_exact();
        if self.is_rounded() && matches!(limit, Limit::Error(_)) {
            // The solvers work on rounded sums. So this code compares the smallest error with the budget without
            // rounding.
            let options = self.expand(&most_exact)?;
            let chosen = self.table.chosen(&options)?;
            let error = chosen.clone().map(|choice| choice.error).collect();
            limit.expect_met(error, chosen.map(|choice| choice.size).sum())?;
        }
        // With errors rounded down, no plan within the budget is excluded. So a lower bound for this merged table also
        // holds for the original table.
        let (options, Summary { proof, .. }) = choose(&self.low(), limit, solver)?;
        match self.summary(&options, proof) {
            Err(Error::OverBudget { .. }) => {}
            found => return found,
        }
        // The solver accepted this plan only because errors were rounded down. With errors rounded up, every accepted
        // plan is within the budget.
        match choose(&self.view(), limit, solver).and_then(|(options, _)| self.summary(&options, proof)) {
            Err(Error::Infeasible { .. } | Error::OverBudget { .. }) => self.summary(&most_exact, proof),
            found => found,
        }
    }

    /// Expands options of the merged table to the original table, and sums their size and error.
    fn summary(&self, options: &[u32], proof: Proof) -> Result<(Vec<u32>, Summary)> {
        let options = self.expand(options)?;
        let summary = Summary::of(&self.table, &options, proof)?;
        Ok((options, summary))
    }
}
