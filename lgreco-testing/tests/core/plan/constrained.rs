//! Compares plans with groups and fixed options with an enumeration of all plans.

use lgreco::plan::{self, Constraints, Limit, Merged, Plan, Proof, Solver, baseline, budget::Budget, check};
use lgreco::table::{Choice, NamedTable, Table};
use lgreco::{Error, plan::exact::Limits};
use lgreco_testing::oracle::exhaustive_among;
use proptest::prelude::*;

/// A small table with groups and fixed options. Possibly no plan satisfies these constraints. Options have one of four
/// labels, sometimes repeated.
#[derive(Clone, Debug)]
struct Case {
    layers: Vec<Vec<(char, u64, f64)>>,
    groups: Vec<Vec<usize>>,
    fixed: Vec<(usize, u32)>,
}

impl Case {
    fn table(&self) -> NamedTable {
        let mut builder = NamedTable::builder("any");
        for (layer, options) in self.layers.iter().enumerate() {
            let options = options.iter().map(|&(label, size, error)| (label.to_string(), Choice { size, error }));
            builder.layer(format!("layer {layer}"), 1, None, options);
        }
        builder.build().unwrap()
    }

    fn constraints(&self) -> Constraints {
        let mut constraints = Constraints::default();
        for group in &self.groups {
            constraints.group(group.clone());
        }
        for &(layer, option) in &self.fixed {
            constraints.fix(layer, option);
        }
        constraints
    }

    /// Whether a plan keeps the constraints. `NamedTable::merged` merges groups, but this function compares a group's
    /// layers one by one.
    fn allows(&self, plan: &[u32]) -> bool {
        let label = |layer: usize| {
            let options = &self.layers[layer][..=plan[layer] as usize];
            let label = options[plan[layer] as usize].0;
            (label, options.iter().filter(|option| option.0 == label).count())
        };
        // If several options are fixed for a layer, the last one applies.
        let fixed = |layer| self.fixed.iter().rev().find(|fixed| fixed.0 == layer);
        self.groups.iter().all(|group| group.iter().all(|&layer| label(layer) == label(group[0])))
            && (0..plan.len()).all(|layer| fixed(layer).is_none_or(|&(_, option)| plan[layer] == option))
    }
}

/// Up to 5 layers of up to 4 options. Errors are small multiples of `unit`.
fn any_case(unit: f64) -> impl Strategy<Value = Case> {
    let option =
        (prop::sample::select(vec!['a', 'b', 'c', 'd']), 0u64..9, (0u32..9).prop_map(move |x| unit * f64::from(x)));
    let layers = prop::collection::vec(prop::collection::vec(option, 1..5), 1..6);
    layers.prop_flat_map(|layers| {
        let count = layers.len();
        let groups = prop::collection::vec(prop::collection::vec(0..count, 1..4), 0..3);
        let fixed = prop::collection::vec((0..count, any::<prop::sample::Index>()), 0..3);
        (Just(layers), groups, fixed).prop_map(|(layers, groups, fixed)| {
            let fixed = fixed.iter().map(|&(layer, at)| (layer, at.index(layers[layer].len()) as u32)).collect();
            Case { layers, groups, fixed }
        })
    })
}

fn any_limit(unit: f64) -> impl Strategy<Value = Limit> {
    prop_oneof![(0u32..30).prop_map(move |x| Limit::Error(unit * f64::from(x))), (0u64..40).prop_map(Limit::Size)]
}

fn minimised(plan: &Plan) -> f64 {
    match plan.summary().limit() {
        Limit::Error(_) => plan.summary().size as f64,
        Limit::Size(_) => plan.summary().error,
    }
}

/// Solves with every solver, and compares with the best of all allowed plans. `exact_sums` means that every sum of
/// errors is exact.
fn check_case(case: &Case, limit: Limit, exact_sums: bool) {
    let (named, constraints) = (case.table(), case.constraints());
    let table = named.view();
    let best = |limit| exhaustive_among(&table, limit, |plan| case.allows(plan));
    let merged = match named.merged(&constraints) {
        Ok(merged) => merged,
        Err(error) => {
            assert!(matches!(error.error, Error::NoSharedOption { .. }), "{error}");
            assert_eq!(best(Limit::Size(u64::MAX)), None, "there are plans that keep the constraints");
            return;
        }
    };
    let optimum = best(limit).map(|best| match best {
        Limit::Error(error) => error,
        Limit::Size(size) => size as f64,
    });
    for solver in [Solver::default(), Solver::Exact(Limits { states: 0 }), Solver::Dp { levels: 100 }] {
        let plan = match merged.solve(limit.into(), None, solver) {
            Ok(plan) => plan,
            Err(error) => {
                assert_eq!(optimum, None, "{error}");
                let enough = match error {
                    Error::Infeasible { smallest, size, .. } => {
                        assert!(best(Limit::Error(smallest * (1.0 - 1e-14))).is_none() || smallest == 0.0);
                        assert!(matches!(best(Limit::Error(smallest)), Some(Limit::Size(best)) if best <= size));
                        Limit::Error(smallest)
                    }
                    Error::SizeInfeasible { smallest, error, .. } => {
                        assert_eq!(best(Limit::Size(smallest - 1)), None);
                        let Some(Limit::Error(least)) = best(Limit::Size(smallest)) else { panic!("{error}") };
                        assert!((error - least).abs() <= 1e-12 * least, "the error there is {least}, not {error}");
                        Limit::Size(smallest)
                    }
                    error => panic!("{error}"),
                };
                assert!(merged.solve(enough.into(), None, solver).is_ok(), "{enough:?} was said to be enough");
                continue;
            }
        };
        assert_eq!((case.allows(plan.options()), merged.check(plan.options())), (true, Ok(())), "{plan:?}");
        check::verify(&table, plan.options(), plan.summary()).unwrap();
        let (optimum, found) = (optimum.expect("a plan of the solver's"), minimised(&plan));
        let bound = match plan.summary().proof {
            Proof::Size { lower_bound, .. } => lower_bound as f64,
            Proof::Error { lower_bound, .. } => lower_bound,
        };
        assert!(bound <= optimum && optimum <= found, "{bound} {optimum} {found}");
        let is_best = found <= optimum * (1.0 + Proof::RESOLUTION);
        assert!(is_best || !plan.summary().proven(), "{optimum} is better than the proved {found}");
        assert!(plan.summary().proven() || solver != Solver::default() || !exact_sums, "{plan:?}");
    }
    // Baselines also choose options of the merged table.
    let (view, mut options) = (merged.view(), vec![0; merged.view().layers()]);
    let mut workspace = vec![0; baseline::global_topk_workspace_len(&view)];
    if baseline::global_topk(&view, limit, true, &mut workspace, &mut options).is_ok() {
        let plan = Plan::from_options(&table, limit.into(), "global", merged.expand(&options).unwrap()).unwrap();
        assert!(case.allows(plan.options()));
    }
    let (elements, errors) = (vec![1; view.layers()], vec![1.0; view.layers()]);
    let mut workspace = vec![0; baseline::kmeans_workspace_len(&view, 2)];
    if baseline::kmeans(&view, limit, &elements, &errors, 2, &mut workspace, &mut options).is_ok() {
        let plan = Plan::from_options(&table, limit.into(), "k-means", merged.expand(&options).unwrap()).unwrap();
        assert!(case.allows(plan.options()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(lgreco_testing::cases(1000)))]

    #[test]
    fn the_best_of_all_allowed_plans_is_found(case in any_case(0.25), limit in any_limit(0.25)) {
        check_case(&case, limit, true);
    }

    /// Errors are multiples of 0.1, so their sums are rounded. Many sums differ from the budget only by this rounding.
    #[test]
    fn rounded_sums_lose_no_plan(case in any_case(0.1), limit in any_limit(0.1)) {
        check_case(&case, limit, false);
    }

    #[test]
    fn without_demands_the_plan_is_that_of_the_table(case in any_case(0.1), limit in any_limit(0.1)) {
        let named = case.table();
        let merged = named.merged(&Constraints::default()).unwrap();
        let free = plan::solve(&named.view(), limit.into(), Solver::default());
        prop_assert_eq!(merged.solve(limit.into(), None, Solver::default()), free);
    }
}

fn pair() -> (Vec<Choice>, Vec<usize>) {
    let choices = [(80, 0.0), (40, 1.0), (60, 0.0), (30, 2.0), (50, 0.5), (10, 1.0)];
    (choices.map(|(size, error)| Choice { size, error }).into(), vec![2, 4, 6])
}

#[test]
fn what_the_table_cannot_have_is_named() {
    let (choices, ends) = pair();
    let table = Table::new(&choices, &ends).unwrap();
    let refused = |constraints: &mut Constraints| Merged::new(&table, constraints).unwrap_err();
    let demands = Constraints::default;
    let told = refused(demands().group([0, 3])).to_string();
    assert_eq!(told, "the index of a grouped or fixed layer is 3, expected that of a layer of the table");
    assert_eq!(refused(demands().fix(1, 2)), Error::NoSuchOption { layer: 1, option: 2, options: 2 });
    let told = refused(demands().group([0, 1]).fix(0, 1).fix(1, 0)).to_string();
    assert_eq!(
        told,
        "layer 1: none of its options is shared by all layers of its group, the first of which is layer 0, counted from 0; compare their \
                labels and fixed options"
    );
    let unequal = Table::new(&choices, &[2, 6]).unwrap();
    let told = Merged::new(&unequal, demands().group([0, 1])).unwrap_err();
    assert_eq!(told, Error::UnequalOptions { layer: 1, options: 4, first: 0, expected: 2 });
    assert_eq!(told.to_string(), "layer 1 has 4 options, but layer 0 of its group has 2: they must have equally many");
    let merged = Merged::new(&table, demands().group([2, 1]).group([1, 1])).unwrap();
    assert_eq!((merged.view().layers(), merged.layers(0), merged.layers(1)), (2, &[0][..], &[1, 2][..]));
    assert_eq!(merged.expand(&[0, 2]), Err(Error::NoSuchOption { layer: 1, option: 2, options: 2 }));
    assert_eq!(merged.expand(&[0]).unwrap_err().code(), 1);
    assert_eq!(merged.check(&[0, 1, 1]), Ok(()));
    let told = merged.check(&[0, 1, 0]).unwrap_err();
    assert_eq!(told, Error::RuledOut { layer: 2, option: 0, allowed: 1 });
    assert_eq!(
        told.to_string(),
        "layer 2: the table's groups and fixed options rule option 0 out; for example, option 1 is allowed"
    );
    // A group's fixed option rules out the other options in all layers of the group.
    let fixed = Merged::new(&table, demands().group([1, 2]).fix(2, 1)).unwrap();
    assert_eq!(fixed.check(&[0, 0, 0]), Err(Error::RuledOut { layer: 1, option: 0, allowed: 1 }));
    assert_eq!(fixed.check(&[0, 1, 1]), Ok(()));
}

#[test]
fn a_reference_counts_only_if_it_keeps_the_constraints() {
    let choices = [(100, 0.0), (50, 1.0), (100, 0.0), (50, 1.0), (100, 0.0), (50, 1.0)];
    let choices = choices.map(|(size, error)| Choice { size, error });
    let table = Table::new(&choices, &[2, 4, 6]).unwrap();
    let merged = Merged::new(&table, Constraints::default().group([0, 1])).unwrap();
    // On a grid of 10 cells, a third of the budget is rounded up to 4 cells. So Algorithm 1 alone does not find the
    // reference plan.
    let solve = |reference: &[u32]| {
        let plan = merged.solve(Budget::Absolute(3.0), Some(reference), Solver::Dp { levels: 10 });
        plan.map(|plan| (plan.options().to_vec(), plan.summary().size))
    };
    let own = merged.solve(Budget::Absolute(3.0), None, Solver::Dp { levels: 10 }).unwrap();
    assert_eq!(own.summary().size, 200);
    assert_eq!(solve(&[1, 1, 1]), Ok((vec![1, 1, 1], 150)));
    let fixed = Merged::new(&table, Constraints::default().group([0, 1]).fix(2, 0)).unwrap();
    let plan = fixed.solve(Budget::Absolute(3.0), Some(&[1, 1, 1]), Solver::default()).unwrap();
    assert_eq!((plan.options(), plan.summary().size), (&[1, 1, 0][..], 200));
    assert_eq!(solve(&[1, 1, 2]), Err(Error::NoSuchOption { layer: 2, option: 2, options: 2 }));
}

/// Fixed layers count towards the error budget and the size limit.
#[test]
fn budgets_include_fixed_layers() {
    let (choices, ends) = pair();
    let table = Table::new(&choices, &ends).unwrap();
    let merged = Merged::new(&table, Constraints::default().fix(1, 1)).unwrap();
    let failed = merged.solve(Budget::Absolute(2.0), None, Solver::default()).unwrap_err();
    assert_eq!(failed, Error::Infeasible { budget: 2.0, smallest: 2.5, size: 160 });
    let failed = merged.solve(Budget::Size(79), None, Solver::default()).unwrap_err();
    assert_eq!(failed, Error::SizeInfeasible { limit: 79, smallest: 80, error: 4.0 });
}

/// In exact arithmetic, the group's errors sum to 1 + ulp/4 for option 0, and to 1 + ulp/2 for option 1. Rounding makes
/// these sums equal, both without and with the third layer.
#[test]
fn the_most_exact_plan_is_found_where_rounding_hides_it() {
    let ulp = f64::EPSILON;
    let choices = [(9, 1.0), (5, 1.0), (9, ulp / 4.0), (5, ulp / 2.0), (7, ulp * 0.75)];
    let choices = choices.map(|(size, error)| Choice { size, error });
    let table = Table::new(&choices, &[2, 4, 5]).unwrap();
    let merged = Merged::new(&table, Constraints::default().group([0, 1])).unwrap();
    let budget = 1.0 + ulp;
    let plan = merged.solve(Budget::Absolute(budget), None, Solver::default()).unwrap();
    assert_eq!((plan.options(), plan.summary().size), (&[0, 0, 0][..], 25));
    assert_eq!(plan.summary().proof, Proof::Size { lower_bound: 17, budget });
    let failed = merged.solve(Budget::Absolute(1.0), None, Solver::default()).unwrap_err();
    assert_eq!(failed, Error::Infeasible { budget: 1.0, smallest: budget, size: 25 });
}

/// A plan's errors may sum to more than the largest f64. Still, plans with smaller sums are found.
#[test]
fn sums_beyond_the_largest_number_are_in_no_plan() {
    let huge = f64::MAX * 0.75;
    let choices = [(1, huge), (9, 0.0), (1, huge), (9, 0.0)].map(|(size, error)| Choice { size, error });
    let table = Table::new(&choices, &[2, 4]).unwrap();
    let merged = Merged::new(&table, Constraints::default().group([0, 1])).unwrap();
    let plan = merged.solve(Budget::Absolute(f64::MAX), None, Solver::default()).unwrap();
    assert_eq!((plan.options(), plan.summary().size), (&[1, 1][..], 18));
}

/// All layers are one group. If the planner copied the options of all members for each member, this test would take
/// minutes.
#[test]
fn a_group_may_be_as_large_as_the_model() {
    let layers = 100_000;
    let choices = [(2, 0.25), (1, 0.5)].map(|(size, error)| Choice { size, error }).repeat(layers);
    let ends: Vec<usize> = (1..=layers).map(|layer| 2 * layer).collect();
    let table = Table::new(&choices, &ends).unwrap();
    let merged = Merged::new(&table, Constraints::default().group((0..layers).collect::<Vec<_>>())).unwrap();
    let plan = merged.solve(Budget::Absolute(30_000.0), None, Solver::default()).unwrap();
    assert!(plan.options().iter().all(|&option| option == 0) && plan.summary().proven());
}
