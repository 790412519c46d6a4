//! Tests of workers that fail, disagree or send unreadable messages.

use super::*;
use lgreco_train::CoreError;

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
    differ(|case| case.layers[8].0 = clt(6));
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

/// A worker that damages an outgoing message: XOR changes the bytes `at` of the worker's `call`-th all-gather or
/// all-to-all.
struct Tampered<'a> {
    inner: ThreadCollective,
    call: usize,
    at: &'a [usize],
    with: u8,
}

impl Tampered<'_> {
    fn spoil(&mut self, bytes: &mut [u8]) {
        if self.call == 0 && !bytes.is_empty() {
            let len = bytes.len();
            self.at.iter().for_each(|at| bytes[at % len] ^= self.with);
        }
        self.call = self.call.wrapping_sub(1);
    }
}

impl Collective for Tampered<'_> {
    fn rank(&self) -> u32 {
        self.inner.rank()
    }
    fn world_size(&self) -> u32 {
        self.inner.world_size()
    }
    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        self.inner.all_reduce_sum(values)
    }
    fn all_gather(&mut self, buffer: &mut [u8]) -> Result<(), CollectiveError> {
        let len = buffer.len() / self.world_size() as usize;
        self.spoil(&mut buffer[self.inner.rank() as usize * len..][..len]);
        self.inner.all_gather(buffer)
    }
    fn all_gather_each(&mut self, lens: &[u64], buffer: &mut [u8]) -> Result<(), CollectiveError> {
        let start = |rank: u32| lens[..rank as usize].iter().sum::<u64>() as usize;
        let own = start(self.rank())..start(self.rank() + 1);
        self.spoil(&mut buffer[own]);
        self.inner.all_gather_each(lens, buffer)
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
        let mut send = send.to_vec();
        self.spoil(&mut send);
        self.inner.all_to_all(&send, send_lens, received, received_lens)
    }
}

/// The results of all ranks if rank 1 sends a damaged message. Asserts that the next exchange succeeds.
pub(super) fn tamper(case: &Case, call: usize, at: usize, with: u8) -> Vec<Result<Outcome, Error>> {
    tamper_in(case, call, &[at], with, |exchange| exchange())
}

/// Like [`tamper`], but damages several bytes. `run` performs the exchanges.
pub(super) fn tamper_in(
    case: &Case,
    call: usize,
    at: &[usize],
    with: u8,
    run: impl Fn(&mut (dyn FnMut() -> Result<Outcome, Error> + Send)) -> Result<Outcome, Error> + Sync,
) -> Vec<Result<Outcome, Error>> {
    threads::run(case.world(), |inner| {
        let call = if inner.rank() == 1 { call } else { usize::MAX };
        let mut worker = Tampered { inner, call, at, with };
        let result = run(&mut || case.exchange(&mut worker, None));
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
    // Bytes 16, 18 and 24, after the status record, are the magic byte, the method and the number of rows.
    for (at, code) in [(16, 40), (18, 41), (24, 41)] {
        assert_eq!(tamper(&gather, 1, at, 3), vec![Err(Error::PeerMessage { rank: 1, code }); 3]);
    }
    // The announced length may be wrong, or larger than all payloads can be. Payloads may state another k. With
    // shards, too, all ranks read whole payloads.
    for route in [Route::ScatterReduce, Route::Sharded] {
        let variable = case(&[(hard(0.7), shape(40, 1)), (hard(0.1), shape(40, 1))], 3, route);
        for (call, at, with) in
            [(0, 16, 1), (0, 16, 2), (0, 17, 1), (0, 17, 0x40), (0, 23, 0x80), (1, 20, 1), (1, 20, 64), (1, 16, 1)]
        {
            let results = tamper(&variable, call, at, with);
            assert!(results.iter().all(|r| matches!(r, Err(Error::PeerMessage { rank: 1, .. }))), "{at}: {results:?}");
        }
    }
    // A shape of 0 x 2 instead of 0 x 3 has the same number of values, but is another tensor.
    let results = tamper(&case(&[(topk(0), shape(0, 3))], 2, Route::AllGather), 1, 28, 1);
    assert_eq!(results, vec![Err(Error::PeerMessage { rank: 1, code: 41 }); 2]);

    // Rank 0 cannot read rank 1's message, so rank 0 cannot send a mean to the other ranks.
    let scatter = case(&layers, 3, Route::ScatterReduce);
    let results = tamper(&scatter, 1, 16, 3);
    assert_eq!(results[0], Err(Error::PeerMessage { rank: 1, code: 40 }));
    assert_eq!(results[1..], vec![Err(Error::Peer { rank: 0, code: 83 }); 2]);
    // No rank can read the mean that rank 1 sends.
    let results = tamper(&scatter, 2, 16, 3);
    assert_eq!(results, vec![Err(Error::PeerMessage { rank: 1, code: 40 }); 3]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(lgreco_testing::cases(150)))]
    #[test]
    fn spoilt_messages_fail_on_all_or_leave_all_alike(call in 0usize..3, at: usize, with in 1u8.., scatter: bool) {
        let results = tamper(&case(&hybrid(), 3, ROUTES[scatter as usize]), call, at, with);
        let good = results.iter().filter(|r| r.is_ok()).count();
        // The sender of a damaged mean has the undamaged mean, so the sender's result may differ.
        prop_assert!(good == 0 || good == 3 || (scatter && call == 2), "{results:?}");
        if good == 3 && !(scatter && call == 2) {
            let means = |r: &Result<Outcome, Error>| r.as_ref().unwrap().mean.clone();
            prop_assert_eq!(means(&results[0]), means(&results[1]));
            prop_assert_eq!(means(&results[0]), means(&results[2]));
        }
    }
}

#[test]
fn sums_that_leave_f32_have_means() {
    // The second shape has several chunks, and the last one is shorter. The first shape has a single chunk.
    for shape in [shape(4, 4), shape(130, 130)] {
        let elements = shape.elements();
        let keep = elements as u32;
        let per_setting = [
            Setting::Dense,
            topk(keep),
            few_bits(keep, 8),
            clt(keep),
            hard(1.0),
            sidco(1.0, 1),
            qsgd(8, 16, Rounding::Nearest),
        ];
        for (setting, route) in per_setting.into_iter().flat_map(|s| ROUTES.map(|r| (s, r))) {
            // Only the second half is too large.
            let gradient = |i| if i < elements / 2 { 1e38 } else { 3e38 };
            let gradients = vec![vec![(0..elements).map(gradient).collect::<Vec<f32>>()]; 3];
            let case =
                Case { layers: vec![(setting, shape)], gradients, route, reduce_dtype: Dtype::F32, seed: 5, step: 0 };
            let [expected] = &case.gradients[0][..] else { unreachable!() };
            for outcome in case.run() {
                let mean = &outcome.unwrap().mean[0];
                let off =
                    mean.iter().zip(expected).map(|(&x, &y)| (x as f64 / y as f64 - 1.0).abs()).fold(0.0, f64::max);
                assert!(off < 0.01, "{setting} by {route:?}: {off}");
            }
        }
    }
}

#[test]
fn sums_that_leave_f32_are_errors_on_all() {
    let shape = shape(4, 4);
    for (setting, route) in [adacomp(16), LOW_RANK].into_iter().flat_map(|s| ROUTES.map(|r| (s, r))) {
        let gradients = vec![vec![vec![3e38; 16]]; 3];
        let results =
            Case { layers: vec![(setting, shape)], gradients, route, reduce_dtype: Dtype::F32, seed: 5, step: 0 }.run();
        let told = |r: &_| {
            matches!(
                r,
                Err(Error::OfLayer { layer: 0, error: CoreError::Overflow { .. } } | Error::Peer { code: 5, .. })
            )
        };
        assert!(results.iter().all(told), "{setting}: {results:?}");
        assert!(
            results.iter().any(|r| matches!(r, Err(Error::OfLayer { error: CoreError::Overflow { .. }, .. }))),
            "{setting}: {results:?}"
        );
    }
}

/// Only rank 0 overflows, between the two all-reduces: its `Q` would be 16 · 1.6e38 / 4, which exceeds f32.
#[test]
fn a_failure_between_the_factors_reaches_all() {
    let shape = shape(16, 1);
    let gradients = vec![vec![vec![1.6e38; 16]], vec![vec![0.0; 16]], vec![vec![0.0; 16]]];
    let case = Case {
        layers: vec![(LOW_RANK, shape)],
        gradients,
        route: Route::AllGather,
        reduce_dtype: Dtype::F32,
        seed: 5,
        step: 0,
    };
    let mut sound = case.clone();
    sound.gradients[0][0].fill(1.0);
    let results = threads::run(3, |mut worker| {
        let failed = case.exchange(&mut worker, None).unwrap_err();
        (failed, sound.exchange(&mut worker, None).is_ok())
    });
    let other = (Error::Peer { rank: 0, code: 5 }, true);
    assert_eq!(
        results,
        [(Error::OfLayer { layer: 0, error: CoreError::Overflow { what: "PowerSGD factor Q" } }, true), other, other]
    );
}

#[test]
fn a_short_workspace_on_one_worker_is_an_error_on_all() {
    let layers = hybrid();
    let case = case(&layers[..1], 2, Route::AllGather);
    let results = threads::run(2, |mut worker| {
        let mut values = case.gradients[0][0].clone();
        let layer = Layer::new(0, Setting::Dense, shape(7, 1), ValuesMut::F32(&mut values), Rest::Dropped);
        let words = if worker.rank() == 0 { 10 } else { 100 };
        aggregate(&mut worker, &mut [layer], Route::AllGather, 5, 3, &mut vec![0; words])
    });
    assert!(matches!(results[0], Err(Error::Core(CoreError::Length { .. }))));
    assert_eq!(results[1], Err(Error::Peer { rank: 0, code: 1 }));
}
