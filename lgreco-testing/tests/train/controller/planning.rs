//! Tests of decisions that are planned while steps continue.

use super::schedule::l_greco;
use super::*;
use lgreco_train::compress::Setting;
use lgreco_train::gradient::{Bf16, Element, Values};
use std::sync::mpsc::{Receiver, channel};

/// A configuration with decisions at steps 4, 9 and 14. Each decision uses the gradients of two steps, but not those of
/// the two steps directly before the decision.
fn config_with_lead(method: Method, policy: Policy) -> Config {
    let mut config = config(method, policy);
    config.schedule = Schedule { warmup: 4, period: 5, window: 2, lead: 2 };
    config
}

fn new(config: &Config, worker: &ThreadCollective) -> Controller {
    Controller::new(config.clone(), model(), worker.rank(), worker.world_size()).unwrap()
}

/// Runs a task on another thread, and waits for its result.
fn run(task: PlanTask) -> PlanResult {
    std::thread::spawn(move || task.run(&mut Portable)).join().unwrap()
}

fn step(controller: &mut Controller, worker: &mut ThreadCollective) -> (Report, Vec<Vec<f32>>) {
    take_step(controller, worker, 1.0, 1.0).unwrap()
}

/// A decision does not use the gradients of the two steps before it, no matter which thread runs its task.
#[test]
fn decisions_see_the_gradients_before_their_lead() {
    for (method, elsewhere) in [(Method::TopK, false), (Method::TopK, true), (Method::Hybrid, true)] {
        on_all(2, |mut worker| {
            let mut controller = new(&config_with_lead(method, LGRECO), &worker);
            let mut taken = vec![];
            for at in 0..12 {
                let (report, _) = step(&mut controller, &mut worker);
                let (plan, expected) = match at {
                    0..4 => (None, vec![Setting::Dense; 3]),
                    4..9 => l_greco(method, 0, &[0, 1]),
                    _ => l_greco(method, 0, &[5, 6]),
                };
                assert_eq!(report.switched, at == 4 || at == 9);
                assert_eq!(settings(&controller), expected, "{method:?}, step {at}");
                assert_eq!(controller.decision().and_then(|decision| decision.plan), plan);
                if let (true, Some(task)) = (elsewhere, controller.planning().take_task()) {
                    assert!(controller.planning().take_task().is_none(), "it has been taken");
                    taken.push(at);
                    assert!(controller.planning().hand_in(run(task)));
                }
            }
            let expected: &[u32] = if elsewhere && worker.rank() == 0 { &[1, 6, 11] } else { &[] };
            assert_eq!(taken, expected);
        });
    }
}

/// A requested decision uses the gradients of the next steps. The schedule of later decisions stays the same.
#[test]
fn replanning_looks_at_the_next_gradients() {
    for lead in [0, 2] {
        on_all(2, |mut worker| {
            let mut config = config(Method::TopK, LGRECO);
            config.schedule = Schedule { warmup: 4, period: 20, window: 2, lead };
            let mut controller = new(&config, &worker);
            let [first, second, third] = [[2, 3], [7, 8], [22, 23]];
            for at in 0..26 {
                match at {
                    1 => assert_eq!(controller.planning().replan(), Ok(Some(4)), "not in the warm-up"),
                    7 => assert_eq!(controller.planning().replan(), Ok(Some(9 + lead))),
                    23 => assert_eq!(controller.planning().replan(), Ok(Some(24)), "sooner anyway"),
                    _ => {}
                }
                let (report, _) = step(&mut controller, &mut worker);
                assert_eq!(report.switched, [4, 9 + lead, 24].contains(&at), "step {at}");
                if at < 4 {
                    continue;
                }
                let seen = if at < 9 + lead {
                    first.map(|step| step - lead)
                } else if at < 24 {
                    second
                } else {
                    third.map(|step| step - lead)
                };
                assert_eq!(
                    settings(&controller),
                    l_greco(Method::TopK, 0, &seen.map(|step| step as u32)).1,
                    "step {at}"
                );
            }
        });
    }
}

#[test]
fn all_ranks_ask_for_a_decision_or_none() {
    on_all(2, |mut worker| {
        let mut config = config(Method::TopK, LGRECO);
        config.schedule = Schedule { warmup: 2, period: 10, window: 1, lead: 0 };
        let mut controller = new(&config, &worker);
        (0..4).for_each(|_| drop(step(&mut controller, &mut worker)));
        if worker.rank() == 1 {
            assert_eq!(controller.planning().replan(), Ok(Some(5)));
        }
        let refused = take_step(&mut controller, &mut worker, 1.0, 1.0);
        assert!(
            matches!(refused, Err(Error::PeerOption { rank: 1, what: "step of the next decision", .. })),
            "{refused:?}"
        );
    });
}

/// Tasks may be run on other threads, dropped or never taken. In all these cases, results and saved states have the
/// same bits.
#[test]
fn who_runs_a_task_changes_nothing() {
    let accordion = Accordion::new(6.0, 2.0);
    for (method, policy) in [
        (Method::Hybrid, LGRECO),
        (Method::Qsgd, Policy::KMeans { clusters: 2 }),
        (Method::PowerSgd, Policy::Accordion(accordion)),
        (Method::PowerSgd, Policy::LGreco { solver: Default::default(), accordion: Some(accordion) }),
        (Method::TopK, Policy::Uniform),
    ] {
        on_all(2, |mut worker| {
            let config = config_with_lead(method, policy.clone());
            let (mut blocking, mut other, mut careless) =
                (new(&config, &worker), new(&config, &worker), new(&config, &worker));
            for at in 0..12u64 {
                let expected = step(&mut blocking, &mut worker);
                assert!(step(&mut other, &mut worker) == expected, "step {at}");
                assert!(step(&mut careless, &mut worker) == expected, "step {at}");
                let saved = blocking.save();
                drop(careless.planning().take_task());
                let task = other.planning().take_task();
                assert!(other.save() == saved && careless.save() == saved, "step {at}");
                if let Some(task) = task {
                    assert!(other.planning().hand_in(run(task)));
                    assert!(other.save() == saved, "step {at}");
                }
            }
            assert!(blocking.decision().is_some());
        });
    }
}

/// A backend that waits for a message from `gate` before it measures.
fn gated(gate: Receiver<()>) -> impl Backend {
    Measuring(move |jobs: &[Job<'_>], workspace: &mut [u64], rows: &mut [f64]| {
        gate.recv().unwrap();
        Portable.measure(jobs, workspace, rows)
    })
}

/// The task is blocked until steps 4 and 5 are over. Steps 4 and 5 do not wait for the task. The next decision is on
/// schedule.
#[test]
fn nobody_waits_for_a_late_plan() {
    on_all(2, |mut worker| {
        let mut controller = new(&config_with_lead(Method::TopK, LGRECO), &worker);
        let (open, gate) = channel();
        let mut gate = Some(gate);
        let mut thread = None;
        for at in 0..12 {
            let (report, _) = step(&mut controller, &mut worker);
            assert_eq!(report.switched, at == 6 || at == 9, "step {at}");
            let expected = match at {
                0..6 => vec![Setting::Dense; 3],
                6..9 => l_greco(Method::TopK, 0, &[0, 1]).1,
                // The window has steps 5 and 6. Step 5 is left out of the mean, because the late decision had not yet
                // changed its settings.
                _ => l_greco(Method::TopK, 0, &[6]).1,
            };
            assert_eq!(settings(&controller), expected, "step {at}");
            if let Some(gate) = gate.take_if(|_| at == 1) {
                thread =
                    controller.planning().take_task().map(|task| std::thread::spawn(|| task.run(&mut gated(gate))));
                assert_eq!(thread.is_some(), worker.rank() == 0);
            }
            if let Some(thread) = thread.take_if(|_| at == 5) {
                assert!(!thread.is_finished());
                open.send(()).unwrap();
                assert!(controller.planning().hand_in(thread.join().unwrap()));
            }
        }
        assert_eq!(controller.decision().map(|decision| decision.step), Some(9));
    });
}

/// If a result is handed in after the measuring rank has answered "not yet", the next step uses the result.
#[test]
fn a_plan_that_comes_while_ranks_are_asking_waits_for_the_next_step() {
    on_all(2, |mut worker| {
        let mut controller = new(&config_with_lead(Method::TopK, LGRECO), &worker);
        (0..2).for_each(|_| drop(step(&mut controller, &mut worker)));
        let mut task = controller.planning().take_task();
        (0..2).for_each(|_| drop(step(&mut controller, &mut worker)));
        controller.begin_step(1.0).unwrap();
        let mut asked = vec![];
        while let Some(request) = controller.control().unwrap() {
            asked.push(matches!(request, lgreco_train::exchange::Request::Broadcast { .. }));
            request.perform(&mut worker).unwrap();
            if let Some(task) = task.take_if(|_| asked.contains(&true)) {
                assert!(controller.planning().hand_in(run(task)));
            }
        }
        assert_eq!(asked, [false, true]);
        assert!(!controller.finish_step().unwrap().switched);
        assert!(step(&mut controller, &mut worker).0.switched);
    });
}

/// If the budget is infeasible, all ranks get an error at the step of the decision. Training continues while the task
/// is tried again.
#[test]
fn a_plan_that_fails_elsewhere_is_an_error_on_every_rank() {
    let results = threads::run(3, |mut worker| {
        let mut config = config_with_lead(Method::TopK, LGRECO);
        config.alpha = 0.0;
        let mut controller = new(&config, &worker);
        (0..2).for_each(|_| drop(step(&mut controller, &mut worker)));
        let task = controller.planning().take_task();
        (0..2).for_each(|_| drop(step(&mut controller, &mut worker)));
        if let Some(task) = task {
            let result = run(task);
            assert!(matches!(result.decision(), Err(Error::Core(CoreError::Infeasible { .. }))));
            assert!(controller.planning().hand_in(result));
        }
        let failed = take_step(&mut controller, &mut worker, 1.0, 1.0).unwrap_err();
        assert_eq!(controller.steps(), 4);
        let again = controller.planning().take_task();
        assert_eq!(again.is_some(), worker.rank() == 0);
        assert!(!step(&mut controller, &mut worker).0.switched);
        drop(again);
        assert_eq!(take_step(&mut controller, &mut worker, 1.0, 1.0).unwrap_err(), failed, "and again");
        failed
    });
    assert!(matches!(results[0], Error::Core(CoreError::Infeasible { budget: 0.0, .. })));
    assert_eq!(results[1..], [Error::Peer { rank: 0, code: 26 }; 2]);
}

/// A state is saved while a task is running. A controller that loads this state decides from the same gradients, and
/// does not wait for the old task.
#[test]
fn a_run_that_was_stopped_while_planning_continues_bit_for_bit() {
    on_all(2, |mut worker| {
        let config = config_with_lead(Method::Hybrid, LGRECO);
        let mut whole = new(&config, &worker);
        let steps: Vec<_> = (0..11).map(|_| step(&mut whole, &mut worker)).collect();
        let end = whole.save();
        for stop in 0..11 {
            let mut controller = new(&config, &worker);
            let mut tasks = vec![];
            // Steps 4 and 9 wait for a task whose result has not been handed in. So the first task is run if the run
            // stops after step 4.
            if stop > 9 {
                continue;
            }
            let mut first = stop > 4;
            for _ in 0..stop {
                step(&mut controller, &mut worker);
                let Some(task) = controller.planning().take_task() else { continue };
                match core::mem::take(&mut first) {
                    true => assert!(controller.planning().hand_in(run(task))),
                    false => tasks.push(task),
                }
            }
            let expected = worker.rank() == config.measuring_rank && ((2..5).contains(&stop) || stop > 6);
            assert_eq!(tasks.len(), usize::from(expected), "{stop}");
            let saved = controller.save().unwrap();
            let mut other = new(&config, &worker);
            other.load(&[&saved], &[&saved]).unwrap();
            controller.load(&[&saved], &[&saved]).unwrap();
            for task in tasks {
                assert!(!controller.planning().hand_in(run(task)), "nobody waits for it");
            }
            for expected in &steps[stop..] {
                assert!(step(&mut other, &mut worker) == *expected, "stopped at {stop}");
                assert!(step(&mut controller, &mut worker) == *expected, "loaded at {stop}");
            }
            assert!(other.save() == end && controller.save() == end);
        }
    });
}

/// A fall of the learning rate takes precedence over a decision that was planned before it.
#[test]
fn a_fall_of_the_learning_rate_takes_the_place_of_a_decision() {
    on_all(2, |mut worker| {
        let config = config_with_lead(Method::PowerSgd, Policy::Accordion(Accordion::new(6.0, 2.0)));
        let mut controller = new(&config, &worker);
        let mut seen = vec![];
        for at in 0..15 {
            let rate = if at < 9 { 1.0 } else { 0.1 };
            let task = controller.planning().take_task().map(run);
            if at == 9 {
                take_step(&mut controller, &mut worker, 1.0, rate).unwrap();
                assert!(task.is_none_or(|task| !controller.planning().hand_in(task)), "nobody waits for it");
            } else {
                task.into_iter().for_each(|result| assert!(controller.planning().hand_in(result)));
                take_step(&mut controller, &mut worker, 1.0, rate).unwrap();
            }
            seen.push(controller.decision().map(|decision| (decision.step, decision.cause)));
        }
        let (schedule, rate) = (Cause::Schedule, Cause::LearningRate);
        let expected =
            [vec![None; 4], vec![Some((4, schedule)); 5], vec![Some((9, rate)); 5], vec![Some((14, schedule))]];
        assert_eq!(seen, expected.concat());
    });
}

#[test]
fn without_a_lead_there_is_no_task() {
    on_all(1, |mut worker| {
        let mut controller = new(&config(Method::TopK, LGRECO), &worker);
        for _ in 0..6 {
            assert!(controller.planning().take_task().is_none());
            step(&mut controller, &mut worker);
        }
    });
    let worker = ThreadCollective::group(1).remove(0);
    for lead in [4, 5, u64::MAX] {
        let mut config = config(Method::TopK, LGRECO);
        config.schedule = Schedule { warmup: 4, period: 5, window: 1, lead };
        let refused = Controller::new(config, model(), worker.rank(), worker.world_size()).err();
        assert!(matches!(refused, Some(Error::Core(CoreError::Parameter { what: "lead", .. }))), "{lead}");
    }
}

#[test]
fn a_window_begins_anew_after_an_observed_gradient_that_is_not_finite() {
    on_all(1, |mut worker| {
        let mut config = config(Method::TopK, LGRECO);
        config.schedule = Schedule { warmup: 2, period: 3, window: 2, lead: 0 };
        let tensors = vec![Tensor::new("fc", &[16, 8], Dtype::F32).unwrap()];
        let mut controller = Controller::new(config, tensors, worker.rank(), worker.world_size()).unwrap();
        let (values, mut spoilt) = (noise(0, 0, 0, 128), noise(0, 0, 1, 128));
        spoilt[7] = f32::INFINITY;
        controller.begin_step(1.0).unwrap();
        assert!(controller.control().unwrap().is_none());
        let found = controller.external().observe(0, Values::F32(&spoilt));
        assert_eq!(found, Err(Error::NonFiniteGradient { layer: 0, index: 7, value: f32::INFINITY }));
        assert!(!controller.external().watches(), "for the rest of the step");
        controller.finish_step().unwrap();
        controller.begin_step(1.0).unwrap();
        assert!(controller.control().unwrap().is_none());
        controller.external().observe(0, Values::F32(&values)).unwrap();
        controller.finish_step().unwrap();
        controller.begin_step(1.0).unwrap();
        while let Some(request) = controller.control().unwrap() {
            request.perform(&mut worker).unwrap();
        }
        assert!(matches!(controller.setting(0), Setting::TopK(_)));
    });
}

#[test]
fn gradients_of_other_layers_and_out_of_order_are_not_observed() {
    fn sent<T: Send + 'static>() {}
    sent::<PlanTask>();
    sent::<PlanResult>();
    let worker = ThreadCollective::group(1).remove(0);
    let layers = [Dtype::F16, Dtype::Bf16].map(|dtype| Tensor::new(&format!("{dtype:?}"), &[16, 8], dtype).unwrap());
    let mut controller =
        Controller::new(config(Method::TopK, LGRECO), layers.into(), worker.rank(), worker.world_size()).unwrap();
    let brain: Vec<Bf16> = noise(0, 0, 0, 128).into_iter().map(Bf16::from_f32).collect();
    let order = |result: Result<(), Error>| assert!(matches!(result, Err(Error::StepOrder { .. })), "{result:?}");
    order(controller.external().observe(1, Values::Bf16(&brain)));
    controller.begin_step(1.0).unwrap();
    order(controller.external().observe(1, Values::Bf16(&brain)));
    assert!(controller.control().unwrap().is_none() && controller.external().watches());
    let mismatch = |result: Result<(), Error>| {
        assert!(result.as_ref().is_err_and(|error| error.code() == 100), "{result:?}");
    };
    mismatch(controller.external().observe(0, Values::Bf16(&brain)));
    mismatch(controller.external().observe(1, Values::Bf16(&brain[1..])));
    mismatch(controller.external().observe(2, Values::Bf16(&brain)));
    controller.external().observe(1, Values::Bf16(&brain)).unwrap();
    assert!(controller.planning().take_task().is_none(), "in the middle of a step");
}
