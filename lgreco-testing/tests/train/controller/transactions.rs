//! No gradient is lost, whatever a trainer does during or after a step.

use super::*;
use lgreco_testing::exchange::Through;
use lgreco_train::compress::adacomp::AdaComp;
use lgreco_train::compress::clt::CltK;
use lgreco_train::compress::hard_threshold::HardThreshold;
use lgreco_train::compress::loco::LoCo;
use lgreco_train::compress::qsgd::Qsgd;
use lgreco_train::compress::sidco::{Fit, Sidco};
use lgreco_train::exchange::Route;

fn config(method: Method, policy: Policy) -> Config {
    Config { undo: true, ..super::config(method, policy) }
}

/// What happens in a step.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    Sound,
    /// A gradient of rank 1 is not finite, so its bucket fails.
    Broken,
    /// The trainer does not apply the means.
    Skipped,
    /// Layer 0 has no gradient on rank 0.
    Withheld,
    /// Layer 0 has no gradient on rank 0, and the trainer does not apply the means.
    WithheldAndSkipped,
    /// Layer 0 is in no bucket.
    Absent,
    /// The network fails during the step.
    Abandoned,
}

fn events() -> impl Strategy<Value = Vec<(Event, usize)>> {
    let event = prop_oneof![
        Just(Event::Sound),
        Just(Event::Broken),
        Just(Event::Skipped),
        Just(Event::Withheld),
        Just(Event::WithheldAndSkipped),
        Just(Event::Absent),
        Just(Event::Abandoned)
    ];
    prop::collection::vec((event, 0usize..3), 1..12)
}

/// Takes a step with one bucket per layer. Returns the means that a trainer would apply.
fn step(
    controller: &mut Controller,
    worker: &mut ThreadCollective,
    gradients: &mut [Vec<f32>],
    (event, at): (Event, usize),
) -> Vec<Option<Vec<f32>>> {
    controller.begin_step(1.0).unwrap();
    while let Some(request) = controller.control().unwrap() {
        request.perform(worker).unwrap();
    }
    let rank = worker.rank();
    let mut means = vec![];
    for (layer, values) in gradients.iter_mut().enumerate() {
        if event == Event::Absent && layer == 0 {
            means.push(None);
            continue;
        }
        let mut bucket = controller.open(&[layer]).unwrap();
        if event == Event::Abandoned && layer == at {
            bucket.submit(&mut [ValuesMut::F32(values)]).unwrap();
            assert_eq!(controller.abandon_step(), Err(Error::InFlight { layer }));
            controller.close(bucket).unwrap();
            let step = controller.steps();
            controller.abandon_step().unwrap();
            assert_eq!(controller.steps(), step);
            return vec![None; 3];
        }
        if matches!(event, Event::Withheld | Event::WithheldAndSkipped) && layer == 0 && rank == 0 {
            bucket.withhold(0).unwrap();
        }
        bucket.exchange(worker, &mut [ValuesMut::F32(values)]).unwrap();
        controller.close(bucket).unwrap();
        means.push(values.iter().all(|x| x.is_finite()).then(|| values.clone()));
    }
    let report = controller.finish_step().unwrap();
    assert_eq!(report.outcome == Outcome::PassedThrough, event == Event::Broken);
    if matches!(event, Event::Skipped | Event::WithheldAndSkipped) {
        controller.residuals().roll_back().unwrap();
        return vec![None; means.len()];
    }
    means
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(lgreco_testing::cases(100)))]

    /// For each element, the applied means and the mean residual add up to the mean of the gradients.
    #[test]
    fn gradients_are_in_means_or_residuals(events in events(), method in 0usize..8, bf16: bool, scatter: bool) {
        let setting = [
            Setting::TopK(TopK { keep: 7, values: Dtype::F32 }),
            Setting::Qsgd(Qsgd { bits: 6, ..Qsgd::default() }),
            Setting::PowerSgd(PowerSgd { rank: 1, iterations: 1 }),
            Setting::CltK(CltK { keep: 9 }),
            Setting::AdaComp(AdaComp { bin: 16 }),
            Setting::Sidco(Sidco { density: 0.1, fit: Fit::Exponential, stages: 1, values: Dtype::F32 }),
            Setting::LoCo(LoCo { group: 32 }),
            Setting::HardThreshold(HardThreshold { lambda: 0.5, values: Dtype::F32 }),
        ][method];
        let mut config = config(Method::TopK, Policy::Fixed(vec![setting, Setting::Dense, setting]));
        let storage = if bf16 { lgreco_train::feedback::Storage::Bf16 } else { lgreco_train::feedback::Storage::F32 };
        config.feedback = Feedback::always(Residual { storage, ..Residual::CLASSIC });
        config.non_finite = NonFinite::PassThrough;
        config.route = if scatter { Route::ScatterReduce } else { Route::AllGather };
        let runs = threads::run(2, |mut worker| {
            let mut controller = Controller::new(config.clone(), model(), worker.rank(), worker.world_size()).unwrap();
            let zeros: Vec<Vec<f64>> = model().iter().map(|tensor| vec![0.0; tensor.shape().elements()]).collect();
            let (mut given, mut applied) = (zeros.clone(), zeros);
            (0..3).for_each(|_| drop(take_step(&mut controller, &mut worker, 0.0, 1.0).unwrap()));
            for (number, &(event, at)) in events.iter().enumerate() {
                let mut values = gradients(worker.rank(), number as u32, 1.0);
                let sound = values.clone();
                if event == Event::Broken && worker.rank() == 1 {
                    values[at][5] = f32::NAN;
                }
                let before: Vec<_> = (0..3).map(|layer| residual(&controller, layer)).collect();
                let means = step(&mut controller, &mut worker, &mut values, (event, at));
                for (layer, mean) in means.iter().enumerate() {
                    let Some(mean) = mean else {
                        assert_eq!(residual(&controller, layer), before[layer], "layer {layer}, {event:?}");
                        continue;
                    };
                    let withheld = event == Event::Withheld && layer == 0 && worker.rank() == 0;
                    if withheld && !scatter {
                        assert_eq!(residual(&controller, layer), before[layer]);
                    }
                    for i in 0..mean.len() {
                        applied[layer][i] += mean[i] as f64;
                        given[layer][i] += if withheld { 0.0 } else { sound[layer][i] as f64 };
                    }
                }
            }
            let residuals: Vec<_> = (0..3).map(|layer| residual(&controller, layer)).collect();
            (given, applied, residuals)
        });
        let [(mine, applied, my_residuals), (theirs, other, their_residuals)] = &runs[..] else { unreachable!() };
        prop_assert_eq!(applied, other);
        // In bf16, rounding in each step may lose the last of 8 bits. Residuals are at most a few units.
        let tolerance = if bf16 { 0.02 } else { 1e-5 } * (1.0 + events.len() as f64);
        for layer in 0..3 {
            for i in 0..applied[layer].len() {
                let given = (mine[layer][i] + theirs[layer][i]) / 2.0;
                let kept = (my_residuals[layer][i] as f64 + their_residuals[layer][i] as f64) / 2.0;
                let off = (given - applied[layer][i] - kept).abs();
                prop_assert!(off < tolerance * 4.0, "layer {}, element {}: {} is lost", layer, i, off);
            }
        }
    }
}

/// Residuals in f32 do not depend on how often errors are measured.
#[test]
fn measuring_errors_changes_nothing() {
    for method in [Method::TopK, Method::Qsgd, Method::PowerSgd] {
        on_all(2, |mut worker| {
            let run = |worker: &mut ThreadCollective, every: u64| {
                let mut config = config(method, LGRECO);
                config.feedback = Feedback::always(Residual::CLASSIC);
                config.search = config
                    .search
                    .with_default(match method {
                        Method::Qsgd => 5.0,
                        Method::PowerSgd => 2.0,
                        _ => 0.1,
                    })
                    .unwrap();
                config.metrics_every = every;
                let mut controller = Controller::new(config, model(), worker.rank(), worker.world_size()).unwrap();
                let means: Vec<_> = (0..9).map(|_| take_step(&mut controller, worker, 1.0, 1.0).unwrap().1).collect();
                (means, (0..3).map(|layer| residual(&controller, layer)).collect::<Vec<_>>())
            };
            assert_eq!(run(&mut worker, 0), run(&mut worker, 1), "{method:?}");
            assert_eq!(run(&mut worker, 2), run(&mut worker, 1), "{method:?}");
        });
    }
}

/// If the last step has not exchanged a layer, a rollback does not change the layer's residual.
#[test]
fn only_the_last_step_is_rolled_back() {
    let mut worker = ThreadCollective::group(1).remove(0);
    let mut controller =
        Controller::new(config(Method::TopK, Policy::Uniform), model(), worker.rank(), worker.world_size()).unwrap();
    (0..5).for_each(|_| drop(take_step(&mut controller, &mut worker, 1.0, 1.0).unwrap()));
    let before: Vec<_> = (0..3).map(|layer| residual(&controller, layer)).collect();
    step(&mut controller, &mut worker, &mut gradients(0, 5, 1.0), (Event::Absent, 0));
    assert_ne!(residual(&controller, 2), before[2]);
    controller.residuals().roll_back().unwrap();
    controller.residuals().roll_back().unwrap();
    assert_eq!(before, (0..3).map(|layer| residual(&controller, layer)).collect::<Vec<_>>());
}

/// Without `undo`, there is only one copy of the residuals, so a step cannot be rolled back.
#[test]
fn without_undo_a_step_is_not_rolled_back() {
    let mut worker = ThreadCollective::group(1).remove(0);
    let config = super::config(Method::TopK, Policy::Uniform);
    let mut controller = Controller::new(config, model(), worker.rank(), worker.world_size()).unwrap();
    (0..4).for_each(|_| drop(take_step(&mut controller, &mut worker, 1.0, 1.0).unwrap()));
    let before: Vec<_> = (0..3).map(|layer| residual(&controller, layer)).collect();
    assert!(matches!(
        controller.residuals().roll_back(),
        Err(Error::StepOrder { expected: "a configuration with `undo`", .. })
    ));
    assert_eq!(before, (0..3).map(|layer| residual(&controller, layer)).collect::<Vec<_>>());
    assert!(take_step(&mut controller, &mut worker, 1.0, 1.0).is_ok());
}

#[test]
fn residuals_are_scaled_all_or_none() {
    let worker = ThreadCollective::group(1).remove(0);
    let mut controller =
        Controller::new(config(Method::TopK, Policy::Uniform), model(), worker.rank(), worker.world_size()).unwrap();
    let mut worker = worker;
    (0..5).for_each(|_| drop(take_step(&mut controller, &mut worker, 1.0, 1.0).unwrap()));
    let before: Vec<_> = (0..3).map(|layer| residual(&controller, layer)).collect();
    controller.residuals().rescale(0.25).unwrap();
    for (layer, before) in before.iter().enumerate() {
        assert_eq!(residual(&controller, layer), before.iter().map(|x| 0.25 * x).collect::<Vec<_>>());
    }
    controller.residuals().rescale(4.0).unwrap();
    assert_eq!(before, (0..3).map(|layer| residual(&controller, layer)).collect::<Vec<_>>());
    for factor in [0.0, f32::NAN, f32::INFINITY, 3e38] {
        assert!(controller.residuals().rescale(factor).is_err());
        assert_eq!(before, (0..3).map(|layer| residual(&controller, layer)).collect::<Vec<_>>());
    }
}

/// Under a setting without feedback, the remaining residual is sent completely. A rollback restores the residual.
#[test]
fn the_rest_of_a_residual_is_rolled_back() {
    let mut worker = ThreadCollective::group(1).remove(0);
    let mut before =
        Controller::new(config(Method::TopK, Policy::Uniform), model(), worker.rank(), worker.world_size()).unwrap();
    (0..4).for_each(|_| drop(take_step(&mut before, &mut worker, 1.0, 1.0).unwrap()));
    let mut controller =
        Controller::new(config(Method::TopK, Policy::Uncompressed), model(), worker.rank(), worker.world_size())
            .unwrap();
    let saved = before.save().unwrap();
    controller.load(&[&saved], &[&saved]).unwrap();
    let rest = residual(&controller, 0);
    assert!(rest == residual(&before, 0) && rest.iter().any(|&x| x != 0.0));
    let (_, means) = take_step(&mut controller, &mut worker, 0.0, 1.0).unwrap();
    assert_eq!(means[0], rest);
    assert!(residual(&controller, 0).iter().all(|&x| x == 0.0));
    controller.residuals().roll_back().unwrap();
    assert_eq!(residual(&controller, 0), rest);
}

/// Residuals are reset every three steps. A rollback restores both the residuals and the number of steps until the next
/// reset.
#[test]
fn a_step_that_is_rolled_back_does_not_count_towards_a_reset() {
    let run = |rolled_back: Option<u32>| {
        let mut worker = ThreadCollective::group(1).remove(0);
        let mut config = config(Method::TopK, Policy::Uniform);
        config.feedback.others = Some(Residual { reset_every: 3, ..Residual::CLASSIC });
        let mut controller = Controller::new(config, model(), worker.rank(), worker.world_size()).unwrap();
        let mut residuals = vec![];
        for number in 0..10 {
            if rolled_back == Some(number) {
                let mut values = gradients(0, 77, 1.0);
                controller.step(&mut worker, &mut views(&mut values), 1.0).unwrap();
                controller.residuals().roll_back().unwrap();
            }
            let mut values = gradients(0, number, 1.0);
            controller.step(&mut worker, &mut views(&mut values), 1.0).unwrap();
            residuals.push((residual(&controller, 0), values));
        }
        residuals
    };
    let expected = run(None);
    let zeroed = expected.iter().filter(|(left, _)| left.iter().all(|&x| x == 0.0)).count();
    assert!((3..5).contains(&zeroed), "two steps of warm-up, and every third after it: {zeroed}");
    for number in 3..10 {
        assert!(run(Some(number)) == expected, "before step {number}");
    }
}

/// Wherever the network fails, the step can be repeated, and gives the same bits as a step without a failure.
#[test]
fn steps_are_taken_again_where_the_network_failed() {
    for method in [Method::TopK, Method::Qsgd] {
        let run = |fails_after: Option<usize>| {
            threads::run(2, |mut worker| {
                let mut config = config(method, Policy::Uniform);
                config.bucket_bytes = 1;
                let mut controller = Controller::new(config, model(), worker.rank(), worker.world_size()).unwrap();
                let (mut outcomes, mut failed) = (vec![], false);
                for number in 0..7 {
                    let before: Vec<_> = (0..3).map(|layer| residual(&controller, layer)).collect();
                    if let (5, Some(calls)) = (number, fails_after) {
                        let (mut values, mut left) = (gradients(worker.rank(), 77, 1.0), calls);
                        let mut network = Through::new(&mut worker, |worker, request| {
                            left = left.checked_sub(1).ok_or(CollectiveError { code: 4 })?;
                            request.perform(worker)
                        });
                        let outcome = controller.step(&mut network, &mut views(&mut values), 1.0);
                        failed = outcome == Err(Error::Collective { code: 4 });
                        if !failed {
                            return (vec![], false);
                        }
                        assert_eq!(controller.steps(), 5);
                        assert!(
                            (0..3).all(|layer| residual(&controller, layer) == before[layer]),
                            "after {calls} calls"
                        );
                    }
                    let mut values = gradients(worker.rank(), number, 1.0);
                    controller.step(&mut worker, &mut views(&mut values), 1.0).unwrap();
                    outcomes.push((values, (0..3).map(|layer| residual(&controller, layer)).collect::<Vec<_>>()));
                }
                (outcomes, failed)
            })
        };
        let expected = run(None);
        let mut calls = 0;
        loop {
            let found = run(Some(calls));
            if !found[0].1 {
                break;
            }
            for ((expected, _), (found, _)) in expected.iter().zip(&found) {
                assert_eq!(expected, found, "{method:?} after {calls} calls");
            }
            calls += 1;
        }
        assert!(calls > 3, "{method:?}: a bucket per layer, and an agreement");
    }
}

/// If a step fails before it begins, the previous step can still be rolled back. An error that the previous step
/// detected late is still reported.
#[test]
fn a_step_that_never_began_loses_nothing() {
    let mut worker = ThreadCollective::group(1).remove(0);
    let mut controller =
        Controller::new(config(Method::TopK, Policy::Uniform), model(), worker.rank(), worker.world_size()).unwrap();
    (0..4).for_each(|_| drop(take_step(&mut controller, &mut worker, 1.0, 1.0).unwrap()));
    let before = residual(&controller, 0);
    take_step(&mut controller, &mut worker, 1.0, 1.0).unwrap();
    assert_ne!(residual(&controller, 0), before);
    let failed = controller.step(&mut Broken(1), &mut views(&mut gradients(0, 5, 1.0)), 1.0);
    assert_eq!(failed, Err(Error::Collective { code: 4 }));
    controller.residuals().roll_back().unwrap();
    assert_eq!(residual(&controller, 0), before);

    let keep = Setting::TopK(TopK { keep: 1, values: Dtype::F32 });
    let mut config = config(Method::TopK, Policy::Fixed(vec![keep]));
    config.feedback.others = Some(Residual { storage: lgreco_train::feedback::Storage::Bf16, ..Residual::CLASSIC });
    let tensors = vec![Tensor::new("w", &[2, 1], Dtype::F32).unwrap()];
    let mut controller = Controller::new(config, tensors, worker.rank(), worker.world_size()).unwrap();
    for values in [[1.0, 1.0], [1.0, 1.0], [f32::MAX, f32::MAX]] {
        controller.step(&mut worker, &mut [ValuesMut::F32(&mut values.clone())], 1.0).unwrap();
    }
    let mut values = [1.0, 1.0];
    let failed = controller.step(&mut Broken(1), &mut [ValuesMut::F32(&mut values)], 1.0);
    assert_eq!(failed, Err(Error::Collective { code: 4 }));
    assert!(controller.save().is_err());
    controller.begin_step(1.0).unwrap();
    assert!(controller.control().unwrap().is_none());
    let bucket = controller.open(&[0]).unwrap();
    controller.close(bucket).unwrap();
    controller.abandon_step().unwrap();
    assert!(controller.save().is_err());
    let late = Error::OfLayer { layer: 0, error: CoreError::Overflow { what: "the residual" } };
    assert_eq!(controller.step(&mut worker, &mut [ValuesMut::F32(&mut values)], 1.0), Err(late));
    assert!(controller.step(&mut worker, &mut [ValuesMut::F32(&mut values)], 1.0).is_ok());
}
