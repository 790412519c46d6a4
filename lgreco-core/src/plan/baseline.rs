//! What others do, as plans for the same table: uniform, k-means (CGX), global top-k.
//!
//! Each call writes one option per layer; `Plan::from_options` (feature `alloc`) makes a verified plan of
//! them, the uniform setting's included: that is the reference plan a budget is taken from, unchanged. Each keeps an error
//! budget or a size limit.

mod global;
mod kmeans;

pub use global::{global_topk, global_topk_workspace_len};
pub use kmeans::{kmeans, kmeans_workspace_len};

use super::Limit;
use crate::table::{Choice, Table};
use crate::{Result, num::Sum};

/// Writes the layer's options that no other beats in both size and error into `front`, smallest size (and so largest
/// error) first, and returns their number; of equals the lowest index stays.
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

/// Error and size of `options`.
fn sums(table: &Table, options: &[u32]) -> Result<(Sum, u64)> {
    let chosen = table.chosen(options)?;
    Ok((chosen.clone().map(|choice| choice.error).collect(), chosen.map(|choice| choice.size).sum()))
}

/// Of places from small to exact, each with the error and the size that `at` tells: under an error budget the first that is
/// within it, or else the last; under a size limit the last that is within it, or else the first.
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
