//! Compares the solver under size limits with enumeration and with dynamic programming over sizes.

use proptest::prelude::*;

use super::{DEFAULT, any_rows, table_of};
use lgreco::Error;
use lgreco::plan::exact::{Limits, solve, workspace_len};
use lgreco::plan::{Limit, Proof, Summary, dp};
use lgreco::table::{Choice, Table};
use lgreco_testing::models::{Rows, model};
use lgreco_testing::oracle::{by_total_size, check_against, check_exact, exhaustive};

fn bound(summary: &Summary) -> f64 {
    let Proof::Error { lower_bound, .. } = summary.proof else { panic!("{summary:?}") };
    lower_bound
}

fn run(table: &Table, size: u64) -> Result<(Summary, Vec<u32>), Error> {
    let (mut workspace, mut plan) = (vec![0; workspace_len(table, DEFAULT)], vec![9; table.layers()]);
    solve(table, Limit::Size(size), DEFAULT, &mut workspace, &mut plan).map(|summary| (summary, plan))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(lgreco_testing::cases(2000)))]

    #[test]
    fn agrees_with_enumeration(rows in any_rows(), part in 0.0..1.2, shift in 0u32..60, relative in any::<bool>()) {
        let (choices, ends) = table_of(&rows);
        let table = Table::new(&choices, &ends).unwrap();
        let largest: u64 = rows.iter().map(|row| row.iter().map(|choice| choice.0).max().unwrap()).sum();
        let limit = Limit::Size((part * if relative { largest as f64 } else { (1u64 << shift) as f64 }) as u64);
        let optimum = exhaustive(&table, limit);
        check_against(&table, limit, DEFAULT, optimum);
        for states in [0, 1, 2, 7] {
            check_against(&table, limit, Limits { states }, optimum);
        }
        if optimum.is_some() {
            prop_assert!(check_exact(&table, limit, DEFAULT).unwrap().proven());
        }
    }

    #[test]
    fn agrees_with_dynamic_programming_over_sizes(
        rows in prop::collection::vec(prop::collection::vec((0u64..60, 0u32..5000), 1..12), 1..25),
        part in 0.0..0.6,
    ) {
        let rows: Vec<Vec<(u64, f64)>> =
            rows.into_iter().map(|row| row.into_iter().map(|(s, e)| (s, f64::from(e) / 64.0)).collect()).collect();
        let (choices, ends) = table_of(&rows);
        let table = Table::new(&choices, &ends).unwrap();
        let limit = Limit::Size((part * 60.0 * rows.len() as f64) as u64);
        let optimum = by_total_size(&table, limit);
        check_against(&table, limit, DEFAULT, optimum);
        check_against(&table, limit, Limits { states: 40 }, optimum);
        if let Some(Limit::Error(optimum)) = optimum {
            let summary = check_exact(&table, limit, DEFAULT).unwrap();
            // These errors are whole units, so nothing is rounded.
            prop_assert_eq!((summary.error, bound(&summary)), (optimum, optimum));
        }
    }
}

/// The size limit is the size of the best plan for an error budget. If the plan for the size limit is proven, its error
/// must be at most that of the first plan, up to the solver's resolution. If the first plan is proven, and the second
/// one is within the error budget, both must have the same size.
#[test]
fn models_of_every_kind_keep_their_word_and_the_usual_ones_are_proved() {
    let (mut improved, mut proved) = (0, 0);
    let sizes = super::model_sizes();
    for rows in Rows::ALL {
        for &(layers, options) in sizes {
            let model = model(rows, layers, options, 11);
            let table = model.table();
            let smallest = check_exact(&table, model.budget, Limits::default()).unwrap();
            let limit = Limit::Size(smallest.size);
            let full = check_exact(&table, limit, Limits::default()).unwrap();
            let none = check_exact(&table, limit, Limits { states: 0 }).unwrap();
            assert!(bound(&none) <= bound(&full) && full.error <= none.error);
            assert!(!full.proven() || full.error <= smallest.error * (1.0 + Proof::RESOLUTION));
            assert!(!smallest.proven() || full.error > model.budget || full.size == smallest.size, "{rows:?} {layers}");
            improved += usize::from(full.error < none.error && bound(&full) > bound(&none));
            proved += usize::from(full.proven());
            if !matches!(rows, Rows::Correlated | Rows::SubsetSum) {
                assert!(full.proven(), "{rows:?} {layers} x {options}: {full:?}");
            }
        }
    }
    assert!(
        improved > 2 * sizes.len() - 1 && proved > 10 * sizes.len(),
        "the search improved {improved} plans, {proved} were proved"
    );
}

#[test]
fn never_more_error_than_the_plan_of_algorithm_1() {
    let (mut unproved, mut better) = (0, 0);
    for rows in Rows::ALL {
        for seed in 0..3 {
            let model = model(rows, 20, 30, seed);
            let table = model.table();
            let size = check_exact(&table, model.budget, Limits { states: 50 }).unwrap().size;
            let mut workspace = vec![0; dp::workspace_len(&table, dp::LEVELS)];
            let dp = dp::solve(&table, Limit::Size(size), dp::LEVELS, &mut workspace, &mut [0; 20]).unwrap();
            for states in [1, 50, 1 << 12] {
                let exact = check_exact(&table, Limit::Size(size), Limits { states }).unwrap();
                assert!(exact.error <= dp.error, "{rows:?} seed {seed}: {exact:?}, {dp:?}");
                assert!(bound(&dp) <= exact.error);
                unproved += usize::from(!exact.proven());
                better += usize::from(exact.error < dp.error);
            }
        }
    }
    assert!(unproved > 5 && better > 50, "{unproved}, {better}");
}

/// A table is scaled to both ends and to the middle of the range of f64. All errors are multiples of one unit, so each
/// scale has the same proven plan.
#[test]
fn plans_are_proved_at_both_ends_of_the_numbers() {
    let model = model(Rows::TopK, 12, 20, 3);
    let errors = model.choices.iter().map(|choice| (choice.error * 1e4).round());
    let choices: Vec<Choice> = model.choices.iter().zip(errors).map(|(c, error)| Choice { error, ..*c }).collect();
    let largest: f64 = choices.iter().map(|choice| choice.error).sum();
    let top = 2f64.powi(1023 - largest.log2().floor() as i32 - 1);
    let size = 12 * choices.iter().map(|choice| choice.size).sum::<u64>() / 240;
    let plans = [1.0, top, f64::MIN_POSITIVE, 5e-324].map(|scale| {
        let choices: Vec<Choice> = choices.iter().map(|c| Choice { error: c.error * scale, ..*c }).collect();
        let table = Table::new(&choices, &model.ends).unwrap();
        let (summary, plan) = run(&table, size).unwrap();
        lgreco::plan::check::verify(&table, &plan, &summary).unwrap();
        assert!(summary.error > 0.0 && bound(&summary) == summary.error, "{scale:e}: {summary:?}");
        (summary.size, plan)
    });
    assert!(plans[1..].iter().all(|plan| *plan == plans[0]));
}

/// Huge errors may mark options that should not be chosen. Huge errors must not reduce the precision of small errors.
/// If a size limit leaves only such options, their errors may sum to infinity, and the plan is refused.
#[test]
fn huge_errors_hide_no_small_ones() {
    for huge in [1e30, 1e300, f64::MAX] {
        let row = [(9, 0.1), (7, 0.3 + 1e-9), (5, 0.9), (0, huge)].to_vec();
        let rows = vec![row; 5];
        let (choices, ends) = table_of(&rows);
        let table = Table::new(&choices, &ends).unwrap();
        for size in [25, 26, 31, 40, 44, 45, 60] {
            let optimum = exhaustive(&table, Limit::Size(size));
            check_against(&table, Limit::Size(size), DEFAULT, optimum);
            assert!(run(&table, size).unwrap().0.proven());
        }
        let forced = run(&table, 9);
        match huge < f64::MAX {
            true => assert!(forced.unwrap().0.proven()),
            false => assert_eq!(forced.unwrap_err().code(), 2),
        }
    }
}

#[test]
fn sizes_up_to_the_last_bit_and_down_to_none() {
    let (choices, ends) =
        table_of(&[[(u64::MAX - 9, 0.0), (u64::MAX - 10, 1.0)].to_vec(), [(9, 0.0), (7, 1.5), (0, 4.0)].to_vec()]);
    let table = Table::new(&choices, &ends).unwrap();
    for (size, error) in [(u64::MAX, 0.0), (u64::MAX - 1, 1.0), (u64::MAX - 2, 1.5), (u64::MAX - 3, 2.5)] {
        check_against(&table, Limit::Size(size), DEFAULT, Some(Limit::Error(error)));
        assert!(run(&table, size).unwrap().0.proven());
    }
    let smallest = u64::MAX - 10;
    assert_eq!(run(&table, smallest).unwrap().0.error, 5.0);
    let limit = smallest - 1;
    let told = Error::SizeInfeasible { limit, smallest, error: 5.0 };
    assert_eq!(check_exact(&table, Limit::Size(limit), DEFAULT), Err(told));
    let (choices, ends) = table_of(&[[(0, 2.0), (0, 0.5), (1, 0.0)].to_vec()]);
    let table = Table::new(&choices, &ends).unwrap();
    let (summary, plan) = run(&table, 0).unwrap();
    assert_eq!((summary.size, summary.error, plan), (0, 0.5, vec![1]));
}

#[test]
fn of_equal_errors_the_smaller_size_then_the_lower_index() {
    let (choices, ends) = table_of(&[[(9, 1.0), (7, 1.0), (7, 1.0), (6, 2.0)].to_vec()]);
    let table = Table::new(&choices, &ends).unwrap();
    assert_eq!(run(&table, 9).unwrap().1, [1]);
}

/// If more than 256 layers each have sizes as large as the limit, sums of units do not fit 128 bits.
#[test]
fn many_layers_as_wide_as_the_limit() {
    for layers in [255, 400, 1000] {
        let rows: Vec<Vec<(u64, f64)>> = (0..layers)
            .map(|at| [(0, 20.0), (60 + at as u64 % 5, 10.0 - (at % 7) as f64), (64 - at as u64 % 9, 3.0)].to_vec())
            .collect();
        let (choices, ends) = table_of(&rows);
        let table = Table::new(&choices, &ends).unwrap();
        for size in [32, 60, 64, 200, 6400] {
            check_against(&table, Limit::Size(size), DEFAULT, by_total_size(&table, Limit::Size(size)));
            assert!(check_exact(&table, Limit::Size(size), DEFAULT).unwrap().proven());
        }
    }
}
