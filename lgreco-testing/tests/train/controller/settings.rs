//! Tests of settings that the caller has given, with every compressor.

use super::*;
use lgreco_testing::controller::SETTINGS;
use lgreco_train::compress::Compressor;
use lgreco_train::compress::hard_threshold::HardThreshold;
use lgreco_train::compress::wire::HEADER_LEN;

/// If the length of a payload depends on values, the report has the sent bytes, not the largest possible number.
#[test]
fn reports_tell_the_bytes_of_payloads_whose_length_the_values_decide() {
    for setting in SETTINGS.into_iter().filter(|setting| !setting.has_fixed_len()) {
        on_all(2, |mut worker| {
            let fixed = Policy::Fixed(vec![setting, setting, Setting::Dense]);
            let mut controller =
                Controller::new(config(Method::TopK, fixed), model(), worker.rank(), worker.world_size()).unwrap();
            let mut bytes = vec![];
            for scale in [1.0, 1.0, 1.0, 0.0] {
                bytes.push(take_step(&mut controller, &mut worker, scale, 0.1).unwrap().0.bytes_out);
            }
            let dense = |layer: usize| 4 * model()[layer].shape().elements() as u64;
            let bound = |layer: usize| setting.payload_len(model()[layer].shape(), Dtype::F32).unwrap() as u64;
            assert_eq!(bytes[0], dense(0) + dense(1) + dense(2));
            assert!(bytes[2] > 2 * HEADER_LEN as u64 + dense(2));
            assert!(bytes[2] < bound(0) + bound(1) + dense(2));
            let total = |layer| controller.metrics(layer).bytes_out;
            assert_eq!(total(0) + total(1) + total(2), bytes.iter().sum::<u64>());
        });
    }
}

/// If all values are below λ, a hard threshold sends nothing. This setting is not refused, because residuals stay below
/// λ.
#[test]
fn a_hard_threshold_above_all_gradients_waits_for_its_memory() {
    let hard = Setting::HardThreshold(HardThreshold { lambda: 0.125, values: Dtype::F32 });
    let mut worker = ThreadCollective::group(1).remove(0);
    let fixed = Policy::Fixed(vec![Setting::Dense, Setting::Dense, hard]);
    let mut controller =
        Controller::new(config(Method::TopK, fixed), model(), worker.rank(), worker.world_size()).unwrap();
    let mut sent = 0;
    for _ in 0..60 {
        let (_, means) = take_step(&mut controller, &mut worker, 1.0, 0.1).unwrap(); // magnitudes up to 1/16
        if controller.steps() > 3 {
            sent += means[2].iter().filter(|&&x| x != 0.0).count();
            assert!(residual(&controller, 2).iter().all(|x| x.abs() < 0.125));
        }
    }
    assert_eq!(controller.setting(2), hard);
    assert!((1..60 * 320 / 4).contains(&sent), "{sent}");
}

fn top(keep: u32) -> Setting {
    Setting::TopK(TopK { keep, values: Dtype::F32 })
}

fn low_rank(rank: u32) -> Setting {
    Setting::PowerSgd(PowerSgd { rank, iterations: 1 })
}

fn fixed(settings: [Setting; 3], worker: &ThreadCollective) -> Controller {
    Controller::new(config(Method::TopK, Policy::Fixed(settings.into())), model(), worker.rank(), worker.world_size())
        .unwrap()
}

/// Residuals are kept. In every step, means and new residuals add up to gradients and old residuals.
#[test]
fn settings_of_a_fixed_policy_change_with_the_next_step() {
    on_all(2, |mut worker| {
        let mut controller = fixed([top(7), Setting::Dense, low_rank(3)], &worker);
        let given = [
            (3, [low_rank(2), Setting::Dense, low_rank(2)]),
            (5, [top(9), top(2), low_rank(4)]),
            (6, [Setting::Dense, Setting::Dense, top(5)]),
        ];
        let mut expected = [Setting::Dense; 3];
        for step in 0..9 {
            if step == 2 {
                expected = [top(7), Setting::Dense, low_rank(3)];
            }
            if let Some((_, settings)) = given.iter().find(|(at, _)| *at == step) {
                let before: Vec<_> = (0..3).map(|layer| residual(&controller, layer)).collect();
                controller.planning().set_settings(settings.to_vec()).unwrap();
                expected = *settings;
                assert_eq!(before, (0..3).map(|layer| residual(&controller, layer)).collect::<Vec<_>>());
            }
            let mut owed: Vec<_> = (0..3).map(|layer| residual(&controller, layer)).collect();
            let (report, means) = take_step(&mut controller, &mut worker, 1.0, 0.1).unwrap();
            assert_eq!(report.switched, step == 2 || given.iter().any(|(at, _)| *at == step), "step {step}");
            assert_eq!(settings(&controller), expected, "step {step}");
            for (layer, owed) in owed.iter_mut().enumerate() {
                let mut left = residual(&controller, layer);
                worker.all_reduce_sum(owed).unwrap();
                worker.all_reduce_sum(&mut left).unwrap();
                let exact = exact_mean(2, step, layer);
                for i in 0..left.len() {
                    let lost = exact[i] + owed[i] / 2.0 - means[layer][i] - left[i] / 2.0;
                    assert!(lost.abs() < 1e-5, "step {step}, layer {layer}, element {i}: {lost} is lost");
                }
            }
        }
        let decision = controller.decision().unwrap();
        assert_eq!((decision.step, decision.cause), (6, Cause::Caller));
    });
}

#[test]
fn ranks_that_are_given_different_settings_are_told() {
    for (given_to, told) in [([5, 5, 6], 2), ([5, 6, 6], 1), ([6, 0, 6], 1), ([0, 0, 6], 2)] {
        let results = threads::run(3, |mut worker| {
            let mut controller = fixed([top(7), Setting::Dense, top(7)], &worker);
            (0..4).for_each(|_| drop(take_step(&mut controller, &mut worker, 1.0, 0.1).unwrap()));
            match given_to[worker.rank() as usize] {
                0 => {}
                keep => controller.planning().set_settings(vec![top(keep), Setting::Dense, top(7)]).unwrap(),
            }
            let failed = take_step(&mut controller, &mut worker, 1.0, 0.1).map(drop);
            // After all ranks have been given the same settings, they continue.
            controller.planning().set_settings(vec![top(4); 3]).unwrap();
            assert!(take_step(&mut controller, &mut worker, 1.0, 0.1).unwrap().0.switched);
            assert_eq!(settings(&controller), [top(4); 3]);
            failed
        });
        for result in results {
            let expected = "settings of the fixed policy";
            assert!(
                matches!(result, Err(Error::PeerOption { rank, what, .. }) if rank == told && what == expected),
                "{given_to:?}: {result:?}"
            );
        }
    }
}

#[test]
fn settings_that_cannot_be_given_are_refused() {
    let mut worker = ThreadCollective::group(1).remove(0);
    let mut other =
        Controller::new(config(Method::TopK, Policy::Uniform), model(), worker.rank(), worker.world_size()).unwrap();
    assert_eq!(other.planning().set_settings(vec![top(1); 3]), Err(Error::NotFixed));
    let mut controller = fixed([top(7); 3], &worker);
    (0..3).for_each(|_| drop(take_step(&mut controller, &mut worker, 1.0, 0.1).unwrap()));
    let before = controller.save();
    assert!(matches!(
        controller.planning().set_settings(vec![top(1)]),
        Err(Error::Core(lgreco_train::CoreError::Length { .. }))
    ));
    assert!(controller.planning().set_settings(vec![top(1), top(25), top(1)]).is_err(), "the bias has 24 elements");
    assert!(controller.save() == before);
    controller.begin_step(0.1).unwrap();
    assert!(matches!(controller.planning().set_settings(vec![top(1); 3]), Err(Error::StepOrder { .. })));
}

/// Settings that the caller gives during the warm-up are used from the end of the warm-up on. The result of a task for
/// the old settings cannot be handed in.
#[test]
fn settings_given_before_the_first_decision_wait_for_it() {
    on_all(2, |mut worker| {
        let mut config = config(Method::TopK, Policy::Fixed(vec![top(7); 3]));
        config.schedule = Schedule { warmup: 4, period: 9, window: 1, lead: 2 };
        let mut controller = Controller::new(config, model(), worker.rank(), worker.world_size()).unwrap();
        let mut switched = vec![];
        for step in 0..8 {
            let task = controller.planning().take_task();
            if step == 3 {
                controller.planning().set_settings(vec![top(5); 3]).unwrap();
            }
            if let Some(task) = task {
                assert_eq!(controller.planning().hand_in(task.run(&mut lgreco_train::backend::Portable)), step != 3);
            }
            if take_step(&mut controller, &mut worker, 1.0, 0.1).unwrap().0.switched {
                switched.push((step, settings(&controller)));
            }
        }
        assert_eq!(switched, [(4, vec![top(5); 3])]);
    });
}

/// The state is saved before the step that switches to the given settings.
#[test]
fn given_settings_survive_a_restart() {
    on_all(2, |mut worker| {
        let mut controller = fixed([top(7); 3], &worker);
        (0..4).for_each(|_| drop(take_step(&mut controller, &mut worker, 1.0, 0.1).unwrap()));
        controller.planning().set_settings(vec![top(5); 3]).unwrap();
        let saved = controller.save().unwrap();
        let mut other = fixed([top(5); 3], &worker);
        other.load(&[&saved], &[&saved]).unwrap();
        assert_eq!(settings(&other), [top(7); 3]);
        // With feedback, settings are first judged on a gradient, which takes one step.
        (0..2).for_each(|_| drop(take_step(&mut other, &mut worker, 1.0, 0.1).unwrap()));
        assert_eq!(settings(&other), [top(5); 3]);
    });
}
