//! What every planner promises, as checks that panic; and the textbook form of Algorithm 1.

use super::tables::Instance;
use crate::plan::{self, Plan, Solver, Summary, budget::Budget, check, dp, exact};
use crate::{Error, table::Table};
use alloc::{vec, vec::Vec};

/// Algorithm 1 as the paper prints it, on integer errors: rows over cells, every option of every cell tried in order,
/// the smallest entry of the last row traced back. Returns the size and the options, or `None` when nothing fits.
///
/// ```
/// use lgreco_core::testing::plans::textbook;
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

/// `solve` runs twice, on workspaces of different garbage, and must give the same plan bit for bit; the verifier must
/// accept it; infeasible must tell the smallest error there is. Returns what `solve` does.
pub fn check_solver<S>(table: &Table, budget: f64, workspace_len: usize, solve: S) -> Result<(Summary, Vec<u32>), Error>
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
            assert_eq!(summary.budget, budget);
            check::verify(table, options, summary).expect("a solver's plan passes the verifier");
        }
        Err(Error::Infeasible { budget: stated, smallest }) => {
            assert_eq!(*stated, budget);
            assert!(*smallest > budget, "infeasible, though {smallest} is within {budget}");
            assert!((smallest - rough).abs() <= 1e-9 * rough, "the smallest error is {rough}, not {smallest}");
        }
        Err(error) => panic!("{error}"),
    }
    first
}

/// Checks [`dp`] on an instance with a grid of `levels` cells.
pub fn check_dp(instance: &Instance, levels: u32) {
    let (table, budget) = (instance.table(), instance.budget);
    let len = dp::workspace_len(&table, levels);
    let _ =
        check_solver(&table, budget, len, |workspace, options| dp::solve(&table, budget, levels, workspace, options));
}

/// Checks [`dp`] against [`textbook`]: `layers` holds sizes and costs in cells; sizes are multiplied by `unit`, and the
/// budget is `levels` cells of 0.375.
pub fn check_dp_against_textbook(layers: &[Vec<(u64, usize)>], levels: usize, unit: u64) {
    let cell = 0.375;
    let choice = |&(size, cost): &(u64, usize)| crate::table::Choice { size: size * unit, error: cost as f64 * cell };
    let choices: Vec<_> = layers.iter().flatten().map(choice).collect();
    let ends: Vec<usize> = layers
        .iter()
        .scan(0, |end, layer| {
            *end += layer.len();
            Some(*end)
        })
        .collect();
    let table = Table::new(&choices, &ends).expect("a valid table");
    let (budget, cells) = (levels as f64 * cell, levels as u32);
    let found = check_solver(&table, budget, dp::workspace_len(&table, cells), |workspace, options| {
        dp::solve(&table, budget, cells, workspace, options)
    });
    match textbook(layers, levels) {
        Some((size, options)) => {
            let (summary, found) = found.expect("Algorithm 1 finds a plan");
            assert_eq!(summary.size, size * unit);
            assert_eq!(found, options);
        }
        None => assert!(matches!(found, Err(Error::Infeasible { .. }))),
    }
}

/// Checks [`plan::solve`] with every solver, for the instance's budget and for its reference plan's.
///
/// No plan is over budget in exact arithmetic (the verifier's); none is larger than the reference plan where that fits;
/// no lower bound exceeds the size of any plan found; the same input gives the same plan; all solvers agree on what is
/// infeasible, and the smallest error they tell is achievable; the exact plan is the smallest, and smaller than nothing
/// where it is proven.
pub fn check_solvers(instance: &Instance) {
    let table = instance.table();
    let reference = Budget::Defaults { alpha: 1.0, options: &instance.defaults };
    for budget in [Budget::Absolute(instance.budget), reference] {
        let Ok(limit) = budget.limit(&table) else { continue };
        let plans = solve_all(&table, budget);
        let smallest = plans.iter().flatten().map(|plan| plan.summary().size).min();
        for plan in plans.iter().flatten() {
            check::verify(&table, plan.options(), plan.summary()).expect("a solver's plan passes the verifier");
            assert_eq!(plan.summary().budget, limit);
            assert!(Some(plan.summary().lower_bound) <= smallest, "a lower bound above a plan: {plan:?}");
        }
        if budget == reference {
            let default_size: u64 = table.chosen(&instance.defaults).expect("options").map(|choice| choice.size).sum();
            assert!(smallest.is_some(), "the reference plan fits its own budget");
            assert!(plans.iter().flatten().all(|plan| plan.summary().size <= default_size));
        }
        match &plans[0] {
            Ok(best) => {
                assert!(plans.iter().all(Result::is_ok), "one solver's plan is infeasible for another: {plans:?}");
                assert_eq!(Some(best.summary().size), smallest, "the exact plan is not the smallest");
            }
            Err(Error::Infeasible { smallest, .. }) => {
                assert!(plans.iter().all(|plan| plan == &plans[0]), "the solvers tell different errors: {plans:?}");
                let enough = Budget::Absolute(*smallest);
                assert!(*smallest > limit);
                assert!(smallest.is_infinite() || solve_all(&table, enough).iter().all(Result::is_ok));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Every solver's plan, the exact one's first.
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
