//! The sequence of targets that the search tries, from the proved bound up to the best plan.

use core::ops::RangeInclusive;

use super::best::Best;
use super::fix::Lattice;
use super::lists::Arena;
use super::search::Core;

/// Twice the binary logarithm of 2^20. A target that leaves at most 2^20 plans is tried without trying smaller targets
/// first.
const EASY: u32 = 40;
/// The first target is the bound plus 2^-10 of the gap. Each further target takes 4 times the previous fraction of the
/// gap.
const FINEST: u32 = 10;
/// Number of retries after a search that outgrew the limits but found a better plan.
const RETRIES: u32 = 3;

/// Searches targets in `range`, from the bound to just below the best plan. Improves the best plan, and returns the
/// proved bound.
pub(super) fn search(
    core: &Core<'_>,
    range: RangeInclusive<u64>,
    arena: &mut Arena<'_>,
    order: &mut [u32],
    plan: &mut [u32],
    best: &mut Best<'_>,
) -> u64 {
    let lattice = Lattice::new(core.items, core.spans);
    let offer = |plan: &[u32], best: &mut Best<'_>| {
        best.offer(plan.iter().map(|&item| core.items[item as usize].option as u32));
    };
    let (mut bound, mut top) = (lattice.at_least(*range.start()), *range.end());
    let (mut fineness, mut retries) = (FINEST, RETRIES);
    while bound <= top {
        let target = |fineness: u32| bound + ((top - bound) >> fineness);
        while fineness > 0 && core.log_plans(target(fineness - 2)) <= EASY {
            fineness -= 2;
        }
        let target = target(fineness);
        let outcome = core.search(target, false, arena, order, plan);
        if outcome.complete && outcome.found {
            offer(plan, best);
            return plan.iter().map(|&item| core.items[item as usize].objective).sum();
        }
        if outcome.complete {
            bound = lattice.at_least(target + 1);
            fineness = fineness.saturating_sub(2);
            continue;
        }
        for target in [target, top] {
            if core.search(target, true, arena, order, plan).found {
                offer(plan, best);
                break;
            }
        }
        if best.objective > target || retries == 0 {
            return bound;
        }
        (top, fineness, retries) = (best.objective - 1, 0, retries - 1);
    }
    best.objective
}
