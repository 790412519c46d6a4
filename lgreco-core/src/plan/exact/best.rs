//! The smallest plan found so far.

use super::rows::Item;
use crate::num::Sum;
use crate::table::Table;

/// The smallest plan so far, in the caller's terms.
pub(super) struct Best<'a> {
    pub(super) table: &'a Table<'a>,
    pub(super) budget: f64,
    pub(super) choices: &'a mut [u32],
    pub(super) size: u64,
    /// NaN until there is a plan.
    pub(super) error: f64,
    /// Whether a plan was over the budget after all.
    pub(super) rejected: bool,
}

impl Best<'_> {
    /// Takes the plan when it is smaller and truly within the budget.
    pub(super) fn offer(&mut self, options: impl Iterator<Item = u32> + Clone) {
        let chosen = self.table.iter().zip(options.clone()).map(|(row, option)| row[option as usize]);
        let error: Sum = chosen.clone().map(|choice| choice.error).collect();
        if !error.at_most(self.budget) {
            self.rejected = true;
            return;
        }
        let size = chosen.map(|choice| choice.size).sum();
        if self.error.is_nan() || size < self.size {
            (self.size, self.error) = (size, error.value());
            self.choices.iter_mut().zip(options).for_each(|(choice, option)| *choice = option);
        }
    }

    /// Whether the plan, of these items, is smaller.
    pub(super) fn beaten_by(&self, items: &[Item], plan: &[u32]) -> bool {
        plan.iter().map(|&item| items[item as usize].size).sum::<u64>() < self.size
    }

    /// Takes the plan of each layer's smallest error when it is smaller.
    pub(super) fn offer_most_exact(&mut self) {
        let table = self.table;
        self.offer(table.iter().map(|row| {
            let most_exact = row.iter().enumerate().min_by(|(_, a), (_, b)| {
                a.error.partial_cmp(&b.error).unwrap_or(core::cmp::Ordering::Equal).then(a.size.cmp(&b.size))
            });
            most_exact.map_or(0, |(option, _)| option as u32)
        }));
    }
}
