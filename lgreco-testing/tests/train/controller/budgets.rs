//! Tests of the budgets of plans.

use super::schedule::by_hand;
use super::*;
use lgreco_train::CoreError;
use lgreco_train::plan::{self, Limit, Solver, Summary, baseline, budget::Budget as Planned};

const SOLVER: Solver = Solver::Dp { levels: 10_000 };

/// Returns the decision at step 2, from the measuring rank's gradients of steps 0 and 1, and the settings.
fn decide(config: &Config) -> (Decision, Vec<Setting>) {
    on_all(2, |mut worker| {
        let mut controller = Controller::new(config.clone(), model(), worker.rank(), worker.world_size()).unwrap();
        (0..3).for_each(|_| drop(take_step(&mut controller, &mut worker, 1.0, 1.0).unwrap()));
        (*controller.decision().unwrap(), settings(&controller))
    })
}

#[test]
fn a_size_is_kept_with_the_least_error_of_the_same_table() {
    for method in [Method::Qsgd, Method::TopK, Method::PowerSgd, Method::Hybrid] {
        let mut config = config(method, LGRECO);
        config.budget = Budget::Size;
        for alpha in [1.0, 1.25] {
            config.alpha = alpha;
            let (decision, found) = decide(&config);
            let plan = decision.plan.unwrap();
            let (expected, settings) = by_hand(method, 0, &[0, 1], |measured| {
                let budget = Planned::DefaultSize { alpha, options: &measured.defaults };
                plan::solve(&measured.table.view(), budget, SOLVER).unwrap()
            });
            assert_eq!((Some(plan), found), (expected, settings), "{method:?}");
            assert_eq!(plan.limit(), Limit::Size((alpha * decision.default_size as f64) as u64));
            assert!(alpha > 1.0 || plan.size <= decision.default_size);

            let (absolute, again) = {
                let Limit::Size(bits) = plan.limit() else { panic!("{plan:?}") };
                let config = Config { budget: Budget::Bits(bits), alpha: 7.0, ..config.clone() };
                decide(&config)
            };
            // Under an absolute limit, the solver has no reference plan as an alternative, so the plan may be worse.
            let worse = |a: &Summary, b: &Summary| a.error >= b.error && a.limit() == b.limit();
            assert!(worse(&absolute.plan.unwrap(), &plan) && again.len() == 3);
        }
    }
}

#[test]
fn the_error_is_less_than_uniforms_at_its_size() {
    let mut config = config(Method::TopK, Policy::LGreco { solver: Solver::default(), accordion: None });
    config.search = search(Method::TopK).with_default(0.1).unwrap();
    let Limit::Error(uniform) = decide(&config).0.plan.unwrap().limit() else { panic!("a budget of error") };
    config.budget = Budget::Size;
    let plan = decide(&config).0.plan.unwrap();
    assert!(plan.proven() && plan.error < uniform, "{plan:?}, uniform {uniform}");
}

#[test]
fn k_means_keeps_a_size_too() {
    let clusters = 3;
    let mut config = config(Method::Qsgd, Policy::KMeans { clusters });
    config.budget = Budget::Size;
    let (plan, expected) = by_hand(Method::Qsgd, 0, &[0, 1], |measured| {
        let table = measured.table.view();
        let metric: Vec<f64> = table.chosen(&measured.defaults).unwrap().map(|choice| choice.error).collect();
        let limit = Planned::DefaultSize { alpha: 1.0, options: &measured.defaults }.limit(&table).unwrap();
        let mut workspace = vec![0; baseline::kmeans_workspace_len(&table, clusters)];
        let mut options = vec![0; 2];
        baseline::kmeans(&table, limit, &[384, 320], &metric, clusters, &mut workspace, &mut options).unwrap();
        plan::Plan::from_options(&table, limit.into(), "k-means", options).unwrap()
    });
    let (decision, settings) = decide(&config);
    assert_eq!((decision.plan, settings), (plan, expected));
}

/// Under `Budget::Size`, Accordion's levels define the size limit instead of the error budget.
#[test]
fn accordions_levels_are_the_size() {
    let accordion = Some(Accordion::new(8.0, 3.0));
    let mut config = config(Method::PowerSgd, Policy::LGreco { solver: Solver::default(), accordion });
    config.budget = Budget::Size;
    let (decision, _) = decide(&config);
    let rank_8 = 8 * (2 * 16 + 4 * 8 * (16 + 24) + 4 * 8 * (20 + 16));
    assert_eq!(decision.default_size, rank_8);
    assert_eq!(decision.plan.unwrap().limit(), Limit::Size(rank_8));
}

/// A limit in seconds does not limit bits. The default settings stay until times are measured.
#[test]
fn before_anything_is_measured_seconds_decide_nothing() {
    let mut config = config(Method::Qsgd, LGRECO);
    let (decision, settings) = on_all(1, |mut worker| {
        let mut config = config.clone();
        (config.objective, config.budget) = (Objective::MeasuredSeconds, Budget::Seconds(1.0));
        config.clock = Some(|| 0.0);
        let mut controller = Controller::new(config, model(), worker.rank(), worker.world_size()).unwrap();
        // The caller announces that it records the seconds, but records none.
        controller.external().meter_elsewhere(true).unwrap();
        (0..3).for_each(|_| drop(take_step(&mut controller, &mut worker, 1.0, 1.0).unwrap()));
        (*controller.decision().unwrap(), settings(&controller))
    });
    assert_eq!((decision.plan, decision.timing), (None, None));
    config.policy = Policy::Uniform;
    assert_eq!(settings, decide(&config).1);
}

#[test]
fn budgets_that_cannot_be_are_refused() {
    let worker = ThreadCollective::group(1).remove(0);
    let refused = |budget, timed: bool| {
        let mut config = config(Method::Qsgd, LGRECO);
        config.budget = budget;
        if timed {
            config.objective = Objective::MeasuredSeconds;
            config.clock = Some(|| 0.0);
        }
        match Controller::new(config, model(), worker.rank(), worker.world_size()) {
            Ok(_) => None,
            Err(Error::Core(CoreError::Parameter { what, .. })) => Some(what),
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(
        [refused(Budget::Bits(1 << 20), true), refused(Budget::Bits(0), false)],
        [Some("the budget in bits"), None]
    );
    let in_seconds = Some("the budget in seconds");
    assert_eq!([refused(Budget::Seconds(1.0), false), refused(Budget::Seconds(1.0), true)], [in_seconds, None]);
    for bad in [f64::NAN, f64::INFINITY, -1.0, 1e6] {
        assert_eq!(refused(Budget::Seconds(bad), true), in_seconds);
    }
    let mut config = config(Method::Qsgd, LGRECO);
    config.budget = Budget::Bits(10);
    let failed = on_all(1, |mut worker| {
        let mut controller = Controller::new(config.clone(), model(), worker.rank(), worker.world_size()).unwrap();
        (0..2).for_each(|_| drop(take_step(&mut controller, &mut worker, 1.0, 1.0).unwrap()));
        take_step(&mut controller, &mut worker, 1.0, 1.0).unwrap_err().code()
    });
    assert_eq!(failed, CoreError::SizeInfeasible { limit: 0, smallest: 0, error: 0.0 }.code());
}
