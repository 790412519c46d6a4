//! Optimal sizes by methods too simple to be wrong, and what every plan that claims optimality must satisfy.

use alloc::vec;

use crate::Error;
use crate::num::Sum;
use crate::plan::exact::{Limits, lower_bound, solve, workspace_len};
use crate::plan::{Summary, check};
use crate::table::Table;

/// The fewest bits of any plan within the budget, by trying every plan; `None` when no plan is within it.
///
/// ```
/// use lgreco_core::{table::{Choice, Table}, testing::oracle::exhaustive};
/// let choices = [(8, 0.5), (4, 1.5), (9, 0.25), (3, 1.0)].map(|(size, error)| Choice { size, error });
/// let table = Table::new(&choices, &[2, 4])?;
/// assert_eq!((exhaustive(&table, 1.75), exhaustive(&table, 0.5)), (Some(11), None));
/// # Ok::<(), lgreco_core::Error>(())
/// ```
///
/// # Complexity
/// O(layers * product of the layers' options).
pub fn exhaustive(table: &Table<'_>, budget: f64) -> Option<u64> {
    let mut options = vec![0u32; table.layers()];
    let mut best: Option<u64> = None;
    loop {
        if let Some(size) = size_within(table, &options, budget) {
            best = Some(best.map_or(size, |best| best.min(size)));
        }
        let Some(layer) = (0..options.len()).find(|&layer| options[layer] as usize + 1 < table.layer(layer).len())
        else {
            return best;
        };
        options[..layer].fill(0);
        options[layer] += 1;
    }
}

/// The size of a plan, if its errors sum to at most `budget` in the verifier's exact arithmetic.
fn size_within(table: &Table<'_>, options: &[u32], budget: f64) -> Option<u64> {
    let chosen = table.chosen(options).expect("choices name options");
    let error = chosen.clone().map(|choice| choice.error).collect::<Sum>().value();
    if !error.is_finite() {
        return None;
    }
    let size = chosen.map(|choice| choice.size).sum();
    match check::verify(table, options, &Summary { size, lower_bound: 0, error, budget }) {
        Ok(()) => Some(size),
        Err(Error::OverBudget { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

/// The fewest bits of any plan within the budget, from the least error achievable at each total size.
///
/// Exact when all errors and their sums are, for example small multiples of a power of two. Sizes must be small.
///
/// ```
/// use lgreco_core::{table::{Choice, Table}, testing::oracle::{by_total_size, exhaustive}};
/// let choices = [(8, 0.5), (4, 1.5), (9, 0.25), (3, 1.0)].map(|(size, error)| Choice { size, error });
/// let table = Table::new(&choices, &[2, 4])?;
/// assert_eq!(by_total_size(&table, 1.75), exhaustive(&table, 1.75));
/// # Ok::<(), lgreco_core::Error>(())
/// ```
///
/// # Complexity
/// O(options * largest total size).
pub fn by_total_size(table: &Table<'_>, budget: f64) -> Option<u64> {
    let mut least = vec![0.0f64];
    for row in table.iter() {
        let largest = row.iter().map(|choice| choice.size).max().unwrap_or(0) as usize;
        let mut next = vec![f64::INFINITY; least.len() + largest];
        for choice in row {
            for (size, &error) in least.iter().enumerate() {
                let sum = &mut next[size + choice.size as usize];
                *sum = sum.min(error + choice.error);
            }
        }
        least = next;
    }
    least.iter().position(|&error| error <= budget).map(|size| size as u64)
}

/// Solves twice on workspaces of different garbage and panics unless both agree and the answer keeps its word: choices
/// within the budget, of the stated size and error, the bounds in order. Returns what the solver does.
pub fn check_exact(table: &Table<'_>, budget: f64, limits: Limits) -> Result<Summary, Error> {
    let run = |garbage: u64| {
        let mut workspace = vec![garbage; workspace_len(table, limits)];
        let mut choices = vec![garbage as u32; table.layers()];
        solve(table, budget, limits, &mut workspace, &mut choices).map(|summary| (summary, choices))
    };
    let (first, second) = (run(0), run(0xdead_beef_1234_5678));
    assert_eq!(first, second, "the workspace's old content changed the plan");
    let bound = lower_bound(table, budget, &mut vec![u64::MAX; workspace_len(table, Limits { states: 0 })]);
    let (summary, choices) = match first {
        Ok(found) => found,
        Err(error) => {
            assert_eq!(bound, Err(error));
            if let Error::Infeasible { smallest, .. } = error {
                assert!(smallest > budget, "{smallest} is within {budget}");
                if smallest.is_finite() {
                    let mut workspace = vec![0; workspace_len(table, limits)];
                    let mut choices = vec![0; table.layers()];
                    let enough = solve(table, smallest, limits, &mut workspace, &mut choices);
                    assert!(enough.is_ok(), "{smallest} was said to be enough");
                }
            }
            return Err(error);
        }
    };
    check::verify(table, &choices, &summary).expect("a solver's plan passes the verifier");
    let error: Sum = table.chosen(&choices).expect("choices name options").map(|choice| choice.error).collect();
    assert_eq!(summary.error.to_bits(), error.value().to_bits());
    assert_eq!(summary.budget, budget);
    assert!(bound.expect("a feasible table has a bound") <= summary.size);
    Ok(summary)
}

/// [`check_exact`], and panics unless the answer agrees with `optimum`: equal where proved, between the bounds where not.
pub fn check_against(table: &Table<'_>, budget: f64, limits: Limits, optimum: Option<u64>) {
    match (check_exact(table, budget, limits), optimum) {
        (Ok(summary), Some(optimum)) => {
            assert!(summary.lower_bound <= optimum && optimum <= summary.size, "{optimum} is outside {summary:?}");
            let bound = lower_bound(table, budget, &mut vec![0; workspace_len(table, Limits { states: 0 })]);
            assert!(bound.is_ok_and(|bound| bound <= optimum));
        }
        (Err(Error::Infeasible { .. }), None) => {}
        (found, optimum) => panic!("found {found:?}, the optimum is {optimum:?}"),
    }
}
