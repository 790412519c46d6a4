//! Tests of the decisions of each policy.

use super::*;
use lgreco_train::compress::Compressor;
use lgreco_train::compress::adacomp::AdaComp;
use lgreco_train::compress::loco::LoCo;
use lgreco_train::compress::qsgd::Qsgd;
use lgreco_train::feedback::Memory;
use lgreco_train::gradient::Gradient;
use lgreco_train::plan::Limit;

/// The layers have 384 and 320 elements, and the bias is too small to be compressed. LEGACY's size limit is 384. There are
/// three phases of four steps. The decisions at step 8 and later are in the last phase.
#[test]
fn legacy_goes_by_size_and_phase() {
    let levels = vec![vec![0.5, 0.25], vec![0.25, 0.125], vec![0.125, 0.0625]];
    let legacy = Legacy { sizes: vec![384], levels, steps: 12 };
    let seen = on_all(2, |mut worker| {
        let mut controller = Controller::new(
            config(Method::TopK, Policy::Legacy(legacy.clone())),
            model(),
            worker.rank(),
            worker.world_size(),
        )
        .unwrap();
        let mut seen = vec![];
        for _ in 0..15 {
            let (report, _) = take_step(&mut controller, &mut worker, 1.0, 1.0).unwrap();
            if report.switched {
                assert_eq!(controller.decision().unwrap().plan, None);
                seen.push((report.step, settings(&controller)));
            }
        }
        seen
    });
    let top = |keep| Setting::TopK(TopK { keep, values: Dtype::F32 });
    let steps = |step, large, small| (step, vec![top(large), Setting::Dense, top(small)]);
    assert_eq!(seen[..2], [steps(2, 96, 160), steps(5, 48, 80)]);
    assert_eq!(seen[2..], [8, 11, 14].map(|step| steps(step, 24, 40)));
}

/// The density is 1/2 at step 2, 1/4 at step 5, and 1/8, the search's default, at step 8. Under uniform settings, there
/// are no decisions after step 8. L-GreCo's budget is the error of the current density. L-GreCo's plans are never
/// larger than uniform settings of this density.
#[test]
fn a_ramp_up_ends_at_the_default() {
    for policy in [Policy::Uniform, LGRECO] {
        let mut config = config(Method::TopK, policy.clone());
        config.search = search(Method::TopK).with_default(0.125).unwrap();
        config.ramp_up = Some(RampUp { first: 0.5, steps: 6 });
        let seen = on_all(2, |mut worker| {
            let mut controller = Controller::new(config.clone(), model(), worker.rank(), worker.world_size()).unwrap();
            let mut seen = vec![];
            for _ in 0..12 {
                let (report, _) = take_step(&mut controller, &mut worker, 1.0, 1.0).unwrap();
                if report.switched {
                    let decision = *controller.decision().unwrap();
                    assert!(decision.plan.is_none_or(|plan| plan.size <= decision.default_size));
                    seen.push((report.step, decision.default_size, settings(&controller)));
                }
            }
            seen
        });
        let top = |keep| Setting::TopK(TopK { keep, values: Dtype::F32 });
        let uniform = [(2, 192, 160), (5, 96, 80), (8, 48, 40), (11, 48, 40)];
        let shapes = model().iter().map(|tensor| tensor.shape()).collect::<Vec<_>>();
        let size = |keep, layer: usize| 8 * top(keep).payload_len(shapes[layer], Dtype::F32).unwrap() as u64;
        if policy == Policy::Uniform {
            let settings = |(step, first, last)| (step, 0, vec![top(first), Setting::Dense, top(last)]);
            assert_eq!(seen, uniform[..3].iter().copied().map(settings).collect::<Vec<_>>());
        } else {
            let sizes: Vec<_> = seen.iter().map(|&(step, size, _)| (step, size)).collect();
            assert_eq!(sizes, uniform.map(|(step, first, last)| (step, size(first, 0) + size(last, 2))));
        }
    }
}

#[test]
fn ranks_agree_on_parameters_of_their_policies() {
    let legacy = |last| Policy::Legacy(Legacy { sizes: vec![384], levels: vec![vec![0.5, last]], steps: 12 });
    let legacy = [0.25, 0.125].map(|last| config(Method::TopK, legacy(last)));
    let ramp = [3, 4].map(|steps| {
        let mut config = config(Method::TopK, LGRECO);
        config.ramp_up = Some(RampUp { first: 0.5, steps });
        config
    });
    for (configs, what) in [(legacy, "LEGACY's sizes, levels and steps"), (ramp, "steps of the ramp-up")] {
        let outcomes = threads::run(2, |mut worker| {
            let config = configs[worker.rank() as usize].clone();
            let mut controller = Controller::new(config, model(), worker.rank(), worker.world_size()).unwrap();
            take_step(&mut controller, &mut worker, 1.0, 1.0).map(drop)
        });
        let named = |error: &Error| matches!(error, Error::PeerOption { rank: 1, what: named, .. } if *named == what);
        assert!(outcomes.iter().all(|outcome| outcome.as_ref().is_err_and(named)), "{outcomes:?}");
    }
}

#[test]
fn a_falling_learning_rate_lowers_compression_until_the_next_decision() {
    for policy in [
        Policy::Accordion(Accordion::new(8.0, 4.0)),
        Policy::LGreco { solver: Default::default(), accordion: Some(Accordion::new(8.0, 4.0)) },
    ] {
        let seen = on_all(2, |mut worker| {
            let mut controller =
                Controller::new(config(Method::PowerSgd, policy.clone()), model(), worker.rank(), worker.world_size())
                    .unwrap();
            let rates = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5];
            let mut seen = vec![];
            for rate in rates {
                let (report, _) = take_step(&mut controller, &mut worker, 1.0, rate).unwrap();
                let cause = controller.decision().map(|decision| decision.cause);
                seen.push((report.switched, cause, controller.setting(0).to_string() == "powersgd 8 iterations 5"));
            }
            seen
        });
        let (schedule, rate) = (Some(Cause::Schedule), Some(Cause::LearningRate));
        assert_eq!(seen[5].1, schedule);
        assert_eq!(seen[6], (true, rate, true), "{policy:?}");
        assert_eq!(seen[7], (false, rate, true));
        assert_eq!((seen[8].0, seen[8].1), (true, schedule));
        if let Policy::Accordion(_) = policy {
            assert_eq!((seen[5].2, seen[8].2), (false, false));
        }
    }
}

/// L-GreCo's budget is the error of Accordion's levels. Plans within this budget are never larger than Accordion's
/// levels.
#[test]
fn accordions_levels_are_the_budget() {
    let sizes = on_all(2, |mut worker| {
        let policy = Policy::LGreco { solver: Default::default(), accordion: Some(Accordion::new(8.0, 3.0)) };
        let mut controller =
            Controller::new(config(Method::PowerSgd, policy), model(), worker.rank(), worker.world_size()).unwrap();
        let mut seen = vec![];
        for _ in 0..6 {
            take_step(&mut controller, &mut worker, 1.0, 1.0).unwrap();
            if let Some(Decision { plan: Some(plan), default_size, .. }) = controller.decision() {
                assert!(
                    plan.size <= *default_size && matches!(plan.limit(), Limit::Error(budget) if plan.error <= budget)
                );
                seen.push(*default_size);
            }
        }
        seen
    });
    // The expected sizes are those of all layers at rank 8, and in the last decision at rank 3.
    let size = |rank: u64| 8 * (2 * 16 + 4 * rank * (16 + 24) + 4 * rank * (20 + 16));
    assert_eq!(sizes, [size(8), size(8), size(8), size(3)]);
}

#[test]
fn by_default_biased_compressors_remember_and_qsgd_does_not() {
    for (method, remembers) in [(Method::TopK, true), (Method::PowerSgd, true), (Method::Qsgd, false)] {
        on_all(2, |mut worker| {
            let mut controller =
                Controller::new(config(method, Policy::Uniform), model(), worker.rank(), worker.world_size()).unwrap();
            (0..4).for_each(|_| drop(take_step(&mut controller, &mut worker, 1.0, 1.0).unwrap()));
            let metrics = controller.metrics(0);
            assert_eq!(metrics.residual_norm.is_some_and(|norm| norm > 0.0), remembers, "{method:?}");
            assert_eq!(controller.metrics(1).residual_norm, None); // a bias is sent as it is
            assert_eq!(controller.metrics(1).uncompressed, Some(Uncompressed::Small));
        });
    }
}

/// With one outlier per bucket, the error of 2-bit QSGD is larger than its input.
#[test]
fn feedback_is_refused_where_it_would_amplify() {
    let spiky = |step: u32| {
        let mut values = noise(0, 0, step, 16 * 24).iter().map(|x| x / 64.0).collect::<Vec<_>>();
        values[5] = 1.0;
        vec![values, vec![0.0; 24], noise(2, 0, step, 320)]
    };
    let two_bits = Setting::Qsgd(Qsgd { bits: 2, ..Qsgd::default() });
    let policy = Policy::Fixed(vec![two_bits, Setting::Dense, two_bits]);
    let run = |feedback: Feedback| {
        let mut worker = ThreadCollective::group(1).remove(0);
        let mut config = config(Method::Qsgd, policy.clone());
        config.feedback = feedback;
        let mut controller = Controller::new(config, model(), worker.rank(), worker.world_size()).unwrap();
        for step in 0..3 {
            controller.step(&mut worker, &mut views(&mut spiky(step)), 1.0).unwrap();
        }
        (controller.metrics(0).uncompressed, settings(&controller), controller.decision().unwrap().not_contractive)
    };
    let refused = Some(Uncompressed::NotContractive);
    assert_eq!(run(Feedback::always(Residual::CLASSIC)), (refused, vec![Setting::Dense, Setting::Dense, two_bits], 1));
    assert_eq!(run(Feedback::default()), (None, vec![two_bits, Setting::Dense, two_bits], 0));
}

/// After a fall of the learning rate, there are no gradients to measure.
#[test]
fn feedback_is_refused_after_a_fall_of_the_learning_rate_too() {
    let settings = |feedback| {
        let mut worker = ThreadCollective::group(1).remove(0);
        let mut config = config(Method::Qsgd, Policy::Accordion(Accordion::new(3.0, 2.0)));
        (config.feedback, config.schedule.period) = (feedback, 1000);
        let mut controller = Controller::new(config, model(), worker.rank(), worker.world_size()).unwrap();
        for rate in [1.0, 1.0, 1.0, 0.01] {
            take_step(&mut controller, &mut worker, 1.0, rate).unwrap();
        }
        let decision = *controller.decision().unwrap();
        assert_eq!(decision.cause, Cause::LearningRate);
        (settings(&controller), decision.not_contractive)
    };
    let three_bits = Setting::Qsgd(Qsgd { bits: 3, ..Qsgd::default() });
    assert_eq!(settings(Feedback::default()), (vec![three_bits, Setting::Dense, three_bits], 0));
    // The matrices have at most 384 elements, so 3 bits are still a contraction.
    assert_eq!(settings(Feedback::always(Residual::CLASSIC)).1, 0);
    let mut worker = ThreadCollective::group(1).remove(0);
    let mut config = config(Method::Qsgd, Policy::Accordion(Accordion::new(2.0, 1.0)));
    (config.feedback, config.schedule.period) = (Feedback::always(Residual::CLASSIC), 1000);
    let mut controller = Controller::new(config, model(), worker.rank(), worker.world_size()).unwrap();
    for rate in [1.0, 1.0, 1.0, 0.01] {
        take_step(&mut controller, &mut worker, 1.0, rate).unwrap();
    }
    assert_eq!(controller.decision().unwrap().not_contractive, 2);
}

#[test]
fn buckets_change_the_number_of_exchanges_and_nothing_else() {
    let run = |bucket_bytes| {
        on_all(2, |mut worker| {
            let mut config = config(Method::Hybrid, LGRECO);
            config.bucket_bytes = bucket_bytes;
            let mut controller = Controller::new(config, model(), worker.rank(), worker.world_size()).unwrap();
            let means: Vec<_> = (0..6).map(|_| take_step(&mut controller, &mut worker, 1.0, 1.0).unwrap().1).collect();
            means
        })
    };
    let means = run(1 << 20);
    assert!([1632, 0].map(run).iter().all(|other| *other == means));
}

/// The layer has one element. A code of 8 bits and a scale take more bytes than the element.
#[test]
fn layers_on_which_nothing_saves_are_told_apart() {
    let mut worker = ThreadCollective::group(1).remove(0);
    let mut config = config(Method::Qsgd, LGRECO);
    config.search = Search::new(Method::Qsgd).with_default(8.0).unwrap();
    config.search.min_elements = 1;
    let tensors = [("tiny", &[1, 1][..]), ("large", &[40, 40])];
    let tensors = tensors.map(|(name, dims)| Tensor::new(name, dims, Dtype::F32).unwrap());
    let mut controller = Controller::new(config, tensors.to_vec(), worker.rank(), worker.world_size()).unwrap();
    for step in 0..3 {
        let mut values = [noise(0, 0, step, 1), noise(1, 0, step, 1600)];
        controller.step(&mut worker, &mut views(&mut values), 1.0).unwrap();
    }
    let reasons = [0, 1].map(|layer| controller.metrics(layer).uncompressed);
    assert_eq!(reasons, [Some(Uncompressed::NoSaving), None]);
}

#[test]
fn rows_are_measured_on_the_backend_it_is_given() {
    let refuse = |_: &[Job<'_>], _: &mut [u64], _: &mut [f64]| {
        Err(JobError { job: Some(1), error: CoreError::OutOfMemory { words: 77 } })
    };
    let mut worker = ThreadCollective::group(1).remove(0);
    let controller =
        Controller::new(config(Method::TopK, LGRECO), model(), worker.rank(), worker.world_size()).unwrap();
    let mut controller = controller.with_backend(Box::new(Measuring(refuse)));
    (0..2).for_each(|_| drop(take_step(&mut controller, &mut worker, 1.0, 1.0).unwrap()));
    let refused = take_step(&mut controller, &mut worker, 1.0, 1.0).unwrap_err();
    assert_eq!(refused, Error::Core(CoreError::OutOfMemory { words: 77 }));
}

#[test]
fn relative_errors_are_measured_as_often_as_asked() {
    let measured = |metrics_every| {
        let mut worker = ThreadCollective::group(1).remove(0);
        let mut config = config(Method::Qsgd, Policy::Uniform);
        config.metrics_every = metrics_every;
        let mut controller = Controller::new(config, model(), worker.rank(), worker.world_size()).unwrap();
        let steps = (0..8).map(|_| {
            take_step(&mut controller, &mut worker, 1.0, 1.0).unwrap();
            controller.metrics(0).relative_error
        });
        steps.collect::<Vec<_>>()
    };
    assert!(measured(0).iter().all(Option::is_none));
    let (each, third) = (measured(1), measured(3));
    assert!(each[2..].iter().all(|error| error.is_some_and(|error| error > 1e-4 && error < 0.1)));
    assert_eq!(third, [None, None, None, each[3], each[3], each[3], each[6], each[6]]);
}

#[test]
fn controllers_go_to_other_threads() {
    fn sent<T: Send>() {}
    sent::<Controller>();
}

#[test]
fn metrics_count_bytes_and_measure_errors() {
    let mut worker = ThreadCollective::group(1).remove(0);
    let keep = Setting::TopK(TopK { keep: 2, values: Dtype::F32 });
    let mut config = config(Method::TopK, Policy::Fixed(vec![keep]));
    config.metrics_every = 1;
    config.clock = Some(|| 7.0);
    let tensors = vec![Tensor::new("w", &[2, 2], Dtype::F32).unwrap()];
    let mut controller = Controller::new(config, tensors, worker.rank(), worker.world_size()).unwrap();
    let mut payload = 0;
    for step in 0..4 {
        let mut gradient = [3.0, 0.0, 4.0, 12.0];
        let report = controller.step(&mut worker, &mut [ValuesMut::F32(&mut gradient)], 1.0).unwrap();
        assert_eq!(report.seconds, Some(Seconds { planning: 0.0, exchange: 0.0 }));
        assert_eq!((report.bytes_in, report.bytes_out == 16), (16, step < 2));
        payload = report.bytes_out;
    }
    let metrics = controller.metrics(0);
    assert_eq!((metrics.steps, metrics.bytes_in, metrics.bytes_out), (4, 64, 32 + 2 * payload));
    // Step 2 sends the values 4 and 12. Step 3 has the values 6, 0, 4 and 12, and sends 6 and 12.
    assert_eq!((metrics.relative_error, metrics.residual_norm), (Some(16.0 / 196.0), Some(4.0)));
}

#[test]
fn layers_of_a_bucket_share_its_seconds() {
    use core::sync::atomic::{AtomicU32, Ordering};
    static TICKS: AtomicU32 = AtomicU32::new(0);
    let mut worker = ThreadCollective::group(1).remove(0);
    let mut config = config(Method::TopK, Policy::Uniform);
    config.bucket_bytes = 4 * (16 * 24 + 24); // fc1 and bias
    config.clock = Some(|| f64::from(TICKS.fetch_add(1, Ordering::Relaxed)));
    let mut controller = Controller::new(config, model(), worker.rank(), worker.world_size()).unwrap();
    assert_eq!(controller.metrics(0).bucket_seconds, None);
    for step in 0..5 {
        controller.step(&mut worker, &mut views(&mut gradients(0, step, 1.0)), 1.0).unwrap();
        // The clock is read before and after every bucket.
        let seconds = [0, 1, 2].map(|layer| controller.metrics(layer).bucket_seconds);
        assert_eq!(seconds, [Some(f64::from(step + 1)); 3]);
    }
    assert_eq!(TICKS.load(Ordering::Relaxed), 5 * (3 + 2 * 2));
}

#[test]
fn sixteen_bit_layers_get_sixteen_bit_means() {
    use lgreco_train::gradient::{Bf16, Element, F16};
    on_all(2, |mut worker| {
        let tensors = [Dtype::F16, Dtype::Bf16]
            .map(|dtype| Tensor::new(["a", "b"][(dtype == Dtype::F16) as usize], &[16, 8], dtype).unwrap());
        let mut controller =
            Controller::new(config(Method::TopK, Policy::Uniform), tensors.into(), worker.rank(), worker.world_size())
                .unwrap();
        for step in 0..4 {
            let values = noise(0, worker.rank(), step, 128);
            let mut half: Vec<F16> = values.iter().map(|&x| F16::from_f32(x)).collect();
            let mut brain: Vec<Bf16> = values.iter().map(|&x| Bf16::from_f32(x)).collect();
            let report =
                controller.step(&mut worker, &mut [ValuesMut::F16(&mut half), ValuesMut::Bf16(&mut brain)], 1.0);
            assert_eq!(report.unwrap().bytes_in, 512);
            let (a, b) = (noise(0, 0, step, 128), noise(0, 1, step, 128));
            let mean = a.iter().zip(&b).map(|(a, b)| (a + b) / 2.0);
            if step < 2 {
                assert!(half.iter().zip(mean).all(|(half, mean)| half.to_f32() == mean)); // multiples of 1/128 fit
            } else {
                assert!(half.iter().filter(|x| x.to_f32() != 0.0).count() <= 4);
            }
        }
        assert!(matches!(controller.setting(1), Setting::TopK(TopK { values: Dtype::Bf16, .. })));
    });
}

#[test]
fn residuals_that_make_no_sense_are_refused_at_once() {
    let worker = ThreadCollective::group(1).remove(0);
    let places: [fn(&mut Feedback) -> &mut Option<Residual>; 3] =
        [|feedback| &mut feedback.qsgd, |feedback| &mut feedback.loco, |feedback| &mut feedback.others];
    for place in places {
        for gain in [0.0, 1.5, f32::NAN] {
            let mut config = config(Method::TopK, LGRECO);
            *place(&mut config.feedback) = Some(Residual { gain, ..Residual::CLASSIC });
            let refused = Controller::new(config, model(), worker.rank(), worker.world_size()).err();
            assert!(matches!(refused, Some(Error::Core(CoreError::Parameter { what: "residual gain", .. }))));
        }
    }
}

/// Each kind of compressor has its configured residual, from the first compressed step on.
#[test]
fn every_compressor_has_its_own_residual() {
    let loco = Residual { gain: 0.25, ..Residual::LOCO };
    let others = Residual { gain: 0.5, reset_every: 3, ..Residual::CLASSIC };
    let settings = [
        (Setting::Qsgd(Qsgd::default()), None),
        (Setting::LoCo(LoCo { group: 32 }), Some(loco)),
        (Setting::AdaComp(AdaComp { bin: 16 }), Some(others)),
    ];
    for (setting, residual) in settings {
        let mut worker = ThreadCollective::group(1).remove(0);
        let mut config = config(Method::TopK, Policy::Fixed(vec![setting]));
        config.feedback = Feedback { qsgd: None, loco: Some(loco), others: Some(others) };
        let tensors = vec![Tensor::new("w", &[16, 24], Dtype::F32).unwrap()];
        let mut controller = Controller::new(config, tensors, worker.rank(), worker.world_size()).unwrap();
        let shape = lgreco_train::gradient::Shape::new(16, 24).unwrap();
        let mut memory = residual.map(|rule| Memory::owned(rule, shape).unwrap());
        for step in 0..9 {
            let values = noise(0, 0, step, 16 * 24);
            let mut own = vec![values.clone()];
            controller.step(&mut worker, &mut views(&mut own), 1.0).unwrap();
            if controller.setting(0) == Setting::Dense {
                continue;
            }
            let mut expected = vec![0.0; 16 * 24];
            if let Some(memory) = &mut memory {
                let gradient = Gradient::new(lgreco_train::gradient::Values::F32(&values), shape).unwrap();
                let mut workspace = vec![0; memory.workspace_len(&setting, Dtype::F32)];
                let mut payload = vec![0; setting.payload_len(shape, Dtype::F32).unwrap()];
                let stream = Stream { seed: 0, step, layer: 0, rank: 0 };
                memory.step(&setting, &gradient, stream, &mut workspace, &mut payload, &mut own[0]).unwrap();
                memory.values(&mut expected).unwrap();
            }
            let mut found = vec![1.0; 16 * 24];
            controller.residual(0, &mut found).unwrap();
            assert_eq!(found, expected, "{setting} at step {step}");
        }
    }
}
