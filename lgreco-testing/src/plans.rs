//! Checks of properties that every planner has, and the textbook form of Algorithm 1.

use super::tables::Instance;
use lgreco::plan::{self, Limit, Plan, Proof, Solver, Summary, budget::Budget, check, dp, exact};
use lgreco::{Error, table::Choice, table::Table};
use std::cmp::Ordering;

/// Algorithm 1 as the paper prints it, on integer errors. Fills one row of cells per layer, tries every option in every
/// cell in order, and traces back the smallest entry of the last row. Returns the size and the options, or `None` if
/// nothing fits.
///
/// ```
/// use lgreco_testing::plans::textbook;
/// let layers = [vec![(80, 0), (40, 1), (20, 3)], vec![(60, 0), (30, 2)]]; // size, error in cells
/// assert_eq!(textbook(&layers, 3), Some((70, vec![1, 1])));
/// assert_eq!(textbook(&[vec![(80, 4)]], 3), None);
/// ```
pub fn textbook(layers: &[Vec<(u64, usize)>], levels: usize) -> Option<(u64, Vec<u32>)> {
    let mut rows = vec![vec![None; levels + 1]];
    rows[0][0] = Some(0);
    let mut picks = Vec::new();
    for options in layers {
        let (mut row, mut pick) = (vec![None; levels + 1], vec![0; levels + 1]);
        for cell in 0..=levels {
            for (option, &(size, cost)) in options.iter().enumerate() {
                let Some(previous) = cell.checked_sub(cost).and_then(|before| rows[rows.len() - 1][before]) else {
                    continue;
                };
                let candidate: u64 = previous + size;
                if row[cell].is_none_or(|best| candidate < best) {
                    (row[cell], pick[cell]) = (Some(candidate), option);
                }
            }
        }
        rows.push(row);
        picks.push(pick);
    }
    let last = &rows[layers.len()];
    let mut cell = (0..=levels).filter(|&cell| last[cell].is_some()).min_by_key(|&cell| last[cell])?;
    let size = last[cell]?;
    let mut plan = vec![0; layers.len()];
    for layer in (0..layers.len()).rev() {
        plan[layer] = picks[layer][cell] as u32;
        cell -= layers[layer][picks[layer][cell]].1;
    }
    Some((size, plan))
}

/// Runs `solve` twice, on workspaces with different garbage. Both runs must give the same plan bit for bit, and the
/// verifier must accept it. An infeasible result must report the smallest possible error or size. Returns the result of
/// `solve`.
pub fn check_solver<S>(
    table: &Table,
    limit: Limit,
    workspace_len: usize,
    solve: S,
) -> Result<(Summary, Vec<u32>), Error>
where
    S: Fn(&mut [u64], &mut [u32]) -> Result<Summary, Error>,
{
    let run = |garbage: u64| {
        let (mut workspace, mut options) = (vec![garbage; workspace_len], vec![garbage as u32; table.layers()]);
        solve(&mut workspace, &mut options).map(|summary| (summary, options))
    };
    let (first, second) = (run(0), run(!0));
    assert_eq!(first, second, "the workspace's old content changed the plan");
    let smallest: Vec<f64> =
        table.iter().map(|options| options.iter().map(|choice| choice.error).fold(f64::INFINITY, f64::min)).collect();
    let rough: f64 = smallest.iter().sum();
    match &first {
        Ok((summary, options)) => {
            assert_eq!(summary.limit(), limit);
            check::verify(table, options, summary).expect("a solver's plan passes the verifier");
        }
        Err(Error::Infeasible { budget, smallest, size }) => {
            assert_eq!(Limit::Error(*budget), limit);
            assert!(smallest > budget, "infeasible, though {smallest} is within {budget}");
            assert!((smallest - rough).abs() <= 1e-9 * rough, "the smallest error is {rough}, not {smallest}");
            assert_eq!(
                *size,
                there(table, |a, b| a.error.partial_cmp(&b.error).expect("numbers").then(a.size.cmp(&b.size))).1
            );
        }
        Err(Error::SizeInfeasible { limit: stated, smallest, error }) => {
            assert_eq!(Limit::Size(*stated), limit);
            assert!(smallest > stated, "infeasible, though {smallest} bits are within {stated}");
            let (rough, size) =
                there(table, |a, b| a.size.cmp(&b.size).then(a.error.partial_cmp(&b.error).expect("numbers")));
            assert_eq!(*smallest, size);
            let near = (error - rough).abs() <= 1e-9 * rough || rough == f64::INFINITY;
            assert!(near, "the error there is {rough}, not {error}");
        }
        Err(error) => assert!(is_beyond(error), "{error}"),
    }
    first
}

/// Error and size of the plan in which each layer has the option that is first in the order `order`.
fn there(table: &Table, order: impl Fn(&Choice, &Choice) -> Ordering + Copy) -> (f64, u64) {
    let least = table.iter().filter_map(|options| options.iter().min_by(|a, b| order(a, b)));
    (least.clone().map(|choice| choice.error).sum(), least.map(|choice| choice.size).sum())
}

/// Whether the best plan within a size limit has an error too large for an f64.
fn is_beyond(error: &Error) -> bool {
    matches!(error, Error::Parameter { what: "the plan's error", value: f64::INFINITY, .. })
}

/// Checks [`dp`] on an instance with a grid of `levels` cells.
pub fn check_dp(instance: &Instance, levels: u32) {
    let table = instance.table();
    let len = dp::workspace_len(&table, levels);
    for limit in instance.limits() {
        let solve = |workspace: &mut [u64], options: &mut [u32]| dp::solve(&table, limit, levels, workspace, options);
        let _ = check_solver(&table, limit, len, solve);
    }
}

/// Checks [`dp`] against [`textbook`]. `layers` holds sizes, and costs in cells. Sizes are multiplied by `unit`; the
/// budget is `levels` cells of 0.375. Afterwards, repeats the check with sizes and errors swapped.
pub fn check_dp_against_textbook(layers: &[Vec<(u64, usize)>], levels: usize, unit: u64) {
    let cell = 0.375;
    let choices: Vec<_> = layers
        .iter()
        .flatten()
        .map(|&(size, cost)| lgreco::table::Choice { size: size * unit, error: cost as f64 * cell })
        .collect();
    let swapped: Vec<_> = layers
        .iter()
        .flatten()
        .map(|&(error, cost)| lgreco::table::Choice { size: cost as u64 * unit, error: error as f64 * cell })
        .collect();
    let ends: Vec<usize> = layers
        .iter()
        .scan(0, |end, layer| {
            *end += layer.len();
            Some(*end)
        })
        .collect();
    let cells = levels as u32;
    let solve = |choices: &[lgreco::table::Choice], limit| {
        let table = Table::new(choices, &ends).expect("a valid table");
        check_solver(&table, limit, dp::workspace_len(&table, cells), |workspace, options| {
            dp::solve(&table, limit, cells, workspace, options)
        })
    };
    let found = solve(&choices, Limit::Error(levels as f64 * cell));
    let most_exact = solve(&swapped, Limit::Size(levels as u64 * unit));
    match textbook(layers, levels) {
        Some((least, options)) => {
            let (summary, found) = found.expect("Algorithm 1 finds a plan");
            assert_eq!(summary.size, least * unit);
            assert_eq!(found, options);
            let (summary, found) = most_exact.expect("Algorithm 1 finds a plan");
            assert_eq!(summary.error, least as f64 * cell);
            assert_eq!(found, options);
        }
        None => {
            assert!(matches!(found, Err(Error::Infeasible { .. })));
            assert!(matches!(most_exact, Err(Error::SizeInfeasible { .. })));
        }
    }
}

/// Checks [`plan::solve`] with every solver, for the instance's budget and size limit, and for the error and the size
/// of its reference plan.
///
/// No plan may exceed its limit in the verifier's exact arithmetic. No plan may be worse than a reference plan that is
/// within the limit. No lower bound may exceed the value of any plan found. The same input must give the same plan. All
/// solvers must agree on infeasibility, and the smallest error or size that they report must be achievable. Within an
/// error budget, no plan may be smaller than the exact solver's plan. Within a size limit, no plan's error may be
/// smaller by more than the exact solver's resolution.
pub fn check_solvers(instance: &Instance) {
    let table = instance.table();
    let (alpha, options) = (1.0, instance.defaults.as_slice());
    let reference = Budget::Defaults { alpha, options };
    let [budget, size_limit] = instance.limits().map(Budget::from);
    for budget in [budget, reference, size_limit, Budget::DefaultSize { alpha, options }] {
        let Ok(limit) = budget.limit(&table) else { continue };
        let plans = solve_all(&table, budget);
        let summaries = || plans.iter().flatten().map(|plan| *plan.summary());
        for plan in plans.iter().flatten() {
            check::verify(&table, plan.options(), plan.summary()).expect("a solver's plan passes the verifier");
            assert_eq!(plan.summary().limit(), limit);
            assert!(summaries().all(|other| is_bound(plan.summary().proof, &other)), "a bound above a plan: {plan:?}");
        }
        if budget.reference().is_some()
            && let Ok(default) = Plan::from_options(&table, budget, "uniform", instance.defaults.clone())
        {
            assert!(plans.iter().all(Result::is_ok), "the reference plan fits its own budget: {plans:?}");
            assert!(summaries().all(|summary| !is_better(default.summary(), &summary)));
        }
        match &plans[0] {
            Ok(best) => {
                assert!(plans.iter().all(Result::is_ok), "one solver's plan is infeasible for another: {plans:?}");
                let none = summaries().all(|summary| !is_clearly_better(&summary, best.summary()));
                assert!(none, "the exact plan is not the best: {plans:?}");
            }
            Err(error) if is_beyond(error) => {}
            Err(error) => {
                assert!(plans.iter().all(|plan| plan == &plans[0]), "the solvers tell different errors: {plans:?}");
                let enough = match *error {
                    Error::Infeasible { smallest, .. } => Limit::Error(smallest),
                    Error::SizeInfeasible { smallest, .. } => Limit::Size(smallest),
                    error => panic!("{error}"),
                };
                let solved = enough == Limit::Error(f64::INFINITY)
                    || solve_all(&table, enough.into())
                        .iter()
                        .all(|plan| plan.as_ref().map_or_else(is_beyond, |_| true));
                assert!(solved, "{enough:?} was said to be enough");
            }
        }
    }
}

/// Whether a plan is at or above the lower bound in the proof of another plan for the same limit.
fn is_bound(proof: Proof, summary: &Summary) -> bool {
    match proof {
        Proof::Size { lower_bound, .. } => lower_bound <= summary.size,
        Proof::Error { lower_bound, .. } => lower_bound <= summary.error,
    }
}

fn is_better(a: &Summary, b: &Summary) -> bool {
    match a.limit() {
        Limit::Error(_) => a.size < b.size,
        Limit::Size(_) => a.error < b.error,
    }
}

/// Whether a plan is better than another by more than the exact solver's resolution.
fn is_clearly_better(a: &Summary, b: &Summary) -> bool {
    is_better(a, b) && !(matches!(a.limit(), Limit::Size(_)) && b.error <= a.error * (1.0 + Proof::RESOLUTION))
}

/// Every solver's plan; the exact one is first.
fn solve_all(table: &Table, budget: Budget) -> Vec<Result<Plan, Error>> {
    let limits = [1 << 12, 0].map(|states| Solver::Exact(exact::Limits { states }));
    let levels = [dp::LEVELS / 10, 37, 1].map(|levels| Solver::Dp { levels });
    let solve = |&solver: &Solver| {
        let plan = plan::solve(table, budget, solver);
        assert_eq!(plan, plan::solve(table, budget, solver), "the same input gave two plans");
        plan
    };
    limits.iter().chain(&levels).map(solve).collect()
}
