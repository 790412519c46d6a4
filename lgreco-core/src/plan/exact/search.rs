//! The search among the options that remain after fixing (the *core* of the knapsack problem). The search finds the
//! plan with the least objective, if that objective is at most a target.

use super::fix;
use super::lists::{Arena, Envelope, LINES, Line, PRICES, State};
use super::relax::Multiplier;
use super::rows::{Item, Span};

/// Largest number of partial plans that a search without thinning extends, per state of the arena.
const EFFORT: usize = 8;
/// Largest number of matching steps in a search without thinning, per state of the arena.
const PAIRS: usize = 128;
/// Number of extended partial plans per layer when lists are thinned.
const THIN: usize = 1 << 14;

/// The items that remain after fixing. A search needs each layer's items in order of increasing Lagrangian value.
pub(super) struct Core<'w> {
    pub(super) items: &'w [Item],
    pub(super) spans: &'w [Span],
    pub(super) multiplier: Multiplier,
    pub(super) capacity: u128,
    /// Sum over layers of the least Lagrangian value.
    pub(super) least: u128,
}

/// Result of one search.
pub(super) struct Outcome {
    /// Whether `plan` now holds a plan within the target.
    pub(super) found: bool,
    /// Whether the search was exhaustive.
    pub(super) complete: bool,
}

impl Core<'_> {
    fn value(&self, item: usize) -> u128 {
        self.multiplier.value(self.items[item].objective, self.items[item].units())
    }

    /// Largest difference between an option's Lagrangian value and its layer's least value, in any plan within
    /// `target`.
    fn room(&self, target: u64) -> u128 {
        self.multiplier.ceiling(target, self.capacity).saturating_sub(self.least)
    }

    /// The items of `layer` whose value is at most `room` above the layer's least value.
    fn options(&self, layer: usize, room: u128) -> core::ops::Range<usize> {
        let range = self.spans[layer].range();
        let ceiling = self.value(range.start) + room;
        let kept = self.items[range.clone()]
            .partition_point(|item| self.multiplier.value(item.objective, item.units()) <= ceiling);
        range.start..range.start + kept
    }

    /// Twice the binary logarithm of the number of plans that remain under `target`, rounded down per layer.
    pub(super) fn log_plans(&self, target: u64) -> u32 {
        let room = self.room(target);
        (0..self.spans.len()).map(|layer| (self.options(layer, room).len() as u64).pow(2).ilog2()).sum()
    }

    /// Finds the plan of least objective, if this objective is at most `target`, and writes its items to `plan`.
    ///
    /// The search extends two Pareto lists of partial plans. Each step adds one of the layers with several options to
    /// the shorter list. The last of these layers is added to neither list. Instead, each option of this layer is
    /// combined with the best pair of states from the two lists. A partial plan is dropped when the least values of its
    /// missing layers prove that all its completions exceed the target.
    ///
    /// With `thin`, lists that outgrow the arena are thinned. With thinned lists, the search finds a good plan but
    /// proves nothing.
    ///
    /// # Source
    /// Two lists: Horowitz and Sahni (1974); states bounded by reduced costs: Pisinger's core search (1995).
    pub(super) fn search(
        &self,
        target: u64,
        thin: bool,
        arena: &mut Arena<'_>,
        order: &mut [u32],
        plan: &mut [u32],
    ) -> Outcome {
        let room = self.room(target);
        let open = self.open_layers(room, order);
        let mut left = &order[..open];
        arena.clear(if thin { usize::MAX } else { EFFORT });
        if arena.free() < 2 {
            return Outcome { found: false, complete: false };
        }
        let Some((mut limits, fixed)) = self.limits(target, room, plan) else {
            return Outcome { found: false, complete: true };
        };
        let mut lists = [arena.start(fixed, &limits[0]), arena.start(State::root(0, 0), &limits[1])];
        let mut complete = true;
        let middle = loop {
            let side = usize::from(lists[1].len() < lists[0].len());
            let (&layer, rest) = match if side == 0 { left.split_first() } else { left.split_last() } {
                Some((&layer, [])) => break Some(layer as usize),
                Some(split) => split,
                None => break None,
            };
            left = rest;
            let options = self.options(layer as usize, room);
            self.widen(&mut limits[side], options.clone());
            let cap = if thin { (arena.free() / left.len()).min((THIN / options.len()).max(16)) } else { arena.free() };
            let items = &self.items[options.clone()];
            let extended = arena.extend(lists[side].clone(), items, options.start, &limits[side], cap, thin);
            let Some((list, whole)) = extended else {
                return Outcome { found: false, complete: false };
            };
            lists[side] = list;
            complete &= whole;
        };
        let found = match middle {
            Some(layer) => {
                let mut best: Option<(u64, u128, _, _)> = None;
                let options = self.options(layer, room);
                let affordable = arena.capacity().saturating_mul(PAIRS) / (lists[0].len() + lists[1].len()).max(1);
                complete &= thin || options.len() <= affordable;
                for item in options.take(if thin { usize::MAX } else { affordable }) {
                    let bar = best.map_or((target, u128::MAX), |(objective, units, ..)| (objective, units));
                    if let Some(pair) = self.best_pair(arena, &lists, &self.items[item], bar) {
                        best = Some((pair.0, pair.1, pair.2, Some(item as u32)));
                    }
                }
                best
            }
            None => self
                .best_pair(arena, &lists, &Item::new(0, 0, 0), (target, u128::MAX))
                .map(|(objective, units, states)| (objective, units, states, None)),
        };
        if let Some((_, _, states, item)) = found {
            for item in states.into_iter().flat_map(|at| arena.trace(at)).chain(item) {
                plan[self.spans.partition_point(|span| span.range().end <= item as usize)] = item;
            }
        }
        Outcome { found: found.is_some(), complete }
    }

    /// Writes the open layers to `order`: the layers with more than one option. Sorts the open layers by the difference
    /// between the most and the fewest units that their options need, largest difference first. Returns the number of
    /// open layers.
    fn open_layers(&self, room: u128, order: &mut [u32]) -> usize {
        let mut open = 0;
        for layer in 0..self.spans.len() {
            if self.options(layer, room).len() > 1 {
                order[open] = layer as u32;
                open += 1;
            }
        }
        let weight = |&layer: &u32| {
            let units = self.items[self.options(layer as usize, room)].iter().map(Item::units);
            (core::cmp::Reverse(units.clone().max().unwrap_or(0) - units.min().unwrap_or(0)), layer)
        };
        order[..open].sort_unstable_by_key(weight);
        open
    }

    /// Raises the limits of a list by the least values and units of a layer that is added to the list.
    fn widen(&self, limit: &mut Envelope, options: core::ops::Range<usize>) {
        let options = &self.items[options];
        for line in &mut limit.lines {
            line.ceiling += fix::least_value(options, line.multiplier);
        }
        limit.units += options.iter().map(Item::units).min().unwrap_or(0);
    }

    /// The initial limits of the two lists, and the state of the layers with a single option. Sets each layer of `plan`
    /// to its first item. A layer with a single option keeps this item. Returns `None` when no plan can be within the
    /// capacity and the target.
    fn limits(&self, target: u64, room: u128, plan: &mut [u32]) -> Option<([Envelope; 2], State)> {
        let (mut objective, mut units) = (0, 0);
        let (mut least, mut least_units) = ([0; LINES], 0);
        let multipliers = PRICES.map(|price| self.multiplier.scaled(price));
        for (layer, chosen) in plan.iter_mut().enumerate() {
            let options = self.options(layer, room);
            *chosen = options.start as u32;
            let items = &self.items[options.clone()];
            for (sum, &multiplier) in least.iter_mut().zip(&multipliers) {
                *sum = u128::saturating_add(*sum, fix::least_value(items, multiplier));
            }
            least_units = u128::saturating_add(least_units, self.least_units(options));
            if let [item] = items {
                (objective, units) = (objective + item.objective, u128::saturating_add(units, item.units()));
            }
        }
        let mut empty = Envelope {
            lines: multipliers.map(|multiplier| Line { multiplier, ceiling: 0 }),
            units: self.capacity.checked_sub(least_units)?,
        };
        for (line, least) in empty.lines.iter_mut().zip(least) {
            line.ceiling = line.multiplier.ceiling(target, self.capacity).checked_sub(least)?;
        }
        let mut fixed = empty;
        for layer in 0..self.spans.len() {
            let options = self.options(layer, room);
            if options.len() == 1 {
                self.widen(&mut fixed, options);
            }
        }
        Some(([fixed, empty], State::root(objective, units)))
    }

    fn least_units(&self, options: core::ops::Range<usize>) -> u128 {
        self.items[options].iter().map(Item::units).min().unwrap_or(0)
    }

    /// The best plan made of `item` and one state of each list, if this plan beats `bar`, an objective and a number of
    /// units. A plan beats `bar` with a smaller objective, or with the same objective and fewer units.
    fn best_pair(
        &self,
        arena: &Arena<'_>,
        lists: &[core::ops::Range<usize>; 2],
        item: &Item,
        bar: (u64, u128),
    ) -> Option<(u64, u128, [usize; 2])> {
        let room = self.capacity.checked_sub(item.units())?;
        let target = bar.0.checked_sub(item.objective)?;
        let [first, second] = lists.clone().map(|list| arena.list(list));
        let mut best = None;
        let (mut objective, mut units) = (target, bar.1.saturating_sub(item.units()));
        let mut fitting = second.len();
        for (at, a) in first.iter().enumerate() {
            while fitting > 0 && second[fitting - 1].units() + a.units() > room {
                fitting -= 1;
            }
            if fitting == 0 {
                break;
            }
            let b = &second[fitting - 1];
            let (pair_objective, pair_units) = (a.objective + b.objective, a.units() + b.units());
            if pair_objective < objective || pair_objective == objective && pair_units < units {
                (objective, units) = (pair_objective, pair_units);
                best = Some((
                    objective + item.objective,
                    units + item.units(),
                    [lists[0].start + at, lists[1].start + fitting - 1],
                ));
            }
        }
        best
    }
}
