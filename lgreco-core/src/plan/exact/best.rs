//! The best plan found so far.

use super::rows::Item;
use crate::num::Sum;
use crate::plan::goal::Goal;
use crate::plan::{Limit, Summary};
use crate::table::Table;
use core::cmp::Ordering;

/// The best plan so far, as options of the table.
pub(super) struct Best<'a> {
    pub(super) table: &'a Table<'a>,
    pub(super) goal: Goal,
    pub(super) choices: &'a mut [u32],
    /// The plan's objective, or 2^64 - 1 before the first plan.
    pub(super) objective: u64,
    size: u64,
    error: f64,
    /// Whether any plan was found.
    found: bool,
    /// Whether an offered plan exceeded the limit.
    pub(super) rejected: bool,
}

impl<'a> Best<'a> {
    /// Starts without a plan.
    pub(super) fn new(table: &'a Table<'a>, goal: Goal, choices: &'a mut [u32]) -> Self {
        Best { table, goal, choices, objective: u64::MAX, size: 0, error: 0.0, found: false, rejected: false }
    }

    /// Replaces the best plan by the plan `options`, if this plan is within the limit and has a smaller objective.
    /// Under a size limit, a plan with an equal objective and less error also replaces the best plan.
    pub(super) fn offer(&mut self, options: impl Iterator<Item = u32> + Clone) {
        let chosen = self.table.iter().zip(options.clone()).map(|(row, option)| row[option as usize]);
        let error: Sum = chosen.clone().map(|choice| choice.error).collect();
        let size: u64 = chosen.clone().map(|choice| choice.size).sum();
        let (within, objective) = match self.goal.limit {
            Limit::Error(budget) => (error.at_most(budget), Some(size)),
            Limit::Size(limit) => (size <= limit, chosen.map(|choice| self.goal.objective(&choice)).sum()),
        };
        if !within {
            self.rejected = true;
            return;
        }
        // An objective of `None` means that the plan contains an option above the goal's ceiling, and so cannot be
        // optimal.
        let Some(objective) = objective else { return };
        let better = !self.found
            || match objective.cmp(&self.objective) {
                Ordering::Less => true,
                Ordering::Equal => matches!(self.goal.limit, Limit::Size(_)) && error.value() < self.error,
                Ordering::Greater => false,
            };
        if better {
            (self.objective, self.size, self.error, self.found) = (objective, size, error.value(), true);
            self.choices.iter_mut().zip(options).for_each(|(choice, option)| *choice = option);
        }
    }

    /// Whether the plan of these items has a smaller objective than the best plan.
    pub(super) fn beaten_by(&self, items: &[Item], plan: &[u32]) -> bool {
        plan.iter().map(|&item| items[item as usize].objective).sum::<u64>() < self.objective
    }

    /// Offers the plan with the least error under an error budget, or the least size under a size limit.
    pub(super) fn offer_least(&mut self) {
        let (table, goal) = (self.table, self.goal);
        self.offer(table.iter().map(|row| {
            let least = row.iter().enumerate().filter(|(_, choice)| goal.objective(choice).is_some());
            least.min_by(|(_, a), (_, b)| goal.need_less(a, b)).map_or(0, |(option, _)| option as u32)
        }));
    }

    /// The best plan's summary. The caller has proved that no plan has an objective below `bound`.
    pub(super) fn summary(&self, bound: u64) -> Summary {
        Summary { size: self.size, error: self.error, proof: self.goal.proof(bound.min(self.objective)) }
    }
}
