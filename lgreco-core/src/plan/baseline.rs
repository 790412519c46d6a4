//! What others do, as plans for the same table: uniform, k-means (CGX), two levels (Accordion), global top-k.
//!
//! Each call writes one option per layer; `Plan::from_options` (feature `alloc`) makes a verified plan of
//! them, the uniform setting's included: that is the reference plan a budget is taken from, unchanged.

mod global;
mod kmeans;

pub use global::{global_topk, global_topk_workspace_len};
pub use kmeans::{kmeans, kmeans_workspace_len};

use crate::{Error, error::expect_len, table::Choice, table::Table};

/// Accordion's two levels: critical layers are compressed little, the others hard.
///
/// `critical` comes from Accordion's detector; `low` and `high` hold every layer's option for low and for high
/// compression. No budget is kept.
///
/// ```
/// use lgreco_core::{plan::baseline, table::{Choice, Table}};
/// let choices = [(8, 0.5), (2, 2.0), (9, 0.5), (3, 2.0)].map(|(size, error)| Choice { size, error });
/// let table = Table::new(&choices, &[2, 4])?;
/// let mut options = [0; 2];
/// baseline::two_level(&table, &[true, false], &[0, 0], &[1, 1], &mut options)?;
/// assert_eq!(options, [0, 1]);
/// # Ok::<(), lgreco_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Length`] unless all slices have one entry per layer; [`Error::NoSuchOption`].
///
/// # Complexity
/// O(layers), no workspace.
///
/// # Source
/// Accordion (MLSys 2021), Algorithm 1.
pub fn two_level(
    table: &Table,
    critical: &[bool],
    low: &[u32],
    high: &[u32],
    options: &mut [u32],
) -> Result<(), Error> {
    expect_len("critical layers", table.layers(), critical.len())?;
    expect_len("choices, one per layer", table.layers(), options.len())?;
    let _ = table.chosen(low)?;
    let _ = table.chosen(high)?;
    for (layer, option) in options.iter_mut().enumerate() {
        *option = if critical[layer] { low[layer] } else { high[layer] };
    }
    Ok(())
}

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
