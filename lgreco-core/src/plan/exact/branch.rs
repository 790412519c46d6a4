//! Branching on the layers that the relaxation cuts, one after another, with one list of partial plans.

use super::best::Best;
use super::lists::{Arena, State};
use super::repair;
use super::rows::{Item, Span};
use super::tail::Tail;

/// Extensions merged per state of the arena before the branching ends.
const EFFORT: usize = 8;

/// Improves `best`, and returns the bound that is then proved.
///
/// The list starts with the empty plan. The state whose completion is smallest by the relaxation is completed, which
/// gives a plan, and the layer that its relaxation cuts is added to the list: until no state is left that could beat the
/// best plan, or the list outgrows the arena.
///
/// # Complexity
/// At most 8 extensions per state of the arena, and O(options) for each layer added.
pub(super) fn branch(
    items: &[Item],
    spans: &[Span],
    capacity: u128,
    mut tail: Tail<'_>,
    arena: &mut Arena<'_>,
    plan: &mut [u32],
    best: &mut Best<'_>,
) -> u64 {
    arena.clear(EFFORT);
    // No plan of these items has a larger objective, and the multiplier knows none: options may have been left out for a better
    // one, of whose error too little was seen, and the best plan have them.
    let largest: u64 = spans.iter().map(|span| items[span.start()].objective).sum();
    tail.aim(largest.min(best.objective - 1));
    let mut list = arena.start(State::root(0, 0), &tail);
    let mut bound = 0;
    loop {
        let mut cursor = 0;
        let bounds =
            arena.list(list.clone()).iter().map(|state| tail.lower_bound(&mut cursor, state.objective, state.units()));
        let Some((at, least)) = bounds.enumerate().min_by_key(|&(at, bound)| (bound, at)) else {
            return best.objective;
        };
        bound = least.max(bound);
        let at = list.start + at;
        plan.copy_from_slice(tail.base());
        for item in arena.trace(at) {
            plan[spans.partition_point(|span| span.range().end <= item as usize)] = item;
        }
        let cut = tail.complete(arena.list(at..at + 1)[0].units(), plan);
        if best.beaten_by(items, plan) {
            repair::spend(items, spans, capacity, plan);
            best.offer(plan.iter().map(|&item| items[item as usize].option as u32));
        }
        let Some(layer) = cut.filter(|_| bound < best.objective) else {
            return bound.min(best.objective);
        };
        tail.remove(layer);
        tail.aim(largest.min(best.objective - 1));
        let span = spans[layer];
        let Some((next, _)) = arena.extend(list, &items[span.range()], span.start(), &tail, usize::MAX, false) else {
            return bound;
        };
        list = next;
    }
}
