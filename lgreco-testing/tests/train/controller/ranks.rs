//! If ranks differ, or one rank makes a mistake, all ranks fail at the same step, and the error names the reason.

use super::*;
use OptionValue::{Name, None as Nothing, Real, Whole};
use lgreco_train::exchange::Route;
use lgreco_train::feedback::Storage;
use lgreco_train::plan::{Solver, exact::Limits};
use lgreco_train::search::{Metric, Range};

/// The results of three ranks at their first step, which is blocking or in buckets. `change` changes the last rank's
/// options.
fn first_step(blocking: bool, base: &Config, change: impl Fn(&mut Config) + Sync) -> Vec<Result<(), Error>> {
    threads::run(3, |mut worker| {
        let mut config = base.clone();
        if worker.rank() == 2 {
            change(&mut config);
        }
        let mut controller = Controller::new(config, model(), worker.rank(), worker.world_size()).unwrap();
        match blocking {
            true => take_step(&mut controller, &mut worker, 1.0, 1.0).map(drop),
            false => agree(&mut controller, &mut worker, 1.0),
        }
    })
}

/// The first step's error names any option that differs, even an option that only the measuring rank uses.
#[test]
fn the_first_step_names_every_option_that_differs() {
    type Change = fn(&mut Config);
    let cases: [(Change, &str, OptionValue, OptionValue); 27] = [
        (|c| c.search.seed = 1, "seed", Whole(1), Whole(0)),
        (|c| c.search = search(Method::TopK), "method", Name("topk"), Name("qsgd")),
        (
            |c| c.search = search(Method::Qsgd).with_default(5.0).unwrap(),
            "default parameter of the method",
            Real(5.0),
            Real(4.0),
        ),
        (|c| c.search.metric = Metric::L2, "metric", Name("l2"), Name("squared-l2")),
        (|c| c.search.min_elements = 65, "min_elements", Whole(65), Whole(64)),
        (|c| c.search.workers = core::num::NonZero::new(5), "workers that the metric counts", Whole(5), Whole(3)),
        (|c| c.search.reduce_dtype = Dtype::Bf16, "reduce_dtype", Name("bf16"), Name("f32")),
        (|c| c.policy = Policy::Uniform, "policy", Name("uniform"), Name("l-greco")),
        (|c| c.policy = Policy::KMeans { clusters: 7 }, "policy", Name("k-means"), Name("l-greco")),
        (
            |c| {
                c.policy =
                    Policy::LGreco { solver: Solver::Dp { levels: 10_000 }, accordion: Some(Accordion::new(5.0, 3.0)) }
            },
            "Accordion's low compression",
            Real(5.0),
            Nothing,
        ),
        (
            |c| c.policy = Policy::LGreco { solver: Solver::Exact(Limits { states: 9 }), accordion: None },
            "solver",
            Name("exact"),
            Name("dp"),
        ),
        (
            |c| c.policy = Policy::LGreco { solver: Solver::Dp { levels: 9 }, accordion: None },
            "states or levels of the solver",
            Whole(9),
            Whole(10_000),
        ),
        (
            |c| {
                c.objective = Objective::MeasuredSeconds;
                c.clock = Some(|| 0.0);
            },
            "objective",
            Name("measured seconds"),
            Name("bits"),
        ),
        (|c| c.budget = Budget::Size, "budget", Name("size"), Name("error")),
        (|c| c.alpha = 0.5, "alpha", Real(0.5), Real(1.0)),
        (|c| c.schedule.warmup = 7, "warm-up", Whole(7), Whole(2)),
        (|c| c.schedule.period = 7, "period", Whole(7), Whole(3)),
        (|c| c.schedule.window = 1, "window", Whole(1), Whole(2)),
        (|c| c.schedule.lead = 1, "lead", Whole(1), Whole(0)),
        (|c| c.ramp_up = Some(RampUp { first: 6.0, steps: 5 }), "first default of the ramp-up", Real(6.0), Nothing),
        (|c| c.feedback.others = None, "residual", Name("none"), Name("f32")),
        (
            |c| c.feedback.loco = Some(Residual { storage: Storage::F32, ..Residual::LOCO }),
            "residual under loco",
            Name("f32"),
            Name("int8"),
        ),
        (
            |c| c.feedback.others = Some(Residual { reset_every: 8, ..Residual::CLASSIC }),
            "reset_every of the residual",
            Whole(8),
            Whole(0),
        ),
        (|c| c.non_finite = NonFinite::Skip, "non_finite", Name("skip"), Name("error")),
        (|c| c.route = Route::ScatterReduce, "route", Name("scatter-reduce"), Name("all-gather")),
        (|c| c.bucket_bytes = 9, "bucket_bytes", Whole(9), Whole(4 << 20)),
        (|c| c.metrics_every = 3, "metrics_every", Whole(3), Whole(10)),
    ];
    let base = config(Method::Qsgd, LGRECO);
    for blocking in [true, false] {
        assert_eq!(first_step(blocking, &base, |_| ()), [Ok(()); 3]);
        for (change, what, found, expected) in cases {
            let results = first_step(blocking, &base, change);
            assert_eq!(results, [Err(differ(2, what, found, expected)); 3], "{what}");
        }
        let narrow = |c: &mut Config| {
            let range = Range { first: 3.0, last: 5.0, step: 1.0 };
            c.search = search(Method::Qsgd).with_range(range).unwrap();
        };
        let named = |result: &Result<(), Error>| {
            matches!(result, Err(Error::PeerOption { rank: 2, what: "parameters that are searched", .. }))
        };
        assert!(first_step(blocking, &base, narrow).iter().all(named));
    }
    let k_means = config(Method::Qsgd, Policy::KMeans { clusters: 6 });
    let results = first_step(false, &k_means, |c| c.policy = Policy::KMeans { clusters: 7 });
    assert_eq!(results, [Err(differ(2, "clusters of k-means", Whole(7), Whole(6))); 3]);
    let text = results[0].unwrap_err().to_string();
    assert_eq!(text, "clusters of k-means: 7 on rank 2, 6 on rank 0; all ranks need the same");
}

#[test]
fn the_first_step_names_layers_that_differ() {
    type Change = fn(&mut Vec<Tensor>);
    let cases: [(Change, &str); 4] = [
        (|layers| drop(layers.pop()), "number of layers"),
        (|layers| layers.swap(0, 2), "names of the layers"),
        (|layers| layers[0] = Tensor::new("fc1", &[24, 16], Dtype::F32).unwrap(), "shapes of the layers"),
        (|layers| layers[2] = Tensor::new("fc2", &[20, 16], Dtype::Bf16).unwrap(), "element types of the layers"),
    ];
    for (change, expected) in cases {
        let results = threads::run(2, |mut worker| {
            let mut layers = model();
            if worker.rank() == 1 {
                change(&mut layers);
            }
            let mut controller =
                Controller::new(config(Method::TopK, LGRECO), layers, worker.rank(), worker.world_size()).unwrap();
            agree(&mut controller, &mut worker, 1.0)
        });
        for result in results {
            assert!(
                matches!(result, Err(Error::PeerOption { rank: 1, what, .. }) if what == expected),
                "{expected}: {result:?}"
            );
        }
    }
}

/// The first collective is the same under all policies, so no rank waits for another collective.
#[test]
fn policies_that_differ_are_told_before_the_first_bucket() {
    let topk = Setting::TopK(TopK { keep: 2, values: Dtype::F32 });
    let policies = [
        Policy::Uncompressed,
        Policy::Uniform,
        Policy::Fixed(vec![topk; 3]),
        Policy::KMeans { clusters: 2 },
        Policy::Accordion(Accordion::new(0.2, 0.1)),
        Policy::Legacy(Legacy { sizes: vec![], levels: vec![vec![0.1]], steps: 9 }),
        LGRECO,
    ];
    for (at, first) in policies.iter().enumerate() {
        for second in &policies[at + 1..] {
            let results = threads::run(2, |mut worker| {
                let policy = [first, second][worker.rank() as usize].clone();
                let mut controller =
                    Controller::new(config(Method::TopK, policy), model(), worker.rank(), worker.world_size()).unwrap();
                agree(&mut controller, &mut worker, 1.0)
            });
            for result in results {
                assert!(matches!(result, Err(Error::PeerOption { rank: 1, what: "policy", .. })), "{result:?}");
            }
        }
    }
}

/// Takes a step with one bucket of all layers, by blocking collectives.
fn bucket_step(controller: &mut Controller, worker: &mut ThreadCollective, rate: f64) -> Result<Report, Error> {
    agree(controller, worker, rate)?;
    let mut bucket = controller.open(&[0, 1, 2])?;
    let mut gradients = gradients(worker.rank(), controller.steps() as u32, 1.0);
    let exchanged = bucket.exchange(worker, &mut views(&mut gradients));
    controller.close(bucket)?;
    let report = controller.finish_step()?;
    exchanged.map(|()| report)
}

/// At the first step, control requests before the buckets report the error. At later steps, the first bucket reports
/// the error.
#[test]
fn a_learning_rate_that_is_not_finite_is_told_to_all() {
    for broken in 0..5 {
        let results = threads::run(2, |mut worker| {
            let mut controller =
                Controller::new(config(Method::TopK, Policy::Uniform), model(), worker.rank(), worker.world_size())
                    .unwrap();
            let step = |at: u64, controller: &mut Controller, worker: &mut ThreadCollective| {
                let rate = if at == broken && worker.rank() == 1 { f64::NAN } else { 0.1 };
                bucket_step(controller, worker, rate).map(drop)
            };
            (0..broken).for_each(|at| step(at, &mut controller, &mut worker).unwrap());
            let failed = step(broken, &mut controller, &mut worker);
            step(broken + 1, &mut controller, &mut worker).unwrap();
            failed
        });
        assert_eq!(results[0], Err(Error::Peer { rank: 1, code: 2 }), "step {broken}");
        assert!(matches!(results[1], Err(Error::Core(CoreError::Parameter { what: "learning rate", .. }))));
    }
}

fn top(keep: u32) -> Setting {
    Setting::TopK(TopK { keep, values: Dtype::F32 })
}

fn fixed(worker: &ThreadCollective) -> Controller {
    Controller::new(config(Method::TopK, Policy::Fixed(vec![top(7); 3])), model(), worker.rank(), worker.world_size())
        .unwrap()
}

/// The bucket detects that settings differ. The next agreement of the ranks names the difference.
#[test]
fn settings_that_one_rank_alone_is_given_are_an_error_on_all() {
    let results = threads::run(2, |mut worker| {
        let mut controller = fixed(&worker);
        (0..4).for_each(|_| assert!(bucket_step(&mut controller, &mut worker, 0.1).is_ok()));
        if worker.rank() == 1 {
            controller.planning().set_settings(vec![top(5); 3]).unwrap();
        }
        let failed = bucket_step(&mut controller, &mut worker, 0.1).map(drop);
        let named = bucket_step(&mut controller, &mut worker, 0.1).map(drop);
        // After all ranks have been given the same settings, they continue, and switch.
        controller.planning().set_settings(vec![top(4); 3]).unwrap();
        (0..2).for_each(|_| assert!(bucket_step(&mut controller, &mut worker, 0.1).is_ok()));
        assert_eq!(settings(&controller), [top(4); 3]);
        (failed, named)
    });
    for (failed, named) in results {
        assert_eq!(failed, Err(Error::PeerPlan { rank: 1 }));
        assert!(
            matches!(named, Err(Error::PeerOption { rank: 1, what: "settings of the fixed policy", .. })),
            "{named:?}"
        );
    }
}

/// In buckets, settings that the caller gives are used one step later. The buckets of the previous step show all ranks
/// that every rank has been given the settings.
#[test]
fn given_settings_come_a_step_later_in_buckets() {
    on_all(2, |mut worker| {
        let mut controller = fixed(&worker);
        let mut switched = vec![];
        for step in 0..9 {
            if [4, 5, 7].contains(&step) {
                controller.planning().set_settings(vec![top(step as u32); 3]).unwrap();
            }
            if bucket_step(&mut controller, &mut worker, 0.1).unwrap().switched {
                switched.push((step, controller.setting(0)));
            }
        }
        assert_eq!(switched, [(2, top(7)), (6, top(5)), (8, top(7))]);
    });
}

#[test]
fn a_decision_that_one_rank_alone_asks_for_is_an_error_on_all() {
    for window in [1, 2] {
        let results = threads::run(2, |mut worker| {
            let mut config = config(Method::TopK, LGRECO);
            config.objective = Objective::MeasuredSeconds;
            config.clock = Some(|| 0.0);
            config.schedule = Schedule { warmup: 2, period: 50, window, lead: 0 };
            let mut controller = Controller::new(config, model(), worker.rank(), worker.world_size()).unwrap();
            (0..5).for_each(|_| assert!(bucket_step(&mut controller, &mut worker, 0.1).is_ok()));
            if worker.rank() == 1 {
                controller.planning().replan().unwrap();
            }
            let failed = bucket_step(&mut controller, &mut worker, 0.1).map(drop);
            (failed, bucket_step(&mut controller, &mut worker, 0.1).map(drop))
        });
        for (failed, named) in results {
            assert_eq!(failed, Err(Error::PeerPlan { rank: 1 }), "window {window}");
            assert!(matches!(named, Err(Error::PeerOption { rank: 1, what: "step of the next decision", .. })));
        }
    }
}

/// One rank's controller has another number of ranks, is in the middle of a step, or gets a failure of the trainer. All ranks
/// get an error, and the next step works.
#[test]
fn a_rank_that_cannot_take_the_step_tells_all() {
    const FAILURE: Error = Error::Trainer { code: 200 };
    for case in 0..3 {
        let results = threads::run(2, |mut worker| {
            let make = |place: &ThreadCollective| {
                Controller::new(config(Method::TopK, LGRECO), model(), place.rank(), place.world_size()).unwrap()
            };
            let mut controller = make(&worker);
            (0..4).for_each(|_| drop(take_step(&mut controller, &mut worker, 1.0, 0.1).unwrap()));
            let failed = match (worker.rank(), case) {
                (0, _) => take_step(&mut controller, &mut worker, 1.0, 0.1).map(drop),
                (_, 0) => take_step(&mut make(&ThreadCollective::group(3)[0]), &mut worker, 1.0, 0.1).map(drop),
                (_, 1) => {
                    controller.begin_step(0.1).unwrap();
                    let failed = take_step(&mut controller, &mut worker, 1.0, 0.1).map(drop);
                    controller.abandon_step().unwrap();
                    failed
                }
                _ => Err(controller.step_failed(&mut worker, FAILURE)),
            };
            let (report, _) = take_step(&mut controller, &mut worker, 1.0, 0.1).unwrap();
            assert_eq!((report.step, report.outcome), (4, Outcome::Exchanged));
            failed
        });
        let (own, code) = match case {
            0 => (Error::OtherPlace { rank: 1, world: 2, own_rank: 0, own_world: 3 }, 2),
            1 => (Error::StepOrder { what: "a step is under way", expected: "a call between two steps" }, 103),
            _ => (FAILURE, 200),
        };
        assert_eq!(results, [Err(Error::Peer { rank: 1, code }), Err(own)]);
    }
    let told = Error::OtherPlace { rank: 1, world: 4, own_rank: 0, own_world: 2 }.to_string();
    assert_eq!(told, "the collective reports rank 1 of 4, but this controller was created as rank 0 of 2");
    let told = Error::Peer { rank: 1, code: 200 }.to_string();
    assert_eq!(told, "rank 1 failed with error code 200: a pointer that is NULL");
}

/// If a trainer's code is not a valid error code, it is replaced by 103, so that the other ranks see the failure.
#[test]
fn a_trainers_failure_is_seen_under_any_code() {
    for (code, told) in [(999, 999), (0, 103), (1000, 103), (u32::MAX, 103)] {
        let results = threads::run(2, |mut worker| {
            let mut controller =
                Controller::new(config(Method::TopK, LGRECO), model(), worker.rank(), worker.world_size()).unwrap();
            match worker.rank() {
                0 => take_step(&mut controller, &mut worker, 1.0, 0.1).map(drop),
                _ => Err(controller.step_failed(&mut worker, Error::Trainer { code })),
            }
        });
        assert_eq!(results, [Err(Error::Peer { rank: 1, code: told }), Err(Error::Trainer { code })]);
    }
}

/// A collective that reports far too many ranks, as an uninitialised number would.
struct Countless<'a>(&'a mut ThreadCollective);

impl Collective for Countless<'_> {
    fn rank(&self) -> u32 {
        self.0.rank()
    }
    fn world_size(&self) -> u32 {
        u32::MAX
    }
    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        self.0.all_reduce_sum(values)
    }
    fn all_gather(&mut self, buffer: &mut [u8]) -> Result<(), CollectiveError> {
        self.0.all_gather(buffer)
    }
    fn all_gather_each(&mut self, lens: &[u64], buffer: &mut [u8]) -> Result<(), CollectiveError> {
        self.0.all_gather_each(lens, buffer)
    }
    fn broadcast(&mut self, root: u32, bytes: &mut [u8]) -> Result<(), CollectiveError> {
        self.0.broadcast(root, bytes)
    }
}

#[test]
fn a_number_of_ranks_that_is_far_too_large_is_told_to_all() {
    let results = threads::run(2, |mut worker| {
        let mut controller =
            Controller::new(config(Method::TopK, LGRECO), model(), worker.rank(), worker.world_size()).unwrap();
        let failed = match worker.rank() {
            0 => take_step(&mut controller, &mut worker, 1.0, 0.1).map(drop),
            _ => controller.step(&mut Countless(&mut worker), &mut [], 0.1).map(drop),
        };
        take_step(&mut controller, &mut worker, 1.0, 0.1).unwrap();
        failed
    });
    let own = Error::OtherPlace { rank: 1, world: u32::MAX, own_rank: 1, own_world: 2 };
    assert_eq!(results, [Err(Error::Peer { rank: 1, code: 2 }), Err(own)]);
}

/// After states are loaded, ranks compare them before the first bucket.
#[test]
fn states_that_differ_are_named() {
    let results = threads::run(2, |mut worker| {
        let mut controller =
            Controller::new(config(Method::TopK, LGRECO), model(), worker.rank(), worker.world_size()).unwrap();
        let mut saved = vec![];
        for _ in 0..4 {
            saved.push(controller.save().unwrap());
            bucket_step(&mut controller, &mut worker, 0.1).unwrap();
        }
        let state = &saved[if worker.rank() == 1 { 3 } else { 1 }];
        controller.load(&[state], &[state]).unwrap();
        bucket_step(&mut controller, &mut worker, 0.1).map(drop)
    });
    assert_eq!(results, [Err(differ(1, "step", Whole(3), Whole(1))); 2]);
}

/// Takes `steps` steps on two ranks, saves their states, and loads them. In rank 1's state, `change` changes the 8-byte
/// word `place` before it is loaded. Returns the first error of each rank in the next steps.
fn with_other_state(config: &Config, steps: u64, place: usize, change: impl Fn(f64) -> f64 + Sync) -> Vec<Error> {
    threads::run(2, |mut worker| {
        let mut controller = Controller::new(config.clone(), model(), worker.rank(), worker.world_size()).unwrap();
        (0..steps).for_each(|_| assert!(bucket_step(&mut controller, &mut worker, 0.3).is_ok()));
        let mut state = controller.save().unwrap();
        if worker.rank() == 1 {
            let word = &mut state.as_chunks_mut::<8>().0[place];
            *word = change(f64::from_le_bytes(*word)).to_le_bytes();
            lgreco_testing::reseal(&mut state);
        }
        controller.load(&[&state], &[&state]).unwrap();
        (0..9).find_map(|_| bucket_step(&mut controller, &mut worker, 0.2).err()).unwrap()
    })
}

/// Because the highest learning rates differ, only one rank sees a fall of the learning rate. Without a comparison,
/// only this rank would ask to switch.
#[test]
fn highest_learning_rates_that_differ_are_named() {
    let config = config(Method::TopK, Policy::Accordion(Accordion::new(0.2, 0.1)));
    // In every state, the highest learning rate is the word with index 7.
    let results = with_other_state(&config, 4, 7, |rate| {
        assert_eq!(rate, 0.3);
        0.4
    });
    let named = "highest learning rate since the last decision";
    assert_eq!(results, [differ(1, named, Real(0.4), Real(0.3)); 2]);
}

/// The size of a probe depends on the times of the last decision, so all ranks must have the same decision.
#[test]
fn decisions_that_differ_are_named() {
    let mut config = config(Method::TopK, LGRECO);
    config.objective = Objective::MeasuredSeconds;
    config.clock = Some(|| {
        std::thread_local!(static NOW: std::cell::Cell<f64> = const { std::cell::Cell::new(0.0) });
        NOW.set(NOW.get() + 1e-3);
        NOW.get()
    });
    config.schedule = Schedule { warmup: 3, period: 5, window: 2, lead: 0 };
    // Seconds per byte.
    let results = with_other_state(&config, 4, 24, |seconds| {
        assert!(seconds > 0.0);
        1e6 * seconds
    });
    for error in results {
        assert!(matches!(error, Error::PeerOption { rank: 1, what: "last decision", .. }), "{error:?}");
    }
}

/// On one rank, the caller measures seconds instead of the controller. Then only one rank would take part in a probe,
/// so all ranks get an error before the probe.
#[test]
fn ranks_that_differ_in_who_measures_seconds_are_told_before_a_probe() {
    let results = threads::run(2, |mut worker| {
        let mut config = config(Method::TopK, LGRECO);
        config.objective = Objective::MeasuredSeconds;
        config.clock = Some(|| 0.0);
        config.schedule = Schedule { warmup: 3, period: 5, window: 2, lead: 0 };
        let mut controller = Controller::new(config, model(), worker.rank(), worker.world_size()).unwrap();
        controller.external().meter_elsewhere(worker.rank() == 1).unwrap();
        (0..3).find_map(|_| bucket_step(&mut controller, &mut worker, 0.2).err()).unwrap()
    });
    assert_eq!(results, [differ(1, "seconds measured by the caller", Name("yes"), Name("no")); 2]);
}

/// After a skipped step, the gradients of the bucket with NaN and the residuals of all layers are the same as after a
/// skipped blocking step. The gradients of all buckets are finite, so a trainer that only checks for
/// [`Outcome::Skipped`] never applies NaN.
#[test]
fn a_skipped_step_is_the_same_in_buckets() {
    on_all(2, |mut worker| {
        let mut config = config(Method::TopK, Policy::Uniform);
        config.non_finite = NonFinite::Skip;
        let new = |worker: &ThreadCollective| {
            Controller::new(config.clone(), model(), worker.rank(), worker.world_size()).unwrap()
        };
        let (mut blocking, mut controller) = (new(&worker), new(&worker));
        for step in 0..7 {
            let mut values = gradients(worker.rank(), step, 1.0);
            if step == 4 && worker.rank() == 1 {
                values[2][7] = f32::NAN;
            }
            let mut same = values.clone();
            let expected = blocking.step(&mut worker, &mut views(&mut same), 0.1).unwrap();
            agree(&mut controller, &mut worker, 0.1).unwrap();
            for (layer, values) in values.iter_mut().enumerate() {
                let mut bucket = controller.open(&[layer]).unwrap();
                bucket.exchange(&mut worker, &mut [ValuesMut::F32(values)]).unwrap();
                controller.close(bucket).unwrap();
            }
            let report = controller.finish_step().unwrap();
            assert_eq!(report.outcome, if step == 4 { Outcome::Skipped } else { Outcome::Exchanged });
            assert_eq!(report.outcome, expected.outcome);
            assert_eq!(values[2], same[2], "step {step}");
            assert!(values.iter().flatten().all(|x| x.is_finite()));
            (0..3)
                .for_each(|layer| assert_eq!(residual(&controller, layer), residual(&blocking, layer), "step {step}"));
        }
    });
}
