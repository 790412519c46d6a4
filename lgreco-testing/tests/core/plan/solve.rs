use lgreco::Error;
use lgreco::plan::{Plan, Proof, Solver, Summary, budget::Budget, exact, solve, solve_against};
use lgreco::table::{Choice, Table};
use lgreco_testing::models::{Rows, model};
use lgreco_testing::{plans, tables::Instance};
use proptest::prelude::*;

proptest! {
    #[test]
    fn solvers_keep_their_promises(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        plans::check_solvers(&Instance::from_bytes(&bytes, 8, 8));
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(lgreco_testing::cases(40)))]

    #[test]
    fn solvers_keep_their_promises_on_larger_tables(seed in any::<u64>()) {
        plans::check_solvers(&Instance::from_seed(seed, 30, 20));
    }
}

fn layers(count: usize) -> Instance {
    let choices = [Choice { size: 8, error: 1.0 }, Choice { size: 4, error: 2.0 }];
    Instance {
        choices: choices.repeat(count),
        ends: (1..=count).map(|layer| 2 * layer).collect(),
        defaults: vec![0; count],
        budget: count as f64,
        size_limit: 8 * count as u64,
    }
}

/// On a grid of two cells, each of three errors is rounded up to one cell, so their sum does not fit. The reference
/// plan has these errors, and fits the budget in exact arithmetic.
#[test]
fn the_reference_plan_is_returned_where_the_grid_loses_it() {
    let mut instance = layers(3);
    instance.choices.push(Choice { size: 100, error: 0.0 });
    instance.choices.push(Choice { size: 4, error: 3.0 });
    instance.ends.push(8);
    instance.defaults.push(0);
    let table = instance.table();
    let shuffled = [1, 0, 0, 0];
    let budget = Budget::Defaults { alpha: 1.0, options: &shuffled };
    let own = solve(&table, Budget::Absolute(4.0), Solver::Dp { levels: 2 }).unwrap();
    let with_reference = solve(&table, budget, Solver::Dp { levels: 2 }).unwrap();
    assert_eq!((own.options(), own.summary().size), ([0, 0, 0, 0].as_slice(), 124));
    assert_eq!((with_reference.options(), with_reference.summary().size), (shuffled.as_slice(), 120));
    assert_eq!(with_reference.solver(), "dp");
}

#[test]
fn given_options_become_plans_only_within_the_budget() {
    let instance = layers(3);
    let plan = |budget, options| Plan::from_options(&instance.table(), Budget::Absolute(budget), "uniform", options);
    let summary = *plan(3.0, vec![0; 3]).unwrap().summary();
    assert_eq!((summary.size, summary.error), (24, 3.0));
    assert_eq!(summary.proof, Proof::Size { lower_bound: 24, budget: 3.0 });
    assert_eq!(plan(2.5, vec![0; 3]), Err(Error::OverBudget { error: 3.0, budget: 2.5 }));
    assert_eq!(plan(9.0, vec![2; 3]), Err(Error::NoSuchOption { layer: 0, option: 2, options: 2 }));
}

#[test]
fn a_workspace_beyond_memory_is_an_error() {
    let instance = layers(1 << 16);
    let solver = Solver::Dp { levels: u32::MAX };
    let found = solve(&instance.table(), Budget::Absolute(1e9), solver).unwrap_err();
    assert!(matches!(found, Error::OutOfMemory { words } if words as u64 > 1 << 31));
}

fn sizes(rows: Rows, layers: usize, options: usize, seed: u64, states: usize) -> Summary {
    let model = model(rows, layers, options, seed);
    let solver = Solver::Exact(exact::Limits { states });
    *solve(&model.table(), Budget::Absolute(model.budget), solver).unwrap().summary()
}

/// The lower bound of the size.
fn bound(summary: &Summary) -> u64 {
    let Proof::Size { lower_bound, .. } = summary.proof else { panic!("{summary:?}") };
    lower_bound
}

#[test]
fn more_states_never_give_a_larger_plan_or_a_weaker_bound() {
    // Number of states of the first attempt.
    const FIRST: usize = 1 << 14;
    let mut retried = 0;
    for (rows, seed) in [(Rows::Correlated, 5), (Rows::Correlated, 6), (Rows::SubsetSum, 1), (Rows::Spread, 2)] {
        let (few, many) = (sizes(rows, 60, 40, seed, FIRST), sizes(rows, 60, 40, seed, 2 * FIRST));
        retried += usize::from(!few.proven());
        assert!(many.size <= few.size && bound(&many) >= bound(&few), "{rows:?} {seed}");
    }
    assert!(retried > 0, "no instance needs a second attempt");
}

#[test]
fn a_reference_that_fits_bounds_every_budget() {
    let choices = [(100, 0.0), (50, 1.0), (100, 0.0), (50, 1.0), (100, 0.0), (50, 1.0)];
    let choices = choices.map(|(size, error)| Choice { size, error });
    let table = Table::new(&choices, &[2, 4, 6]).unwrap();
    let against = |budget, reference: &[u32]| {
        solve_against(&table, Budget::Absolute(budget), Some(reference), Solver::Dp { levels: 10 })
            .map(|plan| plan.summary().size)
    };
    assert_eq!(against(3.0, &[1, 1, 1]), Ok(150));
    assert_eq!(against(2.5, &[1, 1, 1]), Ok(200), "a reference over the budget does not count");
    assert_eq!(against(3.0, &[1, 1]), Err(Error::Length { what: "choices, one per layer", expected: 3, found: 2 }));
    assert_eq!(against(3.0, &[1, 1, 2]), Err(Error::NoSuchOption { layer: 2, option: 2, options: 2 }));
}
