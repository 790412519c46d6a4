//! The proved optimum: relaxation bound, branching where it cuts, reduced-cost fixing, and a bounded search of the core
//! that is left.
//!
//! 1. Errors become integers, 120 bits for the budget, so that every later sum and comparison is exact.
//! 2. Per layer the undominated options and their lower convex hull are found; buying hull edges by falling slope until
//!    the budget is spent solves the linear relaxation and gives the Lagrange multiplier of its bound.
//! 3. Two roundings of the relaxation, each improved by single changes, give a first plan.
//! 4. A list of partial plans grows by the layer in which the relaxation cuts the most promising of them, which is
//!    completed to a plan. Partial plans whose completion by the relaxation is not smaller than the best plan go. The
//!    least completion left is a bound; when none is left, the best plan is optimal, as it is for most tables.
//! 5. An option whose Lagrangian bound is not below the best plan's size is dropped for good.
//! 6. A search for plans of at most a target size, two Pareto lists matched at the end, either finds the optimum or
//!    proves that there is none up to the target; targets rise from the bound to the best known plan.
//!
//! # What is proved
//! `lower_bound` is computed in integers: no plan whose errors sum to at most the budget is smaller. A plan is returned
//! only when its errors, summed in 106 bits in layer order, are at most the budget. Errors below 2^-67 of the budget may
//! have bits below the 120: where such bits decide whether a plan fits, the plan found may stay unproved.
//!
//! # Ties
//! Among options of one layer with equal size the smaller error is taken, then the lower index; among plans of equal
//! size, the one found first by the fixed order of the steps above. The same input gives the same plan, bit for bit.
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
mod rival;
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

use super::{Summary, dp};
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

/// The smallest plan within the error budget, with its proof.
///
/// Writes one option index per layer to `choices`. [`Summary::proven`] holds unless the steps outgrew `limits`; then
/// the best plan found comes with the largest proved lower bound, and is no larger than Algorithm 1's ([`dp`] at its
/// default levels) unless `limits.states` is 0.
///
/// ```
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
/// # Ok::<(), lgreco_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Budget`] for a budget that is NaN, infinite or negative; [`Error::Infeasible`] with the smallest budget that
/// would do; [`Error::Length`] when `workspace` is shorter than [`workspace_len`] or `choices` not one per layer.
///
/// # Complexity
/// O(n log n) time for n options (O(n) when rows are monotone); then, for branching, O(n) and O(options of the largest
/// layer) for each of at most 2^10 states; then O(states * options of the largest layer) for each of at most 34 searches,
/// which few tables need. Where nothing is proved and the bound does not exclude that Algorithm 1's plan is smaller, also
/// that of [`dp`]. [`workspace_len`] words.
pub fn solve(
    table: &Table<'_>,
    budget: f64,
    limits: Limits,
    workspace: &mut [u64],
    choices: &mut [u32],
) -> Result<Summary, Error> {
    expect_room("workspace", workspace_len(table, limits), workspace.len())?;
    let Attempt { summary, rival } = attempt(table, budget, limits, workspace, choices)?;
    if !rival {
        return Ok(summary);
    }
    let mut carver = Carver(workspace);
    let rival = carver.take::<u32>(table.layers());
    match dp::solve(table, budget, dp::LEVELS, carver.0, rival) {
        Ok(dp) if dp.size < summary.size => {
            choices.copy_from_slice(rival);
            Ok(Summary { lower_bound: summary.lower_bound, ..dp })
        }
        _ => Ok(summary),
    }
}

/// What the steps before Algorithm 1 give.
pub(super) struct Attempt {
    pub(super) summary: Summary,
    /// Whether the plan of Algorithm 1 may be smaller, and is asked for.
    pub(super) rival: bool,
}

/// [`solve`] without the plan of Algorithm 1, and without its workspace.
pub(super) fn attempt(
    table: &Table<'_>,
    budget: f64,
    limits: Limits,
    workspace: &mut [u64],
    choices: &mut [u32],
) -> Result<Attempt, Error> {
    expect_room("workspace", attempt_workspace_len(table, limits), workspace.len())?;
    expect_len("choices, one per layer", table.layers(), choices.len())?;
    let mut best = Best { table, budget, choices, size: u64::MAX, error: f64::NAN, rejected: false };
    let (bound, rival) = improve(Rounding::Down, states(limits), workspace, &mut best)?;
    if bound < best.size && best.rejected {
        improve(Rounding::Up, states(limits), workspace, &mut best)?;
    }
    let summary = Summary { size: best.size, lower_bound: bound.min(best.size), error: best.error, budget };
    Ok(Attempt { summary, rival: rival && !summary.proven() })
}

/// All steps, with `states` states. Returns the bound that is then proved and whether Algorithm 1 might do better; both
/// hold for the table only when errors are rounded down.
fn improve(
    rounding: Rounding,
    states: usize,
    workspace: &mut [u64],
    best: &mut Best<'_>,
) -> Result<(u64, bool), Error> {
    let mut relaxed = Relaxed::new(best.table, best.budget, rounding, states, workspace)?;
    best.offer_most_exact();
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

/// A number of bits that no plan within the budget is below: the bound of the linear relaxation.
///
/// `workspace` has the length that [`workspace_len`] gives for `Limits { states: 0 }`.
///
/// ```
/// # use lgreco_core::{plan::exact::{Limits, lower_bound, workspace_len}, table::{Choice, Table}};
/// let choices = [(80, 0.0), (40, 1.0), (60, 0.0), (30, 2.0)].map(|(size, error)| Choice { size, error });
/// let table = Table::new(&choices, &[2, 4])?;
/// let mut workspace = vec![0; workspace_len(&table, Limits { states: 0 })];
/// // Layer 0 takes its second option; half of layer 1's saving is bought with the budget that is left.
/// assert_eq!(lower_bound(&table, 2.0, &mut workspace)?, 40 + (60 + 30) / 2);
/// # Ok::<(), lgreco_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Budget`], [`Error::Infeasible`] and [`Error::Length`] as [`solve`].
///
/// # Complexity
/// O(n log n) time for n options, O(n) when rows are monotone.
pub fn lower_bound(table: &Table<'_>, budget: f64, workspace: &mut [u64]) -> Result<u64, Error> {
    expect_room("workspace", workspace_len(table, Limits { states: 0 }), workspace.len())?;
    Ok(Relaxed::new(table, budget, Rounding::Down, 0, workspace)?.bound)
}
