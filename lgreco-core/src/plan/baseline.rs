//! What others do, as plans for the same table: uniform, k-means (CGX), global top-k.
//!
//! Each call writes one option per layer; `Plan::from_options` (feature `alloc`) makes a verified plan of
//! them, the uniform setting's included: that is the reference plan a budget is taken from, unchanged.

mod global;
mod kmeans;

pub use global::{global_topk, global_topk_workspace_len};
pub use kmeans::{kmeans, kmeans_workspace_len};

use crate::table::Choice;

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
