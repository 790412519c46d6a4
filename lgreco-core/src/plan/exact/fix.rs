//! Reduced-cost fixing: drops every option that no plan smaller than the best known can use.

use super::relax::Multiplier;
use super::rows::{Item, Span};

/// The least value of the layer's items.
pub(super) fn least_value(items: &[Item], multiplier: Multiplier) -> u128 {
    items.iter().map(|item| multiplier.value(item.size, item.units())).min().unwrap_or(0)
}

/// Keeps, in place and by rising value, the items that a plan of at most `target` bits may use.
///
/// `least` is the sum of the layers' least values.
///
/// # Complexity
/// O(n) time for n items, and the sorting of those kept.
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
            if multiplier.value(row[at].size, row[at].units()) <= ceiling {
                row[kept] = row[at];
                kept += 1;
            }
        }
        row[..kept].sort_unstable_by_key(|item| (multiplier.value(item.size, item.units()), item.option));
        *span = Span::new(span.start(), span.start() + kept);
    }
}

/// The sizes that plans of the items left can have: `residue` modulo `step`; a step of 0 means one size only.
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
            base += row[0].size;
            for item in row {
                step = gcd(step, item.size.abs_diff(row[0].size));
            }
        }
        Lattice { step, residue: if step == 0 { base } else { base % step } }
    }

    /// The smallest member not below `size`, or `size` itself where there is none below 2^64.
    pub(super) fn at_least(self, size: u64) -> u64 {
        if self.step == 0 {
            return size.max(self.residue);
        }
        let over = (size % self.step + self.step - self.residue) % self.step;
        if over == 0 { size } else { size.checked_add(self.step - over).unwrap_or(size) }
    }
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
