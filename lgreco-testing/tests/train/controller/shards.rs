//! Tests of overflows in the shard of one rank, and of shards with payloads that cannot be cut.

use super::*;
use lgreco_testing::controller::sharded;
use lgreco_train::compress::adacomp::AdaComp;
use lgreco_train::compress::hard_threshold::HardThreshold;
use lgreco_train::exchange::Route;
use lgreco_train::gradient::{Bf16, Element, F16};

/// The error of each of two ranks if rank 1's shard of a layer overflows.
fn failed(rank: u32, layer: usize) -> Result<(), Error> {
    let overflow = Error::OfLayer { layer, error: CoreError::Overflow { what: "the sum over the workers" } };
    Err(if rank == 1 { overflow } else { Error::Peer { rank: 1, code: overflow.code() } })
}

/// A controller for two ranks, with one bucket per layer.
fn controller(worker: &ThreadCollective) -> Controller {
    let mut config = config(Method::Qsgd, Policy::Uncompressed);
    (config.route, config.bucket_bytes) = (Route::Sharded, 0);
    config.search.reduce_dtype = Dtype::Bf16;
    Controller::new(config, sharded(model(), 2), worker.rank(), worker.world_size()).unwrap()
}

/// The model's gradients. In the last rank's shard, the layer `large` exceeds f32 after rounding to bf16.
fn values(rank: u32, large: Option<usize>) -> Vec<Vec<f32>> {
    let mut values = gradients(rank, 0, 1.0);
    if let Some(layer) = large {
        *values[layer].last_mut().unwrap() = f32::MAX;
    }
    values
}

/// A rank whose shard overflows fails alone. The next bucket reports the error to the other ranks, and the following
/// step works.
#[test]
fn an_overflow_in_one_shard_reaches_all_ranks() {
    on_all(2, |mut worker| {
        let mut controller = controller(&worker);
        let rank = worker.rank();
        let mut step = |large| controller.step(&mut worker, &mut views(&mut values(rank, large)), 1.0).map(drop);
        assert_eq!(step(None), Ok(()));
        // A later bucket of this step reports the error to the other ranks.
        assert_eq!(step(Some(0)), failed(rank, 0));
        assert_eq!(step(None), Ok(()));
        // The bucket of layer 2 is the last one of the step, so the next step reports the error.
        assert_eq!(step(Some(2)), if rank == 1 { failed(rank, 2) } else { Ok(()) });
        assert_eq!(step(None), failed(rank, 2));
        assert_eq!(step(None), Ok(()));
    });
}

/// A shard overflows in a bucket that ranks have not exchanged before. Afterwards the bucket is known to all ranks.
#[test]
fn an_overflow_in_one_shard_of_a_new_bucket_reaches_all_ranks() {
    on_all(2, |mut worker| {
        let mut controller = controller(&worker);
        let rank = worker.rank();
        let mut step = |large| {
            let mut values = values(rank, large);
            controller.begin_step(1.0).unwrap();
            while let Some(request) = controller.control().unwrap() {
                request.perform(&mut worker).unwrap();
            }
            let mut bucket = controller.open(&[1, 0]).unwrap();
            values.swap(0, 1);
            let exchanged = bucket.exchange(&mut worker, &mut views(&mut values[..2]));
            controller.close(bucket).unwrap();
            (exchanged, controller.finish_step().unwrap().outcome)
        };
        let alone = if rank == 1 { (failed(rank, 0), Outcome::Failed) } else { (Ok(()), Outcome::Exchanged) };
        assert_eq!(step(Some(0)), alone);
        assert_eq!(step(None), (failed(rank, 0), Outcome::Failed));
        assert_eq!(step(None), (Ok(()), Outcome::Exchanged));
    });
}

/// Results of rank 0 and rank 1 in three steps with a bucket. In the first step, the bucket is new, and the mean of
/// rank 1's shard exceeds the largest f16 value. If `given`, all ranks have been given other settings before the first
/// step.
fn large_mean_in_one_shard(non_finite: NonFinite, given: bool) -> Vec<[Result<Outcome, Error>; 3]> {
    let top = |keep| Policy::Fixed(vec![Setting::TopK(TopK { keep, values: Dtype::F32 })]);
    threads::run(2, |mut worker| {
        let mut config = config(Method::TopK, top(2));
        (config.route, config.non_finite) = (Route::Sharded, non_finite);
        let tensors = vec![Tensor::new("w", &[4, 1], Dtype::F16).unwrap().with_shards(&[2, 4])];
        let mut controller = Controller::new(config, tensors, worker.rank(), worker.world_size()).unwrap();
        for values in [[1.0; 4], [1.0; 4], [1.0, 1.0, 60000.0, 50000.0]] {
            let values = &mut values.map(F16::from_f32);
            controller.step(&mut worker, &mut [ValuesMut::F16(values)], 1.0).unwrap();
        }
        if given {
            controller.planning().set_settings(vec![Setting::TopK(TopK { keep: 4, values: Dtype::F32 })]).unwrap();
        }
        // The residual of the last element is 49984.
        [50000.0, -50000.0, -50000.0].map(|last| {
            agree(&mut controller, &mut worker, 1.0)?;
            let mut bucket = controller.open(&[0])?;
            let values = &mut [0.0, 0.0, 0.0, last].map(F16::from_f32);
            let exchanged = bucket.exchange(&mut worker, &mut [ValuesMut::F16(values)]);
            controller.close(bucket)?;
            let report = controller.finish_step()?;
            exchanged.map(|()| report.outcome)
        })
    })
}

/// The rank whose shard overflows fails alone. The next bucket or the next agreement reports the error to the other
/// ranks.
#[test]
fn a_mean_too_large_for_one_shard_is_told_before_a_step_is_skipped() {
    let error = Error::OfLayer { layer: 0, error: CoreError::ElementOverflow { index: 3, value: 99968.0 } };
    let (too_large, told) = (Err(error), Err(Error::Peer { rank: 1, code: error.code() }));
    let exchanged = Ok(Outcome::Exchanged);
    let all = large_mean_in_one_shard(NonFinite::Skip, false);
    assert_eq!(all[0], [exchanged, Ok(Outcome::Skipped), exchanged]);
    assert_eq!(all[1], [too_large, Ok(Outcome::Skipped), exchanged]);
    let all = large_mean_in_one_shard(NonFinite::Skip, true);
    assert_eq!(all, [[exchanged, told, exchanged], [too_large, too_large, exchanged]]);
}

/// Rank 1 fails alone in the middle bucket. The last bucket reports the error to rank 0, and all ranks skip the step.
/// No rank keeps a residual of this step.
#[test]
fn a_rank_that_has_failed_alone_restores_the_residuals_of_a_step_that_all_skip() {
    let too_large = Error::OfLayer { layer: 1, error: CoreError::ElementOverflow { index: 3, value: 99968.0 } };
    for blocking in [true, false] {
        let results = threads::run(2, |mut worker| {
            let keep = Setting::TopK(TopK { keep: 2, values: Dtype::F32 });
            let mut config = config(Method::TopK, Policy::Fixed(vec![keep; 3]));
            (config.route, config.non_finite, config.bucket_bytes) = (Route::Sharded, NonFinite::Skip, 0);
            let tensor = |(name, dtype)| Tensor::new(name, &[4, 1], dtype).unwrap().with_shards(&[2, 4]);
            let tensors = [("first", Dtype::F32), ("middle", Dtype::F16), ("last", Dtype::F32)].map(tensor);
            let mut controller = Controller::new(config, tensors.into(), worker.rank(), worker.world_size()).unwrap();
            let mut step = |blocking: bool, middle: [f32; 4]| {
                let (first, middle, last) = (&mut [1.0, 2.0, 3.0, 4.0], &mut middle.map(F16::from_f32), &mut [1.0; 4]);
                let mut gradients = [ValuesMut::F32(first), ValuesMut::F16(middle), ValuesMut::F32(last)];
                let result = if blocking {
                    controller.step(&mut worker, &mut gradients, 1.0).map(|report| report.outcome)
                } else {
                    agree(&mut controller, &mut worker, 1.0).unwrap();
                    let exchanged = [0, 1, 2].map(|layer| {
                        let mut bucket = controller.open(&[layer]).unwrap();
                        let exchanged = bucket.exchange(&mut worker, &mut gradients[layer..=layer]);
                        controller.close(bucket).unwrap();
                        exchanged
                    });
                    let outcome = controller.finish_step().unwrap().outcome;
                    let failed = exchanged.into_iter().find_map(Result::err);
                    assert_eq!(failed.is_some(), outcome == Outcome::Failed);
                    failed.map_or(Ok(outcome), Err)
                };
                (result, [0, 1, 2].map(|layer| residual(&controller, layer)), controller.non_finite_steps())
            };
            (0..2).for_each(|_| drop(step(true, [1.0; 4])));
            let (exchanged, before, _) = step(blocking, [1.0, 1.0, 60000.0, 50000.0]);
            assert!(exchanged == Ok(Outcome::Exchanged) && before.iter().flatten().filter(|&&x| x != 0.0).count() >= 4);
            let (result, after, count) = step(blocking, [0.0, 0.0, 0.0, 50000.0]);
            assert_eq!((after, count), (before, 1), "blocking: {blocking}, rank {}", worker.rank());
            result
        });
        assert_eq!(results, [Ok(Outcome::Skipped), Err(too_large)]);
    }
}

/// NaN in the shard reports the overflow to the loss scaler. All ranks then continue with the same buckets and settings.
#[test]
fn a_mean_too_large_for_one_shard_is_passed_through() {
    for given in [false, true] {
        let all = large_mean_in_one_shard(NonFinite::PassThrough, given);
        assert_eq!(all[0], [Ok(Outcome::Exchanged); 3]);
        assert_eq!(all[1], [Ok(Outcome::PassedThrough), Ok(Outcome::Exchanged), Ok(Outcome::Exchanged)]);
    }
}

/// The results of a rank in several steps.
struct Run {
    /// The means by step and layer, as f32.
    means: Vec<Vec<Vec<f32>>>,
    residuals: Vec<Vec<f32>>,
    /// The sent bytes by step.
    sent: Vec<u64>,
}

/// Trains three ranks under settings whose payload lengths depend on the values.
fn with_whole_payloads(route: Route, feedback: Feedback) -> Vec<Run> {
    let adacomp = Setting::AdaComp(AdaComp { bin: 9 });
    let hard = Setting::HardThreshold(HardThreshold { lambda: 0.4, values: Dtype::F32 });
    let mut config = config(Method::AdaComp, Policy::Fixed(vec![adacomp, adacomp, Setting::Dense, hard]));
    (config.route, config.feedback) = (route, feedback);
    threads::run(3, |mut worker| {
        let mut controller =
            Controller::new(config.clone(), uneven(route), worker.rank(), worker.world_size()).unwrap();
        let (mut means, mut sent) = (vec![], vec![]);
        for step in 0..6 {
            let mut values: Vec<_> = LENS.iter().zip(0..).map(|(&n, l)| noise(l, worker.rank(), step, n)).collect();
            let mut half: Vec<_> = values[1].iter().map(|&x| Bf16::from_f32(x)).collect();
            let [first, _, dense, last] = &mut values[..] else { unreachable!("four layers") };
            let mut gradients =
                [ValuesMut::F32(first), ValuesMut::Bf16(&mut half), ValuesMut::F32(dense), ValuesMut::F32(last)];
            sent.push(controller.step(&mut worker, &mut gradients, 0.1).unwrap().bytes_out);
            values[1] = half.iter().map(|x| x.to_f32()).collect();
            means.push(values);
        }
        let remembered: &[usize] = if feedback.others.is_some() { &[0, 1, 3] } else { &[] };
        let residuals = remembered.iter().map(|&layer| residual(&controller, layer)).collect();
        Run { means, residuals, sent }
    })
}

const LENS: [usize; 4] = [70, 45, 7, 44];
/// Ends of shards, which are not aligned with AdaComp's bins. Some shards are empty.
const ENDS: [[u64; 3]; 4] = [[0, 33, 70], [45, 45, 45], [3, 3, 7], [1, 43, 44]];

fn uneven(route: Route) -> Vec<Tensor> {
    let dtypes = [Dtype::F32, Dtype::Bf16, Dtype::F32, Dtype::F32];
    let layers = LENS.iter().zip(dtypes).zip(&ENDS).enumerate();
    let tensor = |(layer, ((&len, dtype), ends)): (usize, ((&usize, Dtype), &[u64; 3]))| {
        let tensor = Tensor::new(&layer.to_string(), &[len], dtype).unwrap();
        if route == Route::Sharded { tensor.with_shards(ends) } else { tensor }
    };
    layers.map(tensor).collect()
}

/// The bits of the means in a rank's shards.
fn wanted(means: &[Vec<Vec<f32>>], rank: usize) -> Vec<u32> {
    let layers = means.iter().flat_map(|layers| layers.iter().zip(&ENDS));
    let wanted = layers.flat_map(|(values, ends)| {
        let start = rank.checked_sub(1).map_or(0, |before| ends[before]);
        &values[start as usize..ends[rank] as usize]
    });
    wanted.map(|x| x.to_bits()).collect()
}

/// Payloads that cannot be cut are gathered whole. Each rank's shards have the bits of the means with the all-gather route.
/// Residuals and traffic are also the same.
#[test]
fn shards_of_whole_payloads_are_those_of_the_whole_mean() {
    for feedback in [Feedback::default(), Feedback::NONE] {
        let run = |route| with_whole_payloads(route, feedback);
        for (rank, (sharded, whole)) in run(Route::Sharded).iter().zip(&run(Route::AllGather)).enumerate() {
            assert_eq!(wanted(&sharded.means, rank), wanted(&whole.means, rank), "rank {rank}");
            assert_eq!((&sharded.residuals, &sharded.sent), (&whole.residuals, &whole.sent), "rank {rank}");
        }
    }
}
