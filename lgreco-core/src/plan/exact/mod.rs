//! The proved optimum: relaxation bound, branching where it cuts, reduced-cost fixing, and a bounded search of the core
//! that is left.
//!
//! Under an error budget the *objective*, which is minimised, is the size, and errors are *limited*; under a size limit it
//! is the other way round.
//!
//! 1. What is limited becomes integers, 120 bits for the limit, so that every later sum and comparison is exact. An
//!    objective is an integer already if it is a size; errors become integers of 63 bits for their largest sum.
//! 2. Per layer the undominated options and their lower convex hull are found; buying hull edges by falling slope until
//!    the limit is reached solves the linear relaxation and gives the Lagrange multiplier of its bound.
//! 3. Two roundings of the relaxation, each improved by single changes, give a first plan.
//! 4. A list of partial plans grows by the layer in which the relaxation cuts the most promising of them, which is
//!    completed to a plan. Partial plans whose completion by the relaxation is not better than the best plan go. The
//!    least completion left is a bound; when none is left, the best plan is optimal, as it is for most tables.
//! 5. An option whose Lagrangian bound is not below the best plan's objective is dropped for good.
//! 6. A search for plans of at most a target, two Pareto lists matched at the end, either finds the optimum or
//!    proves that there is none up to the target; targets rise from the bound to the best known plan.
//!
//! # What is proved
//! The lower bound is computed in integers.
//!
//! Under an error budget no plan whose errors sum to at most the budget is smaller. A plan is returned only when its
//! errors, summed in 106 bits in layer order, are at most the budget. Errors below 2^-67 of the budget may have bits below
//! the 120: where such bits decide whether a plan fits, the plan found may stay unproved.
//!
//! Under a size limit, sizes are exact, and the bound is one of errors rounded down to multiples of a power of two, about
//! 2^-62 of the largest options' errors together. A plan whose error in these units equals the bound has, as a number,
//! up to one unit per layer more: so far the proof goes, and [`Summary::proven`] allows for
//! [`Proof::RESOLUTION`](super::Proof). Of options
//! with more error than a plan that is known no plan worth finding is made, so they do not count; where what is left
//! still spans more than the 63 bits resolve, the plan found may stay unproved.
//!
//! # Ties
//! Among options of one layer with equal size the smaller error is taken, and the other way round, then the lower index;
//! among plans of equal objective, the one found first by the fixed order of the steps above (under a size limit, the one
//! of less error before rounding). The same input gives the same plan, bit for bit.
//!
//! # Source
//! Relaxation: Dyer (1984), Zemel (1984), in expected linear time after the hulls. Core and reduced-cost bounds:
//! Pisinger, "A minimal algorithm for the multiple-choice knapsack problem" (1995). Our deviations: the core expands by
//! the layer that the relaxation of the best partial plan cuts, not by reduced costs, and completions are bounded by the
//! whole relaxation, not by one multiplier; where that outgrows 2^10 partial plans, two lists matched at the end
//! (Horowitz and Sahni, 1974) and a rising target; integer arithmetic for the certificate.
//!
//! [`Limits`] count states, never seconds, so that a plan is a function of its input.

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

/// How far the search goes before it settles for an honest gap; counted, never timed.
///
/// ```
/// use lgreco_core::plan::exact::Limits;
/// assert_eq!(Limits::default(), Limits { states: 1 << 19 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Partial plans kept at once, 32 bytes of workspace each. With 0 the rounded relaxation is returned with its bound;
    /// up to 2^10 there is branching alone, beyond that branching and search.
    pub states: usize,
}

impl Default for Limits {
    /// 2^19 states, 16 MiB.
    fn default() -> Self {
        Limits { states: 1 << 19 }
    }
}

/// Words of workspace that [`solve`] needs.
///
/// # Complexity
/// O(options) time. 9 words per option, 3 for each of the first 2^10, 2 1/2 per layer, 4 per state; at least what [`dp`]
/// needs.
pub fn workspace_len(table: &Table<'_>, limits: Limits) -> usize {
    let dp = if limits.states > 0 { dp::workspace_len(table, dp::LEVELS) } else { 0 };
    attempt_workspace_len(table, limits).max(dp.saturating_add(words::<u32>(table.layers())))
}

/// Words of workspace that [`attempt`] needs.
pub(super) fn attempt_workspace_len(table: &Table<'_>, limits: Limits) -> usize {
    let widest = table.iter().map(<[_]>::len).max().unwrap_or(0);
    relaxed::workspace_len(table.layers(), table.choices().len(), widest, states(limits))
}

fn states(limits: Limits) -> usize {
    limits.states.min(u32::MAX as usize - 1)
}

/// The smallest plan within an error budget, or the one of least error within a size limit, with its proof.
///
/// Writes one option index per layer to `choices`. [`Summary::proven`] holds unless the steps outgrew `limits`; then
/// the best plan found comes with the largest proved lower bound, and is no worse than Algorithm 1's ([`dp`] at its
/// default levels) unless `limits.states` is 0.
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
/// [`Error::Budget`] for a budget that is NaN, infinite or negative; [`Error::Infeasible`] with the smallest budget that
/// would do, or [`Error::SizeInfeasible`] with the smallest limit; [`Error::Parameter`] when the least error within a size
/// limit is beyond f64; [`Error::Length`] when `workspace` is shorter than [`workspace_len`] or `choices` not one per layer.
///
/// # Complexity
/// O(n log n) time for n options (O(n) when rows are monotone); then, for branching, O(n) and O(options of the largest
/// layer) for each of at most 2^10 states; then O(states * options of the largest layer) for each of at most 34 searches,
/// which few tables need. Where nothing is proved and the bound does not exclude that Algorithm 1's plan is smaller, also
/// that of [`dp`]. [`workspace_len`] words.
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

/// What the steps before Algorithm 1 give.
pub(super) struct Attempt {
    pub(super) summary: Summary,
    /// Whether the plan of Algorithm 1 may be better, and is asked for.
    pub(super) rival: bool,
}

/// [`solve`] without the plan of Algorithm 1, and without its workspace.
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

/// Errors that are minimised sum below 2^63.
const BITS: u32 = 63;

/// All steps, with `states` states. Returns the bound that is then proved and whether Algorithm 1 might do better; both
/// hold for the table only when units are rounded down.
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

/// What the linear relaxation proves: a size that no plan within an error budget is below, or an error that no plan within a
/// size limit is below.
///
/// `workspace` has the length that [`workspace_len`] gives for `Limits { states: 0 }`.
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
/// [`Error::Budget`], [`Error::Infeasible`], [`Error::SizeInfeasible`] and [`Error::Length`] as [`solve`].
///
/// # Complexity
/// O(n log n) time for n options, O(n) when rows are monotone.
pub fn lower_bound(table: &Table<'_>, limit: impl Into<Limit>, workspace: &mut [u64]) -> Result<Proof, Error> {
    let goal = Goal::new(table, limit.into().checked()?, BITS);
    expect_room("workspace", workspace_len(table, Limits { states: 0 }), workspace.len())?;
    Ok(goal.proof(Relaxed::new(table, &goal, Rounding::Down, 0, workspace)?.bound))
}
