//! Whether the plan of Algorithm 1 can be smaller, decided without making it.

use super::best::Best;
use super::relax::{self, Multiplier};
use super::rows::{Item, Span};
use crate::plan::dp;

/// Algorithm 1 finds no plan that is smaller than both this number of bits and the best plan.
///
/// It rounds errors up to cells of the budget, and fixing dropped only options of plans that are not smaller than the
/// best: so this is the Lagrangian bound of the options left, with errors in cells.
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
            let cells = dp::cells(row[item.option as usize].error, best.budget, dp::LEVELS);
            multiplier.value(item.size, in_units(cells))
        });
        values.min().unwrap_or(0)
    });
    multiplier.bound(least.fold(0, u128::saturating_add), in_units(dp::LEVELS))
}
