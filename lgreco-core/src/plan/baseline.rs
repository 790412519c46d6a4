//! Baselines from other work, computed from an error table: uniform settings, k-means (CGX), global top-k.
//!
//! Each function writes one option per layer, and keeps an error budget or a size limit. `Plan::from_options` (feature
//! `alloc`) makes a verified plan of the options. For the uniform baseline, pass the budget's reference plan to
//! `Plan::from_options`.

mod global;
mod kmeans;

pub use global::{global_topk, global_topk_workspace_len};
pub use kmeans::{kmeans, kmeans_workspace_len};

use super::Limit;
use crate::table::{Choice, Table};
use crate::{Result, num::Sum};

/// Finds a layer's efficient options: those that no other option beats in both size and error.
///
/// Writes the indices of the efficient options to `front` and returns their number. The options are ordered by
/// increasing size, and therefore by decreasing error. Of equal options, the one with the lowest index is kept.
fn efficient(choices: &[Choice], front: &mut [u32]) -> usize {
    let front = &mut front[..choices.len()];
    for (index, option) in front.iter_mut().enumerate() {
        *option = index as u32;
    }
    let choice = |option: u32| choices[option as usize];
    front.sort_unstable_by(|&a, &b| {
        let (x, y) = (choice(a), choice(b));
        x.size.cmp(&y.size).then(x.error.total_cmp(&y.error)).then(a.cmp(&b))
    });
    let mut count = 1;
    for at in 1..front.len() {
        if choice(front[at]).error < choice(front[count - 1]).error {
            front[count] = front[at];
            count += 1;
        }
    }
    count
}

/// Sums the errors and the sizes of `options`.
fn sums(table: &Table, options: &[u32]) -> Result<(Sum, u64)> {
    let chosen = table.chosen(options)?;
    Ok((chosen.clone().map(|choice| choice.error).collect(), chosen.map(|choice| choice.size).sum()))
}

/// Finds a position in a sequence of plans by bisection. `at` returns the error and the size of the plan at a position.
/// Along the sequence, sizes increase and errors decrease.
///
/// Under an error budget, returns the first position whose plan is within the budget, or the last position if no plan
/// is within it. Under a size limit, returns the last position whose plan is within the limit, or the first position if
/// no plan is within it.
fn place(
    limit: Limit,
    places: core::ops::RangeInclusive<usize>,
    mut at: impl FnMut(usize) -> Result<(Sum, u64)>,
) -> Result<usize> {
    let (mut first, mut last) = places.into_inner();
    while first < last {
        let middle = first + (last - first) / 2;
        match limit {
            Limit::Error(budget) if at(middle)?.0.at_most(budget) => last = middle,
            Limit::Error(_) => first = middle + 1,
            Limit::Size(size) if at(middle + 1)?.1 <= size => first = middle + 1,
            Limit::Size(_) => last = middle,
        }
    }
    Ok(first)
}
