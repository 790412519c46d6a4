//! Reduced-cost fixing: drops an option if no plan with this option can be better than the best known plan.

use super::relax::Multiplier;
use super::rows::{Item, Span};
use crate::num::gcd;

/// The least Lagrangian value among the layer's items.
pub(super) fn least_value(items: &[Item], multiplier: Multiplier) -> u128 {
    items.iter().map(|item| multiplier.value(item.objective, item.units())).min().unwrap_or(0)
}

/// Removes, in place, the items that no plan with an objective of at most `target` can contain.
///
/// `least` is the sum over layers of the least Lagrangian value.
///
/// # Complexity
/// O(n) time for n items.
pub(super) fn fix(
    items: &mut [Item],
    spans: &mut [Span],
    multiplier: Multiplier,
    least: u128,
    capacity: u128,
    target: u64,
) {
    let room = multiplier.ceiling(target, capacity).saturating_sub(least);
    for span in spans {
        let row = &mut items[span.range()];
        let ceiling = least_value(row, multiplier) + room;
        let mut kept = 0;
        for at in 0..row.len() {
            if multiplier.value(row[at].objective, row[at].units()) <= ceiling {
                row[kept] = row[at];
                kept += 1;
            }
        }
        *span = Span::new(span.start(), span.start() + kept);
    }
}

/// Sorts each layer's items by increasing Lagrangian value, then by option.
pub(super) fn sort_by_value(items: &mut [Item], spans: &[Span], multiplier: Multiplier) {
    for span in spans {
        let key = |item: &Item| (multiplier.value(item.objective, item.units()), item.option);
        items[span.range()].sort_unstable_by_key(key);
    }
}

/// All plans of the remaining items have objectives equal to `residue` modulo `step`. If `step` is 0, the only
/// objective is `residue`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Lattice {
    step: u64,
    residue: u64,
}

impl Lattice {
    pub(super) fn new(items: &[Item], spans: &[Span]) -> Self {
        let (mut step, mut base) = (0, 0u64);
        for span in spans {
            let row = &items[span.range()];
            base += row[0].objective;
            for item in row {
                step = gcd(step, item.objective.abs_diff(row[0].objective));
            }
        }
        Lattice { step, residue: if step == 0 { base } else { base % step } }
    }

    /// The smallest possible objective that is at least `objective`. Returns `objective` itself if this number would be
    /// 2^64 or more.
    pub(super) fn at_least(self, objective: u64) -> u64 {
        if self.step == 0 {
            return objective.max(self.residue);
        }
        let over = (objective % self.step + self.step - self.residue) % self.step;
        if over == 0 { objective } else { objective.checked_add(self.step - over).unwrap_or(objective) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::{Item, Span};
    use super::*;

    #[test]
    fn a_lattice_holds_every_size_and_rounds_up_to_one() {
        let sizes = [[40u64, 16], [9, 33]];
        let items = sizes.as_flattened().iter().map(|&objective| Item::new(objective, 0, 0));
        let mut row = [Item::default(); 4];
        row.iter_mut().zip(items).for_each(|(slot, item)| *slot = item);
        let lattice = Lattice::new(&row, &[Span::new(0, 2), Span::new(2, 4)]);
        for objective in 0..100 {
            assert_eq!(lattice.at_least(objective), (objective..).find(|objective| objective % 24 == 1).unwrap());
        }
        let single = Lattice::new(&row, &[Span::new(0, 1), Span::new(3, 4)]);
        assert_eq!([single.at_least(0), single.at_least(73), single.at_least(74)], [73, 73, 74]);
        assert_eq!(lattice.at_least(u64::MAX), u64::MAX);
    }

    #[test]
    fn fixing_keeps_just_what_the_target_allows() {
        let multiplier = Multiplier::new(0.0, 1 << 20);
        let mut items = [30, 20, 10, 7, 5].map(|objective| Item::new(objective, 0, objective));
        let mut spans = [Span::new(0, 3), Span::new(3, 5)];
        let least = multiplier.value(15, 0);
        fix(&mut items, &mut spans, multiplier, least, 0, 25);
        sort_by_value(&mut items, &spans, multiplier);
        assert!(items[spans[0].range()].is_sorted_by_key(|item| item.objective));
        let kept = spans.map(|span| items[span.range()].iter().map(|item| item.objective).sum::<u64>());
        assert_eq!(kept, [30, 12]);
    }
}
