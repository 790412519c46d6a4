//! The steps of one run over a table: relaxation, rounding, branching and search.

use super::best::Best;
use super::branch::branch;
use super::fix;
use super::lists::{Arena, Line, State};
use super::relax::{self, Edge, Multiplier, Solution};
use super::repair;
use super::rows::{self, Item, Span};
use super::search::Core;
use super::tail::{self, Step, Tail};
use super::targets;
use super::units::{Rounding, Scale};
use super::workspace::{Carver, words};
use crate::Result;
use crate::plan::dp;
use crate::plan::goal::Goal;
use crate::table::Table;

/// Largest number of states that branching uses.
pub(super) const BRANCHING: usize = 1 << 10;

/// The relaxation of a table under a limit, and the buffers of the later steps.
pub(super) struct Relaxed<'w> {
    items: &'w mut [Item],
    spans: &'w mut [Span],
    capacity: u128,
    solution: Solution<'w>,
    /// The integral part of the relaxed plan, as items.
    plan: &'w mut [u32],
    trial: &'w mut [u32],
    order: &'w mut [u32],
    multiplier: Multiplier,
    /// The largest objective of a plan of these items.
    largest: u64,
    least: u128,
    pub(super) bound: u64,
    steps: &'w mut [Step],
    heads: &'w mut [State],
    states: &'w mut [State],
}

/// 8-byte words of workspace for `layers` layers with `options` options in all and at most `widest` per layer.
pub(super) fn workspace_len(layers: usize, options: usize, widest: usize, states: usize) -> usize {
    words::<Item>(options)
        + words::<Edge>(options)
        + words::<Span>(layers)
        + 3 * words::<u32>(layers)
        + if states > 0 { words::<Step>(tail::steps(options)) } else { 0 }
        + words::<State>(widest + states)
}

impl<'w> Relaxed<'w> {
    pub(super) fn new(
        table: &Table<'_>,
        goal: &Goal,
        rounding: Rounding,
        states: usize,
        workspace: &'w mut [u64],
    ) -> Result<Self> {
        let least = table.iter().map(|row| row[goal.least(row)]);
        goal.limit
            .expect_met(least.clone().map(|choice| choice.error).collect(), least.map(|choice| choice.size).sum())?;
        let scale = Scale::new(goal.limit, rounding);
        let capacity = scale.capacity();
        let mut carver = Carver(workspace);
        let items = carver.take::<Item>(table.choices().len());
        let edges = carver.take::<Edge>(table.choices().len());
        let spans = carver.take::<Span>(table.layers());
        let [plan, trial, order] = core::array::from_fn(|_| carver.take::<u32>(table.layers()));
        let widest = table.iter().map(<[_]>::len).max().unwrap_or(0);
        let steps = carver.take::<Step>(if states > 0 { tail::steps(items.len()) } else { 0 });
        let (heads, states) = (carver.take::<State>(widest), carver.take::<State>(states));
        rows::prepare(table, goal, scale, items, spans);
        let solution = relax::solve(items, spans, capacity, edges, plan);
        let largest: u64 = spans.iter().map(|span| items[span.start()].objective).sum();
        let multiplier = Multiplier::new(solution.cut().map_or(0.0, Edge::slope), largest);
        let least = spans.iter().map(|span| fix::least_value(&items[span.range()], multiplier)).sum();
        let least_objectives = spans.iter().map(|span| items[span.range().end - 1].objective).sum();
        let bound = multiplier.bound(least, capacity).max(least_objectives);
        Ok(Relaxed {
            items,
            spans,
            capacity,
            solution,
            plan,
            trial,
            order,
            multiplier,
            largest,
            least,
            bound,
            steps,
            heads,
            states,
        })
    }

    /// Offers two roundings of the relaxation: one without the cut edge, and one with the whole cut edge. The second
    /// plan exceeds the limit, so one layer is changed to meet the limit.
    pub(super) fn round(&mut self, best: &mut Best<'_>) {
        let (items, spans) = (&*self.items, &*self.spans);
        self.trial.copy_from_slice(self.plan);
        repair::spend(items, spans, self.capacity, self.trial);
        best.offer(self.trial.iter().map(|&item| items[item as usize].option as u32));
        if let Some(cut) = self.solution.cut() {
            self.plan[cut.layer as usize] = cut.to;
            if repair::retreat(items, spans, self.capacity, self.plan) {
                repair::spend(items, spans, self.capacity, self.plan);
                best.offer(self.plan.iter().map(|&item| items[item as usize].option as u32));
            }
        }
    }

    /// Runs `branch`. Improves the bound and the best plan.
    pub(super) fn branch(&mut self, best: &mut Best<'_>) {
        if self.bound >= best.objective {
            return;
        }
        let (items, spans, few) = (&*self.items, &*self.spans, self.states.len().min(BRANCHING));
        let line = Line { multiplier: self.multiplier, ceiling: 0 };
        let table = (items, spans, self.capacity);
        let tail = Tail::new(table, &mut self.solution, (line, self.least), self.trial, self.steps);
        let mut arena = Arena::new(&mut self.states[..few], self.heads);
        let bound = branch(items, spans, self.capacity, tail, &mut arena, self.plan, best);
        self.bound = bound.max(self.bound);
    }

    /// Drops the options that cannot be in a plan better than the best plan so far.
    fn fix(&mut self, best: &Best<'_>) {
        let target = self.largest.min(best.objective - 1);
        fix::fix(self.items, self.spans, self.multiplier, self.least, self.capacity, target);
    }

    /// Searches with rising target objectives, from the bound up to the best plan. Improves the bound and the best
    /// plan.
    pub(super) fn search(&mut self, best: &mut Best<'_>) {
        if self.bound >= best.objective {
            return;
        }
        self.fix(best);
        fix::sort_by_value(self.items, self.spans, self.multiplier);
        let core = Core {
            items: self.items,
            spans: self.spans,
            multiplier: self.multiplier,
            capacity: self.capacity,
            least: self.least,
        };
        let range = self.bound..=self.largest.min(best.objective - 1);
        let mut arena = Arena::new(self.states, self.heads);
        self.bound = targets::search(&core, range, &mut arena, self.order, self.plan, best);
    }

    /// Whether Algorithm 1 may find a better plan than the best plan so far. Does not run Algorithm 1.
    ///
    /// Fixing drops only options that no better plan contains. For the remaining options, this function computes a
    /// Lagrangian bound, with units rounded up to cells as in Algorithm 1. If Algorithm 1 finds a better plan, the
    /// objective of that plan is at least this bound.
    ///
    /// # Complexity
    /// O(n) time for n remaining options.
    pub(super) fn has_rival(&mut self, best: &Best<'_>) -> bool {
        if self.bound >= best.objective {
            return false;
        }
        self.fix(best);
        let cell = u128::from(relax::coarse(self.capacity)) / u128::from(dp::LEVELS);
        let in_units = |cells: u32| relax::fine(u128::from(cells) * cell);
        let least = self.spans.iter().zip(best.table.iter()).map(|(span, row)| {
            let values = self.items[span.range()].iter().map(|item| {
                let cells = best.goal.cells(&row[item.option as usize], dp::LEVELS);
                self.multiplier.value(item.objective, in_units(cells))
            });
            values.min().unwrap_or(0)
        });
        let bound = self.multiplier.bound(least.fold(0, u128::saturating_add), in_units(dp::LEVELS));
        bound < best.objective
    }
}
