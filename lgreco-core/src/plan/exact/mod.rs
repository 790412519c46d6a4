//! The exact solver. The solver combines a relaxation bound, branching, reduced-cost fixing and a bounded search among
//! the remaining options.
//!
//! The *objective* is the quantity that is minimised; the other quantity is *limited*. Under an error budget the
//! objective is the size. Under a size limit the objective is the error.
//!
//! 1. The limited quantity is converted to integers, with 120 bits for the limit. So all later sums and comparisons are
//!    exact. Sizes are already integers. If the error is the objective, errors are rounded down to integers, so that
//!    all sums are below 2^63.
//! 2. The solver finds each layer's undominated options and their lower convex hull. To solve the linear relaxation,
//!    the solver takes hull edges by falling slope until the limit is reached. Only a part of the last edge fits: the
//!    limit *cuts* this edge. The slope of the cut edge is the Lagrange multiplier of the bound.
//! 3. The relaxation is rounded in two ways. Changes of single layers then improve each rounded plan.
//! 4. A list of partial plans starts with the empty partial plan. In each step, the relaxation completes the most
//!    promising partial plan to a full plan. All partial plans are then extended by the layer of the cut edge in this
//!    relaxation. A partial plan is dropped if its relaxation is not better than the best plan. The smallest remaining
//!    relaxation is a lower bound. If no partial plan remains, the best plan is optimal. For most tables, this step
//!    already proves the optimum.
//! 5. An option is dropped if its Lagrangian bound is not below the best plan's objective.
//! 6. A search matches two Pareto lists to find the best plan whose objective is at most a target. The search finds the
//!    optimum, or proves that every plan exceeds the target. Targets rise from the bound to the best known plan.
//!
//! # What is proved
//! The lower bound is computed in integers.
//!
//! Under an error budget, no plan within the budget is smaller than the bound. The solver returns a plan only if its
//! errors, summed with 106 bits in layer order, are at most the budget. An error below 2^-67 of the budget may have
//! bits that are too small for the 120-bit integers. If these bits decide whether a plan fits, the plan found may stay
//! unproved.
//!
//! Under a size limit, sizes are exact. The bound adds errors that are rounded down to multiples of a unit. The unit is
//! a power of two, about 2^-62 of the sum of the layers' largest errors. If the rounded error of a plan equals the
//! bound, the plan's true error exceeds the bound by at most one unit per layer. [`Summary::proven`] allows for this
//! difference with [`Proof::RESOLUTION`](super::Proof).
//!
//! Options with more error than a whole known plan cannot be in an optimal plan, and do not affect the unit. If the
//! remaining errors still span more than 63 bits, the plan found may stay unproved.
//!
//! # Ties
//! If two options of a layer have equal size, the solver takes the one with less error. If two options have equal
//! error, the solver takes the smaller one. If two options are equal in both, the solver takes the one with the lower
//! index. If several plans have the same objective, the solver takes the plan that the steps above find first. Under a
//! size limit, however, the solver takes, of the plans found, the one with the least error before rounding. The same
//! input gives the same plan, bit for bit.
//!
//! # Source
//! Relaxation: Dyer (1984), Zemel (1984), in expected linear time once the hulls are known. Core and reduced-cost
//! bounds: Pisinger, "A minimal algorithm for the multiple-choice knapsack problem" (1995).
//!
//! Our deviations: Pisinger adds layers to the core by their reduced costs. We add the layer of the cut edge in the
//! relaxation of the most promising partial plan. A partial plan is bounded by its whole relaxation, not by one
//! multiplier. When branching exceeds 2^10 partial plans, the solver matches two lists (Horowitz and Sahni, 1974) under
//! a rising target. The proof of the lower bound uses integer arithmetic.
//!
//! [`Limits`] count partial plans, not seconds, so that a plan depends only on the input.

mod best;
mod branch;
mod fix;
mod lists;
mod relax;
mod relaxed;
mod repair;
mod rows;
mod search;
mod tail;
mod targets;
#[cfg(test)]
mod tests;
mod units;
mod workspace;

use best::Best;
use relaxed::{BRANCHING, Relaxed};
use units::Rounding;
use workspace::{Carver, words};

use super::goal::Goal;
use super::{Limit, Proof, Summary, dp};
use crate::Error;
use crate::error::{expect_len, expect_room};
use crate::table::Table;

/// Limits of the search. A search that reaches its limits returns the best plan found, with the proved lower bound.
/// Limits count partial plans, not time.
///
/// ```
/// use lgreco_core::plan::exact::Limits;
/// assert_eq!(Limits::default(), Limits { states: 1 << 19 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest number of partial plans held at once; each takes 32 bytes of workspace. With 0 states, the solver
    /// returns the rounded relaxation and its bound. With at most 2^10 states, the solver only branches; with more, it
    /// also searches.
    pub states: usize,
}

impl Default for Limits {
    /// 2^19 states, which take 16 MiB.
    fn default() -> Self {
        Limits { states: 1 << 19 }
    }
}

/// 8-byte words of workspace that [`solve`] needs.
///
/// # Complexity
/// O(options) time. The result is 9 words per option, 4 per option of the largest layer, 2 1/2 per layer, and 4 per
/// state. If `limits.states` is not 0, 3 words for each of the first 2^10 options are added. In this case, the result
/// is at least the workspace of [`dp`] plus half a word per layer.
pub fn workspace_len(table: &Table<'_>, limits: Limits) -> usize {
    let dp = if limits.states > 0 { dp::workspace_len(table, dp::LEVELS) } else { 0 };
    attempt_workspace_len(table, limits).max(dp.saturating_add(words::<u32>(table.layers())))
}

/// 8-byte words of workspace that [`attempt`] needs.
pub(super) fn attempt_workspace_len(table: &Table<'_>, limits: Limits) -> usize {
    let widest = table.iter().map(<[_]>::len).max().unwrap_or(0);
    relaxed::workspace_len(table.layers(), table.choices().len(), widest, states(limits))
}

fn states(limits: Limits) -> usize {
    limits.states.min(u32::MAX as usize - 1)
}

/// Finds the smallest plan within an error budget, or the plan of least error within a size limit, with its proof.
///
/// Writes one option index per layer to `choices`. [`Summary::proven`] holds, unless the solver reaches its `limits` or
/// rounding hides small differences (see the [module](self)). An unproved result is the best plan found, with the
/// largest proved lower bound. Unless `limits.states` is 0, the result is no worse than the plan of Algorithm 1 ([`dp`]
/// with its default levels).
///
/// ```
/// use lgreco_core::plan::Limit;
/// use lgreco_core::plan::exact::{Limits, solve, workspace_len};
/// use lgreco_core::table::{Choice, Table};
/// let choices = [
///     Choice { size: 800, error: 0.1 }, Choice { size: 400, error: 0.5 },
///     Choice { size: 100, error: 0.2 }, Choice { size: 60, error: 0.3 },
/// ];
/// let table = Table::new(&choices, &[2, 4])?;
/// let mut workspace = vec![0; workspace_len(&table, Limits::default())];
/// let mut plan = [0; 2];
/// let summary = solve(&table, 0.75, Limits::default(), &mut workspace, &mut plan)?;
/// assert_eq!((summary.size, plan), (500, [1, 0]));
/// assert!(summary.proven());
///
/// let summary = solve(&table, Limit::Size(860), Limits::default(), &mut workspace, &mut plan)?;
/// assert_eq!((summary.error, plan), (0.1 + 0.3, [0, 1]));
/// assert!(summary.proven());
/// # Ok::<(), lgreco_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Budget`] for a budget that is NaN, infinite or negative. [`Error::Infeasible`] with the smallest feasible
/// budget, or [`Error::SizeInfeasible`] with the smallest feasible limit. [`Error::Parameter`] when the least error within a
/// size limit overflows f64. [`Error::Length`] when `workspace` is shorter than [`workspace_len`] or `choices` does not
/// have one entry per layer.
///
/// # Complexity
/// The relaxation takes O(n log n) time for n options, O(n) when rows are monotone. Branching takes O(n) time, and
/// O(options of the largest layer) time for each of at most 2^10 states. Few tables need searches. There are at most 34
/// searches, each O(states * options of the largest layer). The time of [`dp`] is added, unless bounds prove that the
/// plan is optimal or that Algorithm 1 finds no better plan. [`workspace_len`] words.
pub fn solve(
    table: &Table<'_>,
    limit: impl Into<Limit>,
    limits: Limits,
    workspace: &mut [u64],
    choices: &mut [u32],
) -> Result<Summary, Error> {
    let limit = limit.into();
    expect_room("workspace", workspace_len(table, limits), workspace.len())?;
    let Attempt { summary, rival } = attempt(table, limit, limits, workspace, choices)?;
    if !rival {
        return Ok(summary);
    }
    let mut carver = Carver(workspace);
    let rival = carver.take::<u32>(table.layers());
    match dp::solve(table, limit, dp::LEVELS, carver.0, rival) {
        Ok(dp) if dp.better_than(&summary) => {
            choices.copy_from_slice(rival);
            Ok(Summary { proof: summary.proof, ..dp })
        }
        _ => Ok(summary),
    }
}

/// Result of the steps before Algorithm 1.
pub(super) struct Attempt {
    pub(super) summary: Summary,
    /// Whether the caller should run Algorithm 1, because Algorithm 1 may find a better plan.
    pub(super) rival: bool,
}

/// Runs [`solve`] without Algorithm 1 and without its workspace.
pub(super) fn attempt(
    table: &Table<'_>,
    limit: Limit,
    limits: Limits,
    workspace: &mut [u64],
    choices: &mut [u32],
) -> Result<Attempt, Error> {
    let limit = limit.checked()?;
    expect_room("workspace", attempt_workspace_len(table, limits), workspace.len())?;
    expect_len("choices, one per layer", table.layers(), choices.len())?;
    let mut best = Best::new(table, Goal::new(table, limit, BITS), choices);
    let (bound, rival) = improve(Rounding::Down, states(limits), workspace, &mut best)?;
    if bound < best.objective && best.rejected {
        improve(Rounding::Up, states(limits), workspace, &mut best)?;
    }
    let summary = best.summary(bound).finite()?;
    Ok(Attempt { summary, rival: rival && !summary.proven() })
}

/// Number of bits of objectives: under a size limit, the sum of a plan's integer errors is below 2^63.
const BITS: u32 = 63;

/// Runs all steps, with at most `states` partial plans. Returns the proved bound, and whether Algorithm 1 might find a
/// better plan.
///
/// The results are valid only when units are rounded down.
fn improve(
    rounding: Rounding,
    states: usize,
    workspace: &mut [u64],
    best: &mut Best<'_>,
) -> Result<(u64, bool), Error> {
    let mut relaxed = Relaxed::new(best.table, &best.goal, rounding, states, workspace)?;
    best.offer_least();
    relaxed.round(best);
    if states == 0 {
        return Ok((relaxed.bound, false));
    }
    relaxed.branch(best);
    if states > BRANCHING {
        relaxed.search(best);
    }
    Ok((relaxed.bound, relaxed.has_rival(best)))
}

/// Computes the linear relaxation's lower bound: of the size within an error budget, or of the error within a size limit.
///
/// `workspace` needs the length that [`workspace_len`] returns for `Limits { states: 0 }`.
///
/// ```
/// # use lgreco_core::{plan::{Proof, exact::{Limits, lower_bound, workspace_len}}, table::{Choice, Table}};
/// let choices = [(80, 0.0), (40, 1.0), (60, 0.0), (30, 2.0)].map(|(size, error)| Choice { size, error });
/// let table = Table::new(&choices, &[2, 4])?;
/// let mut workspace = vec![0; workspace_len(&table, Limits { states: 0 })];
/// // Layer 0 takes its second option; half of layer 1's saving is bought with the budget that is left.
/// let proof = lower_bound(&table, 2.0, &mut workspace)?;
/// assert_eq!(proof, Proof::Size { lower_bound: 40 + (60 + 30) / 2, budget: 2.0 });
/// # Ok::<(), lgreco_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Budget`], [`Error::Infeasible`], [`Error::SizeInfeasible`] and [`Error::Length`], under the conditions of
/// [`solve`].
///
/// # Complexity
/// O(n log n) time for n options, O(n) when rows are monotone.
pub fn lower_bound(table: &Table<'_>, limit: impl Into<Limit>, workspace: &mut [u64]) -> Result<Proof, Error> {
    let goal = Goal::new(table, limit.into().checked()?, BITS);
    expect_room("workspace", workspace_len(table, Limits { states: 0 }), workspace.len())?;
    Ok(goal.proof(Relaxed::new(table, &goal, Rounding::Down, 0, workspace)?.bound))
}
