//! Tests of plans by measured seconds, in whole runs with a simulated clock, link and processor.

use super::simulated::*;
use super::*;
use lgreco_testing::exchange::Through;
use lgreco_train::plan::Limit;

/// Whether all cases are tested, not only a few.
fn is_full() -> bool {
    std::env::var_os("LGRECO_FULL").is_some()
}

/// The search's default setting for the layers.
fn default_of(world: &World) -> Setting {
    world.config.search.uniform(&[SIDE, SIDE], Dtype::F32).unwrap()
}

fn last(log: &[(f64, usize)]) -> (f64, usize) {
    log[log.len() - 1]
}

/// Asserts that the last of `steps` steps takes at most 1.1 times as long as with the better of two fixed settings:
/// uncompressed, or the default.
fn expect_the_best(world: &World, steps: u64) -> (f64, usize) {
    let (log, decision) = world.run(steps);
    let of = |setting| last(&world.fixed(setting).run(steps).0).0;
    let (dense, default) = (of(None), of(Some(default_of(world))));
    let (found, compressed) = last(&log);
    let best = dense.min(default);
    assert!(found <= 1.1 * best, "{found} of {dense} uncompressed, {default} by default: {}", decision.unwrap());
    (found, compressed)
}

/// Number of steps from the start until one step after the second decision.
const TWO_DECISIONS: u64 = 3 + 5 + 1;

/// Rates in bytes per second: unlimited, two near the point at which compression stops saving time, 1 Gbit/s and 100
/// Mbit/s.
const RATES: [f64; 5] = [1e13, 1e9, 5e8, 1.25e8, 1.25e7];

fn at_every_rate(method: Method) {
    for rate in RATES {
        for budget in [Budget::Error, Budget::Size] {
            let mut world = World::new(method, move |_, _| rate);
            world.config.budget = budget;
            let (_, compressed) = expect_the_best(&world, TWO_DECISIONS);
            match rate {
                1e13 => assert_eq!(compressed, 0, "no limit"),
                1.25e7 => assert!(compressed >= LAYERS - 1, "a slow link"),
                _ => {}
            }
        }
    }
}

/// Under measured seconds, sizes in tables are picoseconds. So a size limit can be given in seconds.
#[test]
fn a_limit_of_size_is_seconds() {
    let world = |budget| {
        let mut world = World::new(Method::Qsgd, |_, _| 1.25e7);
        world.config.budget = budget;
        world
    };
    let relative = world(Budget::Size).run(4).1.unwrap();
    let plan = relative.plan.unwrap();
    assert_eq!(plan.limit(), Limit::Size(relative.default_size));
    let seconds = relative.default_size as f64 / 1e12;
    assert!((1e-4..1.0).contains(&seconds), "{seconds}");
    let absolute = world(Budget::Seconds(1.5 * seconds)).run(4).1.unwrap().plan.unwrap();
    assert!(absolute.error < plan.error && absolute.size > relative.default_size, "{absolute:?}");
    assert!(absolute.size as f64 / 1e12 <= 1.5 * seconds);

    let (limit, smallest) = (1e-6, seconds / 10.0);
    let told = Error::TimeInfeasible { limit, smallest };
    assert_eq!(told.code(), CoreError::SizeInfeasible { limit: 0, smallest: 0, error: 0.0 }.code());
    assert!(told.to_string().contains("seconds"), "{told}");
    let too_short = world(Budget::Seconds(limit));
    let results = threads::run(2, |mut worker| {
        NOW.set(0.0);
        let mut controller = too_short.controller(&worker);
        (0..3).for_each(|_| {
            too_short.step(&mut controller, &mut worker);
        });
        controller.begin_step(0.1).unwrap();
        loop {
            match controller.control() {
                Ok(Some(request)) => request.perform(&mut worker).unwrap(),
                Ok(None) => panic!("a microsecond"),
                Err(error) => return error,
            }
        }
    });
    let Error::TimeInfeasible { limit: 1e-6, smallest } = results[0] else { panic!("{}", results[0]) };
    assert!(smallest > limit && smallest < seconds, "{smallest}");
    assert_eq!(results[1], Error::Peer { rank: 0, code: told.code() });
}

#[test]
fn whoever_measures_the_same_is_decided() {
    for (method, rate, compresses) in
        [(Method::Qsgd, 1e13, false), (Method::TopK, 1.25e7, true), (Method::Hybrid, 1.25e7, true)]
    {
        let mut world = World::new(method, move |_, _| rate);
        // In the first step of the warm-up, ranks agree on the layers that share a bucket. The last two steps of the
        // warm-up belong to the window.
        (world.elsewhere, world.config.schedule.warmup) = (true, 8);
        let (_, compressed) = expect_the_best(&world, 8 + 5 + 1);
        assert!(if compresses { compressed >= LAYERS - 1 } else { compressed == 0 }, "{method:?}: {compressed}");
        let (found, told) = (world.run(8 + 1).1.unwrap(), World { elsewhere: false, ..world }.run(8 + 1).1.unwrap());
        let (found, told) = (found.timing.unwrap(), told.timing.unwrap());
        let pairs = [(found.uncompressed, told.uncompressed), (found.plan, told.plan), (found.default, told.default)];
        assert!(pairs.iter().all(|(own, other)| (own - other).abs() <= 0.05 * other), "{method:?}: {found} {told}");
    }
}

#[test]
fn what_cannot_be_a_time_is_refused_and_nothing_is_told_of_a_step_under_way() {
    let world = World { elsewhere: true, ..World::new(Method::TopK, |_, _| 1e9) };
    on_all(1, |worker| {
        let mut controller = world.controller(&worker);
        for wrong in [f64::NAN, f64::INFINITY, -1.0] {
            assert!(controller.external().record_exchange(0.0, wrong, 0.0).is_err());
            assert!(
                controller.external().record_probe([0.0, wrong]).is_err()
                    && controller.external().record_trial(&[], &[], wrong).is_err()
            );
        }
        let settings = controller.external().trials(&[0, LAYERS - 1]).unwrap();
        assert_eq!(settings.len(), 1);
        assert!(controller.external().trials(&[LAYERS]).is_err());
        assert!(controller.external().record_trial(&[LAYERS], &settings[0], 1.0).is_err());
        controller.begin_step(0.1).unwrap();
        assert!(
            controller.external().meter_elsewhere(true).is_err()
                && controller.external().record_exchange(0.0, 1.0, 0.5).is_err()
        );
    });
}

#[test]
fn qsgd_is_within_a_tenth_of_the_best_at_every_rate() {
    at_every_rate(Method::Qsgd);
}

#[test]
fn topk_is_within_a_tenth_of_the_best_at_every_rate() {
    at_every_rate(Method::TopK);
}

#[test]
fn powersgd_is_within_a_tenth_of_the_best_at_every_rate() {
    at_every_rate(Method::PowerSgd);
}

#[test]
fn several_methods_are_within_a_tenth_of_the_best_at_every_rate() {
    at_every_rate(Method::Hybrid);
}

#[test]
fn one_wrong_probe_is_not_believed_for_ever() {
    for wrong in [1e11, 1e5] {
        // The probe of step 2 belongs to the first decision, before step 3, and the probe of step 12 to a later
        // decision.
        for at in [2, 12] {
            let world = World::new(Method::Qsgd, move |_, step| if step == at { wrong } else { 1.25e8 });
            expect_the_best(&world, at + 3 * 5 + 2);
        }
    }
}

#[test]
fn collectives_that_cost_more_than_their_bytes_are_given_up() {
    let world = World { latency: 5e-3, ..World::new(Method::PowerSgd, |_, _| 2.5e7) };
    let (_, compressed) = expect_the_best(&world, 43);
    assert_eq!(compressed, 0);
}

#[test]
fn a_link_that_changes_by_less_than_a_factor_of_two_is_followed() {
    let changes = [(3.5e8, 6.5e8), (6.5e8, 3.5e8), (2e8, 1.2e8)];
    for (before, after) in changes.into_iter().take(if is_full() { 3 } else { 2 }) {
        for backward in [0.0, 1e-4] {
            let rate = move |_, step| if step < 26 { before } else { after };
            expect_the_best(&World { backward, ..World::new(Method::Qsgd, rate) }, 28 + 5 * 5 + 1);
        }
    }
}

#[test]
fn a_rate_that_changes_is_followed_after_two_decisions() {
    let changes = [(1e13, 1.25e7), (1.25e7, 1e13), (1.25e8, 1.25e7), (1.25e7, 1e9), (1e9, 1.25e8)];
    for (before, after) in changes.into_iter().take(if is_full() { 5 } else { 2 }) {
        for method in [Method::Qsgd, Method::TopK] {
            for backward in [0.0, 1e-3] {
                // The rate changes in the middle of a period.
                let rate = move |_, step| if step < 26 { before } else { after };
                let world = World { backward, ..World::new(method, rate) };
                let steps = 28 + 5 + 1;
                let (_, compressed) = expect_the_best(&world, steps);
                match after {
                    1e13 if backward == 0.0 => assert_eq!(compressed, 0),
                    1.25e7 => assert_eq!(compressed, LAYERS),
                    _ => {}
                }
            }
        }
    }
}

#[test]
fn one_slow_peer_decides_for_all() {
    for slow in [0, 1] {
        let link = World::new(Method::Qsgd, move |rank, _| if rank == slow { 1.25e7 } else { 1e13 });
        assert_eq!(expect_the_best(&link, TWO_DECISIONS).1, LAYERS);
        // On a processor that takes eight times as long, compression takes more time than it saves on this link.
        let mut processor = World::new(Method::Qsgd, |_, _| 2.5e8);
        assert_eq!(expect_the_best(&processor, TWO_DECISIONS).1, LAYERS);
        processor.slowness[slow as usize] = 8.0;
        assert_eq!(expect_the_best(&processor, TWO_DECISIONS).1, 0, "rank {slow}");
    }
}

#[test]
fn what_the_backward_pass_hides_costs_nothing() {
    // Sending takes a third of the backward pass, and compressing a fifth of it.
    let world = World { backward: 1e-3, ..World::new(Method::Qsgd, |_, _| 2e8) };
    let (_, compressed) = expect_the_best(&world, 3 + 10 * 5 + 1);
    assert_eq!(compressed, 0);
}

#[test]
fn near_where_it_stops_paying_settings_stay() {
    for noise in [0.0, 0.03] {
        for rate in [7e8, 8e8, 4e8, 6e8, 7.5e8, 9e8].into_iter().take(if is_full() { 6 } else { 2 }) {
            let world = World { noise, ..World::new(Method::Qsgd, move |_, _| rate) };
            let (log, _) = world.run(3 + 40 * 5);
            let settled = log[TWO_DECISIONS as usize..].windows(2);
            let switches = settled.filter(|steps| (steps[0].1 == 0) != (steps[1].1 == 0)).count();
            assert!(switches <= 1, "{switches} switches at {rate} with noise of {noise}");
        }
    }
}

#[test]
fn shapers_and_late_collectives_do_not_deceive() {
    for (rate, compressed) in [(1.25e8, LAYERS), (1e13, 0)] {
        // A layer has 64 KiB. All layers together take 2 ms at 1 Gbit/s.
        let world = World { burst: 1.6e4, jitter: 1e-4, ..World::new(Method::Qsgd, move |_, _| rate) };
        let (log, decision) = world.run(3 + 20 * 5);
        let settled = &log[TWO_DECISIONS as usize..];
        let wrong = settled.iter().filter(|step| step.1 != compressed).count();
        assert_eq!(wrong, 0, "of {} steps: {}", settled.len(), decision.unwrap());
    }
}

#[test]
fn a_rank_whose_bytes_come_first_is_not_deceived() {
    let decided = [1.0, 0.25].map(|first| {
        let world = World { first, ..World::new(Method::Qsgd, |_, _| 1.25e7) };
        let (_, decision) = world.run(4);
        decision.unwrap().timing.unwrap().seconds_per_byte
    });
    assert!((decided[1] - decided[0]).abs() <= 0.05 * decided[0], "{decided:?}");
}

#[test]
fn what_was_learnt_is_saved() {
    let world = World::new(Method::Qsgd, |_, step| if step < 20 { 1.25e8 } else { 1e13 });
    on_all(2, |mut worker| {
        NOW.set(0.0);
        let mut controller = world.controller(&worker);
        (0..20).for_each(|_| {
            world.step(&mut controller, &mut worker);
        });
        let saved = controller.save().unwrap();
        let mut continued = world.controller(&worker);
        continued.load(&[&saved], &[&saved]).unwrap();
        assert!(continued.save().unwrap() == saved);
        assert_eq!(continued.decision(), controller.decision());
        // A controller that minimises bits can also load this state. A controller that measures can load a state without
        // measured seconds.
        let mut bits = world.clone();
        bits.config.objective = Objective::Bits;
        let mut other = bits.controller(&worker);
        other.load(&[&saved], &[&saved]).unwrap();
        let unmeasured = other.save().unwrap();
        assert!(unmeasured.len() < saved.len());
        continued.load(&[&unmeasured], &[&unmeasured]).unwrap();
        // The continued controller adapts to the change of the link.
        for _ in 0..TWO_DECISIONS {
            world.step(&mut continued, &mut worker);
        }
        let compressed = (0..LAYERS).filter(|&layer| continued.setting(layer) != Setting::Dense).count();
        assert_eq!(compressed, 0, "{}", continued.decision().unwrap());
        compressed
    });
}

#[test]
fn blocking_steps_measure_the_wire() {
    for lead in [0, 1] {
        let timing = on_all(2, |mut worker| {
            let mut world = World::new(Method::Qsgd, |_, _| f64::NAN);
            world.config.schedule.lead = lead;
            let mut controller = world.controller(&worker);
            let mut slow = Through::new(&mut worker, |worker, request| {
                NOW.set(NOW.get() + wire_bytes(&request) / 1e8);
                request.perform(worker)
            });
            for step in 0..9 {
                let mut gradients: Vec<_> =
                    (0..LAYERS as u32).map(|layer| noise(layer, slow.rank(), step, SIDE * SIDE)).collect();
                let task = controller.planning().take_task();
                task.map(|task| controller.planning().hand_in(task.run(&mut Portable)));
                controller.step(&mut slow, &mut views(&mut gradients), 0.1).unwrap();
            }
            controller.decision().unwrap().timing.unwrap()
        });
        assert!((timing.seconds_per_byte - 1e-8).abs() < 1e-9 && timing.plan < 0.3 * timing.uncompressed, "{timing}");
        assert_eq!(timing.computing, 0.0);
        let dense = (4 * LAYERS * SIDE * SIDE) as f64 * 1e-8;
        assert!((timing.uncompressed - dense).abs() < 0.1 * dense, "{timing}");
    }
}

#[test]
fn who_cannot_measure_is_refused() {
    let world = World::new(Method::Qsgd, |_, _| 1.0);
    let worker = ThreadCollective::group(1).remove(0);
    let without = Config { clock: None, ..world.config.clone() };
    let refused = Controller::new(without, vec![], worker.rank(), worker.world_size()).err().unwrap();
    assert_eq!(refused.to_string(), "number of clocks is 0, expected 1: measured seconds need `Config::clock`");
    let bits = Config { budget: Budget::Bits(1), ..world.config };
    assert!(Controller::new(bits, vec![], worker.rank(), worker.world_size()).is_err());
}
