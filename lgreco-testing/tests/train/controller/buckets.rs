//! Compares buckets that are exchanged at the same time with the blocking step.

use super::*;
use lgreco_testing::controller::sharded;
use lgreco_train::compress::hard_threshold::HardThreshold;
use lgreco_train::compress::loco::LoCo;
use lgreco_train::compress::qsgd::Qsgd;
use lgreco_train::exchange::{Request, Route};

/// A worker that records its collectives.
pub(super) struct Noting<'a>(pub(super) &'a mut ThreadCollective, pub(super) Vec<&'static str>);

impl Noting<'_> {
    fn perform(&mut self, request: Request<'_>) {
        self.1.push(match request {
            Request::AllReduceSum { .. } => "all-reduce",
            Request::AllGather { .. } => "all-gather",
            Request::AllGatherEach { .. } => "all-gather each",
            Request::Broadcast { .. } => "broadcast",
            Request::AllToAll { .. } => "all-to-all",
            Request::ReduceScatterSum { .. } => "reduce-scatter",
            Request::AllReduceSumBf16 { .. } | Request::ReduceScatterSumBf16 { .. } => "sums of bf16",
        });
        request.perform(self.0).unwrap();
    }
}

/// Takes a step with one bucket per layer, all exchanged at the same time. Returns the step's report, and the results of the
/// buckets, last layer first.
pub(super) fn overlapped(
    controller: &mut Controller,
    worker: &mut Noting<'_>,
    gradients: &mut [Vec<f32>],
) -> (Result<Report, Error>, Vec<Result<(), Error>>) {
    controller.begin_step(1.0).unwrap();
    while let Some(request) = controller.control().unwrap() {
        worker.perform(request);
    }
    let mut buckets: Vec<_> = (0..gradients.len())
        .rev()
        .map(|layer| {
            let mut bucket = controller.open(&[layer]).unwrap();
            bucket.submit(&mut [ValuesMut::F32(&mut gradients[layer])]).unwrap();
            (layer, bucket, None)
        })
        .collect();
    while buckets.iter().any(|(.., result)| result.is_none()) {
        for (layer, bucket, result) in buckets.iter_mut().filter(|(.., result)| result.is_none()) {
            match bucket.next(&mut [ValuesMut::F32(&mut gradients[*layer])]) {
                Ok(Some(request)) => worker.perform(request),
                Ok(None) => *result = Some(Ok(())),
                Err(error) => *result = Some(Err(error)),
            }
        }
    }
    let results = buckets.into_iter().map(|(_, bucket, result)| {
        controller.close(bucket).unwrap();
        result.unwrap()
    });
    let results = results.collect();
    (controller.finish_step(), results)
}

fn one_layer_each(mut config: Config) -> Config {
    config.bucket_bytes = 0;
    config
}

/// Means, settings, reports, residuals and saved states have the same bits as with the blocking step.
#[test]
fn buckets_under_way_together_end_as_the_blocking_step_does() {
    for (method, route) in [
        (Method::TopK, Route::AllGather),
        (Method::Qsgd, Route::ScatterReduce),
        (Method::PowerSgd, Route::AllGather),
        (Method::Hybrid, Route::AllGather),
        (Method::Hybrid, Route::Sharded),
    ] {
        on_all(3, |mut worker| {
            let mut config = one_layer_each(config(method, LGRECO));
            config.route = route;
            let model = || if route == Route::Sharded { sharded(model(), 3) } else { model() };
            let mut blocking = Controller::new(config.clone(), model(), worker.rank(), worker.world_size()).unwrap();
            let mut controller = Controller::new(config, model(), worker.rank(), worker.world_size()).unwrap();
            for step in 0..9 {
                let (expected, means) = take_step(&mut blocking, &mut worker, 1.0, 1.0).unwrap();
                let mut values = gradients(worker.rank(), step, 1.0);
                let (report, _) = overlapped(&mut controller, &mut Noting(&mut worker, vec![]), &mut values);
                assert_eq!((report, values), (Ok(expected), means), "{method:?}, step {step}");
                assert_eq!(settings(&controller), settings(&blocking));
                assert_eq!(controller.save(), blocking.save(), "{method:?}, step {step}");
            }
        });
    }
}

/// All bits equal those of the blocking step, although each bucket has its own thread and its own group of workers.
#[test]
fn buckets_may_be_on_any_thread() {
    let groups: Vec<_> = (0..3).map(|_| ThreadCollective::group(2)).collect();
    let mut of_rank: Vec<Vec<ThreadCollective>> = vec![vec![], vec![]];
    groups.into_iter().flatten().for_each(|worker| of_rank[worker.rank() as usize].push(worker));
    let of_rank: Vec<_> = of_rank.into_iter().map(|workers| std::sync::Mutex::new(Some(workers))).collect();
    on_all(2, |mut worker| {
        let mut workers = of_rank[worker.rank() as usize].lock().unwrap().take().unwrap();
        let config = one_layer_each(config(Method::PowerSgd, LGRECO));
        let mut blocking = Controller::new(config.clone(), model(), worker.rank(), worker.world_size()).unwrap();
        let mut controller = Controller::new(config, model(), worker.rank(), worker.world_size()).unwrap();
        for step in 0..6 {
            let (_, means) = take_step(&mut blocking, &mut worker, 1.0, 1.0).unwrap();
            let mut values = gradients(worker.rank(), step, 1.0);
            controller.begin_step(1.0).unwrap();
            while let Some(request) = controller.control().unwrap() {
                request.perform(&mut worker).unwrap();
            }
            let buckets: Vec<_> = (0..3).map(|layer| controller.open(&[layer]).unwrap()).collect();
            let buckets: Vec<_> = std::thread::scope(|scope| {
                let work = buckets.into_iter().zip(&mut workers).zip(&mut values);
                let threads: Vec<_> = work
                    .map(|((mut bucket, worker), values)| {
                        scope.spawn(move || {
                            bucket.exchange(worker, &mut [ValuesMut::F32(values)]).unwrap();
                            bucket
                        })
                    })
                    .collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            buckets.into_iter().for_each(|bucket| controller.close(bucket).unwrap());
            controller.finish_step().unwrap();
            assert_eq!(values, means, "step {step}");
            assert_eq!(controller.save(), blocking.save(), "step {step}");
        }
    });
}

/// A bucket has one collective, or two under PowerSGD. There are additional collectives only if buckets are new.
#[test]
fn collectives_in_steady_state() {
    let top = Setting::TopK(TopK { keep: 5, values: Dtype::F32 });
    let low = Setting::PowerSgd(PowerSgd { rank: 1, iterations: 1 });
    let some = Setting::HardThreshold(HardThreshold { lambda: 0.5, values: Dtype::F32 });
    let cases: [(Setting, &[&str]); 6] = [
        (Setting::Dense, &["all-reduce"]),
        (top, &["all-gather"]),
        (Setting::Qsgd(Qsgd::default()), &["all-gather"]),
        (Setting::LoCo(LoCo { group: 16 }), &["all-gather"]),
        (low, &["all-reduce", "all-reduce"]),
        (some, &["all-gather", "all-gather each"]),
    ];
    for (setting, expected) in cases {
        on_all(2, |mut worker| {
            let policy = Policy::Fixed(vec![setting, Setting::Dense, setting]);
            let mut controller =
                Controller::new(config(Method::TopK, policy), model(), worker.rank(), worker.world_size()).unwrap();
            for step in 0..6 {
                let mut noting = Noting(&mut worker, vec![]);
                let mut values = gradients(noting.0.rank(), step, 1.0);
                overlapped(&mut controller, &mut noting, &mut values).0.unwrap();
                // At step 0, buckets are new and ranks compare their options. At step 2, there is a decision.
                if step == 0 {
                    let first = noting.1.iter().filter(|call| **call == "all-gather").count();
                    assert_eq!(first, 1 + 3, "{setting}: {:?}", noting.1);
                } else if step != 2 {
                    let of_layer = |name: &'static str| noting.1.iter().filter(|call| **call == name).count();
                    let all: Vec<_> = expected.iter().chain(&["all-reduce"]).chain(expected).collect();
                    assert_eq!(noting.1.len(), if step == 1 { 3 } else { all.len() }, "{setting}: {:?}", noting.1);
                    if step > 2 {
                        let told = |name: &&str| all.iter().filter(|call| **call == name).count();
                        assert!(expected.iter().all(|name| of_layer(name) == told(name)), "{setting}: {:?}", noting.1);
                    }
                }
            }
        });
    }
}

/// Compares a single worker's buckets with error-feedback memories. Residuals of 16-bit layers are f32, and the layers'
/// means have 16 bits.
#[test]
fn sixteen_bit_layers_have_plain_residuals_in_buckets() {
    use lgreco_train::compress::Compressor;
    use lgreco_train::feedback::Memory;
    use lgreco_train::gradient::{Bf16, Element, F16, Gradient, Shape, Values};
    let shape = Shape::new(16, 8).unwrap();
    for setting in [
        Setting::TopK(TopK { keep: 5, values: Dtype::F32 }),
        Setting::PowerSgd(PowerSgd { rank: 2, iterations: 1 }),
        Setting::Qsgd(Qsgd { bits: 5, ..Qsgd::default() }),
    ] {
        let mut worker = ThreadCollective::group(1).remove(0);
        let mut config = config(Method::TopK, Policy::Fixed(vec![setting; 2]));
        (config.feedback, config.metrics_every) = (Feedback::always(Residual::CLASSIC), 3);
        let tensors = [Dtype::F16, Dtype::Bf16].map(|dtype| Tensor::new(&format!("{dtype:?}"), &[16, 8], dtype));
        let tensors = tensors.into_iter().collect::<Result<Vec<_>, _>>().unwrap();
        let mut controller = Controller::new(config, tensors, worker.rank(), worker.world_size()).unwrap();
        let rule = Residual::CLASSIC;
        let mut memories = [0, 1].map(|_| Memory::owned(rule, shape).unwrap());
        for step in 0..7 {
            let mut half: Vec<F16> = noise(0, 0, step, 128).into_iter().map(F16::from_f32).collect();
            let mut brain: Vec<Bf16> = noise(1, 0, step, 128).into_iter().map(Bf16::from_f32).collect();
            let mut expected = [half.iter().map(|x| x.to_f32()).collect::<Vec<_>>(), noise(1, 0, step, 128)];
            if step >= 2 {
                let gradients = [Values::F16(&half), Values::Bf16(&brain)];
                for (layer, (memory, gradient)) in memories.iter_mut().zip(gradients).enumerate() {
                    let gradient = Gradient::new(gradient, shape).unwrap();
                    if let Setting::PowerSgd(_) = setting {
                        continue; // the controller has a warm start, a memory's step does not
                    }
                    let mut workspace = vec![0; memory.workspace_len(&setting, gradient.values().dtype())];
                    let mut payload = vec![0; setting.payload_len(shape, Dtype::F32).unwrap()];
                    let stream = Stream { seed: 0, step, layer: layer as u32, rank: 0 };
                    let own = &mut expected[layer];
                    memory.step(&setting, &gradient, stream, &mut workspace, &mut payload, own).unwrap();
                }
            }
            let owed = [residual(&controller, 0), residual(&controller, 1)];
            let given = [expected_f32(Values::F16(&half)), expected_f32(Values::Bf16(&brain))];
            controller.begin_step(1.0).unwrap();
            while let Some(request) = controller.control().unwrap() {
                request.perform(&mut worker).unwrap();
            }
            let (mut one, mut other) = (controller.open(&[1]).unwrap(), controller.open(&[0]).unwrap());
            one.exchange(&mut worker, &mut [ValuesMut::Bf16(&mut brain)]).unwrap();
            other.exchange(&mut worker, &mut [ValuesMut::F16(&mut half)]).unwrap();
            controller.close(other).unwrap();
            controller.close(one).unwrap();
            controller.finish_step().unwrap();
            let means = [expected_f32(Values::F16(&half)), expected_f32(Values::Bf16(&brain))];
            for layer in 0..2 {
                let left = residual(&controller, layer);
                for i in 0..128 {
                    let (given, mean) = (given[layer][i] + owed[layer][i], means[layer][i]);
                    assert!(
                        (given - left[i] - mean).abs() <= mean.abs() / 128.0,
                        "{setting}, step {step}, element {i}"
                    );
                }
                if step >= 2 && !matches!(setting, Setting::PowerSgd(_)) {
                    let mut remembered = vec![0.0; 128];
                    memories[layer].values(&mut remembered).unwrap();
                    assert_eq!(left, remembered, "{setting}, step {step}");
                    assert!(left.iter().any(|&x| x != 0.0));
                }
            }
        }
    }
}

fn expected_f32(values: lgreco_train::gradient::Values<'_>) -> Vec<f32> {
    use lgreco_train::gradient::{Element, Values};
    match values {
        Values::F32(v) => v.to_vec(),
        Values::F16(v) => v.iter().map(|x| x.to_f32()).collect(),
        Values::Bf16(v) => v.iter().map(|x| x.to_f32()).collect(),
    }
}

/// A layer in no bucket keeps its residual.
#[test]
fn layers_may_have_no_gradient_in_a_step() {
    on_all(2, |mut worker| {
        let mut controller =
            Controller::new(config(Method::TopK, Policy::Uniform), model(), worker.rank(), worker.world_size())
                .unwrap();
        (0..4).for_each(|_| drop(take_step(&mut controller, &mut worker, 1.0, 1.0).unwrap()));
        let before = [residual(&controller, 0), residual(&controller, 2)];
        controller.begin_step(1.0).unwrap();
        assert_eq!(controller.control(), Ok(None));
        let mut bucket = controller.open(&[2]).unwrap();
        let mut values = gradients(worker.rank(), 4, 1.0).remove(2);
        bucket.exchange(&mut worker, &mut [ValuesMut::F32(&mut values)]).unwrap();
        controller.close(bucket).unwrap();
        assert_eq!(controller.finish_step().unwrap().step, 4);
        assert!(residual(&controller, 0) == before[0] && residual(&controller, 2) != before[1]);
    });
}

#[test]
fn buckets_go_back_to_where_they_came_from() {
    let mut worker = ThreadCollective::group(1).remove(0);
    let new = || Controller::new(config(Method::TopK, LGRECO), model(), worker.rank(), worker.world_size()).unwrap();
    let (mut controller, mut other, saved) = (new(), new(), new().save().unwrap());
    let begin = |controller: &mut Controller| {
        controller.begin_step(1.0).unwrap();
        assert_eq!(controller.control(), Ok(None));
    };
    let refused = |result: Result<(), Error>| assert!(matches!(result, Err(Error::StepOrder { .. })), "{result:?}");
    begin(&mut controller);
    begin(&mut other);
    other.open(&[1]).unwrap();
    let (stale, elsewhere) = (controller.open(&[0]).unwrap(), controller.open(&[1, 2]).unwrap());
    refused(other.close(elsewhere));
    controller.load(&[&saved], &[]).unwrap();
    begin(&mut controller);
    let bucket = controller.open(&[0]).unwrap();
    refused(controller.close(stale));
    controller.close(bucket).unwrap();

    // A layer can be exchanged only once in a step.
    let mut values = gradients(0, 0, 1.0);
    let mut bucket = controller.open(&[0]).unwrap();
    bucket.exchange(&mut worker, &mut [ValuesMut::F32(&mut values[0])]).unwrap();
    controller.close(bucket).unwrap();
    refused(controller.open(&[0]).map(drop));
    controller.finish_step().unwrap();
    // Loading has restored the layers of the dropped buckets.
    assert_eq!(controller.load(&[&controller.save().unwrap()], &[]).map(|loaded| loaded.missing.len()), Ok(0));
    for _ in 0..4 {
        take_step(&mut controller, &mut worker, 1.0, 1.0).unwrap();
    }
    assert!(controller.decision().is_some());
}

/// If some gradients of a step are missing, the step is not part of the window. The decision waits for a complete step.
#[test]
fn nothing_is_decided_by_half_a_gradient() {
    on_all(2, |mut worker| {
        let mut config = config(Method::TopK, LGRECO);
        (config.non_finite, config.schedule.window) = (NonFinite::PassThrough, 1);
        let mut controller = Controller::new(config, model(), worker.rank(), worker.world_size()).unwrap();
        for step in 0..4 {
            assert_eq!(controller.decision(), None);
            let mut values = gradients(worker.rank(), step, 1.0);
            if (step, worker.rank()) == (1, 0) {
                values[2][7] = f32::NAN;
            }
            overlapped(&mut controller, &mut Noting(&mut worker, vec![]), &mut values).0.unwrap();
        }
        assert_eq!(controller.decision().map(|decision| decision.step), Some(3));
    });
}

/// A bucket has a large uncompressed layer, which is summed in place, and a layer with a residual. Means and the mean
/// residual add up to the mean gradients.
#[test]
fn large_dense_layers_and_residuals_share_a_bucket() {
    let elements = [300 * 256, 64 * 64];
    let top = Setting::TopK(TopK { keep: 40, values: Dtype::F32 });
    let results = threads::run(2, |mut worker| {
        let tensors = vec![
            Tensor::new("dense", &[300, 256], Dtype::F32).unwrap(),
            Tensor::new("topk", &[64, 64], Dtype::F32).unwrap(),
        ];
        let config = config(Method::TopK, Policy::Fixed(vec![Setting::Dense, top]));
        let mut controller = Controller::new(config, tensors, worker.rank(), worker.world_size()).unwrap();
        let mut sums = elements.map(|elements| vec![[0.0f64; 2]; elements]);
        for step in 0..6 {
            controller.begin_step(0.1).unwrap();
            while let Some(request) = controller.control().unwrap() {
                request.perform(&mut worker).unwrap();
            }
            let stream = |layer| Stream { step, layer, rank: worker.rank(), ..Stream::default() };
            let value = |layer, i| stream(layer).word(i) as i32 as f32 / 2f32.powi(31);
            let mut values =
                [0, 1].map(|layer| (0..elements[layer as usize] as u64).map(|i| value(layer, i)).collect());
            let gradients: [Vec<f32>; 2] = values.clone();
            let mut bucket = controller.open(&[0, 1]).unwrap();
            let [dense, topk]: &mut [Vec<f32>; 2] = &mut values;
            let views = &mut [ValuesMut::F32(dense), ValuesMut::F32(topk)];
            bucket.exchange(&mut worker, views).unwrap();
            controller.close(bucket).unwrap();
            controller.finish_step().unwrap();
            for layer in 0..2 {
                for ((sum, &gradient), &mean) in sums[layer].iter_mut().zip(&gradients[layer]).zip(&values[layer]) {
                    *sum = [sum[0] + f64::from(gradient), sum[1] + f64::from(mean)];
                }
            }
        }
        let mut residual = vec![0.0; elements[1]];
        controller.residual(1, &mut residual).unwrap();
        (sums, residual)
    });
    let [(ours, left), (theirs, other_left)] = &results[..] else { unreachable!("two workers") };
    let left = left.iter().zip(other_left).map(|(x, y)| f64::from(x + y) / 2.0);
    assert!(left.clone().any(|x| x != 0.0));
    let none = core::iter::repeat_n(0.0, elements[0]);
    for (layer, left) in [none.collect::<Vec<f64>>(), left.collect()].into_iter().enumerate() {
        for ((ours, theirs), left) in ours[layer].iter().zip(&theirs[layer]).zip(left) {
            let off = (ours[0] + theirs[0]) / 2.0 - (ours[1] + left);
            assert!(ours[1] == theirs[1] && off.abs() < 1e-5, "layer {layer}: {off} is lost");
        }
    }
}
