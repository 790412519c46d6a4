//! Compares the frontier with an enumeration of all plans.

use lgreco::Error;
use lgreco::plan::{Constraints, Frontier, Limit, Merged, check, exact::Limits};
use lgreco::table::{Choice, Table};
use lgreco_testing::models::{Rows, model};
use lgreco_testing::oracle::{exhaustive_among, for_each_plan};
use proptest::prelude::*;

fn table_of(rows: &[Vec<(u64, u32)>]) -> (Vec<Choice>, Vec<usize>) {
    let choice = |&(size, error): &(u64, u32)| Choice { size, error: f64::from(error) / 4.0 };
    let ends = rows.iter().scan(0, |end, row| {
        *end += row.len();
        Some(*end)
    });
    (rows.iter().flatten().map(choice).collect(), ends.collect())
}

/// Sizes and errors of the plans that no other allowed plan beats, smallest size first.
fn all_points(table: &Table<'_>, is_allowed: impl Fn(&[u32]) -> bool) -> Vec<(u64, f64)> {
    let mut points = Vec::new();
    for_each_plan(table, |plan| {
        if is_allowed(plan) {
            let chosen = table.chosen(plan).unwrap();
            points.push((chosen.clone().map(|choice| choice.size).sum(), chosen.map(|choice| choice.error).sum()));
        }
    });
    points.sort_by(|a: &(u64, f64), b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let mut least = f64::INFINITY;
    points.retain(|&(_, error)| {
        let is_less = error < least;
        least = least.min(error);
        is_less
    });
    points
}

fn points(frontier: &Frontier) -> Vec<(u64, f64)> {
    let summaries = frontier.points.iter().map(|point| point.plan.summary());
    summaries.map(|summary| (summary.size, summary.error)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(lgreco_testing::cases(300)))]

    #[test]
    fn the_frontier_is_that_of_all_plans(
        rows in prop::collection::vec(prop::collection::vec((0u64..40, 0u32..40), 3..5), 1..5),
        tied in any::<bool>(), fixed in any::<bool>(), most in 2usize..8,
    ) {
        let rows: Vec<_> = rows.into_iter().map(|row| row[..3].to_vec()).collect();
        let (choices, ends) = table_of(&rows);
        let table = Table::new(&choices, &ends).unwrap();
        let last = rows.len() - 1;
        let mut constraints = Constraints::default();
        if tied {
            constraints.group([0, last]);
        }
        if fixed {
            constraints.fix(last, 1);
        }
        let is_allowed = |plan: &[u32]| !(tied && plan[0] != plan[last] || fixed && plan[last] != 1);
        let all = all_points(&table, is_allowed);
        let merged = Merged::new(&table, &constraints).unwrap();

        let whole = merged.frontier(1000, Limits::default()).unwrap();
        prop_assert_eq!(points(&whole), &all[..]);
        prop_assert!(whole.complete && whole.proven && whole.points.iter().all(|point| point.proven()));

        let some = merged.frontier(most, Limits::default()).unwrap();
        prop_assert_eq!((some.complete, some.proven), (all.len() <= most, true));
        let found = points(&some);
        prop_assert!(found.len() <= most && found.iter().all(|point| all.contains(point)), "{:?}", found);
        prop_assert!(some.points.iter().all(|point| point.proven() && is_allowed(point.plan.options())));
        prop_assert_eq!((found[0], found[found.len() - 1]), (all[0], all[all.len() - 1]));
        // The frontier has the best plan for each of these size limits, which differ by equal factors.
        let (smallest, largest) = (all[0].0, all[all.len() - 1].0);
        let (from, steps) = (smallest.max(1) as f64, most - 1);
        for step in 0..if some.complete { 0 } else { steps } {
            let size = from * (largest as f64 / from).powf(step as f64 / steps as f64);
            let size = if step == 0 { smallest } else { size.round() as u64 };
            let within = found.iter().filter(|point| point.0 <= size).map(|point| point.1).reduce(f64::min);
            prop_assert_eq!(within.map(Limit::Error), exhaustive_among(&table, Limit::Size(size), is_allowed));
        }
        for (most, states) in [(1000, 0), (most, 0), (most, 3)] {
            let rough = merged.frontier(most, Limits { states }).unwrap();
            prop_assert!(!rough.complete || rough.proven && points(&rough) == all);
            // A frontier may be proven but incomplete only if there are more points than were asked for.
            prop_assert!(rough.complete || !rough.proven || all.len() > most);
        }
    }
}

#[test]
fn points_of_a_large_table_are_verified_and_say_whether_they_are_proved() {
    let model = model(Rows::Correlated, 40, 20, 5);
    let table = model.table();
    let merged = Merged::new(&table, Constraints::default().group([0, 7, 9])).unwrap();
    let frontier = merged.frontier(9, Limits::default()).unwrap();
    assert!(!frontier.complete && (3..=9).contains(&frontier.points.len()));
    for point in &frontier.points {
        check::verify(&table, point.plan.options(), point.plan.summary()).unwrap();
        assert!(point.plan.summary().error >= point.error_bound && merged.check(point.plan.options()).is_ok());
    }
    let found = points(&frontier);
    assert!(found.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 > pair[1].1), "{found:?}");
    // Without search states, the solver cannot prove hard points, and does not report them as proven.
    let rough = merged.frontier(9, Limits { states: 0 }).unwrap();
    let proven = |frontier: &Frontier| frontier.points.iter().filter(|point| point.proven()).count();
    assert!(proven(&rough) < rough.points.len() && proven(&rough) <= proven(&frontier));
}

/// The frontier may leave out an unproven plan, because another plan beats it. Then all points are proven, but some
/// points may be missing. So the frontier must not be reported as proven.
#[test]
fn a_plan_without_proof_that_another_one_beats_is_told() {
    let mut found = 0;
    for seed in 0..15 {
        let model = model(Rows::Hybrid, 3, 4, seed);
        let table = model.table();
        let merged = Merged::new(&table, &Constraints::default()).unwrap();
        let frontier = merged.frontier(40, Limits { states: 4 }).unwrap();
        let are_proven = frontier.points.iter().all(|point| point.proven());
        assert!(are_proven || !frontier.proven, "seed {seed}");
        // The limit of 40 points was not reached, so nothing shows that there are more points.
        found += u32::from(are_proven && !frontier.complete && !frontier.proven && frontier.points.len() < 40);
    }
    assert!(found > 0);
}

#[test]
fn a_frontier_has_two_points_at_least_to_be_asked_for() {
    let (choices, ends) = table_of(&[vec![(8, 3), (9, 3)]]);
    let table = Table::new(&choices, &ends).unwrap();
    let merged = Merged::new(&table, &Constraints::default()).unwrap();
    for most in [0, 1] {
        let refused = merged.frontier(most, Limits::default()).unwrap_err();
        assert!(matches!(refused, Error::Parameter { what: "points of the frontier", .. }));
    }
    assert_eq!(points(&merged.frontier(2, Limits::default()).unwrap()), [(8, 0.75)]);
    let (choices, ends) = table_of(&[vec![(u64::MAX - 1, 0), (0, 3)], vec![(1, 0), (0, 8)]]);
    let table = Table::new(&choices, &ends).unwrap();
    let merged = Merged::new(&table, &Constraints::default()).unwrap();
    let ends = [(0, 2.75), (1, 0.75), (u64::MAX, 0.0)];
    assert_eq!(points(&merged.frontier(3, Limits::default()).unwrap()), ends);
    assert_eq!(points(&merged.frontier(2, Limits::default()).unwrap()), [ends[0], ends[2]]);
}

#[test]
fn errors_beyond_the_largest_number_end_the_frontier() {
    let huge = f64::MAX * 0.75;
    let choices = [(9, 1.0), (1, huge), (9, 0.0), (1, huge)].map(|(size, error)| Choice { size, error });
    let table = Table::new(&choices, &[2, 4]).unwrap();
    let frontier = Merged::new(&table, &Constraints::default()).unwrap().frontier(10, Limits::default()).unwrap();
    assert_eq!((points(&frontier), frontier.complete), (vec![(10, huge), (18, 1.0)], true));
}
