//! Times the exact solver and checks its answers. The unit (floor) is the time to sort all options by error once.

use std::hint::black_box;
use std::time::Instant;

use lgreco::plan::exact::{Limits, solve, workspace_len};
use lgreco::plan::{Limit, Summary};
use lgreco::table::{Choice, Table};
use lgreco_testing::models::{Model, Rows, model};
use lgreco_testing::oracle::by_total_size;

const ROUNDING_ONLY: Limits = Limits { states: 0 };
/// Number of states with which tables of 300 layers and 100 options take at most 2 ms.
const BRANCHING: Limits = Limits { states: 256 };
const SEEDS: u64 = 5;

fn seconds<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let start = Instant::now();
    let result = work();
    (start.elapsed().as_secs_f64(), result)
}

/// The model's error budget or, if `sized`, the size of the plan for this budget.
fn limit(model: &Model, sized: bool) -> Limit {
    let (table, limits) = (model.table(), BRANCHING);
    let mut workspace = vec![0; workspace_len(&table, limits)];
    let solved = solve(&table, model.budget, limits, &mut workspace, &mut vec![0; table.layers()]);
    if sized { Limit::Size(solved.unwrap().size) } else { Limit::Error(model.budget) }
}

/// Sorts the model's options and solves for a plan, in turn, `rounds` times. Returns the shortest time of a sort and of
/// a solution, in seconds, and the solver's summary.
fn measure(model: &Model, limit: Limit, limits: Limits, rounds: usize) -> (f64, f64, Summary) {
    let table = model.table();
    let mut workspace = vec![0; workspace_len(&table, limits)];
    let mut choices = vec![0; table.layers()];
    let (mut floor, mut least, mut answer) = (f64::INFINITY, f64::INFINITY, None);
    for _ in 0..rounds {
        let mut rows = model.choices.clone();
        let (time, ()) = seconds(|| {
            rows.sort_unstable_by(|a, b| a.error.total_cmp(&b.error));
            black_box(&mut rows);
        });
        floor = floor.min(time);
        let (time, summary) = seconds(|| solve(&table, limit, limits, &mut workspace, &mut choices).unwrap());
        least = least.min(time);
        assert!(answer.replace(summary).is_none_or(|before| before == summary));
    }
    (floor, least, answer.unwrap())
}

/// Prints the times of the slowest of several seeds. Asserts that no gap exceeds `largest_gap`.
fn report(rows: Rows, layers: usize, limits: Limits, rounds: usize, largest_gap: f64, target: &str) {
    for sized in [false, true] {
        report_within(sized, rows, layers, limits, rounds, largest_gap, target);
    }
}

fn report_within(
    sized: bool,
    rows: Rows,
    layers: usize,
    limits: Limits,
    rounds: usize,
    largest_gap: f64,
    target: &str,
) {
    let runs = (0..SEEDS).map(|seed| {
        let model = model(rows, layers, 100, seed);
        measure(&model, limit(&model, sized), limits, rounds)
    });
    let (mut slowest, mut gap, mut proved) = ((0.0, 0.0), 0.0f64, 0);
    for (floor, time, summary) in runs {
        assert!(summary.gap() <= largest_gap, "{rows:?} x {layers}: gap above {largest_gap}: {summary:?}");
        proved += u32::from(summary.proven());
        gap = gap.max(summary.gap());
        if time > slowest.1 {
            slowest = (floor, time);
        }
    }
    println!(
        "{rows:?} {layers} x 100 within {}, {} states: {:.1} x floor, {:.3} ms, {proved}/{SEEDS} proved, largest gap {gap:.1e} ({target})",
        if sized { "a size" } else { "an error" },
        limits.states,
        slowest.1 / slowest.0,
        slowest.1 * 1e3,
    );
}

/// Asserts that the proven optima are the same as those of dynamic programming over total sizes.
fn check_against_oracle(rows: Rows) {
    let model = model(rows, 21, 60, 1);
    let bytes: Vec<Choice> =
        model.choices.iter().map(|choice| Choice { size: choice.size / 8, error: choice.error }).collect();
    assert!(model.choices.iter().all(|choice| choice.size % 8 == 0));
    let table = Table::new(&bytes, &model.ends).unwrap();
    let (_, _, smallest) = measure(&model, Limit::Error(model.budget), Limits::default(), 1);
    let optimum = by_total_size(&table, Limit::Error(model.budget));
    let size = smallest.size / 8;
    assert!(smallest.proven() && Some(Limit::Size(size)) == optimum, "{rows:?}: {smallest:?}, optimum {optimum:?}");
    let (_, _, most_exact) = measure(&model, Limit::Size(smallest.size), Limits::default(), 1);
    let optimum = by_total_size(&table, Limit::Size(size));
    // The oracle's sums are rounded, so the errors may differ slightly.
    let close = |error: f64| (most_exact.error / error - 1.0).abs() < 1e-12;
    let agrees = matches!(optimum, Some(Limit::Error(error)) if close(error));
    assert!(most_exact.proven() && agrees, "{rows:?}: {most_exact:?}, optimum {optimum:?}");
}

fn main() {
    [Rows::TopK, Rows::Spread, Rows::Scattered].into_iter().for_each(check_against_oracle);
    println!(
        "floor: all options sorted by error once; times are the slowest of {SEEDS} tables, each the least of several runs"
    );
    for rows in [Rows::TopK, Rows::Qsgd, Rows::PowerSgd, Rows::Hybrid] {
        report(rows, 150, Limits::default(), 7, 0.0, "target: proved in 5 ms");
    }
    let magnitudes = [Rows::TopK, Rows::Spread, Rows::Scales, Rows::Scattered, Rows::Exponential];
    for rows in magnitudes {
        report(rows, 300, ROUNDING_ONLY, 7, 1.0, "the relaxation and its roundings alone");
    }
    for rows in magnitudes {
        report(rows, 300, BRANCHING, 7, 1e-4, "target: gap 1e-4 in 2 ms");
    }
    for rows in magnitudes {
        report(rows, 300, Limits::default(), 7, 0.0, "target: proved in 250 ms");
    }
    for rows in [Rows::Correlated, Rows::SubsetSum, Rows::Equal, Rows::Multiples, Rows::HugeSizes] {
        report(rows, 150, Limits::default(), 1, 1e-4, "hard: bounded by the limit");
    }
}
