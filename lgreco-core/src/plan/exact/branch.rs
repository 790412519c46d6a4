//! Branching with one list of partial plans. Each step adds one layer to all partial plans: the layer of the hull edge
//! that the limit cuts in the relaxation.

use super::best::Best;
use super::lists::{Arena, State};
use super::repair;
use super::rows::{Item, Span};
use super::tail::Tail;

/// Largest number of partial plans that branching extends, per state of the arena.
const EFFORT: usize = 8;

/// Improves `best` by branching, and returns a proved lower bound of the objective.
///
/// The list starts with the empty partial plan. Each step completes the partial plan with the smallest relaxation to a
/// full plan. The step then extends all partial plans by the options of one layer: the layer of the cut edge in this
/// relaxation. Branching ends when no remaining partial plan can beat the best plan, when the list outgrows the arena,
/// or after 8 extended partial plans per state of the arena.
///
/// # Complexity
/// At most 8 extended partial plans per state of the arena, and O(options) for each layer added.
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
    // The target is at most `largest`, because larger targets could overflow the multiplier's arithmetic. The best
    // plan's objective can be above `largest`, because the plan may contain options that `rows` has dropped. These
    // options are dominated only after rounding to units.
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
