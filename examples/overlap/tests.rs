//! Tests of small runs without a link.

use crate::config;
use crate::digits::Digits;
use crate::link::Link;
use crate::model::Mlp;
use crate::worker::{Outcome, Run};
use lgreco_train::search::Method;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Trains four layers, with decisions at steps 3 and 8.
fn train(method: Method, overlapped: bool, link: impl Fn() -> Link) -> Vec<Outcome> {
    let run = Run { hidden: vec![48, 32, 40], images: 8, steps: 12, config: config(method, 3, 5), overlapped };
    run.train(&[link(), link(), link()]).unwrap()
}

fn instant() -> Link {
    Arc::new(|_| ())
}

#[test]
fn overlapped_training_ends_with_the_bits_of_the_blocking_one() {
    for method in [Method::Qsgd, Method::TopK, Method::PowerSgd, Method::Hybrid] {
        let [blocking, overlapped] = [false, true].map(|overlapped| train(method, overlapped, instant));
        for (outcome, expected) in overlapped.iter().zip(&blocking) {
            let switched: Vec<bool> = outcome.steps.iter().map(|(_, switched)| *switched).collect();
            assert!((0..12).all(|step| switched[step] == [3, 8].contains(&step)), "{method:?}: {switched:?}");
            assert!(outcome.bytes == expected.bytes && outcome.bytes < outcome.uncompressed, "{method:?}");
            assert!(outcome.parameter_bits == blocking[0].parameter_bits, "{method:?}");
            assert!(expected.parameter_bits == blocking[0].parameter_bits, "{method:?}");
        }
    }
}

/// Each layer's first collective lasts until all layers have begun their first collective. So a run would hang if it
/// waited for one layer's means before it continued the backward pass. (The collectives of the ranks' agreement do not
/// wait for other layers.)
#[test]
fn all_layers_are_under_way_at_the_same_time() {
    let held = || -> Link {
        let (begun, changed) = (Mutex::new(0), Condvar::new());
        Arc::new(move |_| {
            let mut begun = begun.lock().unwrap();
            *begun += 1;
            changed.notify_all();
            if *begun == 1 {
                return;
            }
            let waited = changed.wait_timeout_while(begun, Duration::from_secs(60), |begun| *begun < 5).unwrap();
            assert!(!waited.1.timed_out(), "a layer waits for another's collective");
        })
    };
    assert!(train(Method::Qsgd, true, held)[0].bytes > 0);
}

/// Gradients that are computed layer by layer equal those of candle's single pass through the whole model.
#[test]
fn layers_are_differentiated_as_the_whole_is() {
    let (model, digits) = (Mlp::new(&[24, 16], 1).unwrap(), Digits::load());
    let batch = digits.training(8, 1, 0, 0, 1).unwrap();
    let gradients = model.gradients(&batch).unwrap();
    let mut x = batch.inputs.flatten_from(1).unwrap();
    for (index, layer) in model.0.all().chunks(2).enumerate() {
        let input = if index == 0 { x } else { x.relu().unwrap() };
        x = input.matmul(&layer[0].var.t().unwrap()).unwrap().broadcast_add(&layer[1].var).unwrap();
    }
    let whole = batch.loss(&x).unwrap().backward().unwrap();
    assert!(gradients == model.0.gradients(&whole).unwrap());
    assert!(gradients.iter().all(|of_parameter| of_parameter.iter().any(|x| *x != 0.0)));
}
