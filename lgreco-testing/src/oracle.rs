//! Finds optimal plans by methods too simple to be wrong, and checks properties of every plan that claims optimality.

use lgreco::Error;
use lgreco::num::Sum;
use lgreco::plan::exact::{Limits, lower_bound, solve, workspace_len};
use lgreco::plan::{Limit, Proof, Summary, check};
use lgreco::table::Table;

/// Finds the optimum within the limit by trying every plan: the fewest bits within an error budget, or the smallest
/// error within a size limit. `None` if no plan with a finite error is within the limit.
///
/// ```
/// use lgreco::{plan::Limit, table::{Choice, Table}};
/// use lgreco_testing::oracle::exhaustive;
/// let choices = [(8, 0.5), (4, 1.5), (9, 0.25), (3, 1.0)].map(|(size, error)| Choice { size, error });
/// let table = Table::new(&choices, &[2, 4])?;
/// let best = |limit| exhaustive(&table, limit);
/// assert_eq!((best(Limit::Error(1.75)), best(Limit::Error(0.5))), (Some(Limit::Size(11)), None));
/// assert_eq!((best(Limit::Size(13)), best(Limit::Size(6))), (Some(Limit::Error(1.5)), None));
/// # Ok::<(), lgreco::Error>(())
/// ```
///
/// # Complexity
/// O(layers * product of the layers' options).
pub fn exhaustive(table: &Table<'_>, limit: Limit) -> Option<Limit> {
    exhaustive_among(table, limit, |_| true)
}

/// Like [`exhaustive`], among the allowed plans only.
///
/// # Complexity
/// O(layers * product of the layers' options).
pub fn exhaustive_among(table: &Table<'_>, limit: Limit, is_allowed: impl Fn(&[u32]) -> bool) -> Option<Limit> {
    let mut best: Option<Limit> = None;
    for_each_plan(table, |options| {
        let plan = if is_allowed(options) { within(table, options, limit) } else { None };
        if let Some(plan) = plan.map(|plan| minimised(&plan)) {
            best = Some(best.filter(|&best| is_at_most(best, plan)).unwrap_or(plan));
        }
    });
    best
}

/// Calls `visit` with every plan for a table.
pub fn for_each_plan(table: &Table<'_>, mut visit: impl FnMut(&[u32])) {
    let mut options = vec![0u32; table.layers()];
    loop {
        visit(&options);
        let Some(layer) = (0..options.len()).find(|&layer| options[layer] as usize + 1 < table.layer(layer).len())
        else {
            return;
        };
        options[..layer].fill(0);
        options[layer] += 1;
    }
}

/// The summary of a plan, if it is within the limit in the verifier's exact arithmetic.
fn within(table: &Table<'_>, options: &[u32], limit: Limit) -> Option<Summary> {
    let chosen = table.chosen(options).expect("choices name options");
    let error = chosen.clone().map(|choice| choice.error).collect::<Sum>().value();
    if !error.is_finite() {
        return None;
    }
    let size = chosen.map(|choice| choice.size).sum();
    let proof = match limit {
        Limit::Error(budget) => Proof::Size { lower_bound: 0, budget },
        Limit::Size(size_limit) => Proof::Error { lower_bound: 0.0, size_limit },
    };
    let plan = Summary { size, error, proof };
    match check::verify(table, options, &plan) {
        Ok(()) => Some(plan),
        Err(Error::OverBudget { .. } | Error::OverSize { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Returns the same as [`exhaustive`], computed from the smallest error at each total size.
///
/// The result is exact if all errors and their sums are exact, for example small multiples of a power of two. Sizes
/// must be small, because the memory grows with the largest total size.
///
/// ```
/// use lgreco::{plan::Limit, table::{Choice, Table}};
/// use lgreco_testing::oracle::{by_total_size, exhaustive};
/// let choices = [(8, 0.5), (4, 1.5), (9, 0.25), (3, 1.0)].map(|(size, error)| Choice { size, error });
/// let table = Table::new(&choices, &[2, 4])?;
/// assert_eq!(by_total_size(&table, Limit::Error(1.75)), exhaustive(&table, Limit::Error(1.75)));
/// assert_eq!(by_total_size(&table, Limit::Size(13)), exhaustive(&table, Limit::Size(13)));
/// # Ok::<(), lgreco::Error>(())
/// ```
///
/// # Complexity
/// O(options * largest total size).
pub fn by_total_size(table: &Table<'_>, limit: Limit) -> Option<Limit> {
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
    match limit {
        Limit::Error(budget) => least.iter().position(|&error| error <= budget).map(|size| Limit::Size(size as u64)),
        Limit::Size(size) => {
            let sizes = least.len().min(usize::try_from(size).unwrap_or(usize::MAX).saturating_add(1));
            let error = least[..sizes].iter().copied().reduce(f64::min);
            error.filter(|error| error.is_finite()).map(Limit::Error)
        }
    }
}

/// Solves twice, on workspaces with different garbage. Panics unless both results agree and the answer is correct:
/// choices within the limit, the stated size and error, and ordered bounds. Returns the solver's result.
pub fn check_exact(table: &Table<'_>, limit: impl Into<Limit>, limits: Limits) -> Result<Summary, Error> {
    let limit = limit.into();
    let run = |garbage: u64| {
        let mut workspace = vec![garbage; workspace_len(table, limits)];
        let mut choices = vec![garbage as u32; table.layers()];
        solve(table, limit, limits, &mut workspace, &mut choices).map(|summary| (summary, choices))
    };
    let (first, second) = (run(0), run(0xdead_beef_1234_5678));
    assert_eq!(first, second, "the workspace's old content changed the plan");
    let bound = lower_bound(table, limit, &mut vec![u64::MAX; workspace_len(table, Limits { states: 0 })]);
    let (summary, choices) = match first {
        Ok(found) => found,
        Err(error) => {
            let enough = match error {
                Error::Infeasible { smallest, budget, .. } => {
                    assert!(smallest > budget, "{smallest} is within {budget}");
                    Limit::Error(smallest)
                }
                Error::SizeInfeasible { smallest, limit, .. } => {
                    assert!(smallest > limit, "{smallest} is within {limit}");
                    Limit::Size(smallest)
                }
                _ => return Err(error),
            };
            assert_eq!(bound, Err(error));
            if enough != Limit::Error(f64::INFINITY) {
                let (mut workspace, mut choices) = (vec![0; workspace_len(table, limits)], vec![0; table.layers()]);
                let found = solve(table, enough, limits, &mut workspace, &mut choices);
                assert!(matches!(found, Ok(_) | Err(Error::Parameter { .. })), "{enough:?} was said to be enough");
            }
            return Err(error);
        }
    };
    check::verify(table, &choices, &summary).expect("a solver's plan passes the verifier");
    let error: Sum = table.chosen(&choices).expect("choices name options").map(|choice| choice.error).collect();
    assert_eq!(summary.error.to_bits(), error.value().to_bits());
    assert_eq!(summary.limit(), limit);
    let bound = lower_bound_of(bound.expect("a feasible table has a bound"));
    assert!(is_at_most(bound, minimised(&summary)));
    Ok(summary)
}

/// The quantity that the solver minimised: the plan's size under an error budget, its error under a size limit.
fn minimised(summary: &Summary) -> Limit {
    match summary.limit() {
        Limit::Error(_) => Limit::Size(summary.size),
        Limit::Size(_) => Limit::Error(summary.error),
    }
}

/// Compares two sizes or two errors.
fn is_at_most(a: Limit, b: Limit) -> bool {
    match (a, b) {
        (Limit::Error(a), Limit::Error(b)) => a <= b,
        (Limit::Size(a), Limit::Size(b)) => a <= b,
        _ => panic!("{a:?} and {b:?} are different things"),
    }
}

fn lower_bound_of(proof: Proof) -> Limit {
    match proof {
        Proof::Size { lower_bound, .. } => Limit::Size(lower_bound),
        Proof::Error { lower_bound, .. } => Limit::Error(lower_bound),
    }
}

/// Runs [`check_exact`], and panics unless the answer agrees with the `optimum`. A proven answer must equal the
/// optimum; errors may differ by [`Proof::RESOLUTION`]. If the answer is not proven, the optimum must lie between its
/// bounds.
pub fn check_against(table: &Table<'_>, limit: impl Into<Limit>, limits: Limits, optimum: Option<Limit>) {
    let limit = limit.into();
    match (check_exact(table, limit, limits), optimum) {
        (Ok(summary), Some(optimum)) => {
            let (bound, found) = (lower_bound_of(summary.proof), minimised(&summary));
            assert!(is_at_most(bound, optimum) && is_at_most(optimum, found), "{optimum:?} is outside {summary:?}");
            let as_good = match optimum {
                Limit::Error(error) => Limit::Error(error + error * Proof::RESOLUTION),
                Limit::Size(_) => optimum,
            };
            assert!(!summary.proven() || is_at_most(found, as_good), "{optimum:?} is the optimum: {summary:?}");
            let bound = lower_bound(table, limit, &mut vec![0; workspace_len(table, Limits { states: 0 })]);
            assert!(bound.is_ok_and(|bound| is_at_most(lower_bound_of(bound), optimum)));
        }
        (Err(Error::Infeasible { .. } | Error::SizeInfeasible { .. } | Error::Parameter { .. }), None) => {}
        (found, optimum) => panic!("found {found:?}, the optimum is {optimum:?}"),
    }
}
