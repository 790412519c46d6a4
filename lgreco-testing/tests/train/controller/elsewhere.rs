//! Compares a controller whose layers the caller exchanges with a controller that exchanges its layers itself.

use super::*;
use lgreco_train::gradient::Values;

/// Takes a step whose layers are exchanged outside the controller.
fn step_elsewhere(controller: &mut Controller, worker: &mut ThreadCollective) -> Report {
    let gradients = gradients(worker.rank(), controller.steps() as u32, 1.0);
    controller.begin_step(0.1).unwrap();
    while let Some(request) = controller.control().unwrap() {
        request.perform(worker).unwrap();
    }
    if controller.external().watches() {
        let mut layers = gradients.iter().enumerate();
        layers.try_for_each(|(layer, values)| controller.external().observe(layer, Values::F32(values))).unwrap();
    }
    controller.external().note_exchanged(&[2, 0]).unwrap();
    controller.external().note_exchanged(&[1]).unwrap();
    controller.finish_step().unwrap()
}

fn step_in_a_bucket(
    controller: &mut Controller,
    worker: &mut ThreadCollective,
    mut gradients: Vec<Vec<f32>>,
) -> Outcome {
    controller.begin_step(0.1).unwrap();
    while let Some(request) = controller.control().unwrap() {
        request.perform(worker).unwrap();
    }
    let mut bucket = controller.open(&[0, 1, 2]).unwrap();
    bucket.exchange(worker, &mut views(&mut gradients)).unwrap();
    controller.close(bucket).unwrap();
    controller.finish_step().unwrap().outcome
}

/// In the last step of a window, rank 1's gradient is not finite. Rank 0 learns of the failure only at the end of the
/// step.
#[test]
fn a_window_with_a_step_that_has_failed_elsewhere_begins_anew() {
    for lead in [0, 1] {
        let mut config = config(Method::TopK, LGRECO);
        (config.non_finite, config.schedule) =
            (NonFinite::PassThrough, Schedule { warmup: 4, period: 4, window: 2, lead });
        let decided = on_all(2, |mut worker| {
            let made = |worker: &ThreadCollective| {
                Controller::new(config.clone(), model(), worker.rank(), worker.world_size()).unwrap()
            };
            let (mut own, mut elsewhere) = (made(&worker), made(&worker));
            for step in 0..6 {
                let breaks = step == 3 - lead;
                let mut gradients = gradients(worker.rank(), step as u32, 1.0);
                if breaks && worker.rank() == 1 {
                    gradients[1][3] = f32::INFINITY;
                }
                assert_eq!(step_in_a_bucket(&mut own, &mut worker, gradients) == Outcome::PassedThrough, breaks);
                step_elsewhere(&mut elsewhere, &mut worker);
                if breaks {
                    let task = elsewhere.planning().take_task();
                    assert_eq!(task.is_some(), lead > 0 && worker.rank() == 0);
                    elsewhere.external().forget_observed().unwrap();
                    assert!(task.is_none_or(|task| !elsewhere.planning().hand_in(task.run(&mut Portable))));
                }
                assert_eq!(elsewhere.decision(), own.decision());
            }
            own.decision().map(|decision| decision.step)
        });
        // The decision waits for the gradients of the next step.
        assert_eq!(decided, Some(5 - lead));
    }
}

#[test]
fn decisions_counts_and_what_comes_after_are_the_same() {
    for method in [Method::TopK, Method::Qsgd] {
        on_all(2, |mut worker| {
            let made = |worker: &ThreadCollective| {
                Controller::new(config(method, LGRECO), model(), worker.rank(), worker.world_size()).unwrap()
            };
            let (mut own, mut elsewhere) = (made(&worker), made(&worker));
            for _ in 0..7 {
                let (expected, _) = take_step(&mut own, &mut worker, 1.0, 0.1).unwrap();
                let found = step_elsewhere(&mut elsewhere, &mut worker);
                assert_eq!(found, expected);
                assert_eq!(settings(&elsewhere), settings(&own));
                assert_eq!(elsewhere.decision(), own.decision());
                for layer in 0..3 {
                    let (found, expected) = (elsewhere.metrics(layer), own.metrics(layer));
                    assert_eq!((found.steps, found.bytes_in), (expected.steps, expected.bytes_in));
                    assert_eq!(found.bytes_out, expected.bytes_out);
                }
            }
            assert!(own.decision().is_some() && settings(&own)[0] != Setting::Dense);
            for layer in 0..3 {
                elsewhere.residuals().set(layer, &residual(&own, layer)).unwrap();
                assert_eq!(residual(&elsewhere, layer), residual(&own, layer));
            }
            let expected = take_step(&mut own, &mut worker, 1.0, 0.1).unwrap();
            assert_eq!(take_step(&mut elsewhere, &mut worker, 1.0, 0.1).unwrap(), expected);
            expected.1
        });
    }
}

#[test]
fn what_is_remembered_without_feedback_goes_out_once() {
    let mut worker = ThreadCollective::group(1).remove(0);
    let policy = Policy::Fixed(vec![Setting::Dense; 3]);
    let mut controller =
        Controller::new(config(Method::TopK, policy), model(), worker.rank(), worker.world_size()).unwrap();
    controller.residuals().set(1, &[0.5; 24]).unwrap();
    assert_eq!(residual(&controller, 1), [0.5; 24]);
    let (_, means) = take_step(&mut controller, &mut worker, 1.0, 0.1).unwrap();
    let expected: Vec<f32> = exact_mean(1, 0, 1).iter().map(|x| x + 0.5).collect();
    assert_eq!((&means[1], residual(&controller, 1)), (&expected, vec![0.0; 24]));
}

#[test]
fn what_does_not_fit_where_the_step_is_changes_nothing() {
    let worker = ThreadCollective::group(1).remove(0);
    let mut controller =
        Controller::new(config(Method::TopK, LGRECO), model(), worker.rank(), worker.world_size()).unwrap();
    let out_of_order = |outcome: Result<(), Error>| assert!(matches!(outcome, Err(Error::StepOrder { .. })));
    out_of_order(controller.external().observe(0, Values::F32(&[0.0; 384])));
    out_of_order(controller.external().note_exchanged(&[0]));
    assert_eq!(controller.residuals().set(0, &[1.0; 4]).unwrap_err().code(), 1);
    assert_eq!(controller.residuals().set(0, &[f32::NAN; 384]).unwrap_err().code(), 5);
    assert!(matches!(controller.residuals().set(3, &[]), Err(Error::NoSuchLayer { layer: 3, .. })));
    assert_eq!(residual(&controller, 0), [0.0; 384]);

    controller.begin_step(0.1).unwrap();
    assert!(controller.control().unwrap().is_none());
    let bucket = controller.open(&[0]).unwrap();
    assert_eq!(controller.external().note_exchanged(&[1, 0]), Err(Error::InFlight { layer: 0 }));
    assert_eq!(controller.residuals().set(0, &[1.0; 384]), Err(Error::InFlight { layer: 0 }));
    controller.close(bucket).unwrap();
    // Layer 1 has already been exchanged in this step.
    out_of_order(controller.external().note_exchanged(&[1]));
    out_of_order(controller.residuals().set(1, &[1.0; 24]));
    controller.residuals().set(2, &[1.0; 320]).unwrap();
    assert!(matches!(controller.external().note_exchanged(&[3]), Err(Error::NoSuchLayer { layer: 3, .. })));
    controller.finish_step().unwrap();
    controller.residuals().set(1, &[1.0; 24]).unwrap();
}
