//! Each layer's undominated options as integers, sorted by the units of the limit that an option needs. An option that
//! needs more units always has a smaller objective.

use bytemuck::{Pod, Zeroable};

use super::units::Scale;
use crate::num::Wide;
use crate::plan::goal::Goal;
use crate::table::{Choice, Table};

/// One option: its objective, the units of the limit that it needs, and its index in the layer.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Item {
    pub(super) objective: u64,
    units: Wide,
    pub(super) option: u64,
}

impl Item {
    pub(super) fn new(objective: u64, units: u128, option: u64) -> Self {
        Item { objective, units: Wide::new(units), option }
    }

    #[inline(always)]
    pub(super) fn units(&self) -> u128 {
        self.units.value()
    }
}

/// The items of one layer, as the range `items[start..end]`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Span {
    start: u32,
    end: u32,
}

impl Span {
    pub(super) fn new(start: usize, end: usize) -> Self {
        Span { start: start as u32, end: end as u32 }
    }

    pub(super) fn range(self) -> core::ops::Range<usize> {
        self.start as usize..self.end as usize
    }

    pub(super) fn start(self) -> usize {
        self.start as usize
    }
}

/// Finds the undominated options that a plan within the limit can contain. Writes these options to `items`, with one
/// span per layer.
///
/// Of options with equal objectives, keeps the one that needs the fewest units, or of several such options the one with
/// the lowest index. Every layer keeps at least the option that needs the fewest units. The caller has checked that
/// these options together fit the limit.
///
/// # Complexity
/// O(n log n) time for n options, O(n) when rows are monotone.
pub(super) fn prepare(table: &Table<'_>, goal: &Goal, scale: Scale, items: &mut [Item], spans: &mut [Span]) {
    let (mut end, mut smallest) = (0, 0u128);
    for (row, span) in table.iter().zip(spans.iter_mut()) {
        let start = end;
        end += keep_undominated(row, goal, scale, &mut items[start..]);
        *span = Span::new(start, end);
        smallest += items[start].units();
    }
    let slack = scale.capacity().saturating_sub(smallest);
    for span in spans {
        let row = &items[span.range()];
        let reach = row[0].units() + slack;
        let fitting = row.partition_point(|item| item.units() <= reach).max(1);
        *span = Span::new(span.start(), span.start() + fitting);
    }
}

/// Writes the undominated options of one row to the front of `out`, by increasing units. Returns their number.
fn keep_undominated(row: &[Choice], goal: &Goal, scale: Scale, out: &mut [Item]) -> usize {
    let mut len = 0;
    let mut push = |option: usize| {
        if let (Some(objective), Some(units)) = (goal.objective(&row[option]), scale.units(&row[option])) {
            out[len] = Item::new(objective, units, option as u64);
            len += 1;
        }
    };
    if goal.need_less(&row[0], &row[row.len() - 1]).is_le() {
        (0..row.len()).for_each(&mut push);
    } else {
        (0..row.len()).rev().for_each(&mut push);
    }
    let out = &mut out[..len];
    let key = |item: &Item| (item.units(), item.objective, item.option);
    if !out.is_sorted_by_key(key) {
        out.sort_unstable_by_key(key);
    }
    let mut kept = 1;
    for at in 1..len {
        if out[at].objective < out[kept - 1].objective {
            out[kept] = out[at];
            kept += 1;
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec;
    use std::vec::Vec;

    use super::super::units::Rounding;
    use super::*;
    use crate::plan::Limit;

    fn kept(row: &[(u64, f64)], limit: Limit) -> Vec<u64> {
        let choices: Vec<_> = row.iter().map(|&(size, error)| Choice { size, error }).collect();
        let ends = [row.len()];
        let table = Table::new(&choices, &ends).unwrap();
        let (goal, scale) = (Goal::new(&table, limit, 63), Scale::new(limit, Rounding::Down));
        let (mut items, mut spans) = (vec![Item::default(); row.len()], [Span::default()]);
        prepare(&table, &goal, scale, &mut items, &mut spans);
        items[spans[0].range()].iter().map(|item| item.option).collect()
    }

    #[test]
    fn dominated_and_too_inexact_options_go() {
        assert_eq!(kept(&[(9, 0.0), (8, 1.0), (8, 0.5), (8, 0.5), (7, 3.0)], Limit::Error(2.0)), [0, 2]);
        assert_eq!(kept(&[(1, 2.0), (5, 1.0), (9, 0.0)], Limit::Error(2.0)), [2, 1, 0]);
        assert_eq!(kept(&[(5, 0.5), (5, 0.5), (5, 0.25), (5, 0.25)], Limit::Error(1.0)), [2]);
    }

    #[test]
    fn dominated_and_too_large_options_go() {
        assert_eq!(kept(&[(9, 0.25), (8, 1.0), (8, 0.5), (8, 0.5), (7, 3.0)], Limit::Size(8)), [4, 2]);
        assert_eq!(kept(&[(9, 0.5), (5, 1.0), (1, 2.0)], Limit::Size(9)), [2, 1, 0]);
        assert_eq!(kept(&[(5, 0.5), (4, 0.5), (3, 0.75), (4, 0.5)], Limit::Size(5)), [2, 1]);
    }
}
