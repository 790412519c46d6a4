//! Tests that read or change a controller's private state.

use super::layer_plan::LayerPlan;
use super::*;
use crate::compress::method::Methods;
use crate::compress::{Setting, powersgd::PowerSgd};
use crate::exchange::threads::{self, ThreadCollective};
use crate::gradient::{Dtype, ValuesMut};
use crate::plan::{Proof, Solver, Summary};
use crate::rng::Stream;
use crate::search::{Method, Search};
use lgreco_testing::controller::SETTINGS;
use std::{vec, vec::Vec};

fn config(policy: Policy) -> Config {
    let mut config = Config::new(Search::new(Method::PowerSgd));
    config.policy = policy;
    config.schedule = Schedule { warmup: 2, period: 3, window: 2, lead: 0 };
    config
}

fn low_rank(rank: u32) -> Setting {
    Setting::PowerSgd(PowerSgd { rank, iterations: 1 })
}

#[test]
fn decisions_come_after_the_warm_up_and_then_every_period() {
    let mut config =
        config(Policy::LGreco { solver: Solver::Exact(crate::plan::exact::Limits::default()), accordion: None });
    let steps = |config: &Config| {
        let next = |&step: &u64| config.next_decision(step);
        core::iter::successors(config.next_decision(0), next).take(4).collect::<Vec<_>>()
    };
    config.schedule = Schedule { warmup: 100, period: 1000, window: 10, lead: 0 };
    assert_eq!(steps(&config), [100, 1100, 2100, 3100]);
    config.objective = Objective::MeasuredSeconds;
    assert_eq!(steps(&config), [100, 150, 1100, 2100]);
    assert_eq!(config.next_decision(149), Some(150), "after a resume with a longer period");
    config.schedule.window = 70;
    assert_eq!(steps(&config), [100, 171, 1100, 2100], "the window begins after the first decision");
    config.schedule = Schedule { warmup: 100, period: 50, window: 10, lead: 0 };
    assert_eq!(steps(&config), [100, 150, 200, 250]);
    config.schedule.period = 60;
    assert_eq!(steps(&config), [100, 160, 220, 280], "ten steps after the second decision, there is no whole window");
    config.schedule.period = 61;
    assert_eq!(steps(&config), [100, 150, 161, 222]);
}

/// If the constructor did not check `levels`, the first decision would fail, after all steps of the warm-up.
#[test]
fn a_dynamic_program_without_levels_is_refused_at_once() {
    let config = config(Policy::LGreco { solver: Solver::Dp { levels: 0 }, accordion: None });
    let refused = Controller::new(config, vec![Tensor::new("w", &[8, 8], Dtype::F32).unwrap()], 0, 1);
    let (what, expected) = ("levels", "at least 1");
    assert_eq!(refused.err(), Some(crate::CoreError::Parameter { what, value: 0.0, expected }.into()));
}

/// Checks the paper's rule on norms: low compression at the first decision, after a norm of zero, and after a change by half.
#[test]
fn accordion_follows_its_rule() {
    let accordion = Accordion::new(4.0, 2.0);
    let critical = |before, now| accordion::critical(&accordion, before, now);
    assert!(critical(None, 1.0));
    assert!(critical(Some(0.0), 1.0));
    assert!(critical(Some(0.0), 0.0));
    assert!(critical(Some(1.0), 1.5) && critical(Some(1.0), 0.5));
    assert!(!critical(Some(1.0), 1.499) && !critical(Some(1.0), 0.501));

    let mut highest = accordion::Highest::default();
    let falls = [0.1, 0.3, 0.21, 0.2, 0.19, 0.4].map(|rate| highest.falls(&accordion, rate));
    assert_eq!(falls, [false, false, false, false, true, false]);
}

#[test]
fn layers_are_exchanged_in_buckets_of_so_many_bytes() {
    let worker = ThreadCollective::group(1).remove(0);
    let shapes: [(&str, &[usize]); 3] = [("fc1", &[16, 24]), ("bias", &[24]), ("fc2", &[20, 16])];
    // The first two of these layers take exactly 1632 bytes.
    for (bucket_bytes, buckets) in [(1 << 20, 1), (1632, 2), (0, 3)] {
        let layers = shapes.map(|(name, dims)| Tensor::new(name, dims, Dtype::F32).unwrap());
        let config = Config { bucket_bytes, ..config(Policy::Uncompressed) };
        let controller = Controller::new(config, layers.into(), worker.rank(), worker.world_size()).unwrap();
        assert_eq!(controller.scheduler.groups.ranges.len(), buckets, "{bucket_bytes} bytes");
    }
}

#[test]
fn powersgds_factor_is_cut_or_extended_by_zeros() {
    let tensor = Tensor::new("w", &[12, 10], Dtype::F32).unwrap();
    let config = config(Policy::Uncompressed);
    let mut state = layer::LayerState::new(LayerPlan::before_decisions(0, &tensor, &config).unwrap());
    let mut to = |rank: u32| {
        let setting = Setting::PowerSgd(PowerSgd { rank, iterations: 1 });
        let choice = decision::LayerSetting { setting, uncompressed: None };
        let plan = LayerPlan::new(0, &tensor, choice, &config).unwrap();
        let switch = state.prepare(plan, Stream::default()).unwrap();
        state.commit(switch);
        let factor = state.factor.clone();
        state.factor.iter_mut().for_each(|x| *x += if *x == 0.0 { 1.0 } else { 0.0 });
        factor
    };
    assert_eq!(to(3), [0.0; 30]);
    assert_eq!(to(2), [1.0; 20]);
    assert_eq!(to(4), [vec![1.0; 20], vec![0.0; 20]].concat());
    assert_eq!(to(99).len(), 100); // the rank is at most 10, the smaller dimension
}

#[test]
fn every_setting_has_words_of_its_own() {
    for setting in SETTINGS {
        let uncompressed = (setting == Setting::Dense).then_some(Uncompressed::Chosen);
        let choice = decision::LayerSetting { setting, uncompressed };
        assert_eq!(decision::LayerSetting::decode(choice.encode(), &Methods::NONE), Ok(choice));
    }
    let mut methods = SETTINGS.map(|setting| decision::LayerSetting { setting, uncompressed: None }.encode()[0] as u8);
    methods.sort_unstable();
    assert_eq!(methods, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
}

/// After a switch from rank 3 to rank 2, PowerSGD continues with the first two columns of its factor.
#[test]
fn factors_stay_warm_under_given_settings() {
    threads::run(2, |mut worker| {
        let tensors = vec![Tensor::new("fc", &[16, 24], Dtype::F32).unwrap()];
        let mut controller =
            Controller::new(config(Policy::Fixed(vec![low_rank(3)])), tensors, worker.rank(), worker.world_size())
                .unwrap();
        for step in 0..5 {
            let stream = Stream { step, rank: worker.rank(), ..Stream::default() };
            let mut gradient: Vec<f32> = (0..16 * 24).map(|i| (stream.word(i) >> 25) as f32 / 64.0 - 1.0).collect();
            controller.step(&mut worker, &mut [ValuesMut::F32(&mut gradient)], 0.1).unwrap();
        }
        let before = controller.states[0].factor.clone();
        controller.planning().set_settings(vec![low_rank(2)]).unwrap();
        controller.begin(0.1, Some(Ok(false))).unwrap(); // as in a blocking step
        while let Some(request) = controller.control().unwrap() {
            request.perform(&mut worker).unwrap();
        }
        assert!(before.iter().any(|&x| x != 0.0));
        assert_eq!(controller.states[0].factor, before[..2 * 24]);
    });
}

#[test]
fn a_probe_takes_a_hundredth_of_the_time_or_is_as_small_as_can_be() {
    const MIB: usize = 1 << 17; // in words
    let worker = ThreadCollective::group(2).remove(0);
    // An exchange takes one second, and a rank sends half of a probe's words.
    let sized = |side, decided: Option<f64>| {
        let tensor = Tensor::new("fc", &[side, side], Dtype::F32).unwrap();
        let mut config = config(Policy::LGreco { solver: Solver::Dp { levels: 100 }, accordion: None });
        config.schedule = Schedule { warmup: 3, period: 100, window: 2, lead: 0 };
        config.objective = Objective::MeasuredSeconds;
        config.clock = Some(|| 0.0);
        let mut controller = Controller::new(config, vec![tensor], worker.rank(), worker.world_size()).unwrap();
        controller.scheduler.decision = decided.map(|seconds_per_byte| {
            let seconds = Timing {
                measured: 1.0,
                computing: 0.0,
                seconds_per_byte,
                plan: 1.0,
                plan_computing: 0.0,
                default: 1.0,
                uncompressed: 1.0,
                compressed: 1,
                layers: 1,
            };
            Decision { timing: Some(seconds), ..Decision::without_plan(0, Cause::Schedule) }
        });
        (controller.scheduler.probe_words(), controller.scheduler.probe_times())
    };
    let so_long = |words: usize| 1.0 / (4 * words) as f64; // seconds per byte
    assert_eq!([None, Some(0.0), Some(so_long(2 * MIB))].map(|decided| sized(1024, decided)), [(MIB, 2); 3]);
    assert_eq!(sized(1024, Some(so_long(3 * MIB / 2))), (3 * MIB / 4, 2));
    assert_eq!(sized(1024, Some(so_long(MIB))), (MIB / 2, 2));
    assert_eq!([MIB - 10, 1].map(|words| sized(1024, Some(so_long(words)))), [(MIB / 2, 1); 2]);
    assert_eq!([None, Some(so_long(1))].map(|decided| sized(64, decided)), [(2048, 2), (2048, 1)]);
}

/// Decisions are encoded as words for the other ranks and for saved states.
#[test]
fn decisions_of_both_directions_survive_their_words() {
    let proofs = [Proof::Size { lower_bound: 900, budget: 0.5 }, Proof::Error { lower_bound: 0.25, size_limit: 1024 }];
    for proof in proofs {
        let plan = Some(Summary { size: 1000, error: 0.375, proof });
        let decision = Decision { plan, default_size: 1100, ..Decision::without_plan(3, Cause::Schedule) };
        let mut words = decision.encode();
        assert_eq!(Decision::decode(&words), Ok(decision));
        words[1] |= 3 << 8;
        assert!(Decision::decode(&words).is_err(), "a third direction");
    }
}

/// The trainer forms a new bucket in every step. Ranks remember at most `MOST_AGREED` of these sets of layers, and still agree on
/// new sets.
#[test]
fn agreed_buckets_are_few() {
    const LAYERS: usize = 11;
    let bucket_of = |step: usize| (0..LAYERS).filter(|layer| step >> layer & 1 == 1).collect::<Vec<_>>();
    let layers = || (0..LAYERS).map(|layer| Tensor::new(&std::format!("layer {layer}"), &[1], Dtype::F32).unwrap());
    let steps = 1..groups::MOST_AGREED + 40;
    let most = threads::run(2, |mut worker| {
        let mut controller =
            Controller::new(config(Policy::Uncompressed), layers().collect(), worker.rank(), worker.world_size())?;
        let mut most = 0;
        for step in steps.clone() {
            controller.begin_step(0.1)?;
            while let Some(request) = controller.control()? {
                request.perform(&mut worker)?;
            }
            let mut bucket = controller.open(&bucket_of(step))?;
            let mut gradients = vec![[1.0 + worker.rank() as f32]; bucket.layers().len()];
            let mut values: Vec<_> = gradients.iter_mut().map(|values| ValuesMut::F32(values)).collect();
            bucket.exchange(&mut worker, &mut values)?;
            controller.close(bucket)?;
            controller.finish_step()?;
            assert!(gradients.iter().all(|values| values == &[1.5]));
            most = most.max(controller.agreed.len());
        }
        Ok::<_, crate::Error>(most)
    });
    assert_eq!(most, [Ok(groups::MOST_AGREED); 2]);
    let most = threads::run_nodes(2, 2, |mut node, mut peers| {
        let place = two_level::Topology::of(&node, &peers);
        let mut training = two_level::TwoLevel::new(config(Policy::Uncompressed), layers().collect(), place)?;
        let mut most = 0;
        for step in steps.clone() {
            training.begin_step(0.1)?;
            let mut perform = |group, request: crate::exchange::Request<'_>| match group {
                two_level::Group::Node => request.perform(&mut node),
                two_level::Group::Peers => request.perform(&mut peers),
            };
            while let Some((group, request)) = training.control()? {
                perform(group, request)?;
            }
            let mut bucket = training.open(&bucket_of(step))?;
            let mut gradients = vec![[1.0]; bucket.layers().len()];
            let mut values: Vec<_> = gradients.iter_mut().map(|values| ValuesMut::F32(values)).collect();
            bucket.submit(&mut values)?;
            while let Some((group, request)) = bucket.next(&mut values)? {
                perform(group, request)?;
            }
            training.close(bucket)?;
            training.finish_step()?;
            most = most.max(training.agreed.len());
        }
        Ok::<_, crate::Error>(most)
    });
    assert_eq!(most, [Ok(groups::MOST_AGREED); 4]);
}
