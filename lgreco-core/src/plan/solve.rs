//! Solvers that allocate their workspace.

use super::{Limit, Plan, Proof, Summary, budget::Budget, dp, exact, exact::Attempt};
use crate::{Error, Result, table::Table};
use alloc::{vec, vec::Vec};

/// A solver with its parameters.
///
/// ```
/// use lgreco_core::plan::{self, Solver, budget::Budget, dp};
/// use lgreco_core::table::{Choice, Table};
/// let choices = [(80, 0.0), (40, 1.0), (20, 3.0), (60, 0.0), (30, 2.0)].map(|(size, error)| Choice { size, error });
/// let table = Table::new(&choices, &[3, 5])?;
/// let size = |solver| plan::solve(&table, Budget::Absolute(3.0), solver).map(|plan| plan.summary().size);
/// assert_eq!(size(Solver::default())?, 70);
/// assert_eq!(size(Solver::Dp { levels: dp::LEVELS })?, 80); // what rounding errors up to a grid costs here
/// # Ok::<(), lgreco_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Solver {
    /// The exact solver. If the solver reaches its limits, it returns the best plan found and the proved gap.
    Exact(exact::Limits),
    /// Algorithm 1 of the paper.
    Dp {
        /// Number of grid cells, at least 1. The paper uses [`dp::LEVELS`].
        levels: u32,
    },
}

impl Default for Solver {
    fn default() -> Self {
        Solver::Exact(exact::Limits::default())
    }
}

impl Solver {
    /// The name as text: `exact` or `dp`.
    pub const fn name(&self) -> &'static str {
        match self {
            Solver::Exact(_) => "exact",
            Solver::Dp { .. } => "dp",
        }
    }
}

/// Number of states in the exact solver's first attempt. Tables from real gradients need fewer. Clearing a workspace
/// for all states would take many times longer than solving such a table.
const FIRST_STATES: usize = 1 << 14;

/// Solves exactly in up to three attempts. The first attempt uses few states. The second attempt is Algorithm 1, if
/// this algorithm may find a better plan. The third attempt uses all states, unless the plan is already proved optimal.
/// Keeps the best plan and the largest lower bound.
fn solve_exactly(table: &Table, limit: Limit, limits: exact::Limits, best: &mut [u32]) -> Result<Summary> {
    let attempt = |states, options: &mut [u32]| {
        let limits = exact::Limits { states };
        let mut workspace = workspace(exact::attempt_workspace_len(table, limits))?;
        exact::attempt(table, limit, limits, &mut workspace, options)
    };
    let first = limits.states.min(FIRST_STATES);
    let Attempt { mut summary, rival: asked } = attempt(first, best)?;
    let mut rival = vec![0; table.layers()];
    let mut keep = |summary: &mut Summary, next: Summary, options: &[u32]| {
        let proof = summary.proof.stronger(next.proof);
        if next.better_than(summary) {
            best.copy_from_slice(options);
            *summary = next;
        }
        summary.proof = proof;
    };
    if asked {
        let mut workspace = workspace(dp::workspace_len(table, dp::LEVELS))?;
        if let Ok(next) = dp::solve(table, limit, dp::LEVELS, &mut workspace, &mut rival) {
            keep(&mut summary, next, &rival);
        }
    }
    if !summary.proven() && first < limits.states {
        let next = attempt(limits.states, &mut rival)?.summary;
        keep(&mut summary, next, &rival);
    }
    Ok(summary)
}

/// Chooses one option per layer. Passes the budget's reference plan, if any, to [`solve_against`].
///
/// [`check`](super::check) verifies that the plan is within the budget. The solver makes the size as small as it can,
/// or the error if the size is limited. Equal inputs give equal plans, bit for bit. For every solver, the lower bound
/// is at least the relaxation's bound.
///
/// ```
/// use lgreco_core::plan::{self, Solver, budget::Budget};
/// use lgreco_core::table::{Choice, Table};
/// let choices = [(80, 0.5), (40, 1.0), (20, 3.0), (60, 0.5), (30, 2.0)].map(|(size, error)| Choice { size, error });
/// let table = Table::new(&choices, &[3, 5])?;
/// let budget = Budget::Defaults { alpha: 1.0, options: &[1, 1] };
/// let plan = plan::solve(&table, budget, Solver::default())?;
/// assert_eq!((plan.options(), plan.summary().size), ([1, 1].as_slice(), 70));
/// let budget = Budget::DefaultSize { alpha: 1.0, options: &[2, 0] }; // as many bits as 20 and 60, with less error
/// let plan = plan::solve(&table, budget, Solver::default())?;
/// assert_eq!((plan.options(), plan.summary().error), ([1, 1].as_slice(), 3.0));
/// # Ok::<(), lgreco_core::Error>(())
/// ```
///
/// # Errors
/// The errors of [`solve_against`].
///
/// # Complexity
/// The complexity of [`solve_against`].
pub fn solve(table: &Table, budget: Budget, solver: Solver) -> Result<Plan> {
    solve_against(table, budget, budget.reference(), solver)
}

/// Chooses one option per layer, and never a worse plan than `reference`.
///
/// Under an error budget, the result is at most as large as a reference plan within the budget. Under a size limit, the
/// result has at most the error of a reference plan within the limit. Algorithm 1 rounds the limited quantity up, so
/// its plan can be worse than the reference plan. In this case the result is the reference plan.
///
/// ```
/// use lgreco_core::plan::{self, Solver, budget::Budget};
/// use lgreco_core::table::{Choice, Table};
/// let choices = [(100, 0.0), (50, 1.0), (100, 0.0), (50, 1.0), (100, 0.0), (50, 1.0)];
/// let choices = choices.map(|(size, error)| Choice { size, error });
/// let table = Table::new(&choices, &[2, 4, 6])?;
/// let (budget, solver) = (Budget::Absolute(3.0), Solver::Dp { levels: 10 });
/// assert_eq!(plan::solve(&table, budget, solver)?.summary().size, 200); // a third is 4 cells of 10, rounded up
/// let reference = Some([1, 1, 1].as_slice());
/// assert_eq!(plan::solve_against(&table, budget, reference, solver)?.summary().size, 150);
/// # Ok::<(), lgreco_core::Error>(())
/// ```
///
/// # Errors
/// The errors of [`Budget::limit`] and of the solver. [`Error::Infeasible`] states the smallest achievable error,
/// [`Error::SizeInfeasible`] the smallest achievable size. [`Error::Length`] and [`Error::NoSuchOption`] when the
/// reference does not fit the table. [`Error::OutOfMemory`] when the solver's workspace cannot be allocated.
///
/// # Complexity
/// The complexity of the solver. Allocates the solver's workspace and two words per layer.
pub fn solve_against(table: &Table, budget: Budget, reference: Option<&[u32]>, solver: Solver) -> Result<Plan> {
    let found = choose(table, budget.limit(table)?, solver)?;
    verified_against(table, found, reference, solver)
}

/// Runs the solver, without verifying the result.
pub(super) fn choose(table: &Table, limit: Limit, solver: Solver) -> Result<(Vec<u32>, Summary)> {
    let mut options = vec![0; table.layers()];
    let summary = match solver {
        Solver::Exact(limits) => solve_exactly(table, limit, limits, &mut options)?,
        Solver::Dp { levels } => {
            let mut workspace = workspace(dp::workspace_len(table, levels))?;
            let summary = dp::solve(table, limit, levels, &mut workspace, &mut options)?;
            Summary { proof: summary.proof.stronger(relaxed(table, limit)?), ..summary }
        }
    };
    Ok((options, summary))
}

/// Verifies the options found, or those of the reference plan if that plan is better.
pub(super) fn verified_against(
    table: &Table,
    (mut options, mut summary): (Vec<u32>, Summary),
    reference: Option<&[u32]>,
    solver: Solver,
) -> Result<Plan> {
    if let Some(reference) = reference {
        match Summary::of(table, reference, summary.proof) {
            Ok(fits) if fits.better_than(&summary) => {
                options.copy_from_slice(reference);
                summary = fits;
            }
            Ok(_) | Err(Error::OverBudget { .. } | Error::OverSize { .. }) => {}
            Err(unfit) => return Err(unfit),
        }
    }
    Plan::verified(table, solver.name(), options, summary)
}

impl Plan {
    /// Makes a plan of given options, such as the options of a [`baseline`](super::baseline) or of the reference plan.
    ///
    /// The plan's lower bound comes from the relaxation. `solver` is a name for display.
    ///
    /// ```
    /// # use lgreco_core::{plan::{Limit, Plan, budget::Budget}, table::{Choice, Table}};
    /// let choices = [(80, 0.5), (40, 1.0), (60, 0.5), (30, 2.0)].map(|(size, error)| Choice { size, error });
    /// let table = Table::new(&choices, &[2, 4])?;
    /// let budget = Budget::Defaults { alpha: 1.0, options: &[1, 0] };
    /// let uniform = Plan::from_options(&table, budget, "uniform", vec![1, 0])?;
    /// assert_eq!((uniform.summary().size, uniform.summary().limit()), (100, Limit::Error(1.5)));
    /// assert!(Plan::from_options(&table, budget, "all small", vec![1, 1]).is_err());
    /// # Ok::<(), lgreco_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OverBudget`] and [`Error::OverSize`], with the plan's error or size, when the options exceed the budget.
    /// The errors of [`Budget::limit`] and [`Summary::of`]. [`Error::OutOfMemory`] when the workspace cannot be
    /// allocated.
    ///
    /// # Complexity
    /// The complexity of [`exact::lower_bound`].
    pub fn from_options(table: &Table, budget: Budget, solver: &'static str, options: Vec<u32>) -> Result<Plan> {
        let limit = budget.limit(table)?;
        let summary = Summary::of(table, &options, limit.unproved())?;
        Plan::verified(table, solver, options, Summary { proof: relaxed(table, limit)?, ..summary })
    }
}

fn relaxed(table: &Table, limit: Limit) -> Result<Proof> {
    let mut workspace = workspace(exact::workspace_len(table, exact::Limits { states: 0 }))?;
    exact::lower_bound(table, limit, &mut workspace)
}

/// Allocates zeroed memory. The operating system maps pages at their first use, so a large workspace is cheap if only a
/// small part is used. `vec!` aborts if the allocation fails, so this function tries to reserve the memory first.
fn workspace(words: usize) -> Result<Vec<u64>> {
    Vec::<u64>::new().try_reserve_exact(words).map_err(|_| Error::OutOfMemory { words })?;
    Ok(vec![0; words])
}
