use super::threads::{self, ThreadCollective};
use super::*;
use crate::Error;
use crate::compress::powersgd::{PowerSgd, start_matrix};
use crate::compress::qsgd::{Qsgd, Rounding, Scale};
use crate::compress::topk::TopK;
use crate::compress::{Candidates, Setting};
use crate::gradient::{Bf16, Dtype, Element, Gradient, Shape, Values};
use crate::rng::Stream;
use crate::testing::exchange::{Case, Outcome, check, check_failure};
use proptest::prelude::*;
use std::{vec, vec::Vec};

/// Uniform on (−1, 1), from named random words.
fn noise(seed: u64, layer: u32, rank: u32, len: usize) -> Vec<f32> {
    let stream = Stream { seed, step: 77, layer, rank };
    (0..len as u64).map(|i| (stream.word(i) >> 8) as f32 / (1 << 23) as f32 - 1.0).collect()
}

fn case(layers: &[(Setting, Shape)], world: u32, route: Route) -> Case {
    let worker = |rank| (0..).zip(layers).map(|(l, (_, shape))| noise(9, l, rank, shape.elements())).collect();
    Case { layers: layers.to_vec(), gradients: (0..world).map(worker).collect(), route, seed: 5, step: 3 }
}

fn shape(rows: usize, cols: usize) -> Shape {
    Shape::new(rows, cols).unwrap()
}

fn qsgd(bits: u8, bucket: u32, rounding: Rounding) -> Setting {
    Setting::Qsgd(Qsgd { bits, bucket, rounding, scale: Scale::MaxNorm })
}

fn topk(keep: u32) -> Setting {
    Setting::TopK(TopK { keep, values: Dtype::F32 })
}

const LOW_RANK: Setting = Setting::PowerSgd(PowerSgd { rank: 2, iterations: 1 });

/// A bucket of everything, with layers smaller than a piece, empty ones, and tensors that are cut.
fn hybrid() -> Vec<(Setting, Shape)> {
    vec![
        (Setting::Dense, shape(7, 1)),
        (qsgd(4, 16, Rounding::Stochastic), shape(9, 31)),
        (LOW_RANK, shape(12, 10)),
        (topk(5), shape(50, 2)),
        (topk(0), shape(0, 3)),
        (Setting::Dense, shape(0, 0)),
        (LOW_RANK, shape(5, 1)),
        (Setting::Qsgd(Qsgd { bits: 3, bucket: 100, scale: Scale::MinMax, rounding: Rounding::Nearest }), shape(3, 1)),
        (topk(40), shape(40, 1)),
        (Setting::Dense, shape(3, 5)),
    ]
}

const ROUTES: [Route; 2] = [Route::AllGather, Route::ScatterReduce];

#[test]
fn means_hold_for_1_2_3_and_8_workers() {
    for world in [1, 2, 3, 8] {
        for route in ROUTES {
            check(&case(&hybrid(), world, route));
        }
    }
}

#[test]
fn a_failing_worker_is_named_on_all_and_the_next_exchange_works() {
    for route in ROUTES {
        check_failure(&case(&hybrid(), 3, route));
        for setting in [qsgd(4, 16, Rounding::Stochastic), topk(30), LOW_RANK, Setting::Dense] {
            check_failure(&case(&[(setting, shape(10, 20))], 4, route));
        }
    }
}

fn settings() -> impl Strategy<Value = (Setting, Shape)> {
    (0usize..4, 1usize..12, 1usize..12, 1u8..=8, 1u32..40, any::<bool>(), any::<bool>()).prop_map(
        |(method, rows, cols, bits, number, flag, other)| {
            let shape = shape(rows, cols);
            let setting = match method {
                0 => Setting::Dense,
                1 => Setting::Qsgd(Qsgd {
                    bits,
                    bucket: number,
                    scale: if flag { Scale::MinMax } else { Scale::MaxNorm },
                    rounding: if other { Rounding::Nearest } else { Rounding::Stochastic },
                }),
                2 if flag => topk(shape.elements() as u32),
                2 => topk(number.min(shape.elements() as u32)),
                _ => Setting::PowerSgd(PowerSgd { rank: 1 + number % 5, iterations: 1 }),
            };
            (setting, shape)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn means_hold_for_any_bucket(
        layers in proptest::collection::vec(settings(), 1..6),
        world in 1u32..6,
        scatter: bool,
        seed: u64,
        scale in -30i32..30,
        sparse in 1u32..4,
    ) {
        let mut case = case(&layers, world, ROUTES[scatter as usize]);
        case.seed = seed;
        let factor = 2f32.powi(scale);
        for (i, x) in case.gradients.iter_mut().flatten().flatten().enumerate() {
            *x *= if (i as u32).is_multiple_of(sparse) { factor } else { 0.0 };
        }
        check(&case);
    }
}

/// Independent random bits average out; workers that shared them would keep the error of one.
#[test]
fn the_error_of_the_mean_falls_with_the_number_of_workers() {
    const STEPS: u32 = 60;
    let shape = shape(64, 32);
    let base = Qsgd { bits: 3, bucket: 128, ..Qsgd::default() };
    let values = noise(1, 0, 0, shape.elements());
    let gradient = Gradient::new(Values::F32(&values), shape).unwrap();
    let mut expected = [0.0];
    let candidates = Candidates::Qsgd { base, bits: &[3] };
    candidates.measure(&gradient, Stream::default(), &mut [], &mut expected).unwrap();
    for world in [2, 3, 8] {
        for route in ROUTES {
            let layers = vec![(Setting::Qsgd(base), shape)];
            let gradients = vec![vec![values.clone()]; world];
            let mut case = Case { layers, gradients, route, seed: 11, step: 0 };
            let (mut squared, mut sum) = (0.0, vec![0.0; values.len()]);
            for step in 0..STEPS {
                case.step = step;
                let outcome = case.run().swap_remove(0).unwrap();
                for ((sum, &mean), &x) in sum.iter_mut().zip(&outcome.mean[0]).zip(&values) {
                    let error = mean as f64 - x as f64;
                    squared += error * error / STEPS as f64;
                    *sum += error / STEPS as f64;
                }
            }
            let world = world as f64;
            let one = expected[0] / world;
            match route {
                Route::AllGather => assert!((squared / one - 1.0).abs() < 0.1, "{world}: {squared} {one}"),
                // All but the owner's part, and the second compression.
                Route::ScatterReduce => {
                    let two = one * (world - 1.0) / world + expected[0];
                    assert!(squared > 0.6 * two && squared < 1.2 * two, "{world}: {squared} {two}");
                }
            }
            let bias: f64 = sum.iter().map(|x| x * x).sum();
            assert!(bias < 1.3 * squared / STEPS as f64, "{world}: {bias} {squared}");
        }
    }
}

/// Algorithm 1 in f64, from the same start matrix: P̂ P̂ᵀ M of the mean M.
fn textbook(case: &Case, rank: usize) -> Vec<f64> {
    let (rows, cols) = (case.layers[0].1.rows(), case.layers[0].1.cols());
    let mut q = vec![0.0; cols * rank];
    start_matrix(Stream { seed: case.seed, ..Stream::default() }, cols, rank as u32, &mut q).unwrap();
    let mean = |i: usize| case.gradients.iter().map(|w| w[0][i] as f64).sum::<f64>() / case.gradients.len() as f64;
    let mean: Vec<f64> = (0..rows * cols).map(mean).collect();
    let mut basis: Vec<Vec<f64>> = Vec::new();
    for column in q.chunks(cols) {
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
        let column: Vec<f64> = column.iter().map(|&x| x as f64).collect();
        let mut p: Vec<f64> = mean.chunks(cols).map(|row| dot(row, &column)).collect();
        for _ in 0..2 {
            for b in &basis {
                let along = dot(b, &p);
                p.iter_mut().zip(b).for_each(|(p, b)| *p -= along * b);
            }
        }
        let norm = dot(&p, &p).sqrt();
        basis.push(p.iter().map(|x| x / norm).collect());
    }
    let mut result = vec![0.0; rows * cols];
    for p in &basis {
        for c in 0..cols {
            let q: f64 = (0..rows).map(|r| mean[r * cols + c] * p[r]).sum();
            (0..rows).for_each(|r| result[r * cols + c] += p[r] * q);
        }
    }
    result
}

#[test]
fn powersgd_projects_the_mean() {
    for world in [1, 2, 3, 8] {
        for rank in [1, 3] {
            let setting = Setting::PowerSgd(PowerSgd { rank, iterations: 1 });
            let case = case(&[(setting, shape(20, 14))], world, Route::AllGather);
            let expected = textbook(&case, rank as usize);
            for outcome in case.run() {
                let mean = &outcome.unwrap().mean[0];
                let off = mean.iter().zip(&expected).fold(0.0f64, |a, (&x, y)| a.max((x as f64 - y).abs()));
                assert!(off < 2e-5, "{world} workers, rank {rank}: {off}");
            }
        }
    }
}

/// The workers' parts that cancel leave no trace in the mean, and the warm start finds the largest direction.
#[test]
fn powersgd_warm_start_converges_to_the_best_approximation_of_the_mean() {
    let (rows, cols) = (6, 5);
    let mut mean = vec![0.0f32; rows * cols];
    (mean[7], mean[24]) = (2.0, 1.0);
    let odd = noise(4, 0, 0, rows * cols);
    let worker = |sign: f32| vec![mean.iter().zip(&odd).map(|(m, o)| m + sign * o).collect()];
    let setting = Setting::PowerSgd(PowerSgd { rank: 1, iterations: 1 });
    let case = Case {
        layers: vec![(setting, shape(rows, cols))],
        gradients: vec![worker(1.0), worker(-1.0)],
        route: Route::AllGather,
        seed: 1,
        step: 0,
    };
    let outcomes = threads::run(2, |mut worker| {
        let mut outcome: Option<Outcome> = None;
        for _ in 0..30 {
            outcome = Some(case.exchange(&mut worker, outcome.map(|o| o.factors)).unwrap());
        }
        outcome.unwrap()
    });
    assert_ne!(outcomes[0].own, outcomes[1].own);
    for outcome in outcomes {
        for (i, x) in outcome.mean[0].iter().enumerate() {
            assert!((x - if i == 7 { 2.0 } else { 0.0 }).abs() < 1e-5, "element {i}: {x}");
        }
    }
}

#[test]
fn sixteen_bit_gradients_are_summed_as_f32() {
    let shape = shape(33, 3);
    for setting in [Setting::Dense, topk(99), topk(10), qsgd(8, 16, Rounding::Nearest), LOW_RANK] {
        for route in ROUTES {
            let wide = |rank| noise(2, 0, rank, 99).iter().map(|&x| Bf16::from_f32(x).to_f32()).collect::<Vec<_>>();
            let gradients = vec![vec![wide(0)], vec![wide(1)]];
            let expected = Case { layers: vec![(setting, shape)], gradients, route, seed: 5, step: 0 }.run();
            let means = threads::run(2, |mut worker| {
                let values: Vec<Bf16> = noise(2, 0, worker.rank(), 99).into_iter().map(Bf16::from_f32).collect();
                let gradient = Gradient::new(Values::Bf16(&values), shape).unwrap();
                let words = workspace_len([(setting, shape, Dtype::Bf16)].into_iter(), route, 2).unwrap();
                let mut factor = vec![0.0; if setting == LOW_RANK { 6 } else { 0 }];
                let mut mean = vec![0.0; 99];
                let layer = Layer { index: 0, setting, gradient, mean: &mut mean, own: None, factor: &mut factor };
                aggregate(&mut worker, &mut [layer], route, 5, 0, &mut vec![0; words]).unwrap();
                mean
            });
            for (mean, expected) in means.iter().zip(expected) {
                assert_eq!(*mean, expected.unwrap().mean[0], "{setting}");
            }
        }
    }
}

#[test]
fn workers_that_disagree_are_named() {
    let sound = case(&hybrid(), 3, Route::AllGather);
    let differ = |change: fn(&mut Case)| {
        let mut other = sound.clone();
        change(&mut other);
        let results = threads::run(3, |mut worker| match worker.rank() {
            1 => other.exchange(&mut worker, None),
            _ => sound.exchange(&mut worker, None),
        });
        assert_eq!(results, vec![Err(Error::PeerPlan { rank: 1 }); 3]);
    };
    differ(|case| case.step += 1);
    differ(|case| case.seed += 1);
    differ(|case| case.route = Route::ScatterReduce);
    differ(|case| case.layers[1].0 = qsgd(5, 16, Rounding::Stochastic));
    differ(|case| case.layers[1].1 = shape(31, 9));
    differ(|case| case.layers[3].0 = topk(6));
    differ(|case| case.layers.truncate(9));
    let factors = |x: f32| {
        let zeros = |(s, shape): &(Setting, Shape)| {
            if *s == LOW_RANK { vec![x; 2.min(shape.cols()) * shape.cols()] } else { vec![] }
        };
        Some(sound.layers.iter().map(zeros).collect())
    };
    let results = threads::run(3, |mut worker| {
        let factors = factors((worker.rank() / 2) as f32);
        sound.exchange(&mut worker, factors)
    });
    assert_eq!(results, vec![Err(Error::PeerPlan { rank: 2 }); 3]);
}

/// A worker whose outgoing messages are changed: byte `at` of its `call`-th gather or exchange is xored.
struct Tampered {
    inner: ThreadCollective,
    call: usize,
    at: usize,
    with: u8,
}

impl Tampered {
    fn spoil(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        if self.call == 0 && !bytes.is_empty() {
            let at = self.at % bytes.len();
            bytes[at] ^= self.with;
        }
        self.call = self.call.wrapping_sub(1);
        bytes
    }
}

impl Collective for Tampered {
    fn rank(&self) -> u32 {
        self.inner.rank()
    }
    fn world_size(&self) -> u32 {
        self.inner.world_size()
    }
    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        self.inner.all_reduce_sum(values)
    }
    fn all_gather(&mut self, own: &[u8], lens: &[u64], received: &mut [u8]) -> Result<(), CollectiveError> {
        let own = self.spoil(own);
        self.inner.all_gather(&own, lens, received)
    }
    fn broadcast(&mut self, root: u32, bytes: &mut [u8]) -> Result<(), CollectiveError> {
        self.inner.broadcast(root, bytes)
    }
    fn all_to_all(
        &mut self,
        send: &[u8],
        send_lens: &[u64],
        received: &mut [u8],
        received_lens: &[u64],
    ) -> Result<(), CollectiveError> {
        let send = self.spoil(send);
        self.inner.all_to_all(&send, send_lens, received, received_lens)
    }
}

/// The results when rank 1 sends something else; afterwards the workers are still in step.
fn tamper(case: &Case, call: usize, at: usize, with: u8) -> Vec<Result<Outcome, Error>> {
    threads::run(case.world(), |inner| {
        let call = if inner.rank() == 1 { call } else { usize::MAX };
        let mut worker = Tampered { inner, call, at, with };
        let result = case.exchange(&mut worker, None);
        worker.call = usize::MAX;
        let clean = case.exchange(&mut worker, None);
        assert!(clean.is_ok(), "{clean:?}");
        result
    })
}

#[test]
fn messages_that_cannot_be_decoded_name_their_sender() {
    let layers = [(qsgd(4, 16, Rounding::Nearest), shape(20, 10)), (topk(9), shape(30, 2))];
    let gather = case(&layers, 3, Route::AllGather);
    // Method, and rows: a payload of another length than its header says.
    for (at, code) in [(0, 40), (2, 1), (8, 1)] {
        let results = tamper(&gather, 1, at, 3);
        assert!(results.iter().all(|r| matches!(r, Err(Error::PeerMessage { rank: 1, .. }))), "{results:?}");
        if at != 2 {
            assert_eq!(results[0], Err(Error::PeerMessage { rank: 1, code }));
        }
    }
    // 0 x 2 instead of 0 x 3: decodes to as many values, but is not this tensor.
    let results = tamper(&case(&[(topk(0), shape(0, 3))], 2, Route::AllGather), 1, 12, 1);
    assert_eq!(results, vec![Err(Error::PeerMessage { rank: 1, code: 41 }); 2]);

    // Rank 0 cannot read what rank 1 sends it, and cannot serve the others.
    let scatter = case(&layers, 3, Route::ScatterReduce);
    let results = tamper(&scatter, 1, 0, 3);
    assert_eq!(results[0], Err(Error::PeerMessage { rank: 1, code: 40 }));
    assert_eq!(results[1..], vec![Err(Error::Peer { rank: 0, code: 83 }); 2]);
    // What rank 1 hands out, the others cannot read.
    let results = tamper(&scatter, 2, 0, 3);
    assert!(results[1].is_ok());
    assert_eq!([&results[0], &results[2]], [&Err(Error::PeerMessage { rank: 1, code: 40 }); 2]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn spoilt_messages_fail_on_all_or_leave_all_alike(call in 0usize..3, at: usize, with in 1u8.., scatter: bool) {
        let results = tamper(&case(&hybrid(), 3, ROUTES[scatter as usize]), call, at, with);
        let good = results.iter().filter(|r| r.is_ok()).count();
        // Of the second compression's payloads the sender keeps what it meant to send.
        prop_assert!(good == 0 || good == 3 || (scatter && call == 2), "{results:?}");
        if good == 3 && !(scatter && call == 2) {
            let means = |r: &Result<Outcome, Error>| r.as_ref().unwrap().mean.clone();
            prop_assert_eq!(means(&results[0]), means(&results[1]));
            prop_assert_eq!(means(&results[0]), means(&results[2]));
        }
    }
}

#[test]
fn sums_that_leave_f32_are_errors_on_all() {
    let shape = shape(4, 4);
    let per_setting = [Setting::Dense, topk(16), qsgd(8, 16, Rounding::Nearest), LOW_RANK];
    for (setting, route) in per_setting.into_iter().flat_map(|s| ROUTES.map(|r| (s, r))) {
        let gradients = vec![vec![vec![3e38; 16]]; 3];
        let results = Case { layers: vec![(setting, shape)], gradients, route, seed: 5, step: 0 }.run();
        let told = |r: &_| matches!(r, Err(Error::Overflow { .. } | Error::Peer { code: 5, .. }));
        assert!(results.iter().all(told), "{setting}: {results:?}");
        assert!(results.iter().any(|r| matches!(r, Err(Error::Overflow { .. }))), "{setting}: {results:?}");
    }
}

/// Cut where the quantiser's buckets end, a tensor is quantised as if it were whole; but for the owner's own piece.
#[test]
fn cutting_a_tensor_changes_no_quantiser_bucket() {
    let layers = [(qsgd(4, 64, Rounding::Nearest), shape(50, 20)), (qsgd(8, 7, Rounding::Nearest), shape(30, 3))];
    let whole = case(&layers, 3, Route::AllGather).run();
    let pieces = case(&layers, 3, Route::ScatterReduce).run();
    let mut differing = vec![0; 1000 + 90];
    for (whole, pieces) in whole.iter().zip(&pieces) {
        let flat = |r: &Result<Outcome, Error>| r.as_ref().unwrap().own.concat();
        for ((count, x), y) in differing.iter_mut().zip(flat(whole)).zip(flat(pieces)) {
            *count += (x != y) as u32;
        }
    }
    assert!(differing.iter().all(|&count| count <= 1) && differing.contains(&1));
}

/// Only rank 0 overflows, between the two all-reduces: 16 · 1.6e38 / 4 is too large for its `Q`.
#[test]
fn a_failure_between_the_factors_reaches_all() {
    let shape = shape(16, 1);
    let gradients = vec![vec![vec![1.6e38; 16]], vec![vec![0.0; 16]], vec![vec![0.0; 16]]];
    let case = Case { layers: vec![(LOW_RANK, shape)], gradients, route: Route::AllGather, seed: 5, step: 0 };
    let mut sound = case.clone();
    sound.gradients[0][0].fill(1.0);
    let results = threads::run(3, |mut worker| {
        let failed = case.exchange(&mut worker, None).unwrap_err();
        (failed, sound.exchange(&mut worker, None).is_ok())
    });
    let other = (Error::Overflow { what: "the sum over the workers" }, true);
    assert_eq!(results, [(Error::Overflow { what: "PowerSGD factor Q" }, true), other, other]);
}

#[test]
fn a_short_workspace_on_one_worker_is_an_error_on_all() {
    let layers = hybrid();
    let case = case(&layers[..1], 2, Route::AllGather);
    let results = threads::run(2, |mut worker| {
        let gradient = Gradient::new(Values::F32(&case.gradients[0][0]), shape(7, 1)).unwrap();
        let mut mean = [0.0; 7];
        let layer = Layer { index: 0, setting: Setting::Dense, gradient, mean: &mut mean, own: None, factor: &mut [] };
        let words = if worker.rank() == 0 { 8 } else { 100 };
        aggregate(&mut worker, &mut [layer], Route::AllGather, 5, 3, &mut vec![0; words])
    });
    assert!(matches!(results[0], Err(Error::Length { .. })));
    assert_eq!(results[1], Err(Error::Peer { rank: 0, code: 1 }));
}

mod thread_collective {
    use super::*;

    #[test]
    fn moves_what_it_says() {
        for world in [1u32, 2, 3, 8] {
            threads::run(world, |mut worker| {
                let rank = worker.rank();
                let lens: Vec<u64> = (0..world as u64).collect();
                let mut received = vec![9; lens.iter().sum::<u64>() as usize];
                for _ in 0..20 {
                    worker.all_gather(&vec![rank as u8; rank as usize], &lens, &mut received).unwrap();
                    let expected: Vec<u8> = (0..world as u8).flat_map(|r| vec![r; r as usize]).collect();
                    assert_eq!(received, expected);

                    let mut bytes = [rank as u8; 3];
                    worker.broadcast(world - 1, &mut bytes).unwrap();
                    assert_eq!(bytes, [world as u8 - 1; 3]);

                    // From `rank` to `to`: `rank + to` bytes of 16 · rank + to.
                    let sent = |from: u32, to: u32| vec![(16 * from + to) as u8; (from + to) as usize];
                    let all: Vec<u8> = (0..world).flat_map(|to| sent(rank, to)).collect();
                    let expected: Vec<u8> = (0..world).flat_map(|from| sent(from, rank)).collect();
                    let lens: Vec<u64> = (0..world).map(|peer| (rank + peer) as u64).collect();
                    let mut received = vec![0; expected.len()];
                    worker.all_to_all(&all, &lens, &mut received, &lens).unwrap();
                    assert_eq!(received, expected);

                    // In rank order: 2^24 + 1 + 1 is 2^24 in f32, 1 + 1 + 2^24 is not.
                    let mut values = [if rank == 0 { 16777216.0 } else { 1.0 }; 5];
                    worker.all_reduce_sum(&mut values).unwrap();
                    assert_eq!(values, [16777216.0; 5]);
                    let mut values = [if rank == world - 1 { 16777216.0 } else { 1.0 }; 5];
                    worker.all_reduce_sum(&mut values).unwrap();
                    assert_eq!(values, [(world - 1) as f32 + 16777216.0; 5]);
                }
            });
        }
    }

    #[test]
    fn those_who_leave_or_panic_keep_nobody_waiting() {
        let results = threads::run(3, |mut worker| {
            if worker.rank() == 1 {
                return Ok(());
            }
            worker.all_reduce_sum(&mut [1.0])
        });
        assert_eq!(results, [Err(ThreadCollective::LEFT), Ok(()), Err(ThreadCollective::LEFT)]);

        let results = std::sync::Mutex::new(Vec::new());
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            threads::run(3, |mut worker| {
                let first = worker.broadcast(0, &mut [1]);
                assert!(worker.rank() != 2, "a worker that fails");
                let second = worker.all_gather(&[1], &[1, 1, 1], &mut [0; 3]);
                results.lock().unwrap().push((first, second));
            })
        }));
        assert!(outcome.is_err());
        assert_eq!(results.into_inner().unwrap(), [(Ok(()), Err(ThreadCollective::LEFT)); 2]);
    }

    #[test]
    fn different_calls_are_errors_on_all() {
        let results = threads::run(3, |mut worker| match worker.rank() {
            0 => worker.broadcast(0, &mut [1, 2]),
            1 => worker.broadcast(0, &mut [1]),
            _ => worker.all_reduce_sum(&mut [1.0]),
        });
        assert_eq!(results, [Err(ThreadCollective::MISMATCH); 3]);
        let results = threads::run(2, |mut worker| worker.broadcast(2, &mut [0]));
        assert_eq!(results, [Err(ThreadCollective::MISMATCH); 2]);
    }
}
