//! A step that fails on one rank fails on all ranks, and the next step works.

use super::*;
use lgreco_testing::exchange::Through;
use lgreco_train::exchange::Request;
use lgreco_train::feedback::Storage;

/// Takes a step of three ranks whose gradients `broken` has changed. Returns the results, and asserts that the next
/// step succeeds.
fn failing(config: &Config, broken: impl Fn(u32, &mut Vec<Vec<f32>>) + Sync) -> Vec<Result<Outcome, Error>> {
    threads::run(3, |mut worker| {
        let mut controller = Controller::new(config.clone(), model(), worker.rank(), worker.world_size()).unwrap();
        for _ in 0..3 {
            take_step(&mut controller, &mut worker, 1.0, 1.0).unwrap();
        }
        let before = residual(&controller, 0);
        let mut gradients = gradients(worker.rank(), 3, 1.0);
        broken(worker.rank(), &mut gradients);
        let result = controller.step(&mut worker, &mut views(&mut gradients), 1.0);
        assert_eq!(residual(&controller, 0), before, "the residual has changed");
        if result == Err(Error::Peer { rank: 1, code: 101 }) || result.is_ok() {
            assert_eq!(controller.non_finite_steps(), 1);
        }
        match result.map(|report| report.outcome) {
            Ok(Outcome::Skipped) => assert!(gradients.iter().flatten().all(|&x| x == 0.0)),
            Ok(Outcome::PassedThrough) => {
                assert!(gradients[0][4].is_nan());
                assert_eq!(gradients[2], exact_mean(3, 3, 2));
            }
            _ => {}
        }
        let (report, _) = take_step(&mut controller, &mut worker, 1.0, 1.0).unwrap();
        assert_eq!(report.step, if result.is_ok() { 4 } else { 3 });
        result.map(|report| report.outcome)
    })
}

#[test]
fn gradients_that_are_not_finite_are_treated_alike_on_all_ranks() {
    let nan_on_rank_1 = |rank: u32, gradients: &mut Vec<Vec<f32>>| {
        if rank == 1 {
            gradients[0][4] = f32::NAN;
        }
    };
    let mut config = config(Method::TopK, Policy::Uniform);
    let named = failing(&config, nan_on_rank_1);
    assert!(matches!(named[1], Err(Error::NonFiniteGradient { layer: 0, index: 4, value }) if value.is_nan()));
    assert_eq!([&named[0], &named[2]], [&Err(Error::Peer { rank: 1, code: 101 }); 2]);
    config.non_finite = NonFinite::Skip;
    assert_eq!(failing(&config, nan_on_rank_1), [Ok(Outcome::Skipped); 3]);
    config.non_finite = NonFinite::PassThrough;
    assert_eq!(failing(&config, nan_on_rank_1), [Ok(Outcome::PassedThrough); 3]);
}

#[test]
fn gradients_of_another_shape_or_type_are_refused() {
    let config = config(Method::TopK, Policy::Uniform);
    let short = failing(&config, |rank, gradients| {
        if rank == 2 {
            gradients[1].pop();
        }
    });
    let what = "the number of values";
    assert_eq!(short[2], Err(Error::LayerMismatch { layer: 1, what, expected: 24, found: 23 }));
    assert_eq!(short[..2], [Err(Error::Peer { rank: 2, code: 100 }); 2]);
    let few = failing(&config, |_, gradients| drop(gradients.pop()));
    assert!(
        few.iter().all(|result| matches!(result, Err(Error::Core(CoreError::Length { expected: 3, found: 2, .. }))))
    );

    let mut worker = ThreadCollective::group(1).remove(0);
    let tensors = vec![Tensor::new("w", &[2], Dtype::Bf16).unwrap()];
    let mut controller = Controller::new(config, tensors, worker.rank(), worker.world_size()).unwrap();
    let refused = controller.step(&mut worker, &mut [ValuesMut::F32(&mut [0.0; 2])], 1.0);
    let refused = refused.unwrap_err();
    assert_eq!(refused, Error::LayerDtype { layer: 0, found: Dtype::F32, expected: Dtype::Bf16 });
    assert_eq!(refused.to_string(), "layer 0: the gradient is f32, but the layer was declared as bf16");
}

/// Only the measuring rank finds that the budget is infeasible.
#[test]
fn a_planner_that_fails_is_an_error_on_every_rank() {
    for measuring in 0..3 {
        let results = threads::run(3, |mut worker| {
            let mut config = config(Method::TopK, LGRECO);
            (config.alpha, config.measuring_rank) = (0.0, measuring);
            let mut controller = Controller::new(config, model(), worker.rank(), worker.world_size()).unwrap();
            (0..2).for_each(|_| drop(take_step(&mut controller, &mut worker, 1.0, 1.0).unwrap()));
            let failed = take_step(&mut controller, &mut worker, 1.0, 1.0).unwrap_err();
            assert_eq!((controller.steps(), settings(&controller)), (2, vec![Setting::Dense; 3]));
            assert_eq!(take_step(&mut controller, &mut worker, 1.0, 1.0).unwrap_err(), failed, "and again");
            failed
        });
        for (rank, error) in results.into_iter().enumerate() {
            match error {
                Error::Core(CoreError::Infeasible { budget: 0.0, .. }) => assert_eq!(rank as u32, measuring),
                error => assert_eq!(error, Error::Peer { rank: measuring, code: 26 }),
            }
        }
    }
}

/// On one rank, residual and gradient are finite, but their sum is not.
#[test]
fn an_overflow_is_an_error_on_every_rank_and_the_next_step_works() {
    let results = threads::run(2, |mut worker| {
        let keep = Setting::TopK(TopK { keep: 1, values: Dtype::F32 });
        let tensors = vec![Tensor::new("w", &[2, 1], Dtype::F32).unwrap()];
        let mut controller = Controller::new(
            config(Method::TopK, Policy::Fixed(vec![keep])),
            tensors,
            worker.rank(),
            worker.world_size(),
        )
        .unwrap();
        let big = if worker.rank() == 0 { 1.0 } else { 0.0 };
        let mut step = |values: [f32; 2]| {
            let mut gradient = values.map(|x| x * big);
            controller.step(&mut worker, &mut [ValuesMut::F32(&mut gradient)], 1.0).map(|_| ())
        };
        [[1.0, 1.0], [1.0, 1.0], [3e38, 2e38], [1.0, 2e38], [1.0, 1.0]].map(&mut step)
    });
    let overflow = Error::NonFiniteGradient { layer: 0, index: 1, value: f32::INFINITY };
    assert_eq!(results[0], [Ok(()), Ok(()), Ok(()), Err(overflow), Ok(())]);
    assert_eq!(results[1], [Ok(()), Ok(()), Ok(()), Err(Error::Peer { rank: 0, code: overflow.code() }), Ok(())]);
}

/// A residual does not fit its 16-bit format. The rank detects this overflow after the exchange, and reports the error
/// in the next step.
#[test]
fn a_residual_that_does_not_fit_is_told_by_the_next_step() {
    let results = threads::run(2, |mut worker| {
        let keep = Setting::TopK(TopK { keep: 1, values: Dtype::F32 });
        let mut config = config(Method::TopK, Policy::Fixed(vec![keep]));
        config.feedback.others = Some(Residual { storage: Storage::Bf16, ..Residual::CLASSIC });
        let tensors = vec![Tensor::new("w", &[2, 1], Dtype::F32).unwrap()];
        let mut controller = Controller::new(config, tensors, worker.rank(), worker.world_size()).unwrap();
        let big = if worker.rank() == 0 { 1.0 } else { 0.0 };
        let mut step = |values: [f32; 2]| {
            let mut gradient = values.map(|x| x * big);
            let result = controller.step(&mut worker, &mut [ValuesMut::F32(&mut gradient)], 1.0);
            (result.map(|_| ()), controller.save().is_ok())
        };
        [[1.0, 1.0], [1.0, 1.0], [f32::MAX, f32::MAX], [1.0, 1.0], [1.0, 1.0]].map(&mut step)
    });
    let late = Error::OfLayer { layer: 0, error: CoreError::Overflow { what: "the residual" } };
    let fine = (Ok(()), true);
    assert_eq!(results[0], [fine, fine, (Ok(()), false), (Err(late), true), fine]);
    assert_eq!(results[1], [fine, fine, fine, (Err(Error::Peer { rank: 0, code: 5 }), true), fine]);
}

/// The mean exceeds the largest f16 value on all ranks.
#[test]
fn a_mean_that_does_not_fit_its_layer_is_an_error() {
    use lgreco_train::gradient::{Element, F16};
    let results = on_all(2, |mut worker| {
        let keep = Setting::TopK(TopK { keep: 1, values: Dtype::F32 });
        let tensors = vec![Tensor::new("w", &[2, 1], Dtype::F16).unwrap()];
        let mut controller = Controller::new(
            config(Method::TopK, Policy::Fixed(vec![keep])),
            tensors,
            worker.rank(),
            worker.world_size(),
        )
        .unwrap();
        let mut step = |values: [f32; 2]| {
            let mut gradient = values.map(F16::from_f32);
            controller.step(&mut worker, &mut [ValuesMut::F16(&mut gradient)], 1.0).map(|_| ())
        };
        [[1.0, 1.0], [1.0, 1.0], [60000.0, 50000.0], [0.0, 50000.0], [0.0, -50000.0]].map(&mut step)
    });
    // 50000 is 49984 in f16.
    let too_large = Error::OfLayer { layer: 0, error: CoreError::ElementOverflow { index: 1, value: 99968.0 } };
    assert_eq!(results, [Ok(()), Ok(()), Ok(()), Err(too_large), Ok(())]);
}

#[test]
fn senseless_configurations_are_refused() {
    let worker = ThreadCollective::group(2).remove(0);
    let refused = |change: fn(&mut Config)| {
        let mut config = config(Method::PowerSgd, LGRECO);
        change(&mut config);
        matches!(
            Controller::new(config, model(), worker.rank(), worker.world_size()),
            Err(Error::Core(CoreError::Parameter { .. }) | Error::Core(CoreError::Length { .. }))
        )
    };
    let accordion = |low, high, eta, drop| Policy::Accordion(Accordion { low, high, eta, drop });
    assert!(!refused(|_| ()));
    assert!(refused(|config| config.schedule.warmup = 1));
    assert!(refused(|config| config.schedule.period = 0));
    assert!(refused(|config| config.schedule.window = 0));
    assert!(refused(|config| config.alpha = f64::NAN));
    assert!(refused(|config| config.measuring_rank = 2));
    assert!(refused(|config| config.policy = Policy::KMeans { clusters: 0 }));
    assert!(refused(|config| config.policy = Policy::Fixed(vec![Setting::Dense])));
    let ramp = |policy, first, steps| {
        let mut config = config(Method::PowerSgd, policy);
        config.ramp_up = Some(RampUp { first, steps });
        Controller::new(config, model(), worker.rank(), worker.world_size()).is_err()
    };
    assert!(!ramp(LGRECO, 8.0, 1) && ramp(LGRECO, 8.0, 0) && ramp(LGRECO, 0.5, 1) && ramp(LGRECO, f64::NAN, 1));
    assert!(ramp(accordion(4.0, 2.0, 0.5, 1.5), 8.0, 1) && ramp(Policy::Uncompressed, 8.0, 1));
    for (budget, refusal) in [(Budget::Size, false), (Budget::Bits(1 << 20), true)] {
        let mut config = config(Method::PowerSgd, LGRECO);
        (config.budget, config.ramp_up) = (budget, Some(RampUp { first: 8.0, steps: 1 }));
        assert_eq!(
            Controller::new(config, model(), worker.rank(), worker.world_size()).is_err(),
            refusal,
            "{budget:?}"
        );
    }
    let legacy = |sizes: &[u64], levels: &[&[f64]], steps| {
        let levels = levels.iter().map(|levels| levels.to_vec()).collect();
        let mut config = config(Method::PowerSgd, Policy::Legacy(Legacy { sizes: sizes.to_vec(), levels, steps }));
        config.search = search(Method::PowerSgd);
        Controller::new(config, model(), worker.rank(), worker.world_size())
            .map(drop)
            .map_err(|error| error.to_string())
    };
    assert_eq!(legacy(&[9, 99], &[&[4.0, 2.0, 1.0]], 1), Ok(()));
    for (refusal, told) in [
        (legacy(&[], &[&[4.0]], 0), "steps of training"),
        (legacy(&[], &[], 9), "phases"),
        (legacy(&[9, 9], &[&[4.0, 2.0, 1.0]], 9), "bound of sizes"),
        (legacy(&[9], &[&[4.0, 2.0], &[4.0]], 9), "levels of a phase"),
        (legacy(&[], &[&[f64::NAN]], 9), "NaN"),
    ] {
        assert!(refusal.as_ref().is_err_and(|error| error.contains(told)), "{told}: {refusal:?}");
    }
    let too_many = Setting::TopK(TopK { keep: 1000, values: Dtype::F32 });
    let mut fixed = config(Method::TopK, Policy::Fixed(vec![too_many; 3]));
    assert!(Controller::new(fixed.clone(), model(), worker.rank(), worker.world_size()).is_err());
    for policy in [
        accordion(2.0, 4.0, 0.5, 1.5),
        accordion(4.0, 2.0, 0.0, 1.5),
        accordion(4.0, 2.0, 0.5, 0.5),
        accordion(2.5, 2.0, 0.5, 1.5),
        Policy::LGreco { solver: Default::default(), accordion: Some(Accordion::new(99.0, 2.0)) },
    ] {
        fixed.search = search(Method::PowerSgd);
        fixed.policy = policy.clone();
        assert!(Controller::new(fixed.clone(), model(), worker.rank(), worker.world_size()).is_err(), "{policy:?}");
    }
    let twins = vec![model().remove(0), model().remove(0)];
    let twice = Controller::new(config(Method::TopK, LGRECO), twins, worker.rank(), worker.world_size()).err();
    assert_eq!(twice, Some(Error::Core(CoreError::DuplicateName { layer: 1, first: 0 })));
}

/// The network fails during a step.
#[test]
fn a_broken_network_is_an_error() {
    let none =
        Controller::new(config(Method::TopK, LGRECO), model(), Broken(0).rank(), Broken(0).world_size()).err().unwrap();
    assert_eq!(none.to_string(), "the number of workers is 0, expected at least 1");
    let mut controller =
        Controller::new(config(Method::TopK, LGRECO), model(), Broken(2).rank(), Broken(2).world_size()).unwrap();
    let result = controller.step(&mut Broken(2), &mut views(&mut gradients(0, 0, 1.0)), 1.0);
    assert_eq!(result, Err(Error::Collective { code: 4 }));
}

#[test]
fn a_step_whose_collective_fails_does_not_count_even_if_it_passes_gradients_through() {
    let mut config = config(Method::TopK, Policy::Uniform);
    config.non_finite = NonFinite::PassThrough;
    threads::run(2, |mut worker| {
        let mut controller = Controller::new(config.clone(), model(), worker.rank(), 2).unwrap();
        take_step(&mut controller, &mut worker, 1.0, 1.0).unwrap();
        let mut gradients = gradients(worker.rank(), 1, f32::NAN);
        let mut without_sums = Through::new(&mut worker, |worker, request| match request {
            Request::AllReduceSum { .. } => Err(CollectiveError { code: 9 }),
            request => request.perform(worker),
        });
        let failed = controller.step(&mut without_sums, &mut views(&mut gradients), 1.0);
        assert_eq!((failed, controller.steps()), (Err(Error::Collective { code: 9 }), 1));
        let (report, _) = take_step(&mut controller, &mut worker, 1.0, 1.0).unwrap();
        assert_eq!(report.step, 1);
    });
}

/// A residual that is set while ranks agree on a switch would be replaced by the switch.
#[test]
fn residuals_are_not_set_while_ranks_agree_on_a_step() {
    let config = config(Method::TopK, Policy::Uniform);
    threads::run(2, |mut worker| {
        let mut controller = Controller::new(config.clone(), model(), worker.rank(), 2).unwrap();
        (0..2).for_each(|_| drop(take_step(&mut controller, &mut worker, 1.0, 1.0).unwrap()));
        let values = vec![1.0; controller.tensors()[0].shape().elements()];
        controller.begin_step(1.0).unwrap();
        let mut requests = 0;
        while let Some(request) = controller.control().unwrap() {
            request.perform(&mut worker).unwrap();
            requests += 1;
            let refused = controller.residuals().set(0, &values);
            assert!(matches!(refused, Err(Error::StepOrder { what: "the ranks have not agreed on the step yet", .. })));
        }
        assert!(requests > 0, "the step switches settings");
        controller.residuals().set(0, &values).unwrap();
        assert_eq!(residual(&controller, 0), values);
    });
}
