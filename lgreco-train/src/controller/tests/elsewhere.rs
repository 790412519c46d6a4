//! A controller whose layers are exchanged elsewhere, beside one that exchanges them itself.

use super::*;
use crate::gradient::Values;

/// A step whose exchange is somebody else's.
fn step_elsewhere(controller: &mut Controller, worker: &mut ThreadCollective) -> Report {
    let gradients = gradients(worker.rank(), controller.steps() as u32, 1.0);
    controller.begin_step(0.1).unwrap();
    while let Some(request) = controller.control().unwrap() {
        request.perform(worker).unwrap();
    }
    if controller.watches() {
        let mut layers = gradients.iter().enumerate();
        layers.try_for_each(|(layer, values)| controller.observe(layer, Values::F32(values))).unwrap();
    }
    controller.note_exchanged(&[2, 0]).unwrap();
    controller.note_exchanged(&[1]).unwrap();
    controller.finish_step().unwrap()
}

#[test]
fn decisions_counts_and_what_comes_after_are_the_same() {
    for method in [Method::TopK, Method::Qsgd] {
        on_all(2, |mut worker| {
            let made = |worker: &ThreadCollective| Controller::new(config(method, LGRECO), model(), worker).unwrap();
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
                elsewhere.set_residual(layer, &residual(&own, layer)).unwrap();
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
    let mut controller = Controller::new(config(Method::TopK, policy), model(), &worker).unwrap();
    controller.set_residual(1, &[0.5; 24]).unwrap();
    assert_eq!(residual(&controller, 1), [0.5; 24]);
    let (_, means) = take_step(&mut controller, &mut worker, 1.0, 0.1).unwrap();
    let expected: Vec<f32> = exact_mean(1, 0, 1).iter().map(|x| x + 0.5).collect();
    assert_eq!((&means[1], residual(&controller, 1)), (&expected, vec![0.0; 24]));
}

#[test]
fn what_does_not_fit_where_the_step_is_changes_nothing() {
    let worker = ThreadCollective::group(1).remove(0);
    let mut controller = Controller::new(config(Method::TopK, LGRECO), model(), &worker).unwrap();
    let out_of_order = |outcome: Result<(), Error>| assert!(matches!(outcome, Err(Error::StepOrder { .. })));
    out_of_order(controller.observe(0, Values::F32(&[0.0; 384])));
    out_of_order(controller.note_exchanged(&[0]));
    assert_eq!(controller.set_residual(0, &[1.0; 4]).unwrap_err().code(), 1);
    assert_eq!(controller.set_residual(0, &[f32::NAN; 384]).unwrap_err().code(), 5);
    assert!(matches!(controller.set_residual(3, &[]), Err(Error::LayerMismatch { layer: 3, .. })));
    assert_eq!(residual(&controller, 0), [0.0; 384]);

    controller.begin_step(0.1).unwrap();
    assert!(controller.control().unwrap().is_none());
    let bucket = controller.open(&[0]).unwrap();
    assert_eq!(controller.note_exchanged(&[1, 0]), Err(Error::InFlight { layer: 0 }));
    assert_eq!(controller.set_residual(0, &[1.0; 384]), Err(Error::InFlight { layer: 0 }));
    controller.close(bucket).unwrap();
    // Layer 1 is counted by now.
    out_of_order(controller.note_exchanged(&[1]));
    out_of_order(controller.set_residual(1, &[1.0; 24]));
    controller.set_residual(2, &[1.0; 320]).unwrap();
    assert!(matches!(controller.note_exchanged(&[3]), Err(Error::LayerMismatch { layer: 3, .. })));
    controller.finish_step().unwrap();
    controller.set_residual(1, &[1.0; 24]).unwrap();
}
