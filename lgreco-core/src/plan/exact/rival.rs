//! Whether the plan of Algorithm 1 can be smaller, decided without making it.

use super::best::Best;
use super::relax::{self, Multiplier};
use super::rows::{Item, Span};
use crate::plan::dp;

/// Algorithm 1 finds no plan with an objective below both this and the best plan's.
///
/// It rounds what is limited up to cells, and fixing dropped only options of plans that are not better than the best: so
/// this is the Lagrangian bound of the options left, with their units in cells.
///
/// # Complexity
/// O(n) for n options left.
pub(super) fn lower_bound(
    items: &[Item],
    spans: &[Span],
    multiplier: Multiplier,
    capacity: u128,
    best: &Best<'_>,
) -> u64 {
    let cell = u128::from(relax::coarse(capacity)) / u128::from(dp::LEVELS);
    let in_units = |cells: u32| relax::fine(u128::from(cells) * cell);
    let least = spans.iter().zip(best.table.iter()).map(|(span, row)| {
        let values = items[span.range()].iter().map(|item| {
            let cells = best.goal.cells(&row[item.option as usize], dp::LEVELS);
            multiplier.value(item.objective, in_units(cells))
        });
        values.min().unwrap_or(0)
    });
    multiplier.bound(least.fold(0, u128::saturating_add), in_units(dp::LEVELS))
}
