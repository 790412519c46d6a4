//! A failure on one rank is an error on all ranks, in the same step.

use super::*;
use lgreco_train::OptionValue::{Name, Whole};

const FAILURE: Error = Error::Core(CoreError::OutOfMemory { words: 9 });

/// Asserts that the failing rank gets the error `own`, and that every other rank gets an error that names the failing
/// rank.
fn expect_told(results: &[Result<(), Error>], rank: u32, own: &Error, what: &str) {
    for (other, result) in (0..).zip(results) {
        let expected = if other == rank { *own } else { Error::Peer { rank, code: own.code() } };
        assert_eq!(*result, Err(expected), "{what}, rank {other}");
    }
}

/// In a run with warm-up, decisions and compression, one rank fails before every second step. All other steps succeed.
#[test]
fn a_rank_that_fails_at_any_step_is_named_on_all() {
    for size in [(2, 2), (2, 3), (3, 2)] {
        for failing in 0..size.0 * size.1 {
            let results = on_nodes(size, |place, node, peers| {
                let mut training = new(with_undo(Method::TopK, LGRECO), place);
                let mut results = vec![];
                for step in 0..20 {
                    if step % 2 == 0 {
                        super::step(&mut training, node, peers).unwrap();
                        continue;
                    }
                    let mut values = values(place.rank(), step);
                    let before: Vec<_> = (0..2).map(|layer| residual(training.controller(), layer)).collect();
                    results.push(match (place.rank() == failing, step % 4) {
                        (true, 1) => Err(training.step_failed(node, peers, FAILURE)),
                        (true, _) => as_gradients(&mut values, |gradients| {
                            gradients[0] = ValuesMut::F32(&mut []);
                            training.step(node, peers, gradients, 1.0).map(drop)
                        }),
                        _ => {
                            as_gradients(&mut values, |gradients| training.step(node, peers, gradients, 1.0).map(drop))
                        }
                    });
                    let after: Vec<_> = (0..2).map(|layer| residual(training.controller(), layer)).collect();
                    assert_eq!(before, after, "a failed step leaves residuals");
                    assert_eq!(training.controller().steps(), u64::from(step) / 2 + 1, "a failed step was not begun");
                }
                results
            });
            let shape = Error::LayerMismatch { layer: 0, what: "the number of values", expected: 384, found: 0 };
            for at in 0..10 {
                let of_step: Vec<_> = results.iter().map(|results| results[at]).collect();
                let own = if at % 2 == 0 { FAILURE } else { shape };
                expect_told(&of_step, failing, &own, &format!("{size:?}, failure {at}"));
            }
        }
    }
}

/// Two buckets are exchanged at the same time. The first bucket fails on all ranks, and the other bucket succeeds.
#[test]
fn a_bucket_that_fails_on_one_rank_fails_on_all() {
    for (failing, sent) in (0..4).flat_map(|failing| SENT.map(|sent| (failing, sent))) {
        let results = on_nodes((2, 2), |place, node, peers| {
            let mut config = with_undo(Method::Eden, Policy::Uniform);
            config.search.reduce_dtype = sent;
            let mut training = new(config, place);
            (0..4).for_each(|_| drop(step(&mut training, node, peers).unwrap()));
            agree_on_nodes(&mut training, node, peers, 1.0).unwrap();
            let mut values = values(place.rank(), 4);
            let results = as_gradients(&mut values, |gradients| {
                let (first, last) = gradients.split_at_mut(2);
                [(vec![0, 1], first), (vec![2, 3, 4, 5], last)].map(|(layers, gradients)| {
                    let mut bucket = training.open(&layers).unwrap();
                    match place.rank() == failing && layers[0] == 0 {
                        true => bucket.submit_failure(FAILURE).unwrap(),
                        false => bucket.submit(gradients).unwrap(),
                    }
                    let result = loop {
                        match bucket.next(gradients) {
                            Ok(Some((group, request))) => perform(group, request, node, peers),
                            Ok(None) => break Ok(()),
                            Err(error) => break Err(error),
                        }
                    };
                    training.close(bucket).unwrap();
                    result
                })
            });
            assert_eq!(training.finish_step().unwrap().outcome, Outcome::Failed);
            assert_eq!(results[1], Ok(()));
            step(&mut training, node, peers).unwrap();
            results[0]
        });
        expect_told(&results, failing, &FAILURE, "a bucket");
    }
}

/// Only the shards of the nodes' first ranks overflow, in the exchange between nodes. The other ranks get the error, and
/// restore their residuals.
#[test]
fn what_only_one_group_of_peers_finds_fails_on_all_ranks() {
    let results = on_nodes((2, 2), |place, node, peers| {
        let mut training = new(with_undo(Method::PowerSgd, Policy::Uniform), place);
        (0..4).for_each(|_| drop(step(&mut training, node, peers).unwrap()));
        let before: Vec<_> = (0..4).map(|layer| residual(training.controller(), layer)).collect();
        let mut values = values(place.rank(), 4);
        (0..8).for_each(|row| values[0][24 * row] = 2e38); // PowerSGD's Q exceeds f32
        let result = as_gradients(&mut values, |gradients| training.step(node, peers, gradients, 1.0).map(drop));
        let after: Vec<_> = (0..4).map(|layer| residual(training.controller(), layer)).collect();
        assert!(before == after, "a failed step leaves residuals: {result:?}");
        step(&mut training, node, peers).unwrap();
        result
    });
    let overflow = |result: &Result<(), Error>| {
        matches!(result, Err(Error::OfLayer { layer: 0, error: CoreError::Overflow { .. } }))
    };
    for (rank, result) in results.iter().enumerate() {
        match rank % 2 {
            0 => assert!(overflow(result), "rank {rank}: {result:?}"),
            _ => assert_eq!(*result, Err(Error::Peer { rank: 0, code: 5 }), "rank {rank}"),
        }
    }
}

/// If one rank cannot begin a step, no rank begins it.
#[test]
fn control_requests_fail_on_all_ranks() {
    for at in [0, 2] {
        for failing in 0..4 {
            let results = on_nodes((2, 2), |place, node, peers| {
                let mut training = new(with_undo(Method::TopK, LGRECO), place);
                (0..at).for_each(|_| drop(step(&mut training, node, peers).unwrap()));
                let rate = if place.rank() == failing { f64::NAN } else { 1.0 };
                let result = agree_on_nodes(&mut training, node, peers, rate);
                assert_eq!(training.controller().steps(), at);
                (0..4).for_each(|_| drop(step(&mut training, node, peers).unwrap()));
                result
            });
            let rate = results[failing as usize].unwrap_err();
            assert!(rate.to_string().starts_with("learning rate is NaN"), "{rate}");
            for (rank, result) in (0..).zip(&results) {
                let told = Err(Error::Peer { rank: failing, code: rate.code() });
                assert!(rank == failing || *result == told, "step {at}, rank {rank}: {result:?}");
            }
        }
    }
}

/// A difference inside a node is named on that node, and a difference between peers is named on the peers. The other ranks
/// get the number of the differing rank.
#[test]
fn options_and_layers_that_differ_are_named() {
    let first_step = |change: &(dyn Fn(Topology, &mut Config, &mut Vec<Tensor>) + Sync)| {
        on_nodes((2, 2), |place, node, peers| {
            let (mut config, mut layers) = (config(Method::TopK, LGRECO), layers());
            change(place, &mut config, &mut layers);
            let mut training = TwoLevel::new(config, layers, place).unwrap();
            agree_on_nodes(&mut training, node, peers, 1.0)
        })
    };
    // The second rank of each node has other options.
    let results = first_step(&|place, config, _| config.schedule.period += u64::from(place.local));
    for (rank, result) in results.iter().enumerate() {
        let first = 2 * (rank as u32 / 2) + 1;
        assert_eq!(*result, Err(differ(first, "period", Whole(4), Whole(3))), "rank {rank}");
    }
    let results = first_step(&|place, config, _| {
        if place.local == 1 {
            config.route = Route::ScatterReduce;
        }
    });
    assert_eq!(results[0], Err(differ(1, "route", Name("scatter-reduce"), Name("all-gather"))));
    // The second node has other options.
    let results = first_step(&|place, config, _| config.schedule.period += u64::from(place.node));
    for (rank, result) in results.iter().enumerate() {
        let first = 2 + rank as u32 % 2;
        assert_eq!(*result, Err(differ(first, "period", Whole(4), Whole(3))), "rank {rank}");
    }
    // One rank has other options.
    let results = first_step(&|place, config, _| config.schedule.period += u64::from(place.rank() == 3));
    let (named, told) = (differ(3, "period", Whole(4), Whole(3)), Error::Peer { rank: 3, code: 82 });
    assert_eq!(results[2..], [Err(named), Err(named)]);
    for result in &results[..2] {
        assert!(matches!(result, Err(Error::Peer { code: 82, .. })) || *result == Err(named), "{result:?} or {told:?}");
    }
    let results = first_step(&|place, _, layers| {
        if place.local == 1 {
            layers[1] = Tensor::new("bias", &[26], Dtype::F32).unwrap();
        }
    });
    for result in results {
        assert!(matches!(result, Err(Error::PeerOption { what: "shapes of the layers", .. })), "{result:?}");
    }
}

/// The ranks of a node put different layers into a bucket.
#[test]
fn buckets_of_other_layers_are_found() {
    SENT.into_iter().for_each(expect_other_layers_found);
}

fn expect_other_layers_found(sent: Dtype) {
    let results = on_nodes((2, 2), |place, node, peers| {
        let mut config = config(Method::TopK, LGRECO);
        config.search.reduce_dtype = sent;
        let mut training = new(config, place);
        agree_on_nodes(&mut training, node, peers, 1.0).unwrap();
        let layer = usize::from(place.local == 1);
        let mut values = values(place.rank(), 0).swap_remove(layer);
        let mut gradients = [ValuesMut::F32(&mut values)];
        let mut bucket = training.open(&[layer]).unwrap();
        bucket.submit(&mut gradients).unwrap();
        let result = loop {
            match bucket.next(&mut gradients) {
                Ok(Some((group, request))) => perform(group, request, node, peers),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        training.close(bucket).unwrap();
        training.finish_step().unwrap();
        (0..4).for_each(|_| drop(step(&mut training, node, peers).unwrap()));
        result
    });
    for (rank, result) in results.iter().enumerate() {
        assert_eq!(*result, Err(Error::PeerPlan { rank: 2 * (rank as u32 / 2) + 1 }), "rank {rank}");
    }
}

/// Performs a bucket's collectives to the end.
fn finish(
    bucket: &mut lgreco_train::controller::two_level::Bucket,
    gradients: &mut [ValuesMut<'_>],
    node: &mut ThreadCollective,
    peers: &mut ThreadCollective,
) -> Result<(), Error> {
    while let Some((group, request)) = bucket.next(gradients)? {
        perform(group, request, node, peers);
    }
    Ok(())
}

/// One rank closes a bucket after its last collective, without taking the means. The other ranks have the means, and
/// get an error in the next step. Both new and known buckets are tested.
#[test]
fn a_bucket_that_is_closed_without_its_means_is_told_to_all() {
    for is_new in [true, false] {
        let results = on_nodes((2, 2), |place, node, peers| {
            let mut training = new(with_undo(Method::TopK, Policy::Uniform), place);
            (0..4).for_each(|_| drop(step(&mut training, node, peers).unwrap()));
            let mut step = |closes_early: bool| {
                agree_on_nodes(&mut training, node, peers, 1.0).unwrap();
                let mut values = values(place.rank(), training.controller().steps() as u32);
                let before = residual(training.controller(), 0);
                let mut bucket = training.open(&[0, 1, 2, 3, 4, 5]).unwrap();
                let exchanged = as_gradients(&mut values, |gradients| {
                    bucket.submit(gradients).unwrap();
                    while closes_early && !bucket.is_last() {
                        let (group, request) = bucket.next(gradients)?.unwrap();
                        perform(group, request, node, peers);
                    }
                    if closes_early { Ok(()) } else { finish(&mut bucket, gradients, node, peers) }
                });
                training.close(bucket).unwrap();
                assert!(!closes_early || residual(training.controller(), 0) == before);
                (exchanged, training.finish_step().unwrap().outcome)
            };
            if !is_new {
                assert_eq!(step(false), (Ok(()), Outcome::Exchanged));
            }
            [step(place.rank() == 1), step(false), step(false)]
        });
        for (rank, [early, told, fine]) in results.iter().enumerate() {
            let outcome = if rank == 1 { Outcome::Failed } else { Outcome::Exchanged };
            assert_eq!((*early, *fine), ((Ok(()), outcome), (Ok(()), Outcome::Exchanged)), "rank {rank}");
            assert_eq!(told.1, Outcome::Failed, "rank {rank}");
        }
        let told: Vec<_> = results.iter().map(|steps| steps[1].0).collect();
        let own = told[1].unwrap_err();
        assert!(matches!(own, Error::StepOrder { .. }), "{own}");
        expect_told(&told, 1, &own, &format!("new: {is_new}"));
    }
}

/// A bucket without elements has no messages. If one rank fails in such a bucket, the next step reports the failure to
/// all ranks.
#[test]
fn a_failure_in_a_bucket_without_elements_is_told_by_the_next_step() {
    let results = on_nodes((2, 2), |place, node, peers| {
        let mut training = new(with_undo(Method::TopK, Policy::Uniform), place);
        let mut step = |fails: bool| {
            agree_on_nodes(&mut training, node, peers, 1.0).unwrap();
            let mut values = values(place.rank(), training.controller().steps() as u32);
            let results = as_gradients(&mut values, |gradients| {
                let (others, none) = gradients.split_at_mut(5);
                [(vec![0, 1, 2, 3, 4], others), (vec![5], none)].map(|(layers, gradients)| {
                    let mut bucket = training.open(&layers).unwrap();
                    match fails && layers[0] == 5 {
                        true => bucket.submit_failure(FAILURE).unwrap(),
                        false => bucket.submit(gradients).unwrap(),
                    }
                    let result = finish(&mut bucket, gradients, node, peers);
                    training.close(bucket).unwrap();
                    result
                })
            });
            (results, training.finish_step().unwrap().outcome)
        };
        (0..4).for_each(|_| assert_eq!(step(false), ([Ok(()); 2], Outcome::Exchanged)));
        [step(place.rank() == 1), step(false), step(false)]
    });
    for (rank, [failed, told, fine]) in results.iter().enumerate() {
        let own = if rank == 1 { Err(FAILURE) } else { Ok(()) };
        assert_eq!(*failed, ([Ok(()), own], Outcome::Exchanged), "rank {rank}");
        assert_eq!((told.0[1], told.1), (Ok(()), Outcome::Failed), "rank {rank}");
        assert_eq!(*fine, ([Ok(()); 2], Outcome::Exchanged), "rank {rank}");
    }
    let told: Vec<_> = results.iter().map(|steps| steps[1].0[0]).collect();
    expect_told(&told, 1, &FAILURE, "the next step");
}

/// One rank has already begun another step. This rank abandons its step, and all ranks get an error.
#[test]
fn a_step_within_a_step_fails_on_all_ranks() {
    for steps in [1, 3] {
        let results = on_nodes((2, 2), |place, node, peers| {
            let mut training = new(with_undo(Method::TopK, LGRECO), place);
            (0..steps).for_each(|_| drop(step(&mut training, node, peers).unwrap()));
            if place.rank() == 2 {
                training.begin_step(1.0).unwrap();
            }
            let result = step(&mut training, node, peers).map(drop);
            (0..4).for_each(|_| drop(step(&mut training, node, peers).unwrap()));
            result
        });
        let own = results[2].unwrap_err();
        assert!(matches!(own, Error::StepOrder { .. }), "{own}");
        expect_told(&results, 2, &own, &format!("after {steps} steps"));
    }
}

/// The first bucket has no elements, so it has no messages. Still, all ranks get an error if one rank has no gradients,
/// or has a gradient for the empty layer.
#[test]
fn a_rank_that_fails_is_named_whatever_the_first_bucket() {
    let wrong = Error::LayerMismatch { layer: 0, what: "the number of values", expected: 0, found: 3 };
    for (steps, own) in [(0, FAILURE), (1, FAILURE), (3, FAILURE), (1, wrong), (3, wrong)] {
        let results = on_nodes((2, 2), |place, node, peers| {
            let mut config = with_undo(Method::TopK, Policy::Uniform);
            config.bucket_bytes = 0;
            let layers = [("none", &[0][..]), ("fc1", &[16, 24])];
            let layers = layers.map(|(name, dims)| Tensor::new(name, dims, Dtype::F32).unwrap());
            let mut training = TwoLevel::new(config, layers.into(), place).unwrap();
            let mut step = |none: &mut [f32]| {
                let mut values = noise(0, place.rank(), 0, 16 * 24);
                let mut gradients = [ValuesMut::F32(none), ValuesMut::F32(&mut values)];
                training.step(node, peers, &mut gradients, 1.0).map(drop)
            };
            (0..steps).for_each(|_| step(&mut []).unwrap());
            let result = match place.rank() == 1 {
                true if own == wrong => step(&mut [1.0; 3]),
                true => Err(training.step_failed(node, peers, FAILURE)),
                false => step(&mut []),
            };
            (0..2).for_each(|_| {
                let mut values = noise(0, place.rank(), 0, 16 * 24);
                let mut gradients = [ValuesMut::F32(&mut []), ValuesMut::F32(&mut values)];
                training.step(node, peers, &mut gradients, 1.0).unwrap();
            });
            result
        });
        expect_told(&results, 1, &own, &format!("after {steps} steps"));
    }
}

/// One rank still has a bucket of another step, or uses a controller that was created for another [`Topology`]. All
/// ranks get this rank's error, and the next step works.
#[test]
fn a_rank_that_cannot_begin_is_named_on_all() {
    for (steps, has_bucket) in [(0, false), (3, false), (1, true), (3, true)] {
        let results = on_nodes((2, 2), |place, node, peers| {
            let mut training = new(with_undo(Method::TopK, LGRECO), place);
            (0..steps).for_each(|_| drop(step(&mut training, node, peers).unwrap()));
            let mut bucket = None;
            if has_bucket {
                agree_on_nodes(&mut training, node, peers, 1.0).unwrap();
                match place.rank() {
                    1 => bucket = Some(training.open(&[2]).unwrap()),
                    _ => training.abandon_step().unwrap(),
                }
            }
            let result = match place.rank() == 1 && !has_bucket {
                true => {
                    let elsewhere = Topology { per_node: 3, ..place };
                    step(&mut new(with_undo(Method::TopK, LGRECO), elsewhere), node, peers).map(drop)
                }
                false => step(&mut training, node, peers).map(drop),
            };
            if let Some(bucket) = bucket {
                training.close(bucket).unwrap();
                training.abandon_step().unwrap();
            }
            (0..3).for_each(|_| drop(step(&mut training, node, peers).unwrap()));
            assert_eq!(training.controller().steps(), steps + 3);
            result
        });
        let own = match has_bucket {
            true => Error::InFlight { layer: 2 },
            false => Error::OtherPlace { rank: 1, world: 4, own_rank: 1, own_world: 6 },
        };
        expect_told(&results, 1, &own, &format!("after {steps} steps"));
    }
}

/// One rank alone loads a saved state. The next blocking step finds that the ranks differ.
#[test]
fn a_state_that_one_rank_alone_loads_is_found() {
    let results = on_nodes((2, 2), |place, node, peers| {
        let mut training = new(with_undo(Method::TopK, LGRECO), place);
        let mut saved = vec![];
        for _ in 0..3 {
            saved.push(training.save().unwrap());
            step(&mut training, node, peers).unwrap();
        }
        if place.rank() == 1 {
            training.load(&[&saved[2]], &[&saved[2]]).unwrap();
        }
        step(&mut training, node, peers).map(drop)
    });
    let named = Err(differ(1, "step", Whole(2), Whole(3)));
    assert_eq!(results[..2], [named; 2]);
    assert!(results[2..].iter().all(|told| matches!(told, Err(Error::Peer { code: 82, .. }))), "{results:?}");
}

/// Accordion compares learning rates, but a rank whose trainer fails does not know the rate. Still, all ranks get this
/// rank's error.
#[test]
fn a_failure_is_told_whatever_the_learning_rate() {
    for steps in [0, 3] {
        let results = on_nodes((2, 2), |place, node, peers| {
            let accordion = Some(Accordion::new(8.0, 3.0));
            let mut training =
                new(with_undo(Method::Qsgd, Policy::LGreco { solver: Default::default(), accordion }), place);
            let mut run = |rate: f64, fails: bool| {
                let mut values = values(place.rank(), 0);
                as_gradients(&mut values, |gradients| match fails {
                    true => Err(training.step_failed(node, peers, FAILURE)),
                    false => training.step(node, peers, gradients, rate).map(drop),
                })
            };
            (0..steps).for_each(|step| run(1.0 / f64::from(1 + step), false).unwrap());
            let result = run(0.01, place.rank() == 1);
            run(0.01, false).unwrap();
            result
        });
        expect_told(&results, 1, &FAILURE, &format!("after {steps} steps"));
    }
}

/// The last call of a bucket writes the means. This call first checks the gradients that the means replace.
#[test]
fn means_are_not_written_to_other_gradients() {
    on_nodes((2, 2), |place, node, peers| {
        let mut training = new(with_undo(Method::TopK, LGRECO), place);
        agree_on_nodes(&mut training, node, peers, 1.0).unwrap();
        let mut values = values(place.rank(), 0).swap_remove(0);
        let mut gradients = [ValuesMut::F32(&mut values)];
        let mut bucket = training.open(&[0]).unwrap();
        bucket.submit(&mut gradients).unwrap();
        while !bucket.is_last() {
            let (group, request) = bucket.next(&mut gradients).unwrap().unwrap();
            perform(group, request, node, peers);
        }
        let mut short = [1.0; 3];
        assert!(matches!(bucket.next(&mut [ValuesMut::F32(&mut short)]), Err(Error::LayerMismatch { layer: 0, .. })));
        assert!(bucket.next(&mut []).is_err());
        assert!(bucket.next(&mut gradients).unwrap().is_none());
        training.close(bucket).unwrap();
        training.finish_step().unwrap();
    });
}
