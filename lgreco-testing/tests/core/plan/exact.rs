//! Compares the solver with enumeration and with dynamic programming over sizes.

mod size;

use proptest::prelude::*;

use lgreco::Error;
use lgreco::plan::exact::{Limits, solve, workspace_len};
use lgreco::plan::{Limit, Proof, Summary, dp};
use lgreco::table::{Choice, Table};
use lgreco_testing::models::{Rows, model};
use lgreco_testing::oracle::{by_total_size, check_against, check_exact, exhaustive};

const DEFAULT: Limits = Limits { states: 1 << 14 };

/// The lower bound of the size.
fn bound(summary: &Summary) -> u64 {
    let Proof::Size { lower_bound, .. } = summary.proof else { panic!("{summary:?}") };
    lower_bound
}

fn table_of(rows: &[Vec<(u64, f64)>]) -> (Vec<Choice>, Vec<usize>) {
    let choices = rows.iter().flatten().map(|&(size, error)| Choice { size, error }).collect();
    let ends = rows.iter().scan(0, |end, row| {
        *end += row.len();
        Some(*end)
    });
    (choices, ends.collect())
}

/// Draws some sizes and errors from small sets, so that ties, zeros and duplicates are common. Others have arbitrary
/// magnitudes.
fn any_rows() -> impl Strategy<Value = Vec<Vec<(u64, f64)>>> {
    let size = prop_oneof![0u64..6, 0u64..1000, (0u64..50).prop_map(|x| x << 50), (0u32..58).prop_map(|x| 1 << x)];
    let error = prop_oneof![
        (0u32..8).prop_map(f64::from),
        (0u32..20).prop_map(|x| f64::from(x) * 0.1),
        0.0..1.0,
        (-320i32..300).prop_map(|x| 10f64.powi(x)),
        Just(5e-324),
        Just(-0.0),
    ];
    prop::collection::vec(prop::collection::vec((size, error), 1..6), 1..7)
}

fn any_budget() -> impl Strategy<Value = (f64, f64)> {
    (prop_oneof![Just(1.0), Just(0.1), Just(0.0), (-320i32..300).prop_map(|x| 10f64.powi(x))], 0.0..1.5)
}

/// A table is scaled to both ends and to the middle of the range of f64. All errors are multiples of one number, so each scale
/// has the same proven plan.
#[test]
fn plans_are_proved_at_both_ends_of_the_numbers() {
    let stream = lgreco::rng::Stream::default();
    let mut proved = 0;
    for case in 0..300u64 {
        let word = |i: u64| u64::from(stream.word(case << 20 | i));
        let (layers, options) = (1 + word(0) % 20, 1 + word(1) % 12);
        let option = |l: u64, o: u64| (word(2 + 99 * l + o) % 5000, word(3000 + 99 * l + o) as f64);
        let rows: Vec<Vec<(u64, f64)>> = (0..layers).map(|l| (0..options).map(|o| option(l, o)).collect()).collect();
        let (choices, ends) = table_of(&rows);
        let largest: f64 = rows.iter().map(|row| row.iter().map(|choice| choice.1).fold(0.0, f64::max)).sum();
        let budget = (largest * [1.0, 0.7, 0.3][case as usize % 3]).floor();
        let top = 2f64.powi(1023 - largest.log2().floor() as i32);
        let mut plans = [1.0, top, f64::MIN_POSITIVE, 5e-324].map(|scale| {
            let choices: Vec<_> = choices.iter().map(|c| Choice { error: c.error * scale, ..*c }).collect();
            let table = Table::new(&choices, &ends).unwrap();
            let mut plan = vec![0; layers as usize];
            let mut workspace = vec![0; workspace_len(&table, DEFAULT)];
            let summary = solve(&table, budget * scale, DEFAULT, &mut workspace, &mut plan).ok()?;
            lgreco::plan::check::verify(&table, &plan, &summary).unwrap();
            assert!(summary.proven(), "{scale:e}: {summary:?}");
            proved += 1;
            Some((summary.size, plan, summary.error / scale))
        });
        let first = plans[0].take();
        plans[1..].iter().for_each(|plan| assert_eq!(*plan, first));
    }
    assert!(proved > 400, "{proved}");
}

/// The smallest plan exceeds the budget by less than the solver's resolution. The best plan has a layer of 16 bits, for which
/// the solver may first find an option of 2^50 bits.
#[test]
fn a_best_plan_larger_than_all_that_is_left_is_not_proved() {
    let rows = vec![vec![(3, 1e-36), (0, 0.769)], vec![(16, 1e-36), (1 << 50, 5e-324), (0, 1.0)]];
    let (choices, ends) = table_of(&rows);
    let table = Table::new(&choices, &ends).unwrap();
    for states in [DEFAULT.states, 0, 1, 2, 7] {
        check_against(&table, 1.0, Limits { states }, Some(Limit::Size(16)));
    }
}

/// The budget is the largest f64. Only the sum of the errors exceeds this budget.
#[test]
fn sums_beyond_the_largest_number_are_no_plans() {
    let half = f64::MAX / 2.0;
    let rows = vec![vec![(10, half), (1, half.next_up())]; 2];
    let (choices, ends) = table_of(&rows);
    let table = Table::new(&choices, &ends).unwrap();
    check_against(&table, f64::MAX, DEFAULT, exhaustive(&table, Limit::Error(f64::MAX)));
    let mut plan = [9; 2];
    let summary = solve(&table, f64::MAX, DEFAULT, &mut vec![0; workspace_len(&table, DEFAULT)], &mut plan);
    let summary = summary.unwrap();
    assert_eq!((summary.size, plan, summary.proven()), (20, [0, 0], true));
    let found = solve(&table, half, DEFAULT, &mut vec![0; workspace_len(&table, DEFAULT)], &mut plan);
    assert_eq!(found.err(), Some(Error::Infeasible { budget: half, smallest: f64::MAX, size: 20 }));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(lgreco_testing::cases(2000)))]

    #[test]
    fn agrees_with_enumeration(rows in any_rows(), (unit, part) in any_budget(), relative in any::<bool>()) {
        let (choices, ends) = table_of(&rows);
        let table = Table::new(&choices, &ends).unwrap();
        let largest: f64 = rows.iter().map(|row| row.iter().map(|choice| choice.1).fold(0.0, f64::max)).sum();
        let budget = if relative { largest * part } else { unit * (part * 10.0).floor() };
        let optimum = exhaustive(&table, Limit::Error(budget));
        check_against(&table, budget, DEFAULT, optimum);
        for states in [0, 1, 2, 7] {
            check_against(&table, budget, Limits { states }, optimum);
        }
        let exact = |choice: &Choice| choice.error == 0.0 || choice.error >= budget * 2f64.powi(-66);
        if optimum.is_some() && choices.iter().all(exact) {
            prop_assert!(check_exact(&table, budget, DEFAULT).unwrap().proven());
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
        let budget = part * 5000.0 / 64.0 * rows.len() as f64;
        let optimum = by_total_size(&table, Limit::Error(budget));
        check_against(&table, budget, DEFAULT, optimum);
        check_against(&table, budget, Limits { states: 40 }, optimum);
        if optimum.is_some() {
            prop_assert!(check_exact(&table, budget, DEFAULT).unwrap().proven());
        }
    }
}

/// Numbers of layers and options of the models. Large models are only tested with LGRECO_FULL.
fn model_sizes() -> &'static [(usize, usize)] {
    match std::env::var_os("LGRECO_FULL") {
        Some(_) => &[(1, 9), (12, 30), (60, 40)],
        None => &[(1, 9), (12, 30)],
    }
}

#[test]
fn models_of_every_kind_keep_their_word_and_the_usual_ones_are_proved() {
    let mut improved = 0;
    for rows in Rows::ALL {
        for &(layers, options) in model_sizes() {
            let model = model(rows, layers, options, 11);
            let full = check_exact(&model.table(), model.budget, Limits::default()).unwrap();
            let none = check_exact(&model.table(), model.budget, Limits { states: 0 }).unwrap();
            assert!(bound(&none) <= bound(&full) && full.size <= none.size);
            improved += usize::from(full.size < none.size && bound(&full) > bound(&none));
            if !matches!(rows, Rows::Correlated | Rows::SubsetSum) {
                assert!(full.proven(), "{rows:?} {layers} x {options}: {full:?}");
            }
        }
    }
    assert!(improved > 3, "the search improved only {improved} plans");
}

/// In exact arithmetic, the sum of ten errors of 0.1 exceeds 1, although the rounded sum does not. The sum of nine does not
/// exceed 1.
#[test]
fn a_sum_that_only_rounds_to_the_budget_is_over_it() {
    let rows: Vec<Vec<(u64, f64)>> = (0..10).map(|_| [(8, 0.1), (16, 0.0)].to_vec()).collect();
    let (choices, ends) = table_of(&rows);
    let table = Table::new(&choices, &ends).unwrap();
    check_against(&table, 1.0, DEFAULT, Some(Limit::Size(88)));
    check_against(&table, 1f64.next_up(), DEFAULT, Some(Limit::Size(80)));
    assert!(check_exact(&table, 1.0, DEFAULT).unwrap().proven());
}

#[test]
fn impossible_budgets_are_named() {
    let (choices, ends) = table_of(&[[(8, 0.5), (16, 0.25)].to_vec(), [(1, 0.125)].to_vec()]);
    let table = Table::new(&choices, &ends).unwrap();
    assert_eq!(check_exact(&table, 0.3, DEFAULT), Err(Error::Infeasible { budget: 0.3, smallest: 0.375, size: 17 }));
    for budget in [f64::NAN, f64::INFINITY, -1.0, f64::NEG_INFINITY] {
        let found = solve(&table, budget, DEFAULT, &mut vec![0; workspace_len(&table, DEFAULT)], &mut [0; 2]);
        assert!(matches!(found, Err(Error::Budget { .. })), "{found:?}");
    }
    assert!(matches!(solve(&table, 1.0, DEFAULT, &mut [], &mut [0; 2]), Err(Error::Length { .. })));
    let mut workspace = vec![0; workspace_len(&table, DEFAULT)];
    assert!(matches!(solve(&table, 1.0, DEFAULT, &mut workspace, &mut [0; 3]), Err(Error::Length { .. })));
}

#[test]
fn of_equal_sizes_the_smaller_error_then_the_lower_index() {
    let (choices, ends) = table_of(&[[(9, 0.0), (8, 1.0), (8, 0.5), (8, 0.5)].to_vec()]);
    let table = Table::new(&choices, &ends).unwrap();
    let mut plan = [0];
    solve(&table, 2.0, DEFAULT, &mut vec![0; workspace_len(&table, DEFAULT)], &mut plan).unwrap();
    assert_eq!(plan, [2]);
}

/// The errors are too small to differ in the solver's units. The solver must still find a good plan, and a correct
/// lower bound.
#[test]
fn errors_below_the_resolution_are_rounded_both_ways() {
    let rows = [[(1 << 50, 1e-54), (363, 1e-38)].to_vec(), [(65, 0.01), (1, 0.1)].to_vec()];
    let (choices, ends) = table_of(&rows);
    let table = Table::new(&choices, &ends).unwrap();
    let summary = check_exact(&table, 0.1, DEFAULT).unwrap();
    assert_eq!((summary.size, bound(&summary)), (428, 364));
}

/// If more than 256 layers each have errors as large as the budget, sums of units do not fit 128 bits.
#[test]
fn many_layers_as_wide_as_the_budget() {
    for layers in [255, 400, 1000] {
        let rows: Vec<Vec<(u64, f64)>> = (0..layers)
            .map(|at| [(20, 0.0), (10 - at as u64 % 7, 0.875), (3, 1.0 - at as f64 / 1024.0)].to_vec())
            .collect();
        let (choices, ends) = table_of(&rows);
        let table = Table::new(&choices, &ends).unwrap();
        for budget in [0.5, 0.9375, 1.0, 3.0, 100.0] {
            check_against(&table, budget, DEFAULT, by_total_size(&table, Limit::Error(budget)));
            assert!(check_exact(&table, budget, DEFAULT).unwrap().proven());
        }
    }
}

#[test]
fn sizes_up_to_the_last_bit() {
    let (choices, ends) =
        table_of(&[[(u64::MAX - 9, 0.0), (u64::MAX - 10, 1.0)].to_vec(), [(9, 0.0), (7, 1.0)].to_vec()]);
    let table = Table::new(&choices, &ends).unwrap();
    for (budget, optimum) in [(0.0, u64::MAX), (1.0, u64::MAX - 2), (2.0, u64::MAX - 3)] {
        assert_eq!(check_exact(&table, budget, DEFAULT).unwrap().size, optimum);
        check_against(&table, budget, DEFAULT, Some(Limit::Size(optimum)));
    }
}

#[test]
fn never_larger_than_the_plan_of_algorithm_1() {
    let mut unproved = 0;
    for rows in Rows::ALL {
        for seed in 0..3 {
            let model = model(rows, 20, 30, seed);
            let table = model.table();
            let mut workspace = vec![0; dp::workspace_len(&table, dp::LEVELS)];
            let dp = dp::solve(&table, model.budget, dp::LEVELS, &mut workspace, &mut [0; 20]).unwrap();
            for states in [1, 50, 1 << 12] {
                let exact = check_exact(&table, model.budget, Limits { states }).unwrap();
                assert!(exact.size <= dp.size, "{rows:?} seed {seed}: {exact:?}, {dp:?}");
                unproved += usize::from(!exact.proven());
            }
        }
    }
    assert!(unproved > 5, "{unproved}");
}

/// Uses a number of states that the solver can search in about two milliseconds.
#[test]
fn few_states_certify_one_part_in_ten_thousand_on_errors_of_many_magnitudes() {
    let mut branched = 0;
    for rows in [Rows::TopK, Rows::Spread, Rows::Scales, Rows::Scattered, Rows::Exponential] {
        for seed in 0..4 {
            let model = model(rows, 300, 100, seed);
            let (table, limits) = (model.table(), Limits { states: 256 });
            let mut workspace = vec![0; workspace_len(&table, limits)];
            let mut solve =
                |states| solve(&table, model.budget, Limits { states }, &mut workspace, &mut [0; 300]).unwrap();
            let (summary, rounded) = (solve(limits.states), solve(0));
            assert!(summary.gap() <= 2e-5, "{rows:?} seed {seed}: {summary:?}");
            assert!(bound(&rounded) <= summary.size && bound(&summary) <= rounded.size);
            branched += usize::from(rounded.gap() > 1e-4);
        }
    }
    assert!(branched > 4, "rounding alone was enough but for {branched}");
}
