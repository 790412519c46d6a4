//! Finds feasible plans near the relaxed plan, by changes of single layers.

use super::rows::{Item, Span};

/// Largest number of changes that `spend` makes. The later search can improve the plan further.
const ROUNDS: usize = 64;

/// The layer's last item that needs at most `units`. This item has the least objective of all such items.
fn within(items: &[Item], span: Span, units: u128) -> Option<usize> {
    let fitting = items[span.range()].partition_point(|item| item.units() <= units);
    (fitting > 0).then(|| span.start() + fitting - 1)
}

/// Sum of units of the plan's items.
pub(super) fn total_units(items: &[Item], plan: &[u32]) -> u128 {
    plan.iter().map(|&item| items[item as usize].units()).sum()
}

/// Uses the capacity that `plan` leaves unused. Repeatedly changes the layer that saves the most objective, until no
/// change within the capacity saves anything.
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

/// Brings a plan back within the capacity by the single change that costs least. Returns whether one exists.
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
