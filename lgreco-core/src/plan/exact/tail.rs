//! The tail: the layers that a list's partial plans do not contain yet. The linear relaxation of the tail is a function
//! of the part of the limit that remains for its layers.

use bytemuck::{Pod, Zeroable};

use super::fix;
use super::lists::{Bound, Line};
use super::relax::{self, Edge, Solution, coarse};
use super::repair;
use super::rows::{Item, Span};

/// Largest number of edges that are kept around the cut edge.
const STEPS: usize = 1 << 10;

/// A hull edge of the tail near the cut edge. `saved` and `coarse` are sums over this edge and all earlier steps.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Step {
    saved: u64,
    coarse: u64,
    layer: u32,
    to: u32,
}

/// Number of steps to allocate for a table of `options` options.
pub(super) fn steps(options: usize) -> usize {
    options.min(STEPS)
}

/// The slope of a hull edge, as a fraction: the objective that the edge saves, over the coarse units that it costs.
type Slope = (u64, u64);

/// The layers that a list's partial plans do not contain yet. Each layer starts at its base item. Steps lead from the
/// base items to items of smaller objective.
pub(super) struct Tail<'w> {
    items: &'w [Item],
    spans: &'w [Span],
    capacity: u128,
    /// One item per layer of the table.
    base: &'w mut [u32],
    steps: &'w mut [Step],
    /// Slope of the flattest edge that comes before all steps.
    steep: Slope,
    /// Slope of the steepest edge that comes after all steps.
    flat: Slope,
    /// Sums of objective and coarse units of the base items.
    objective: u64,
    coarse: u64,
    /// Least units that the tail needs.
    least_units: u128,
    /// Sum of the least Lagrangian values of the tail's layers, at the price of `line`.
    least: u128,
    target: u64,
    line: Line,
}

impl<'w> Tail<'w> {
    /// Starts with all layers. Turns the edges nearest to the cut edge into steps, about half of them on either side,
    /// until `steps` is full.
    pub(super) fn new(
        (items, spans, capacity): (&'w [Item], &'w [Span], u128),
        solution: &mut Solution<'_>,
        (line, least): (Line, u128),
        base: &'w mut [u32],
        steps: &'w mut [Step],
    ) -> Self {
        let Solution { edges, taken } = solution;
        let start = taken.saturating_sub(steps.len() / 2);
        let end = edges.len().min(start + steps.len());
        if start > 0 {
            edges[..*taken].select_nth_unstable_by(start, Edge::order);
        }
        if end < edges.len() {
            edges[start..].select_nth_unstable_by(end - start, Edge::order);
        }
        edges[start..end].sort_unstable_by(Edge::order);
        relax::take(spans, &edges[..start], base);
        let (mut saved, mut cost) = (0, 0u64);
        for (step, edge) in steps.iter_mut().zip(&edges[start..end]) {
            (saved, cost) = (saved + edge.saved, cost.saturating_add(edge.coarse));
            *step = Step { saved, coarse: cost, layer: edge.layer, to: edge.to };
        }
        let last_before = edges[..start].iter().max_by(|a, b| a.order(b));
        let first_after = edges[end..].iter().min_by(|a, b| a.order(b));
        let chosen = || base.iter().map(|&item| &items[item as usize]);
        Tail {
            capacity,
            steep: last_before.map_or((1, 0), |edge| (edge.saved, edge.coarse)),
            flat: first_after.map_or((0, 1), |edge| (edge.saved, edge.coarse)),
            objective: chosen().map(|item| item.objective).sum(),
            coarse: chosen().map(|item| coarse(item.units())).sum(),
            least_units: spans.iter().map(|span| items[span.start()].units()).sum(),
            least,
            target: 0,
            line,
            steps: &mut steps[..end - start],
            base,
            items,
            spans,
        }
    }

    /// Sets the target. Later tests admit only partial plans that may have a completion of at most `target`.
    pub(super) fn aim(&mut self, target: u64) {
        self.target = target;
        self.line.ceiling = self.line.multiplier.ceiling(target, self.capacity).saturating_sub(self.least);
    }

    /// Removes `layer` from the tail.
    pub(super) fn remove(&mut self, layer: usize) {
        let (row, base) = (&self.items[self.spans[layer].range()], &self.items[self.base[layer] as usize]);
        self.objective -= base.objective;
        self.coarse -= coarse(base.units());
        self.least_units -= row[0].units();
        self.least -= fix::least_value(row, self.line.multiplier);
        self.aim(self.target);
        let (mut kept, mut before, mut last) = (0, Step::default(), Step::default());
        for at in 0..self.steps.len() {
            let step = self.steps[at];
            if step.layer as usize != layer {
                let saved = last.saved + (step.saved - before.saved);
                last = Step { saved, coarse: last.coarse.saturating_add(step.coarse - before.coarse), ..step };
                self.steps[kept] = last;
                kept += 1;
            }
            before = step;
        }
        let steps = core::mem::take(&mut self.steps);
        self.steps = &mut steps[..kept];
    }

    /// Number of steps, counted from the last one, that do not fit into the capacity left by a partial plan of `units`.
    /// The last `cursor` steps are counted without a test.
    fn cut(&self, units: u128, cursor: usize) -> usize {
        let room = coarse(self.capacity - units).saturating_sub(self.coarse);
        let over = self.steps.iter().rev().skip(cursor).take_while(|step| step.coarse > room).count();
        cursor + over
    }

    /// The relaxation's lower bound of the objective of all completions of a partial plan. `cursor` works as in
    /// [`Bound::admits_next`].
    pub(super) fn lower_bound(&self, cursor: &mut usize, objective: u64, units: u128) -> u64 {
        let share = |(saved, cost): Slope, part: u64| {
            let part = (u128::from(saved) * u128::from(part)).checked_div(u128::from(cost));
            part.map_or(u64::MAX, |part| u64::try_from(part).unwrap_or(u64::MAX))
        };
        let room = coarse(self.capacity - units);
        let objective = objective + self.objective;
        let Some(left) = room.checked_sub(self.coarse) else {
            return objective.saturating_add(share(self.steep, self.coarse - room));
        };
        *cursor = self.cut(units, *cursor);
        let whole = self.steps.len() - *cursor;
        let taken = whole.checked_sub(1).map_or(Step::default(), |last| self.steps[last]);
        let next =
            self.steps.get(whole).map_or(self.flat, |step| (step.saved - taken.saved, step.coarse - taken.coarse));
        (objective - taken.saved).saturating_sub(share(next, left - taken.coarse))
    }

    /// Completes `plan` by steps that fit. The caller has set the layers outside the tail. Returns the layer of the
    /// relaxation's cut edge, if that edge is among the steps. Returns `None` if `plan` exceeds the capacity.
    pub(super) fn complete(&self, units: u128, plan: &mut [u32]) -> Option<usize> {
        let used = repair::total_units(self.items, plan);
        let mut left = self.capacity.checked_sub(used)?;
        for step in self.steps.iter() {
            let item = &mut plan[step.layer as usize];
            let cost = self.items[step.to as usize].units() - self.items[*item as usize].units();
            if cost <= left {
                left -= cost;
                *item = step.to;
            }
        }
        let whole = self.steps.len() - self.cut(units, 0);
        self.steps.get(whole).map(|step| step.layer as usize)
    }

    /// The base items of all layers.
    pub(super) fn base(&self) -> &[u32] {
        self.base
    }
}

impl Bound for Tail<'_> {
    fn most_units(&self) -> u128 {
        self.capacity.saturating_sub(self.least_units)
    }

    #[inline(always)]
    fn may_admit(&self, objective: u64, units: u128) -> bool {
        self.line.admits(objective, units)
    }

    fn admits_next(&self, cursor: &mut usize, objective: u64, units: u128) -> bool {
        self.lower_bound(cursor, objective, units) <= self.target
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec;
    use std::vec::Vec;

    use super::super::relax::{Multiplier, fine};
    use super::*;
    use crate::rng::Stream;

    const OPTIONS: usize = 5;
    const CAPACITY: u64 = 240;

    /// Makes layers of undominated options whose objectives and coarse units are small integers.
    fn layers(seed: u64) -> (Vec<Item>, Vec<Span>) {
        let mut at = 0;
        let mut draw = |below: u32| {
            at += 1;
            u64::from(Stream { seed, ..Stream::default() }.word(at) % below)
        };
        let mut items = Vec::new();
        for _ in 0..4 {
            let (mut objective, mut units) = (1000, draw(20));
            for option in 0..OPTIONS as u64 {
                items.push(Item::new(objective, fine(u128::from(units)) + u128::from(draw(1 << 20)), option));
                (objective, units) = (objective - 1 - draw(200), units + 1 + draw(40));
            }
        }
        (items, (0..4).map(|layer| Span::new(OPTIONS * layer, OPTIONS * (layer + 1))).collect())
    }

    /// The least objective of the linear relaxation of these layers within `room` coarse units, rounded up. The optimum
    /// is a plan that fits, or a mixture of a plan that fits and a plan that does not. A mixture needs exactly `room`
    /// units. `None` if no plan fits.
    fn relaxation(layers: &[&[Item]], room: u64) -> Option<u64> {
        let mut sums = vec![(0, 0)];
        for layer in layers {
            let options = || layer.iter().map(|item| (item.objective, coarse(item.units())));
            sums = sums.iter().flat_map(|a: &(u64, u64)| options().map(|b| (a.0 + b.0, a.1 + b.1))).collect();
        }
        let (fitting, over): (Vec<_>, Vec<_>) = sums.into_iter().partition(|sum| sum.1 <= room);
        let least = fitting.iter().map(|a| a.0).min()?;
        let means = fitting
            .iter()
            .flat_map(|a| over.iter().filter(|b| b.0 < a.0).map(|b| a.0 - (a.0 - b.0) * (room - a.1) / (b.1 - a.1)));
        Some(means.min().unwrap_or(least).min(least))
    }

    #[test]
    fn bounds_are_the_relaxation_of_the_layers_left_and_plans_keep_within_the_capacity() {
        let (mut exact, mut cut) = (0, 0);
        let seeds = if std::env::var_os("LGRECO_FULL").is_some() { 40 } else { 8 };
        for seed in 0..seeds {
            let (items, spans) = layers(seed);
            let capacity = fine(u128::from(CAPACITY));
            for room_for in [2, 5, 4 * OPTIONS] {
                let (mut edges, mut plan) = (vec![Edge::default(); items.len()], vec![0; 4]);
                let mut solution = relax::solve(&items, &spans, capacity, &mut edges, &mut plan);
                let multiplier = Multiplier::new(solution.cut().map_or(0.0, Edge::slope), 4000);
                let least = spans.iter().map(|span| fix::least_value(&items[span.range()], multiplier)).sum();
                let (mut base, mut steps) = (vec![0; 4], vec![Step::default(); room_for]);
                let line = Line { multiplier, ceiling: 0 };
                let problem = (&*items, &*spans, capacity);
                let mut tail = Tail::new(problem, &mut solution, (line, least), &mut base, &mut steps);
                for removed in 0..3 {
                    let left: Vec<&[Item]> = spans[removed..].iter().map(|span| &items[span.range()]).collect();
                    let mut cursor = 0;
                    for used in 0..=CAPACITY {
                        let (units, objective) = (fine(u128::from(used)), 2 * CAPACITY - used);
                        let bound = tail.lower_bound(&mut cursor, objective, units);
                        assert_eq!(bound, tail.lower_bound(&mut 0, objective, units));
                        let relaxed = relaxation(&left, CAPACITY - used);
                        match relaxed {
                            Some(relaxed) if room_for < 4 * OPTIONS => assert!(bound <= objective + relaxed),
                            Some(relaxed) => assert_eq!(bound, objective + relaxed),
                            None => assert!(room_for < 4 * OPTIONS || bound == u64::MAX),
                        }
                        exact += u64::from(relaxed.is_some_and(|all| bound == objective + all));
                        for target in [bound - 1, bound, bound.saturating_add(1)] {
                            tail.aim(target);
                            assert_eq!(tail.admits_next(&mut 0, objective, units), bound <= target);
                            let exact = room_for == 4 * OPTIONS && bound < u64::MAX;
                            assert!(tail.may_admit(objective, units) || bound > target || !exact);
                        }
                    }
                    plan[removed..].copy_from_slice(&tail.base()[removed..]);
                    let spent = repair::total_units(&items, &plan[..removed]);
                    if repair::total_units(&items, &plan) <= capacity {
                        cut += u64::from(tail.complete(spent, &mut plan).is_some_and(|layer| layer >= removed));
                        assert!(repair::total_units(&items, &plan) <= capacity);
                        let [objective, rest] = [&plan[..removed], &plan[removed..]]
                            .map(|part| part.iter().map(|&item| items[item as usize].objective).sum::<u64>());
                        assert!(objective + rest >= tail.lower_bound(&mut 0, objective, spent));
                    }
                    tail.remove(removed);
                }
            }
        }
        assert!(exact > 1000 * seeds && cut > 5 * seeds, "{exact} bounds are exact, {cut} plans were cut");
    }
}
