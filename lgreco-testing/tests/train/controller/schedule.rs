//! Tests of when decisions happen, which gradients they use, and what a switch of settings keeps.

use super::*;
use core::num::NonZero;
use lgreco_train::backend::Portable;
use lgreco_train::gradient::Values;
use lgreco_train::plan::{self, Plan, Solver, Summary, baseline, budget::Budget};
use lgreco_train::search::{self, Measured};

/// The result of `plan`, and its settings, for the mean of rank `rank`'s gradients at `steps`.
pub(super) fn by_hand(
    method: Method,
    rank: u32,
    steps: &[u32],
    plan: impl FnOnce(&Measured) -> Plan,
) -> (Option<Summary>, Vec<Setting>) {
    let means: Vec<Vec<f32>> = (0..3)
        .map(|layer| {
            let all: Vec<_> = steps.iter().map(|&step| gradients(rank, step, 1.0).swap_remove(layer)).collect();
            (0..all[0].len()).map(|i| all.iter().map(|g| g[i]).sum::<f32>() / steps.len() as f32).collect()
        })
        .collect();
    let tensors = model();
    let layers = tensors.iter().zip(&means);
    let layers = layers.map(|(tensor, mean)| search::Layer::new(tensor.name(), tensor.dims(), Values::F32(mean)));
    let layers = layers.collect::<Result<Vec<_>, _>>().unwrap();
    let mut search = super::search(method);
    search.workers = NonZero::new(2);
    let measured = search.measure(&layers, &mut Portable).unwrap();
    let mut settings = vec![Setting::Dense; 3];
    let plan = plan(&measured);
    for ((place, &layer), &option) in measured.layers.iter().enumerate().zip(plan.options()) {
        settings[layer] = measured.setting(place, option as usize).unwrap();
    }
    (Some(*plan.summary()), settings)
}

pub(super) fn l_greco(method: Method, rank: u32, steps: &[u32]) -> (Option<Summary>, Vec<Setting>) {
    by_hand(method, rank, steps, |measured| {
        let budget = Budget::Defaults { alpha: 1.0, options: &measured.defaults };
        plan::solve(&measured.table.view(), budget, Solver::Dp { levels: 10_000 }).unwrap()
    })
}

#[test]
fn k_means_sees_the_same_table() {
    let clusters = 3;
    let (plan, expected) = by_hand(Method::Qsgd, 0, &[0, 1], |measured| {
        let table = measured.table.view();
        let metric: Vec<f64> = table.chosen(&measured.defaults).unwrap().map(|choice| choice.error).collect();
        let budget = Budget::Defaults { alpha: 1.5, options: &measured.defaults }.limit(&table).unwrap();
        let mut workspace = vec![0; baseline::kmeans_workspace_len(&table, clusters)];
        let mut options = vec![0; 2];
        baseline::kmeans(&table, budget, &[384, 320], &metric, clusters, &mut workspace, &mut options).unwrap();
        Plan::from_options(&table, budget.into(), "k-means", options).unwrap()
    });
    on_all(2, |mut worker| {
        let mut config = config(Method::Qsgd, Policy::KMeans { clusters });
        config.alpha = 1.5;
        let mut controller = Controller::new(config, model(), worker.rank(), worker.world_size()).unwrap();
        (0..3).for_each(|_| drop(take_step(&mut controller, &mut worker, 1.0, 1.0).unwrap()));
        assert_eq!(settings(&controller), expected);
        assert_ne!(expected[0], expected[2]);
        assert_eq!(controller.decision().unwrap().plan, plan);
    });
}

#[test]
fn warm_up_is_exact_and_decisions_see_the_measuring_ranks_last_gradients() {
    for (method, measuring) in [(Method::Qsgd, 0), (Method::TopK, 1), (Method::PowerSgd, 1), (Method::Hybrid, 0)] {
        let switched = on_all(2, |mut worker| {
            let mut config = config(method, LGRECO);
            config.measuring_rank = measuring;
            let mut controller = Controller::new(config, model(), worker.rank(), worker.world_size()).unwrap();
            let mut switched = vec![];
            for step in 0..9 {
                let (report, means) = take_step(&mut controller, &mut worker, 1.0, 0.1).unwrap();
                assert_eq!((report.step, report.bytes_in), (step as u64, 4 * (16 * 24 + 24 + 20 * 16)));
                let (plan, expected) = match step {
                    0..2 => (None, vec![Setting::Dense; 3]),
                    2..5 => l_greco(method, measuring, &[0, 1]),
                    5..8 => l_greco(method, measuring, &[3, 4]),
                    _ => l_greco(method, measuring, &[6, 7]),
                };
                assert_eq!(settings(&controller), expected, "{method:?}, step {step}");
                assert_eq!(controller.decision().and_then(|decision| decision.plan), plan);
                for (layer, mean) in means.iter().enumerate() {
                    if expected[layer] == Setting::Dense {
                        assert_eq!(*mean, exact_mean(2, step, layer), "uncompressed layers get the exact mean");
                    }
                }
                assert_eq!(report.bytes_out < report.bytes_in, step >= 2);
                if report.switched {
                    switched.push(step);
                }
            }
            switched
        });
        assert_eq!(switched, [2, 5, 8]);
    }
}

#[test]
fn policies_without_a_budget_decide_once() {
    let keep = |keep| Setting::TopK(TopK { keep, values: Dtype::F32 });
    let fixed = vec![keep(7), Setting::Dense, keep(3)];
    for (policy, expected) in [
        (Policy::Uncompressed, vec![Setting::Dense; 3]),
        (Policy::Uniform, vec![keep(4), Setting::Dense, keep(3)]), // 1 % of 384 and 320
        (Policy::Fixed(fixed.clone()), fixed),
    ] {
        let switched = on_all(2, |mut worker| {
            let mut controller =
                Controller::new(config(Method::TopK, policy.clone()), model(), worker.rank(), worker.world_size())
                    .unwrap();
            let steps = (0..9).map(|_| take_step(&mut controller, &mut worker, 1.0, 0.1).unwrap().0.switched);
            let switched: Vec<_> = steps.collect();
            assert_eq!(settings(&controller), expected);
            switched
        });
        let decides = policy != Policy::Uncompressed;
        assert_eq!(switched, [false, false, decides, false, false, false, false, false, false]);
    }
}

/// A residual from TopK is sent completely with the first gradient under a setting without feedback.
#[test]
fn a_residual_leaves_with_the_next_gradient_when_feedback_ends() {
    on_all(2, |mut worker| {
        let accordion = Accordion { low: 1.0, high: 0.02, eta: 1e9, drop: 2.0 };
        let config = config(Method::TopK, Policy::Accordion(accordion));
        let mut controller = Controller::new(config, model(), worker.rank(), worker.world_size()).unwrap();
        // The first decision makes all layers critical. A density of 1 saves nothing, so the layers are uncompressed.
        for _ in 0..5 {
            take_step(&mut controller, &mut worker, 1.0, 1.0).unwrap();
            assert_eq!(settings(&controller), vec![Setting::Dense; 3]);
        }
        for _ in 0..2 {
            take_step(&mut controller, &mut worker, 1.0, 1.0).unwrap();
        }
        assert!(matches!(controller.setting(0), Setting::TopK(TopK { keep: 8, .. })), "{}", controller.setting(0));
        let left = residual(&controller, 0);
        assert!(left.iter().filter(|&&x| x != 0.0).count() > 300);
        let step = controller.steps() as u32;
        let (_, means) = take_step(&mut controller, &mut worker, 1.0, 0.1).unwrap();
        assert_eq!(controller.decision().unwrap().cause, Cause::LearningRate);
        assert_eq!(residual(&controller, 0), vec![0.0; 384]);
        let mut owed = left;
        worker.all_reduce_sum(&mut owed).unwrap();
        let expected: Vec<f32> =
            exact_mean(2, step, 0).iter().zip(&owed).map(|(mean, owed)| mean + owed / 2.0).collect();
        assert_eq!(means[0], expected);
    });
}

/// Accordion changes PowerSGD's rank. The exchange checks that all workers keep the same columns of the factor.
#[test]
fn ranks_stay_together_when_powersgds_rank_changes() {
    let ranks = on_all(3, |mut worker| {
        let accordion = Accordion { low: 6.0, high: 2.0, eta: 0.5, drop: 2.0 };
        let mut controller = Controller::new(
            config(Method::PowerSgd, Policy::Accordion(accordion)),
            model(),
            worker.rank(),
            worker.world_size(),
        )
        .unwrap();
        let mut ranks = vec![];
        for step in 0..14 {
            // The norm jumps at step 6 and is steady before and after.
            let scale = if step < 6 { 1.0 } else { 4.0 };
            take_step(&mut controller, &mut worker, scale, 1.0).unwrap();
            match controller.setting(0) {
                Setting::PowerSgd(c) => ranks.push(c.rank),
                _ => ranks.push(0),
            }
        }
        ranks
    });
    assert_eq!(ranks, [0, 0, 6, 6, 6, 2, 2, 2, 6, 6, 6, 2, 2, 2]);
}
