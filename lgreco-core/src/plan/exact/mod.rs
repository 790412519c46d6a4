//! The proved optimum: relaxation bound, reduced-cost fixing, and a bounded search of the core that is left.
//!
//! 1. Errors become integers, 120 bits for the budget, so that every later sum and comparison is exact.
//! 2. Per layer the undominated options and their lower convex hull are found; buying hull edges by falling slope until
//!    the budget is spent solves the linear relaxation and gives the Lagrange multiplier of its bound.
//! 3. Two roundings of the relaxation, each improved by single changes, give a first plan.
//! 4. An option whose Lagrangian bound is not below that plan's size is dropped for good.
//! 5. A search for plans of at most a target size, two Pareto lists matched at the end, either finds the optimum or
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
//! Pisinger, "A minimal algorithm for the multiple-choice knapsack problem" (1995). Our deviations: two lists matched at
//! the end (Horowitz and Sahni, 1974) in place of one; a rising target in place of an expanding core; integer arithmetic
//! for the certificate.

mod fix;
mod lists;
mod relax;
mod repair;
mod rows;
mod search;
#[cfg(test)]
mod tests;
mod units;

use fix::Lattice;
use lists::{Arena, State};
use relax::{Edge, Multiplier};
use rows::{Item, Span};
use search::Core;
use units::{Rounding, Scale};

use super::{Summary, dp};
use crate::Error;
use crate::error::{expect_len, expect_room};
use crate::num::Sum;
use crate::table::Table;

/// How far the search goes before it settles for an honest gap; counted, never timed.
///
/// ```
/// use lgreco_core::plan::exact::Limits;
/// assert_eq!(Limits::default(), Limits { states: 1 << 19 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Partial plans kept at once, 32 bytes of workspace each. With 0 there is no search: the rounded relaxation is
    /// returned with its bound.
    pub states: usize,
}

impl Default for Limits {
    /// 2^19 states, 16 MiB.
    fn default() -> Self {
        Limits { states: 1 << 19 }
    }
}

/// A target is tried without trying smaller ones first while it leaves at most 2^20 plans.
const EASY: u32 = 40;
/// The first target lies 2^-10 of the gap above the bound, the next ones 4 times further.
const FINEST: u32 = 10;
/// How often a search that outgrew the limits is tried again below the better plan it found.
const RETRIES: u32 = 3;

/// Splits a workspace into typed buffers.
struct Carver<'w>(&'w mut [u64]);

impl<'w> Carver<'w> {
    fn take<T: bytemuck::Pod>(&mut self, count: usize) -> &'w mut [T] {
        let (head, rest) = core::mem::take(&mut self.0).split_at_mut(words::<T>(count));
        self.0 = rest;
        &mut bytemuck::cast_slice_mut(head)[..count]
    }
}

const fn words<T>(count: usize) -> usize {
    (count * size_of::<T>()).div_ceil(8)
}

/// Words of workspace that [`solve`] needs.
///
/// ```
/// # use lgreco_core::{plan::exact::{Limits, workspace_len}, table::{Choice, Table}};
/// let choices = [Choice { size: 8, error: 0.1 }; 40];
/// let table = Table::new(&choices, &[10, 20, 30, 40])?;
/// assert_eq!(workspace_len(&table, Limits { states: 0 }), 8 * 40 + 10 + 40);
/// # Ok::<(), lgreco_core::Error>(())
/// ```
///
/// # Complexity
/// O(options) time. 8 words per option, 2 1/2 per layer, 4 per state; at least what [`dp`] needs.
pub fn workspace_len(table: &Table<'_>, limits: Limits) -> usize {
    let (layers, options) = (table.layers(), table.choices().len());
    let widest = table.iter().map(<[_]>::len).max().unwrap_or(0);
    let dp = if limits.states > 0 { dp::workspace_len(table, dp::LEVELS) } else { 0 };
    let own = words::<Item>(options)
        + words::<Edge>(options)
        + words::<Span>(layers)
        + 3 * words::<u32>(layers)
        + words::<State>(widest + states(limits));
    own.max(dp.saturating_add(words::<u32>(layers)))
}

fn states(limits: Limits) -> usize {
    limits.states.min(u32::MAX as usize - 1)
}

/// The smallest plan within the error budget, with its proof.
///
/// Writes one option index per layer to `choices`. [`Summary::proven`] holds unless the search outgrew `limits`; then
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
/// O(n log n) time for n options (O(n) when rows are monotone), then O(states * options of the largest layer) for each of
/// at most 17 searches; on measured tables one or two of a few thousand states. [`workspace_len`] words.
pub fn solve(
    table: &Table<'_>,
    budget: f64,
    limits: Limits,
    workspace: &mut [u64],
    choices: &mut [u32],
) -> Result<Summary, Error> {
    expect_room("workspace", workspace_len(table, limits), workspace.len())?;
    expect_len("choices, one per layer", table.layers(), choices.len())?;
    let mut best = Best { table, budget, choices, size: u64::MAX, error: f64::NAN, rejected: false };
    let lower_bound = improve(Rounding::Down, limits, workspace, &mut best)?;
    if lower_bound < best.size && best.rejected {
        improve(Rounding::Up, limits, workspace, &mut best)?;
    }
    if lower_bound < best.size && limits.states > 0 {
        compete(&mut best, workspace);
    }
    Ok(Summary { size: best.size, lower_bound: lower_bound.min(best.size), error: best.error, budget })
}

/// Relaxation, its roundings and the search within `limits`; returns the bound that is then proved, which holds for the
/// table only when errors are rounded down.
fn improve(rounding: Rounding, limits: Limits, workspace: &mut [u64], best: &mut Best<'_>) -> Result<u64, Error> {
    let mut relaxed = Relaxed::new(best.table, best.budget, rounding, workspace)?;
    best.offer_most_exact();
    relaxed.round(best);
    let bound = relaxed.bound;
    Ok(if limits.states > 0 && bound < best.size { relaxed.search(states(limits), best) } else { bound })
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
    Ok(Relaxed::new(table, budget, Rounding::Down, workspace)?.bound)
}

/// Lets the plan of Algorithm 1 compete where the optimum is not proved.
fn compete(best: &mut Best<'_>, workspace: &mut [u64]) {
    let mut carver = Carver(workspace);
    let options = carver.take::<u32>(best.table.layers());
    if dp::solve(best.table, best.budget, dp::LEVELS, carver.0, options).is_ok() {
        best.offer(options.iter().copied());
    }
}

/// The smallest plan so far, in the caller's terms.
struct Best<'a> {
    table: &'a Table<'a>,
    budget: f64,
    choices: &'a mut [u32],
    size: u64,
    /// NaN until there is a plan.
    error: f64,
    /// Whether a plan was over the budget after all.
    rejected: bool,
}

impl Best<'_> {
    /// Takes the plan when it is smaller and truly within the budget.
    fn offer(&mut self, options: impl Iterator<Item = u32> + Clone) {
        let chosen = self.table.iter().zip(options.clone()).map(|(row, option)| row[option as usize]);
        let error: Sum = chosen.clone().map(|choice| choice.error).collect();
        if !error.at_most(self.budget) {
            self.rejected = true;
            return;
        }
        let size = chosen.map(|choice| choice.size).sum();
        if self.error.is_nan() || size < self.size {
            (self.size, self.error) = (size, error.value());
            self.choices.iter_mut().zip(options).for_each(|(choice, option)| *choice = option);
        }
    }

    fn offer_most_exact(&mut self) {
        let table = self.table;
        self.offer(table.iter().map(|row| {
            let most_exact = row.iter().enumerate().min_by(|(_, a), (_, b)| {
                a.error.partial_cmp(&b.error).unwrap_or(core::cmp::Ordering::Equal).then(a.size.cmp(&b.size))
            });
            most_exact.map_or(0, |(option, _)| option as u32)
        }));
    }
}

/// The relaxation of a table under a budget.
struct Relaxed<'w> {
    items: &'w mut [Item],
    spans: &'w mut [Span],
    capacity: u128,
    /// The integral part of the relaxation's plan, as items.
    plan: &'w mut [u32],
    trial: &'w mut [u32],
    order: &'w mut [u32],
    cut: Option<(usize, u32)>,
    multiplier: Multiplier,
    /// Bits of the largest plan of the items.
    largest: u64,
    least: u128,
    bound: u64,
    rest: &'w mut [u64],
}

impl<'w> Relaxed<'w> {
    fn new(table: &Table<'_>, budget: f64, rounding: Rounding, workspace: &'w mut [u64]) -> Result<Self, Error> {
        if !(budget.is_finite() && budget >= 0.0) {
            return Err(Error::Budget { value: budget });
        }
        let least_errors = table.iter().map(|row| row.iter().map(|choice| choice.error).fold(f64::INFINITY, f64::min));
        let smallest: Sum = least_errors.collect();
        if !smallest.at_most(budget) {
            let value = smallest.rounded_up();
            return Err(Error::Infeasible { budget, smallest: if value.is_nan() { f64::INFINITY } else { value } });
        }
        let scale = Scale::new(budget, rounding);
        let capacity = scale.capacity();
        let mut carver = Carver(workspace);
        let items = carver.take::<Item>(table.choices().len());
        let edges = carver.take::<Edge>(table.choices().len());
        let spans = carver.take::<Span>(table.layers());
        let [plan, trial, order] = core::array::from_fn(|_| carver.take::<u32>(table.layers()));
        rows::prepare(table, scale, capacity, items, spans);
        let cut = relax::integral_part(items, spans, capacity, edges, plan);
        let largest: u64 = spans.iter().map(|span| items[span.start()].size).sum();
        let multiplier = Multiplier::new(cut.map_or(0.0, |(slope, ..)| slope), largest);
        let least = spans.iter().map(|span| fix::least_value(&items[span.range()], multiplier)).sum();
        let smallest_sizes = spans.iter().map(|span| items[span.range().end - 1].size).sum();
        let bound = multiplier.bound(least, capacity).max(smallest_sizes);
        let cut = cut.map(|(_, layer, item)| (layer, item));
        Ok(Relaxed {
            items,
            spans,
            capacity,
            plan,
            trial,
            order,
            cut,
            multiplier,
            largest,
            least,
            bound,
            rest: carver.0,
        })
    }

    /// Offers two roundings of the relaxation: the cut edge left out, and taken with another layer giving way.
    fn round(&mut self, best: &mut Best<'_>) {
        let (items, spans) = (&*self.items, &*self.spans);
        self.trial.copy_from_slice(self.plan);
        repair::spend(items, spans, self.capacity, self.trial);
        best.offer(self.trial.iter().map(|&item| items[item as usize].option as u32));
        if let Some((layer, item)) = self.cut {
            self.plan[layer] = item;
            if repair::retreat(items, spans, self.capacity, self.plan) {
                repair::spend(items, spans, self.capacity, self.plan);
                best.offer(self.plan.iter().map(|&item| items[item as usize].option as u32));
            }
        }
    }

    /// Searches targets from the bound up to the best plan, which it improves; returns the bound that is then proved.
    fn search(self, states: usize, best: &mut Best<'_>) -> u64 {
        let Relaxed { items, spans, capacity, plan, order, multiplier, largest, least, bound, rest, .. } = self;
        let top = largest.min(best.size - 1);
        fix::fix(items, spans, multiplier, least, capacity, top);
        let lattice = Lattice::new(items, spans);
        let widest = spans.iter().map(|span| span.len()).max().unwrap_or(0);
        let mut carver = Carver(rest);
        let (heads, states) = (carver.take::<State>(widest), carver.take::<State>(states));
        let mut arena = Arena::new(states, heads);
        let core = Core { items, spans, multiplier, capacity, least };
        let offer = |plan: &[u32], best: &mut Best<'_>| {
            best.offer(plan.iter().map(|&item| core.items[item as usize].option as u32));
        };

        let mut bound = lattice.at_least(bound);
        let (mut top, mut fineness, mut retries) = (top, FINEST, RETRIES);
        while bound <= top {
            let target = |fineness: u32| bound + ((top - bound) >> fineness);
            while fineness > 0 && core.log_plans(target(fineness - 2)) <= EASY {
                fineness -= 2;
            }
            let target = target(fineness);
            let outcome = core.search(target, false, &mut arena, order, plan);
            if outcome.complete && outcome.found {
                offer(plan, best);
                return plan.iter().map(|&item| core.items[item as usize].size).sum();
            }
            if outcome.complete {
                bound = lattice.at_least(target + 1);
                fineness = fineness.saturating_sub(2);
                continue;
            }
            for target in [target, top] {
                if core.search(target, true, &mut arena, order, plan).found {
                    offer(plan, best);
                    break;
                }
            }
            if best.size > target || retries == 0 {
                return bound;
            }
            (top, fineness, retries) = (best.size - 1, 0, retries - 1);
        }
        best.size
    }
}
