//! Pareto lists of partial plans. One arena holds all lists. Each step extends a list by one layer.

use bytemuck::{Pod, Zeroable};

use super::relax::Multiplier;
use super::rows::Item;
use crate::num::Wide;

/// A partial plan: its objective, the units that it needs, its parent state and the item that it adds.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct State {
    pub(super) objective: u64,
    units: Wide,
    parent: u32,
    item: u32,
}

/// The parent of a list's initial state.
const ROOT: u32 = u32::MAX;

impl State {
    pub(super) fn root(objective: u64, units: u128) -> Self {
        State { objective, units: Wide::new(units), parent: ROOT, item: 0 }
    }

    #[inline(always)]
    pub(super) fn units(&self) -> u128 {
        self.units.value()
    }

    /// The merge order: by units, then objective, then item.
    #[inline(always)]
    fn key(&self) -> (u128, u64, u32) {
        (self.units(), self.objective, self.item)
    }
}

/// Number of Lagrangian bounds per envelope.
pub(super) const LINES: usize = 17;
/// Index of the bound with the relaxation's own price.
pub(super) const CENTRE: usize = LINES / 2;
/// The bounds' prices as multiples of the relaxation's price.
pub(super) const PRICES: [f64; LINES] =
    [0.1, 0.3, 0.5, 0.7, 0.84, 0.92, 0.96, 0.985, 1.0, 1.015, 1.04, 1.09, 1.2, 1.4, 2.0, 3.5, 10.0];

/// A Lagrangian bound. A partial plan with a Lagrangian value above `ceiling` has no completion within the target.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    pub(super) multiplier: Multiplier,
    pub(super) ceiling: u128,
}

impl Line {
    #[inline(always)]
    pub(super) fn admits(&self, objective: u64, units: u128) -> bool {
        self.multiplier.value(objective, units) <= self.ceiling
    }

    /// Height of the line at `units`. The higher the line, the fewer objectives it admits.
    #[inline(always)]
    fn height(&self, units: u128) -> i128 {
        self.multiplier.value(0, units) as i128 - self.ceiling as i128
    }
}

/// A test of partial plans. A partial plan that fails the test has no completion within the target.
pub(super) trait Bound {
    /// Largest number of units of an admitted partial plan.
    fn most_units(&self) -> u128;

    /// A quick test. If this test rejects a partial plan, the full test also rejects the plan.
    fn may_admit(&self, objective: u64, units: u128) -> bool;

    /// The full test, for partial plans of at most [`most_units`](Bound::most_units) units. `cursor` starts at 0. Between
    /// calls with the same cursor, units may only rise and objectives only fall.
    fn admits_next(&self, cursor: &mut usize, objective: u64, units: u128) -> bool;
}

/// A test of partial plans by several Lagrange multipliers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Envelope {
    /// The lines by rising price. The bound is the upper envelope of these lines.
    pub(super) lines: [Line; LINES],
    /// Largest number of units of an admitted partial plan.
    pub(super) units: u128,
}

impl Bound for Envelope {
    fn most_units(&self) -> u128 {
        self.units
    }

    #[inline(always)]
    fn may_admit(&self, objective: u64, units: u128) -> bool {
        self.lines[CENTRE].admits(objective, units)
    }

    fn admits_next(&self, line: &mut usize, objective: u64, units: u128) -> bool {
        while *line + 1 < LINES && self.lines[*line + 1].height(units) >= self.lines[*line].height(units) {
            *line += 1;
        }
        self.lines[*line].admits(objective, units)
    }
}

/// Stores sorted lists of states one after another. Within a list, units strictly rise and objectives strictly fall.
pub(super) struct Arena<'w> {
    states: &'w mut [State],
    heads: &'w mut [State],
    used: usize,
    /// Number of extended partial plans that may still be merged into lists.
    effort: usize,
}

impl<'w> Arena<'w> {
    /// Wraps two buffers. `heads` needs at least one state per option of the largest layer.
    pub(super) fn new(states: &'w mut [State], heads: &'w mut [State]) -> Self {
        Arena { states, heads, used: 0, effort: 0 }
    }

    /// Drops all lists. Until the next call, at most `effort` extended partial plans per state of the arena can be
    /// merged into lists.
    pub(super) fn clear(&mut self, effort: usize) {
        (self.used, self.effort) = (0, self.states.len().saturating_mul(effort));
    }

    pub(super) fn capacity(&self) -> usize {
        self.states.len()
    }

    pub(super) fn free(&self) -> usize {
        self.states.len() - self.used
    }

    pub(super) fn list(&self, list: core::ops::Range<usize>) -> &[State] {
        &self.states[list]
    }

    /// Starts a list with `root`, or an empty list if the bound does not admit `root`. The arena must have at least one
    /// free state.
    pub(super) fn start(&mut self, root: State, bound: &impl Bound) -> core::ops::Range<usize> {
        let start = self.used;
        if root.units() <= bound.most_units() && bound.admits_next(&mut 0, root.objective, root.units()) {
            self.states[start] = root;
            self.used += 1;
        }
        start..self.used
    }

    /// Extends every state of `list` by each of `options`. Keeps the new states that the bound admits and that no other
    /// new state dominates.
    ///
    /// `first` is the item index of the first option. The new list has at most `cap` states, and at most the arena's
    /// free states. If the list grows longer and `thinning` is set, states close to other states are dropped. Returns
    /// the new list, and whether thinning dropped no state. Returns `None` when the list grows longer and cannot be
    /// thinned, or when the effort is used up.
    ///
    /// # Complexity
    /// O(s k log k) time for s states and k options.
    pub(super) fn extend(
        &mut self,
        list: core::ops::Range<usize>,
        options: &[Item],
        first: usize,
        bound: &impl Bound,
        cap: usize,
        thinning: bool,
    ) -> Option<(core::ops::Range<usize>, bool)> {
        let cap = cap.min(self.free());
        let (known, fresh) = self.states.split_at_mut(self.used);
        let source = Source { states: &known[list.clone()], offset: list.start, options, first, bound };
        let heads = &mut self.heads[..options.len()];
        let mut live = 0;
        for option in 0..options.len() {
            if let Some(state) = source.next(0, option, u64::MAX) {
                heads[live] = state;
                live += 1;
                sift_up(&mut heads[..live]);
            }
        }
        let (mut len, mut spacing, mut next) = (0, 0, 0);
        let (mut smallest, mut cursor) = (u64::MAX, 0);
        while live > 0 {
            if self.effort == 0 {
                return None;
            }
            self.effort -= 1;
            let state = heads[0];
            if state.objective < smallest {
                smallest = state.objective;
                let units = state.units();
                if !bound.admits_next(&mut cursor, state.objective, units) {
                    // Drops this state, because it has no completion within the target.
                } else if units >= next {
                    if len == cap {
                        if cap < 2 || !thinning {
                            return None;
                        }
                        spacing = ((units - fresh[0].units()) / (cap as u128 / 2)).max(2 * spacing);
                        len = thin(&mut fresh[..len], spacing);
                    }
                    fresh[len] = state;
                    len += 1;
                    next = units + spacing;
                }
            }
            let (at, option) = (state.parent as usize - list.start, state.item as usize - first);
            match source.next(at + 1, option, smallest) {
                Some(state) => heads[0] = state,
                None => {
                    live -= 1;
                    heads[0] = heads[live];
                }
            }
            sift_down(&mut heads[..live]);
        }
        let start = self.used;
        self.used += len;
        Some((start..self.used, spacing == 0))
    }

    /// The items of the partial plan `at`, from the last added to the first.
    pub(super) fn trace(&self, at: usize) -> impl Iterator<Item = u32> + '_ {
        let step = move |at: u32| Some(&self.states[at as usize]).filter(|state| state.parent != ROOT);
        core::iter::successors(step(at as u32), move |state| step(state.parent)).map(|state| state.item)
    }
}

/// Keeps the first state, and every later state that is at least `spacing` units above the last state kept. Returns the
/// number of kept states.
fn thin(states: &mut [State], spacing: u128) -> usize {
    let mut kept = 1;
    for at in 1..states.len() {
        if states[at].units() >= states[kept - 1].units() + spacing {
            states[kept] = states[at];
            kept += 1;
        }
    }
    kept
}

struct Source<'a, B> {
    states: &'a [State],
    offset: usize,
    options: &'a [Item],
    first: usize,
    bound: &'a B,
}

impl<B: Bound> Source<'_, B> {
    /// Extends states from `at` on by `option`. Returns the first extension with an objective below `below` that the bound
    /// may admit.
    #[inline(always)]
    fn next(&self, at: usize, option: usize, below: u64) -> Option<State> {
        let (item, item_units) = (&self.options[option], self.options[option].units());
        for (index, state) in self.states.iter().enumerate().skip(at) {
            let (objective, units) = (state.objective + item.objective, state.units() + item_units);
            if units > self.bound.most_units() {
                return None;
            }
            if objective < below && self.bound.may_admit(objective, units) {
                return Some(State {
                    objective,
                    units: Wide::new(units),
                    parent: (self.offset + index) as u32,
                    item: (self.first + option) as u32,
                });
            }
        }
        None
    }
}

fn sift_up(heap: &mut [State]) {
    let mut at = heap.len() - 1;
    while at > 0 && heap[at].key() < heap[(at - 1) / 2].key() {
        heap.swap(at, (at - 1) / 2);
        at = (at - 1) / 2;
    }
}

fn sift_down(heap: &mut [State]) {
    let mut at = 0;
    loop {
        let mut child = 2 * at + 1;
        if child >= heap.len() {
            return;
        }
        if child + 1 < heap.len() && heap[child + 1].key() < heap[child].key() {
            child += 1;
        }
        if heap[at].key() <= heap[child].key() {
            return;
        }
        heap.swap(at, child);
        at = child;
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec;
    use std::vec::Vec;

    use super::*;

    const EVERYTHING: Envelope =
        Envelope { lines: [Line { multiplier: Multiplier::FREE, ceiling: u128::MAX >> 1 }; LINES], units: 1 << 100 };

    /// Size and units of every undominated sum, by brute force.
    fn undominated(layers: &[Vec<(u64, u128)>]) -> Vec<(u64, u128)> {
        let mut sums = vec![(0, 0)];
        for layer in layers {
            sums = sums.iter().flat_map(|a| layer.iter().map(|b| (a.0 + b.0, a.1 + b.1))).collect();
        }
        let mut kept: Vec<_> =
            sums.iter().copied().filter(|a| !sums.iter().any(|b| b != a && b.0 <= a.0 && b.1 <= a.1)).collect();
        kept.sort_by_key(|sum| sum.1);
        kept.dedup();
        kept
    }

    #[test]
    fn lists_hold_every_undominated_sum_once_and_thin_ones_some_of_them() {
        let draw = |at: u64| u128::from(crate::rng::Stream { seed: 5, ..Default::default() }.word(at) % 50);
        let layers: Vec<Vec<(u64, u128)>> = (0..5)
            .map(|layer| (0..6).map(|at| (draw(12 * layer + at) as u64, draw(12 * layer + at + 6))).collect())
            .collect();
        let items: Vec<Item> =
            layers.iter().flatten().map(|&(objective, units)| Item::new(objective, units, 0)).collect();
        for (cap, thinning) in [(1 << 12, false), (8, true)] {
            let (mut states, mut heads) = (vec![State::default(); 1 << 12], vec![State::default(); 6]);
            let mut arena = Arena::new(&mut states, &mut heads);
            arena.clear(8);
            let mut list = arena.start(State::root(0, 0), &EVERYTHING);
            let mut whole = true;
            for layer in 0..5 {
                let options = &items[6 * layer..6 * layer + 6];
                let extended = arena.extend(list, options, 6 * layer, &EVERYTHING, cap, thinning).unwrap();
                (list, whole) = (extended.0, whole && extended.1);
            }
            for at in list.clone() {
                let chosen: Vec<&Item> = arena.trace(at).map(|item| &items[item as usize]).collect();
                assert_eq!(chosen.len(), 5);
                assert_eq!(chosen.iter().map(|item| item.objective).sum::<u64>(), arena.list(at..at + 1)[0].objective);
                assert_eq!(chosen.iter().map(|item| item.units()).sum::<u128>(), arena.list(at..at + 1)[0].units());
            }
            let found: Vec<_> = arena.list(list).iter().map(|state| (state.objective, state.units())).collect();
            assert_eq!(whole, !thinning);
            if thinning {
                assert!(found.len() <= cap && found.is_sorted_by(|a, b| a.0 > b.0 && a.1 < b.1));
            } else {
                assert_eq!(found, undominated(&layers));
            }
            let last = arena.free();
            assert!(arena.extend(0..1, &items[..6], 0, &EVERYTHING, 1, false).is_none());
            assert_eq!(arena.free(), last);
        }
    }
}
