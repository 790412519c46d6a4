//! Tests of runs that are stopped, and continue from saved states.

use super::*;
use lgreco_testing::reseal;
use lgreco_train::compress::qsgd::Qsgd;

fn steps(controller: &mut Controller, worker: &mut ThreadCollective, count: usize) -> Vec<(Report, Vec<Vec<f32>>)> {
    (0..count).map(|_| take_step(controller, worker, 1.0, 1.0).unwrap()).collect()
}

/// A run with several decisions has the same bits, whether and wherever it is stopped and continued.
#[test]
fn a_run_that_was_stopped_continues_bit_for_bit() {
    for (method, policy) in [
        (Method::Hybrid, LGRECO),
        (Method::PowerSgd, Policy::Accordion(Accordion::new(6.0, 2.0))),
        (Method::TopK, Policy::Uniform),
    ] {
        on_all(2, |mut worker| {
            let mut config = config(method, policy.clone());
            config.feedback = Feedback::always(Residual::CLASSIC);
            let new = |worker: &ThreadCollective| {
                Controller::new(config.clone(), model(), worker.rank(), worker.world_size()).unwrap()
            };
            let mut controller = new(&worker);
            let whole = steps(&mut controller, &mut worker, 10);
            let end = controller.save().unwrap();
            for stop in 0..10 {
                let mut controller = new(&worker);
                steps(&mut controller, &mut worker, stop);
                let saved = controller.save().unwrap();
                let mut controller = new(&worker);
                let loaded = controller.load(&[&saved], &[&saved]).unwrap();
                let (rank, world_size) = (worker.rank(), 2);
                let step = stop as u64;
                assert_eq!(loaded, Loaded { rank, world_size, step, oldest_residual: step, ..Loaded::default() });
                assert!(steps(&mut controller, &mut worker, 10 - stop) == whole[stop..], "stopped at {stop}");
                assert!(controller.save().unwrap() == end);
            }
        });
    }
}

/// After loading, the schedule of the loading controller applies, not the schedule of the saved run.
#[test]
fn a_run_continues_with_the_present_schedule() {
    let planned = |saved: Schedule, present: Schedule, stop: usize| {
        let new = |schedule, worker: &ThreadCollective| {
            let config = Config { schedule, ..config(Method::TopK, LGRECO) };
            Controller::new(config, model(), worker.rank(), worker.world_size()).unwrap()
        };
        let all = threads::run(2, |mut worker| {
            let mut controller = new(saved, &worker);
            steps(&mut controller, &mut worker, stop);
            let saved = controller.save().unwrap();
            let mut controller = new(present, &worker);
            controller.load(&[&saved], &[&saved]).unwrap();
            let reports = steps(&mut controller, &mut worker, 14);
            reports.iter().filter(|(report, _)| report.switched).map(|(report, _)| report.step).collect::<Vec<_>>()
        });
        assert_eq!(all[0], all[1]);
        all[0].clone()
    };
    let schedule = |warmup, period| Schedule { warmup, period, window: 1, lead: 0 };
    assert_eq!(planned(schedule(2, 1000), schedule(2, 4), 4), [6, 10, 14], "a shorter period");
    assert_eq!(planned(schedule(2, 3), schedule(2, 100), 4), [5], "a longer period");
    assert_eq!(planned(schedule(1000, 4), schedule(6, 4), 4), [6, 10, 14], "a shorter warm-up");
    assert_eq!(planned(schedule(6, 4), schedule(10, 4), 4), [10, 14], "a longer warm-up");
    let [first, ..] = planned(schedule(1000, 4), schedule(2, 100), 4)[..] else { panic!() };
    assert!(first <= 5, "a warm-up that is over");
}

/// The saved states and residuals of all ranks after five steps of TopK.
fn states(world: u32) -> Vec<(Vec<u8>, Vec<f32>)> {
    threads::run(world, |mut worker| {
        let mut controller =
            Controller::new(config(Method::TopK, Policy::Uniform), model(), worker.rank(), worker.world_size())
                .unwrap();
        steps(&mut controller, &mut worker, 5);
        (controller.save().unwrap(), residual(&controller, 0))
    })
}

fn mean(residuals: impl ExactSizeIterator<Item = Vec<f32>>) -> Vec<f64> {
    let world = residuals.len() as f64;
    let mut mean = vec![0.0; 384];
    residuals.for_each(|values| mean.iter_mut().zip(values).for_each(|(sum, x)| *sum += x as f64 / world));
    mean
}

#[test]
fn the_mean_residual_survives_fewer_and_more_workers() {
    for (before, after) in [(3, 2), (3, 1), (2, 3), (1, 3)] {
        let saved = states(before);
        let residuals = threads::run(after, |mut worker| {
            let mut controller =
                Controller::new(config(Method::TopK, Policy::Uniform), model(), worker.rank(), worker.world_size())
                    .unwrap();
            let rank = worker.rank() as usize;
            let plan = &saved[rank.min(saved.len() - 1)].0;
            let taken: Vec<&[u8]> = saved
                .iter()
                .enumerate()
                .filter(|(i, _)| i % after as usize == rank)
                .map(|(_, (s, _))| &s[..])
                .collect();
            controller.load(&[plan], &taken).unwrap();
            let residual = residual(&controller, 0);
            assert!(matches!(controller.setting(0), Setting::TopK(_)));
            steps(&mut controller, &mut worker, 3); // ranks agree
            residual
        });
        if after > before {
            assert_eq!(residuals[before as usize], vec![0.0; 384], "a new rank starts without");
        }
        let (old, new) = (mean(saved.into_iter().map(|(_, residual)| residual)), mean(residuals.into_iter()));
        assert!(old.iter().any(|x| x.abs() > 0.1));
        old.iter().zip(&new).for_each(|(old, new)| assert!((old - new).abs() < 1e-6, "{old} became {new}"));
    }
}

/// Gradients measured in the saved run have shown that error feedback converges under this setting. New ranks take over
/// the setting without such measurements.
#[test]
fn new_ranks_without_residuals_have_the_settings_of_the_others() {
    let coarse = Setting::Qsgd(Qsgd { bits: 3, bucket: 16, ..Qsgd::default() });
    let new = |worker: &ThreadCollective| {
        let mut config = config(Method::Qsgd, Policy::Fixed(vec![coarse; model().len()]));
        config.feedback = Feedback::always(Residual::CLASSIC);
        Controller::new(config, model(), worker.rank(), worker.world_size()).unwrap()
    };
    let saved = threads::run(1, |mut worker| {
        let mut controller = new(&worker);
        steps(&mut controller, &mut worker, 5);
        assert_eq!(controller.setting(0), coarse);
        controller.save().unwrap()
    });
    threads::run(2, |mut worker| {
        let mut controller = new(&worker);
        let residuals: &[&[u8]] = if worker.rank() == 0 { &[&saved[0]] } else { &[] };
        controller.load(&[&saved[0]], residuals).unwrap();
        assert_eq!(controller.setting(0), coarse);
        steps(&mut controller, &mut worker, 3); // ranks agree
    });
}

#[test]
fn layers_are_found_by_name() {
    let mut worker = ThreadCollective::group(1).remove(0);
    let mut controller =
        Controller::new(config(Method::TopK, Policy::Uniform), model(), worker.rank(), worker.world_size()).unwrap();
    steps(&mut controller, &mut worker, 5);
    let saved = controller.save().unwrap();
    let kept = residual(&controller, 2);

    let layers: [(&str, &[usize]); 4] = [("fc2", &[20, 16]), ("new", &[16, 16]), ("fc1", &[24, 16]), ("x", &[2])];
    let layers = layers.map(|(name, dims)| Tensor::new(name, dims, Dtype::F32).unwrap());
    let mut other =
        Controller::new(config(Method::TopK, Policy::Uniform), layers.to_vec(), worker.rank(), worker.world_size())
            .unwrap();
    let loaded = other.load(&[&saved], &[&saved]).unwrap();
    assert_eq!(loaded.missing, ["new", "x"]);
    assert_eq!(loaded.extra, ["bias"]);
    assert_eq!(loaded.misshaped, ["fc1"]);
    assert_eq!(residual(&other, 0), kept);
    assert_eq!((other.steps(), other.metrics(1).uncompressed), (5, Some(Uncompressed::WarmUp)));
    // The decision comes one step later, when the first step's gradient has been measured.
    let mut values: Vec<Vec<f32>> = layers.iter().map(|t| noise(9, 0, 5, t.shape().elements())).collect();
    assert!(!other.step(&mut worker, &mut views(&mut values), 1.0).unwrap().switched);
    assert!(other.step(&mut worker, &mut views(&mut values), 1.0).unwrap().switched);
    assert!(matches!(other.setting(1), Setting::TopK(_)));
}

#[test]
fn states_of_different_steps_or_worlds_are_not_mixed() {
    let mut worker = ThreadCollective::group(1).remove(0);
    let new = |worker: &ThreadCollective| {
        Controller::new(config(Method::TopK, Policy::Uniform), model(), worker.rank(), worker.world_size()).unwrap()
    };
    let mut controller = new(&worker);
    let early = controller.save().unwrap();
    steps(&mut controller, &mut worker, 3);
    let late = controller.save().unwrap();
    let of_two = states(2).remove(0).0;
    let mut fresh = new(&worker);
    let step = Err(Error::Core(CoreError::SavedState { what: "a residual's step", found: 3 }));
    assert_eq!(fresh.load(&[&early], &[&early, &late]), step);
    let mut controller = new(&worker);
    steps(&mut controller, &mut worker, 5);
    let five = controller.save().unwrap();
    let world = Err(Error::Core(CoreError::SavedState { what: "a residual's number of workers", found: 2 }));
    assert_eq!(fresh.load(&[&five], &[&of_two]), world);
    assert!(fresh.save().unwrap() == early, "a refusal changed the controller");
}

/// A rank that has died is replaced by its last saved state. The residual in that state is not lost. Later changes of
/// the residual are lost, and the controller reports this loss.
#[test]
fn residuals_of_before_are_taken_over() {
    let saved = threads::run(2, |mut worker| {
        let mut controller =
            Controller::new(config(Method::TopK, Policy::Uniform), model(), worker.rank(), worker.world_size())
                .unwrap();
        steps(&mut controller, &mut worker, 4);
        let early = (controller.save().unwrap(), residual(&controller, 0));
        steps(&mut controller, &mut worker, 3);
        (early, (controller.save().unwrap(), residual(&controller, 0)))
    });
    let [(_, (late, kept)), ((early, lost), _)] = saved.try_into().unwrap();
    threads::run(2, |mut worker| {
        let mut controller =
            Controller::new(config(Method::TopK, Policy::Uniform), model(), worker.rank(), worker.world_size())
                .unwrap();
        let (own, left) = if worker.rank() == 0 { (&late, &kept) } else { (&early, &lost) };
        let loaded = controller.load(&[&late], &[own]).unwrap();
        assert_eq!((loaded.step, loaded.oldest_residual), (7, if worker.rank() == 0 { 7 } else { 4 }));
        assert_eq!(residual(&controller, 0), *left);
        assert!(left.iter().any(|&x| x != 0.0));
        steps(&mut controller, &mut worker, 2);
    });
}

/// Changes every byte of real states, and cuts the states at every byte.
#[test]
fn damaged_states_are_refused_or_restored() {
    let mut worker = ThreadCollective::group(1).remove(0);
    let mut config = Config::new(Search::new(Method::Hybrid));
    config.search.min_elements = 16;
    config.schedule = Schedule { warmup: 2, period: 2, window: 1, lead: 0 };
    config.feedback = Feedback::always(Residual::CLASSIC);
    let tensors =
        vec![Tensor::new("half", &[8, 9], Dtype::Bf16).unwrap(), Tensor::new("bias", &[20], Dtype::F32).unwrap()];
    let mut controller = Controller::new(config, tensors, worker.rank(), worker.world_size()).unwrap();
    for step in 0..4 {
        let mut half: Vec<_> =
            noise(0, 0, step, 72).into_iter().map(lgreco_train::gradient::Element::from_f32).collect();
        let mut views = [ValuesMut::Bf16(&mut half), ValuesMut::F32(&mut [0.5; 20])];
        controller.step(&mut worker, &mut views, 1.0).unwrap();
    }
    let mut states: Vec<_> = parts_of(&controller);
    states.push(controller.save().unwrap());
    for sound in states {
        check_state(&sound);
        for at in 0..sound.len() {
            check_state(&sound[..at]);
            for change in [1, 0x80, 0xff] {
                let mut damaged = sound.clone();
                damaged[at] ^= change;
                check_state(&damaged);
            }
        }
    }
}

/// If loading compared every name with every other name, this test would take minutes.
#[test]
fn a_hundred_thousand_layers_are_no_trouble() {
    const LAYERS: usize = 100_000;
    let worker = ThreadCollective::group(1).remove(0);
    let layers = |names: core::ops::Range<usize>| -> Vec<Tensor> {
        names.map(|i| Tensor::new(&format!("layer.{i}.weight"), &[2, 1], Dtype::F32).unwrap()).collect()
    };
    let mut config = config(Method::TopK, LGRECO);
    config.bucket_bytes = 0;
    let new = |names| Controller::new(config.clone(), layers(names), worker.rank(), worker.world_size());
    let saved = new(0..LAYERS).unwrap().save().unwrap();
    let mut same = new(0..LAYERS).unwrap();
    let loaded = same.load(&[&saved], &[&saved]).unwrap();
    assert_eq!(loaded, Loaded { rank: 0, world_size: 1, ..Loaded::default() });
    assert!(same.save() == Ok(saved.clone()));
    let mut other = new(1..LAYERS + 1).unwrap();
    let loaded = other.load(&[&saved], &[&saved]).unwrap();
    assert_eq!(loaded.missing, [format!("layer.{LAYERS}.weight")]);
    assert_eq!(loaded.extra, ["layer.0.weight"]);
    let mut twice = layers(0..LAYERS);
    twice.extend(layers(7..9));
    let found = Controller::new(config, twice, worker.rank(), worker.world_size()).err();
    assert_eq!(found, Some(Error::Core(CoreError::DuplicateName { layer: LAYERS, first: 7 })));
}

/// The flipped bits include bits of counters, and of the step of the next decision. With a wrong step, a run might
/// never plan again.
#[test]
fn every_flipped_bit_is_refused() {
    let mut worker = ThreadCollective::group(1).remove(0);
    let mut config = config(Method::PowerSgd, LGRECO);
    config.feedback = Feedback::always(Residual::CLASSIC);
    let layers = || vec![Tensor::new("fc", &[16, 6], Dtype::F32).unwrap()];
    let mut controller = Controller::new(config.clone(), layers(), worker.rank(), worker.world_size()).unwrap();
    for step in 0..6 {
        controller.step(&mut worker, &mut [ValuesMut::F32(&mut noise(0, 0, step, 96))], 1.0).unwrap();
    }
    assert!(residual(&controller, 0).iter().any(|&x| x != 0.0));
    let saved = controller.save().unwrap();
    let mut fresh = Controller::new(config, layers(), worker.rank(), worker.world_size()).unwrap();
    let before = fresh.save().unwrap();
    for bit in 0..8 * saved.len() {
        let mut bytes = saved.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        for found in [fresh.load(&[&bytes], &[&saved]), fresh.load(&[&saved], &[&bytes])] {
            match found {
                Err(Error::Core(CoreError::SavedState { .. })) => assert!(bit < 128, "bit {bit}"),
                found => assert!(
                    // Bit 65 turns version 4 into version 6.
                    matches!(found, Err(Error::Core(CoreError::Checksum { .. }))) && (bit >= 128 || bit == 65),
                    "bit {bit}: {found:?}"
                ),
            }
        }
        assert!(fresh.save() == Ok(before.clone()), "the refusal of bit {bit} changed the controller");
    }
    fresh.load(&[&saved], &[&saved]).unwrap();
    assert!(fresh.save() == Ok(saved));
}

/// A run without feedback continues with feedback. A saved setting is refused if feedback would diverge under it.
#[test]
fn saved_settings_that_do_not_suit_new_feedback_are_not_taken() {
    let two_bits = Setting::Qsgd(Qsgd { bits: 2, ..Qsgd::default() });
    let mut worker = ThreadCollective::group(1).remove(0);
    let make = |feedback, worker: &ThreadCollective| {
        let mut config = config(Method::Qsgd, Policy::Fixed(vec![two_bits]));
        config.feedback = feedback;
        config.schedule.period = 1000;
        Controller::new(
            config,
            vec![Tensor::new("fc", &[64, 32], Dtype::F32).unwrap()],
            worker.rank(),
            worker.world_size(),
        )
        .unwrap()
    };
    let mut controller = make(Feedback::default(), &worker);
    for step in 0..4 {
        controller.step(&mut worker, &mut [ValuesMut::F32(&mut noise(0, 0, step, 2048))], 1.0).unwrap();
    }
    assert_eq!(controller.setting(0), two_bits);
    let saved = controller.save().unwrap();
    let after = |feedback, worker: &ThreadCollective| {
        let mut controller = make(feedback, worker);
        controller.load(&[&saved], &[&saved]).unwrap();
        controller.setting(0)
    };
    assert_eq!(after(Feedback::default(), &worker), two_bits);
    assert_eq!(after(Feedback::always(Residual::CLASSIC), &worker), Setting::Dense);
}

/// A run continues with a longer warm-up. The decision that was due still happens. The next decision waits for the end
/// of the warm-up.
#[test]
fn a_longer_warm_up_is_kept_when_continuing() {
    let mut worker = ThreadCollective::group(1).remove(0);
    let mut config = config(Method::TopK, LGRECO);
    let mut controller = Controller::new(config.clone(), model(), worker.rank(), worker.world_size()).unwrap();
    steps(&mut controller, &mut worker, 4);
    let saved = controller.save().unwrap();
    config.schedule.warmup = 8;
    let mut controller = Controller::new(config, model(), worker.rank(), worker.world_size()).unwrap();
    controller.load(&[&saved], &[&saved]).unwrap();
    let switches: Vec<u64> = (0..10)
        .map(|_| take_step(&mut controller, &mut worker, 1.0, 1.0).unwrap().0)
        .filter_map(|report| report.switched.then_some(report.step))
        .collect();
    assert_eq!(switches, [5, 8, 11]);
}

/// Only the measuring rank's state has the window's gradients.
#[test]
fn a_measuring_rank_may_be_given_the_state_of_another() {
    let saved = threads::run(2, |mut worker| {
        let mut controller =
            Controller::new(config(Method::TopK, LGRECO), model(), worker.rank(), worker.world_size()).unwrap();
        steps(&mut controller, &mut worker, 4);
        controller.save().unwrap()
    });
    for (measuring, given) in [(0, [1, 0]), (0, [1, 1]), (1, [0, 1])] {
        on_all(2, |mut worker| {
            let mut config = config(Method::TopK, LGRECO);
            config.measuring_rank = measuring;
            let mut controller = Controller::new(config, model(), worker.rank(), worker.world_size()).unwrap();
            controller.load(&[&saved[given[worker.rank() as usize]]], &[]).unwrap();
            let reports = steps(&mut controller, &mut worker, 3).into_iter().map(|(report, _)| report);
            assert_eq!(reports.map(|report| report.switched).collect::<Vec<_>>(), [false, true, false]);
        });
    }
}

/// Counts near 2^64 are refused. No real run has such counts, and the next step would make them overflow.
#[test]
fn counts_without_end_are_refused() {
    let mut worker = ThreadCollective::group(1).remove(0);
    let mut controller =
        Controller::new(config(Method::TopK, LGRECO), model(), worker.rank(), worker.world_size()).unwrap();
    steps(&mut controller, &mut worker, 4);
    let saved = controller.save().unwrap();
    let largest = |at: usize| {
        let mut changed = saved.clone();
        changed[at..at + 8].fill(0xff);
        reseal(&mut changed);
        changed
    };
    let step = largest(32);
    let found = Err(Error::Core(CoreError::SavedState { what: "number of steps", found: u64::MAX }));
    assert_eq!(controller.load(&[&step], &[&step]), found);
    let (mut refused, mut stepped) = (0, 0);
    for at in (16..saved.len() - 16).step_by(8) {
        let state = largest(at);
        let mut controller =
            Controller::new(config(Method::TopK, LGRECO), model(), worker.rank(), worker.world_size()).unwrap();
        match controller.load(&[&state], &[&state]) {
            Err(_) => refused += 1,
            Ok(_) => {
                let _ = take_step(&mut controller, &mut worker, 1.0, 1.0);
                let _ = take_step(&mut controller, &mut worker, 1.0, 1.0);
                stepped += 1;
            }
        }
    }
    assert!(refused > 0 && stepped > 0);
}

/// Saves the part that belongs to no layer, and each layer's part.
fn parts_with(controller: &Controller, contents: Contents) -> Vec<Vec<u8>> {
    let layers = (0..controller.tensors().len()).map(Some);
    std::iter::once(None).chain(layers).map(|layer| controller.save_part(layer, contents).unwrap()).collect()
}

fn parts_of(controller: &Controller) -> Vec<Vec<u8>> {
    parts_with(controller, Contents::Everything)
}

fn slices(parts: &[Vec<u8>]) -> Vec<&[u8]> {
    parts.iter().map(Vec::as_slice).collect()
}

/// Parts can be loaded in any order, at every step.
#[test]
fn a_state_in_parts_is_the_state() {
    for method in [Method::Hybrid, Method::PowerSgd] {
        on_all(2, |mut worker| {
            let config = config(method, LGRECO);
            let new = || Controller::new(config.clone(), model(), worker.rank(), worker.world_size()).unwrap();
            let (mut controller, fresh) = (new(), (0..7).map(|_| new()).collect::<Vec<_>>());
            for mut other in fresh {
                let mut parts = parts_of(&controller);
                parts.reverse();
                let (rank, world_size) = (worker.rank(), 2);
                let loaded = other.load(&slices(&parts), &slices(&parts)).unwrap();
                let step = controller.steps();
                assert_eq!(loaded, Loaded { rank, world_size, step, oldest_residual: step, ..Loaded::default() });
                assert!(other.save() == controller.save(), "step {}", controller.steps());
                steps(&mut controller, &mut worker, 1);
            }
        });
    }
}

/// Parts are combined like whole states, with fewer or more workers. Parts of layers that the model lacks may be left out.
#[test]
fn parts_of_other_numbers_of_workers_are_combined() {
    for (before, after) in [(3, 2), (2, 3)] {
        let saved = threads::run(before, |mut worker| {
            let mut controller =
                Controller::new(config(Method::TopK, Policy::Uniform), model(), worker.rank(), worker.world_size())
                    .unwrap();
            steps(&mut controller, &mut worker, 5);
            (controller.save().unwrap(), parts_of(&controller))
        });
        threads::run(after, |worker| {
            let rank = worker.rank() as usize;
            let plan = &saved[rank.min(saved.len() - 1)];
            let taken: Vec<_> =
                saved.iter().enumerate().filter(|(i, _)| i % after as usize == rank).map(|(_, saved)| saved).collect();
            let new = || {
                Controller::new(config(Method::TopK, Policy::Uniform), model(), worker.rank(), worker.world_size())
                    .unwrap()
            };
            let [mut whole, mut in_parts] = [new(), new()];
            let states: Vec<_> = taken.iter().map(|(state, _)| &state[..]).collect();
            let parts: Vec<_> = taken.iter().flat_map(|(_, parts)| slices(&parts[1..])).collect();
            assert_eq!(whole.load(&[&plan.0], &states), in_parts.load(&slices(&plan.1), &parts));
            assert!(whole.save() == in_parts.save());
            let loaded = in_parts.load(&slices(&plan.1[..3]), &parts).unwrap();
            assert_eq!(loaded.missing, ["fc2"]);
        });
    }
}

#[test]
fn parts_that_do_not_make_a_state_are_refused() {
    let mut worker = ThreadCollective::group(1).remove(0);
    let mut controller =
        Controller::new(config(Method::TopK, Policy::Uniform), model(), worker.rank(), worker.world_size()).unwrap();
    let early = parts_of(&controller);
    steps(&mut controller, &mut worker, 4);
    let parts = parts_of(&controller);
    let before = controller.save();
    let mut refused = |plan: &[&[u8]], residuals: &[&[u8]]| {
        let error = controller.load(plan, residuals).unwrap_err();
        assert!(controller.save() == before, "a refusal changed the controller");
        error
    };
    let all = slices(&parts);
    let none = |found| {
        Error::Core(CoreError::SavedState { what: "number of parts that belong to no layer (expected 1)", found })
    };
    assert!(matches!(refused(&all[1..], &[]), Error::Core(CoreError::SavedState { .. })));
    assert_eq!(refused(&[], &[]), none(0));
    let twice = [all[0], all[0], all[1]];
    assert_eq!(refused(&twice, &[]), none(2));
    let layer_twice = [all[0], all[1], all[1]];
    assert!(matches!(refused(&layer_twice, &[]), Error::Core(CoreError::DuplicateName { .. })));
    let mixed = [all[0], &early[1]];
    let of_two = Error::Core(CoreError::SavedState {
        what: "number of states that the plan's parts belong to (expected 1)",
        found: 2,
    });
    assert_eq!(refused(&mixed, &[]), of_two);
    let whole = before.clone().unwrap();
    assert_eq!(refused(&[&whole, all[0]], &[]), none(2));
    assert!(matches!(refused(&[&whole, all[1]], &[]), Error::Core(CoreError::DuplicateName { .. })));
    for bit in 0..8 * parts[1].len() {
        let mut damaged = parts[1].clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        refused(&[all[0], &damaged], &[]);
        refused(&all, &[&damaged]);
    }
    for cut in 0..parts[0].len() {
        refused(&[&parts[0][..cut]], &[]);
    }
}

/// The next decision only uses the gradients after loading.
#[test]
fn without_its_window_a_state_starts_a_new_one() {
    on_all(2, |mut worker| {
        let mut config = config(Method::TopK, LGRECO);
        config.schedule = Schedule { warmup: 6, period: 9, window: 4, lead: 0 };
        let mut controller = Controller::new(config.clone(), model(), worker.rank(), worker.world_size()).unwrap();
        steps(&mut controller, &mut worker, 4);
        let small = controller.save_only(Contents::WithoutWindow).unwrap();
        let whole = controller.save().unwrap();
        let window = if worker.rank() == 0 { 4 * (384 + 24 + 320) } else { 0 };
        assert_eq!(whole.len() - small.len(), window);
        let mut continued = Controller::new(config.clone(), model(), worker.rank(), worker.world_size()).unwrap();
        continued.load(&[&small], &[&small]).unwrap();
        assert!(continued.save_only(Contents::WithoutWindow).as_ref() == Ok(&small));
        let parts = parts_with(&controller, Contents::WithoutWindow);
        let mut from_parts = Controller::new(config, model(), worker.rank(), worker.world_size()).unwrap();
        from_parts.load(&slices(&parts), &slices(&parts)).unwrap();
        assert!(from_parts.save() == continued.save());
        steps(&mut continued, &mut worker, 3);
        assert_eq!(continued.decision().map(|decision| decision.step), Some(6));
        assert_eq!(settings(&continued), super::schedule::l_greco(Method::TopK, 0, &[4, 5]).1);
        steps(&mut controller, &mut worker, 3);
        assert_eq!(settings(&controller), super::schedule::l_greco(Method::TopK, 0, &[2, 3, 4, 5]).1);
    });
}
