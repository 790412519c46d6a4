//! Small runs without a link.

use crate::config;
use crate::link::{self, Link};
use crate::worker::{Outcome, Run};
use lgreco_train::search::Method;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// With decisions at steps 3 and 8.
fn run(method: Method, overlapped: bool) -> Run {
    Run { hidden: vec![48, 32, 40], images: 8, steps: 12, config: config(method, 3, 5), overlapped }
}

fn switched(outcome: &Outcome) -> Vec<usize> {
    (0..).zip(&outcome.steps).filter(|(_, (_, switched))| *switched).map(|(step, _)| step).collect()
}

#[test]
fn overlapped_training_ends_with_the_bits_of_the_blocking_one() {
    for method in [Method::Qsgd, Method::TopK, Method::PowerSgd, Method::Hybrid] {
        let links: Vec<_> = (0..3).map(|_| link::instant()).collect();
        let [blocking, overlapped] = [false, true].map(|overlapped| run(method, overlapped).train(&links).unwrap());
        for outcome in blocking.iter().chain(&overlapped) {
            assert_eq!(switched(outcome), [3, 8], "{method:?}");
            assert!(outcome.bytes < outcome.uncompressed, "{method:?}");
            assert!(outcome.parameters == blocking[0].parameters, "{method:?}");
        }
        let bytes = |outcomes: &[Outcome]| outcomes.iter().map(|outcome| outcome.bytes).collect::<Vec<_>>();
        assert_eq!(bytes(&overlapped), bytes(&blocking), "{method:?}");
    }
}

/// The first collectives end when all layers have begun theirs: whoever waited for a layer's means before going on with the
/// backward pass would wait in vain.
#[test]
fn all_layers_are_under_way_at_the_same_time() {
    let layers = 4;
    let held = || -> Link {
        let (begun, changed) = (Mutex::new(0), Condvar::new());
        Arc::new(move |_| {
            let mut begun = begun.lock().unwrap();
            *begun += 1;
            changed.notify_all();
            let waited = changed.wait_timeout_while(begun, Duration::from_secs(60), |begun| *begun < layers).unwrap();
            assert!(!waited.1.timed_out(), "a bucket waits for another's collective");
        })
    };
    let links = [held(), held()];
    let outcomes = run(Method::Qsgd, true).train(&links).unwrap();
    let free = [link::instant(), link::instant()];
    assert!(outcomes[0].parameters == run(Method::Qsgd, false).train(&free).unwrap()[1].parameters);
}
