//! All ranks learn of a rank that fails in a bucket, or that uses its buckets in another way than other ranks.

use super::buckets::{Noting, overlapped};
use super::*;
use lgreco_testing::controller::sharded;
use lgreco_train::exchange::Route;

/// If a gradient is not finite, its bucket becomes NaN on every rank, or zeros if the step is skipped. The step's other
/// buckets are exchanged. The residuals of the failed bucket stay the same.
#[test]
fn a_gradient_that_is_not_finite_spoils_its_bucket_alone() {
    for policy in [NonFinite::Skip, NonFinite::PassThrough, NonFinite::Error] {
        threads::run(2, |mut worker| {
            let mut config = config(Method::TopK, Policy::Uniform);
            config.non_finite = policy;
            let mut controller = Controller::new(config, model(), worker.rank(), worker.world_size()).unwrap();
            let rank = worker.rank();
            for step in 0..6 {
                let mut noting = Noting(&mut worker, vec![]);
                let mut values = gradients(rank, step, 1.0);
                let before = [residual(&controller, 0), residual(&controller, 2)];
                if step != 4 {
                    overlapped(&mut controller, &mut noting, &mut values).0.unwrap();
                    continue;
                }
                if rank == 1 {
                    values[0][3] = f32::INFINITY;
                }
                let (report, results) = overlapped(&mut controller, &mut noting, &mut values);
                assert_eq!(results[..2], [Ok(()); 2]);
                assert!(values[2].iter().all(|x| x.is_finite()));
                assert!(residual(&controller, 0) == before[0]);
                // A skipped step changes no residual of any bucket.
                assert_eq!(residual(&controller, 2) == before[1], policy == NonFinite::Skip);
                if policy == NonFinite::Error {
                    let told = match rank {
                        1 => Error::NonFiniteGradient { layer: 0, index: 3, value: f32::INFINITY },
                        _ => Error::Peer { rank: 1, code: 101 },
                    };
                    assert_eq!(results[2], Err(told));
                    assert_eq!(report.unwrap().outcome, Outcome::Failed);
                } else {
                    assert_eq!(results[2], Ok(()));
                    let skips = policy == NonFinite::Skip;
                    assert!(values[0].iter().all(|x| if skips { *x == 0.0 } else { x.is_nan() }));
                    let outcome = if skips { Outcome::Skipped } else { Outcome::PassedThrough };
                    assert_eq!(report.unwrap().outcome, outcome);
                }
                assert_eq!(controller.non_finite_steps(), 1);
            }
        });
    }
}

/// On one rank, a new residual does not fit its format. The rank's next bucket reports the error to all ranks, and later
/// buckets succeed.
#[test]
fn what_went_wrong_after_an_exchange_is_told_through_a_bucket() {
    let results = threads::run(2, |mut worker| {
        let keep = Setting::TopK(TopK { keep: 1, values: Dtype::F32 });
        let mut config = config(Method::TopK, Policy::Fixed(vec![keep]));
        config.feedback.others = Some(Residual { storage: lgreco_train::feedback::Storage::Bf16, ..Residual::CLASSIC });
        let tensors = vec![Tensor::new("w", &[2, 1], Dtype::F32).unwrap()];
        let mut controller = Controller::new(config, tensors, worker.rank(), worker.world_size()).unwrap();
        let big = if worker.rank() == 0 { 1.0 } else { 0.0 };
        [[1.0, 1.0], [1.0, 1.0], [f32::MAX, f32::MAX], [1.0, 1.0], [1.0, 1.0]].map(|values| {
            let mut values = vec![values.map(|x| x * big).to_vec()];
            let (report, results) = overlapped(&mut controller, &mut Noting(&mut worker, vec![]), &mut values);
            (results[0], report.unwrap().outcome, controller.save().is_ok())
        })
    });
    let late = Error::OfLayer { layer: 0, error: CoreError::Overflow { what: "the residual" } };
    let fine = (Ok(()), Outcome::Exchanged, true);
    let unsaved = (Ok(()), Outcome::Exchanged, false);
    assert_eq!(results[0], [fine, fine, unsaved, (Err(late), Outcome::Failed, true), fine]);
    let told = (Err(Error::Peer { rank: 0, code: 5 }), Outcome::Failed, true);
    assert_eq!(results[1], [fine, fine, fine, told, fine]);
}

/// A rank whose trainer has failed reports the failure in a new or a known bucket. No rank waits for the failed rank,
/// and residuals stay the same.
#[test]
fn a_rank_without_gradients_tells_all() {
    const NONE: Error = Error::Core(CoreError::OutOfMemory { words: 9 });
    for (method, route) in [
        (Method::TopK, Route::AllGather),
        (Method::PowerSgd, Route::AllGather),
        (Method::Qsgd, Route::ScatterReduce),
        (Method::Hybrid, Route::Sharded),
    ] {
        on_all(3, |mut worker| {
            let mut config = config(method, Policy::Uniform);
            config.route = route;
            let model = if route == Route::Sharded { sharded(model(), 3) } else { model() };
            let (mut controller, rank) =
                (Controller::new(config, model, worker.rank(), worker.world_size()).unwrap(), worker.rank());
            for (step, layers) in [&[0][..], &[0], &[0], &[0], &[0, 2], &[0]].into_iter().enumerate() {
                let mut values = gradients(rank, step as u32, 1.0);
                if step < 3 {
                    overlapped(&mut controller, &mut Noting(&mut worker, vec![]), &mut values).0.unwrap();
                    continue;
                }
                let before: Vec<_> = (0..3).map(|layer| residual(&controller, layer)).collect();
                controller.begin_step(1.0).unwrap();
                while let Some(request) = controller.control().unwrap() {
                    request.perform(&mut worker).unwrap();
                }
                let mut bucket = controller.open(layers).unwrap();
                let mut given: Vec<_> = layers.iter().map(|&layer| values[layer].clone()).collect();
                let mut given = if rank == 1 { vec![] } else { views(&mut given) };
                match rank {
                    1 => bucket.submit_failure(NONE),
                    _ => bucket.submit(&mut given),
                }
                .unwrap();
                assert!(matches!(bucket.submit_failure(NONE), Err(Error::StepOrder { .. })));
                let error = loop {
                    match bucket.next(&mut given) {
                        Ok(request) => request.unwrap().perform(&mut worker).unwrap(),
                        Err(error) => break error,
                    }
                };
                assert_eq!(error, if rank == 1 { NONE } else { Error::Peer { rank: 1, code: 7 } });
                controller.close(bucket).unwrap();
                assert_eq!(controller.finish_step().unwrap().outcome, Outcome::Failed);
                assert_eq!((0..3).map(|layer| residual(&controller, layer)).collect::<Vec<_>>(), before);
            }
        });
    }
}

/// One rank closes a bucket after its last collective, without taking the means. The other rank has the means, and gets
/// an error in the next step. Both new and known buckets are tested.
#[test]
fn a_bucket_that_is_closed_without_its_means_is_told_to_all() {
    for is_new in [true, false] {
        let results = threads::run(2, |mut worker| {
            let mut config = config(Method::TopK, Policy::Uniform);
            config.undo = true;
            let mut controller = Controller::new(config, model(), worker.rank(), worker.world_size()).unwrap();
            (0..3).for_each(|_| drop(take_step(&mut controller, &mut worker, 1.0, 1.0).unwrap()));
            let rank = worker.rank();
            let mut step = |closes_early: bool| {
                agree(&mut controller, &mut worker, 1.0).unwrap();
                let mut values = gradients(rank, controller.steps() as u32, 1.0);
                let before = residual(&controller, 0);
                let mut bucket = controller.open(&[0, 1, 2]).unwrap();
                bucket.submit(&mut views(&mut values)).unwrap();
                let collectives = if closes_early { bucket.rounds().unwrap().count() } else { usize::MAX };
                let mut exchanged = Ok(());
                for _ in 0..collectives {
                    match bucket.next(&mut views(&mut values)) {
                        Ok(Some(request)) => request.perform(&mut worker).unwrap(),
                        Ok(None) => break,
                        Err(error) => {
                            exchanged = Err(error);
                            break;
                        }
                    }
                }
                controller.close(bucket).unwrap();
                assert!(!closes_early || residual(&controller, 0) == before);
                (exchanged, controller.finish_step().unwrap().outcome)
            };
            if !is_new {
                assert_eq!(step(false), (Ok(()), Outcome::Exchanged));
            }
            [step(rank == 1), step(false), step(false)]
        });
        let own = results[1][1].0.unwrap_err();
        assert!(matches!(own, Error::StepOrder { .. }), "{own}");
        let [told, exchanged] = [Err(Error::Peer { rank: 1, code: own.code() }), Ok(())];
        let (failed, fine) = (Outcome::Failed, Outcome::Exchanged);
        assert_eq!(results[0], [(exchanged, fine), (told, failed), (exchanged, fine)]);
        assert_eq!(results[1], [(exchanged, failed), (Err(own), failed), (exchanged, fine)]);
    }
}

/// A bucket without elements has no messages. If one rank fails in such a bucket, the next bucket reports the failure
/// to all ranks.
#[test]
fn a_failure_in_a_bucket_without_elements_is_told_by_the_next_bucket() {
    const FAILURE: Error = Error::Core(CoreError::OutOfMemory { words: 9 });
    let no_gradients = Error::Core(CoreError::Length { what: "gradients, one per layer", expected: 1, found: 0 });
    for (own, order) in [FAILURE, no_gradients].into_iter().flat_map(|own| [(own, [0, 1]), (own, [1, 0])]) {
        let results = threads::run(2, |mut worker| {
            let layers = [("none", &[0][..]), ("fc1", &[16, 24])];
            let layers = layers.map(|(name, dims)| Tensor::new(name, dims, Dtype::F32).unwrap());
            let mut controller = Controller::new(
                config(Method::TopK, Policy::Uniform),
                layers.into(),
                worker.rank(),
                worker.world_size(),
            )
            .unwrap();
            let rank = worker.rank();
            let mut step = |fails: bool| {
                agree(&mut controller, &mut worker, 1.0).unwrap();
                let mut results = order.map(|layer| {
                    let mut values = noise(1, rank, 0, layer * 16 * 24);
                    let mut views = vec![ValuesMut::F32(&mut values)];
                    let mut bucket = controller.open(&[layer]).unwrap();
                    match fails && layer == 0 {
                        true if own == FAILURE => bucket.submit_failure(FAILURE).unwrap(),
                        true => views.clear(),
                        false => {}
                    }
                    if !(fails && layer == 0 && own == FAILURE) {
                        bucket.submit(&mut views).unwrap();
                    }
                    let result = loop {
                        match bucket.next(&mut views) {
                            Ok(Some(request)) => request.perform(&mut worker).unwrap(),
                            Ok(None) => break Ok(()),
                            Err(error) => break Err(error),
                        }
                    };
                    controller.close(bucket).unwrap();
                    result
                });
                if order[0] == 1 {
                    results.reverse();
                }
                (results, controller.finish_step().unwrap().outcome)
            };
            (0..4).for_each(|_| assert_eq!(step(false), ([Ok(()); 2], Outcome::Exchanged)));
            [step(rank == 1), step(false), step(false)]
        });
        let (ok, mine, told) = (Ok(()), Err(own), Err(Error::Peer { rank: 1, code: own.code() }));
        let fine = ([ok; 2], Outcome::Exchanged);
        let (of_rank_0, of_rank_1) = match order {
            [0, 1] => ([([ok, told], Outcome::Failed), fine, fine], [([mine, mine], Outcome::Failed), fine, fine]),
            _ => (
                [fine, ([ok, told], Outcome::Failed), fine],
                [([mine, ok], Outcome::Exchanged), ([ok, mine], Outcome::Failed), fine],
            ),
        };
        assert_eq!(results, [of_rank_0, of_rank_1], "{own}, {order:?}");
    }
}

/// If a gradient has another length on one rank, its bucket fails on both ranks.
#[test]
fn a_gradient_of_another_length_is_told_to_all() {
    let results = threads::run(2, |mut worker| {
        let mut controller =
            Controller::new(config(Method::TopK, Policy::Uniform), model(), worker.rank(), worker.world_size())
                .unwrap();
        let mut results = vec![];
        for step in 0..3 {
            let mut values = gradients(worker.rank(), step, 1.0);
            if (step, worker.rank()) == (1, 0) {
                values[1].pop();
            }
            results = overlapped(&mut controller, &mut Noting(&mut worker, vec![]), &mut values).1;
            assert_eq!(results[1].is_ok(), step != 1);
            if step == 1 {
                break;
            }
        }
        results[1]
    });
    let what = "the number of values";
    assert_eq!(results[0], Err(Error::LayerMismatch { layer: 1, what, expected: 24, found: 23 }));
    assert_eq!(results[1], Err(Error::Peer { rank: 0, code: 100 }));
}

/// If ranks put different layers into a bucket, all ranks get an error, and no rank waits.
#[test]
fn buckets_that_differ_are_told() {
    let results = threads::run(2, |mut worker| {
        let mut controller =
            Controller::new(config(Method::TopK, Policy::Uniform), model(), worker.rank(), worker.world_size())
                .unwrap();
        controller.begin_step(1.0).unwrap();
        while let Some(request) = controller.control().unwrap() {
            request.perform(&mut worker).unwrap();
        }
        let layers: &[usize] = if worker.rank() == 0 { &[2, 0] } else { &[0] };
        let mut bucket = controller.open(layers).unwrap();
        let mut values = gradients(worker.rank(), 0, 1.0);
        values.swap(0, 1 + (worker.rank() == 0) as usize);
        let mut views: Vec<_> = match worker.rank() {
            0 => views(&mut values).into_iter().step_by(2).collect(),
            _ => views(&mut values).drain(1..2).collect(),
        };
        bucket.exchange(&mut worker, &mut views)
    });
    assert_eq!(results, [Err(Error::PeerPlan { rank: 1 }); 2]);
}

#[test]
fn calls_out_of_order_are_refused() {
    let order = |result: Result<(), Error>| assert!(matches!(result, Err(Error::StepOrder { .. })), "{result:?}");
    let worker = ThreadCollective::group(1).remove(0);
    let mut controller =
        Controller::new(config(Method::TopK, Policy::Uniform), model(), worker.rank(), worker.world_size()).unwrap();
    order(controller.open(&[0]).map(drop));
    order(controller.control().map(drop));
    order(controller.finish_step().map(drop));
    controller.begin_step(1.0).unwrap();
    order(controller.begin_step(1.0));
    order(controller.open(&[0]).map(drop));
    assert_eq!(controller.control(), Ok(None));
    assert!(controller.open(&[3]).err() == Some(Error::NoSuchLayer { layer: 3, layers: 3 }));
    assert_eq!(controller.open(&[1, 1]).err(), Some(Error::InFlight { layer: 1 }));
    let mut bucket = controller.open(&[1, 0]).unwrap();
    assert_eq!(controller.open(&[2, 0]).err(), Some(Error::InFlight { layer: 0 }));
    assert_eq!(controller.save().err(), Some(Error::InFlight { layer: 0 }));
    assert_eq!(controller.finish_step().err(), Some(Error::InFlight { layer: 0 }));
    let mut values = gradients(0, 0, 1.0);
    let [fc1, bias, _] = &mut values[..] else { unreachable!() };
    let views = &mut [ValuesMut::F32(bias), ValuesMut::F32(fc1)];
    order(bucket.next(views).map(drop));
    bucket.submit(views).unwrap();
    order(bucket.submit(views));
    assert!(matches!(bucket.next(&mut views[..1]), Err(Error::Core(CoreError::Length { .. }))));
    assert!(bucket.next(views).unwrap().is_some());
    controller.close(bucket).unwrap();
    let lost = controller.open(&[2]).unwrap();
    drop(lost);
    assert_eq!(controller.finish_step().err(), Some(Error::InFlight { layer: 2 }));
    // Loading a state restores the layers of the dropped bucket.
    let sound =
        Controller::new(config(Method::TopK, Policy::Uniform), model(), worker.rank(), worker.world_size()).unwrap();
    controller.load(&[&sound.save().unwrap()], &[]).unwrap();
    assert!(controller.save().is_ok());
}

/// One rank's gradient is not finite. On another rank, the sum of gradient and residual overflows. The bucket fails on all
/// ranks.
#[test]
fn an_overflow_is_told_like_what_is_not_finite() {
    let results = threads::run(3, |mut worker| {
        let mut config = config(Method::TopK, Policy::Uniform);
        config.non_finite = NonFinite::PassThrough;
        let mut controller = Controller::new(config, model(), worker.rank(), worker.world_size()).unwrap();
        let rank = worker.rank();
        let mut results = vec![];
        for step in 0..5 {
            let mut values = gradients(rank, step, 1.0);
            match (step, rank) {
                (3, 1) => values[0].fill(2e38),
                (4, 0) => values[0][0] = f32::NAN,
                (4, 1) => values[0].fill(3e38),
                _ => {}
            }
            results = overlapped(&mut controller, &mut Noting(&mut worker, vec![]), &mut values).1;
            let broken = values[0].iter().all(|x| x.is_nan());
            assert_eq!(broken, step == 4, "rank {rank}, step {step}");
        }
        results[2]
    });
    assert_eq!(results, [Ok(()); 3]);
}

/// If the learning rate falls on only one rank, all ranks get an error before any rank switches.
#[test]
fn learning_rates_that_differ_are_told() {
    let results = threads::run(2, |mut worker| {
        let policy = Policy::Accordion(Accordion::new(4.0, 2.0));
        let mut controller =
            Controller::new(config(Method::PowerSgd, policy), model(), worker.rank(), worker.world_size()).unwrap();
        for step in 0..4 {
            let mut values = gradients(worker.rank(), step, 1.0);
            overlapped(&mut controller, &mut Noting(&mut worker, vec![]), &mut values).0.unwrap();
        }
        let rate = if worker.rank() == 1 { 0.1 } else { 1.0 };
        agree(&mut controller, &mut worker, rate)
    });
    assert_eq!(results, [Err(differ(1, "learning rate", OptionValue::Real(0.1), OptionValue::Real(1.0))); 2]);
}
