//! Tests of the solver's steps that need private functions.

use super::*;
use crate::plan::Summary;
use crate::rng::Stream;
use crate::table::Choice;
use std::{vec, vec::Vec};

/// The kind of errors in a row.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rows {
    /// Errors fall smoothly as sizes grow. The layers' scales differ by many orders of magnitude.
    Smooth,
    /// Errors are log-uniform, so that few options are on the hull.
    Scattered,
    /// Errors and sizes lie nearly on one line, the same for all layers.
    Correlated,
    /// Errors and sizes lie exactly on the line, which makes a subset-sum problem.
    SubsetSum,
}

impl Rows {
    const ALL: [Rows; 4] = [Rows::Smooth, Rows::Scattered, Rows::Correlated, Rows::SubsetSum];
}

struct Model {
    choices: Vec<Choice>,
    ends: Vec<usize>,
    budget: f64,
}

impl Model {
    fn table(&self) -> Table<'_> {
        Table::new(&self.choices, &self.ends).unwrap()
    }
}

/// Makes a table and a budget. The budget is the sum of one error per layer: the error at a third of the layer's list,
/// sorted from large to small.
fn model(rows: Rows, layers: usize, options: usize, seed: u64) -> Model {
    let mut words = (0..).map(|i| Stream { seed, ..Stream::default() }.word(i));
    let mut draw = move || f64::from(words.next().unwrap()) / 4_294_967_296.0;
    let mut model = Model { choices: Vec::new(), ends: Vec::new(), budget: 0.0 };
    for _ in 0..layers {
        let elements = 64.0 * 2f64.powf(14.0 * draw());
        let scale = 1e-6 * 2f64.powf(30.0 * draw());
        let mut row: Vec<(f64, f64)> = (1..=options)
            .map(|step| {
                let part = step as f64 / options as f64;
                match rows {
                    Rows::Smooth => {
                        (part * elements, scale * (1.001 - part) / (1.0 + 20.0 * part) * (1.0 + 1e-4 * draw()))
                    }
                    Rows::Scattered => (draw() * elements, 1e-6 * 2f64.powf(30.0 * draw())),
                    Rows::Correlated | Rows::SubsetSum => {
                        let steepest = if rows == Rows::SubsetSum { 1.0 } else { 1.0 + 15.0 * scale.fract() };
                        let size = (1e5 * steepest * (part - 0.9 * draw() / options as f64)).floor();
                        let noise = if rows == Rows::SubsetSum { 0.0 } else { 0.01 * draw() };
                        (size, (16e5 - size) / 1e3 + noise)
                    }
                }
            })
            .collect();
        row.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut errors: Vec<f64> = row.iter().map(|choice| choice.1).collect();
        errors.sort_by(|a, b| b.total_cmp(a));
        model.budget += errors[options / 3];
        model.choices.extend(row.iter().zip(errors).map(|(&(size, _), error)| Choice { size: size as u64, error }));
        model.ends.push(model.choices.len());
    }
    model
}

fn attempted(table: &Table<'_>, budget: f64, states: usize) -> Attempt {
    let mut workspace = vec![0; attempt_workspace_len(table, Limits { states })];
    let mut choices = vec![0; table.layers()];
    attempt(table, Limit::Error(budget), Limits { states }, &mut workspace, &mut choices).unwrap()
}

fn solved(table: &Table<'_>, budget: f64, states: usize) -> Summary {
    let (mut workspace, mut choices) = (vec![0; workspace_len(table, Limits { states })], vec![0; table.layers()]);
    solve(table, budget, Limits { states }, &mut workspace, &mut choices).unwrap()
}

/// The proved lower bound of the size.
fn bound(summary: &Summary) -> u64 {
    let Proof::Size { lower_bound, .. } = summary.proof else { panic!("{summary:?}") };
    lower_bound
}

#[test]
fn algorithm_1_is_asked_where_its_plan_may_be_smaller() {
    let (mut asked, mut won, mut excluded) = (0, 0, 0);
    for rows in Rows::ALL {
        for seed in 0..6 {
            let model = model(rows, 20, 30, seed);
            let table = model.table();
            let mut workspace = vec![0; dp::workspace_len(&table, dp::LEVELS)];
            let dp = dp::solve(&table, model.budget, dp::LEVELS, &mut workspace, &mut [0; 20]).unwrap();
            for states in [1, 50, 1 << 12] {
                let exact = solved(&table, model.budget, states);
                let Attempt { summary, rival } = attempted(&table, model.budget, states);
                assert!(rival || summary.size <= dp.size, "{rows:?} seed {seed}: {summary:?}, {dp:?}");
                excluded += usize::from(!rival && !exact.proven());
                asked += usize::from(rival);
                won += usize::from(exact.size < summary.size);
            }
        }
    }
    assert!(asked > 0 && won > 0 && excluded > 5, "{asked}, {won}, {excluded}");
}

/// Branching alone proves the optimum of most tables. So this test runs the search without branching.
#[test]
fn the_search_proves_what_branching_proves() {
    let mut searched = 0;
    for rows in Rows::ALL {
        for (layers, options, seed) in
            [(1, 9, 1), (2, 30, 5), (5, 6, 2), (8, 12, 6), (12, 30, 3), (20, 10, 7), (30, 40, 8), (40, 20, 4)]
        {
            let model = model(rows, layers, options, seed);
            let (table, states) = (model.table(), 1 << 14);
            let summary = solved(&table, model.budget, states);
            let (goal, mut choices) = (Goal::new(&table, Limit::Error(model.budget), BITS), vec![0; layers]);
            let mut best = Best::new(&table, goal, &mut choices);
            let mut workspace = vec![0; attempt_workspace_len(&table, Limits { states })];
            let mut relaxed = Relaxed::new(&table, &goal, Rounding::Down, states, &mut workspace).unwrap();
            best.offer_least();
            searched += usize::from(relaxed.bound < best.objective);
            relaxed.search(&mut best);
            let optimum = bound(&summary)..=summary.size;
            assert!(
                optimum.contains(&best.objective) || best.objective > relaxed.bound,
                "{rows:?} {layers} x {options}"
            );
            assert!(relaxed.bound <= summary.size);
            if !matches!(rows, Rows::Correlated | Rows::SubsetSum) {
                assert_eq!((relaxed.bound, bound(&summary)), (best.objective, summary.size), "{rows:?} {layers}");
            }
        }
    }
    assert!(searched > 20, "{searched} searches");
}

#[test]
fn algorithm_1_is_not_asked_where_few_states_are_enough() {
    for rows in [Rows::Smooth, Rows::Scattered] {
        for seed in 0..4 {
            let model = model(rows, 300, 100, seed);
            let Attempt { summary, rival } = attempted(&model.table(), model.budget, 256);
            assert!(summary.gap() <= 2e-5 && !rival, "{rows:?} seed {seed}: {summary:?}");
        }
    }
}
