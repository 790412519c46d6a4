//! The planner for callers with an allocator.

use super::{Plan, Summary, budget::Budget, dp, exact};
use crate::{Error, table::Table};
use alloc::{vec, vec::Vec};

/// How to choose.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Solver {
    /// The proved optimum, or the best plan and an honest gap where the limits end the search.
    Exact(exact::Limits),
    /// Algorithm 1 of the paper.
    Dp {
        /// Number of cells of its grid, at least 1; [`dp::LEVELS`] in the paper.
        levels: u32,
    },
}

impl Default for Solver {
    fn default() -> Self {
        Solver::Exact(exact::Limits::default())
    }
}

impl Solver {
    /// `exact` or `dp`.
    pub const fn name(&self) -> &'static str {
        match self {
            Solver::Exact(_) => "exact",
            Solver::Dp { .. } => "dp",
        }
    }
}

/// Chooses one option per layer.
///
/// The plan is within the budget, is verified by [`check`](super::check), is the same for the same input bit for bit,
/// and is never larger than the reference plan when that fits the budget: where a solver's own plan is larger (Algorithm
/// 1 rounds errors up and can be), the reference plan takes its place. The lower bound is the relaxation's, for every
/// solver.
///
/// ```
/// use lgreco_core::plan::{self, Solver, budget::Budget};
/// use lgreco_core::table::{Choice, Table};
/// let choices = [(80, 0.5), (40, 1.0), (20, 3.0), (60, 0.5), (30, 2.0)].map(|(size, error)| Choice { size, error });
/// let table = Table::new(&choices, &[3, 5])?;
/// let budget = Budget::Defaults { alpha: 1.0, options: &[1, 1] };
/// let plan = plan::solve(&table, budget, Solver::default())?;
/// assert_eq!((plan.options(), plan.summary().size), ([1, 1].as_slice(), 70));
/// # Ok::<(), lgreco_core::Error>(())
/// ```
///
/// # Errors
/// Those of [`Budget::limit`] and of the solver; [`Error::Infeasible`] tells the smallest achievable error;
/// [`Error::OutOfMemory`] when the solver's workspace cannot be had.
///
/// # Complexity
/// That of the solver; allocates its workspace and one word per layer.
pub fn solve(table: &Table, budget: Budget, solver: Solver) -> Result<Plan, Error> {
    let limit = budget.limit(table)?;
    let mut options = vec![0; table.layers()];
    let mut summary = match solver {
        Solver::Exact(limits) => {
            let mut workspace = workspace(exact::workspace_len(table, limits))?;
            exact::solve(table, limit, limits, &mut workspace, &mut options)?
        }
        Solver::Dp { levels } => {
            let mut workspace = workspace(dp::workspace_len(table, levels))?;
            let summary = dp::solve(table, limit, levels, &mut workspace, &mut options)?;
            Summary { lower_bound: summary.lower_bound.max(relaxed(table, limit)?), ..summary }
        }
    };
    if let Budget::Defaults { options: reference, .. } = budget
        && let Ok(fits) = Summary::of(table, reference, limit, summary.lower_bound)
        && fits.size < summary.size
    {
        options.copy_from_slice(reference);
        summary = fits;
    }
    Plan::verified(table, solver.name(), options, summary)
}

impl Plan {
    /// Makes a plan of given options, such as a [`baseline`](super::baseline)'s or the reference plan itself, with the
    /// relaxation's lower bound; `solver` is a name for people.
    ///
    /// # Errors
    /// [`Error::OverBudget`], with their error, when the options cost more than the budget; those of [`Budget::limit`];
    /// [`Error::Length`]; [`Error::NoSuchOption`]; [`Error::OutOfMemory`].
    ///
    /// # Complexity
    /// That of [`exact::lower_bound`].
    pub fn from_options(table: &Table, budget: Budget, solver: &'static str, options: Vec<u32>) -> Result<Plan, Error> {
        let limit = budget.limit(table)?;
        let summary = Summary::of(table, &options, limit, 0)?;
        Plan::verified(table, solver, options, Summary { lower_bound: relaxed(table, limit)?, ..summary })
    }
}

fn relaxed(table: &Table, limit: f64) -> Result<u64, Error> {
    let mut workspace = workspace(exact::workspace_len(table, exact::Limits { states: 0 }))?;
    exact::lower_bound(table, limit, &mut workspace)
}

fn workspace(words: usize) -> Result<Vec<u64>, Error> {
    let mut workspace = Vec::new();
    workspace.try_reserve_exact(words).map_err(|_| Error::OutOfMemory { words })?;
    workspace.resize(words, 0);
    Ok(workspace)
}
