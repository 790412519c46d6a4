//! Feasible plans near the relaxation's, by changing one layer at a time.

use super::rows::{Item, Span};

/// Improvement rounds: each takes the single change that saves most; the search does what is left better.
const ROUNDS: usize = 64;

/// The last item of the layer, hence that of the least objective, with at most `units`.
fn within(items: &[Item], span: Span, units: u128) -> Option<usize> {
    let fitting = items[span.range()].partition_point(|item| item.units() <= units);
    (fitting > 0).then(|| span.start() + fitting - 1)
}

/// Units of the plan's items, summed.
pub(super) fn total_units(items: &[Item], plan: &[u32]) -> u128 {
    plan.iter().map(|&item| items[item as usize].units()).sum()
}

/// Spends what `plan` leaves of the capacity: while a single change fits, makes the one that saves most.
///
/// # Complexity
/// O(layers * log options) per change, at most 64 changes.
pub(super) fn spend(items: &[Item], spans: &[Span], capacity: u128, plan: &mut [u32]) {
    let mut used = total_units(items, plan);
    for _ in 0..ROUNDS {
        let best = spans.iter().enumerate().filter_map(|(layer, &span)| {
            let now = &items[plan[layer] as usize];
            let to = within(items, span, now.units() + capacity.saturating_sub(used))?;
            Some((now.objective.checked_sub(items[to].objective)?, layer, to))
        });
        match best.max_by_key(|&(saved, layer, _)| (saved, core::cmp::Reverse(layer))) {
            Some((saved, layer, to)) if saved > 0 => {
                used = used - items[plan[layer] as usize].units() + items[to].units();
                plan[layer] = to as u32;
            }
            _ => return,
        }
    }
}

/// Brings an over-full plan within the capacity by the single change that costs least; whether one exists.
pub(super) fn retreat(items: &[Item], spans: &[Span], capacity: u128, plan: &mut [u32]) -> bool {
    let used = total_units(items, plan);
    let best = spans.iter().enumerate().filter_map(|(layer, &span)| {
        let now = &items[plan[layer] as usize];
        let to = within(items, span, (capacity + now.units()).checked_sub(used)?)?;
        Some((items[to].objective.saturating_sub(now.objective), layer, to))
    });
    match best.min_by_key(|&(cost, layer, _)| (cost, layer)) {
        Some((_, layer, to)) => {
            plan[layer] = to as u32;
            true
        }
        None => false,
    }
}
