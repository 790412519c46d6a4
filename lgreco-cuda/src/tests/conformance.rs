//! The core's conformance suite, with the kernels on the processor.

use super::simt::{Flavour, flavour};
use super::{ROWS, backend};
use crate::CudaBackend;
use lgreco_core::backend::Job;
use lgreco_core::compress::qsgd::{Qsgd, Scale};
use lgreco_core::compress::{Candidates, Setting};
use lgreco_core::rng::Stream;
use lgreco_core::testing::backend::{
    Tensor, check_batches, check_dense, check_encode, check_powersgd, check_qsgd, check_rows, check_topk,
};
use lgreco_core::testing::powersgd::uniform;

/// Threads of a block run forwards, backwards and at random; under the sanitizers, at random.
fn in_all_orders(check: impl Fn(&mut CudaBackend)) {
    let orders = if flavour() == Flavour::Plain { 0..3 } else { 2..3 };
    for order in orders {
        let Some(mut backend) = backend(flavour(), order) else { return };
        check(&mut backend);
    }
}

#[test]
fn dense() {
    in_all_orders(|backend| check_dense(backend));
}

#[test]
fn qsgd() {
    in_all_orders(|backend| check_qsgd(backend, ROWS));
}

/// More values than the threads of a looping kernel take at once.
#[test]
fn qsgd_of_a_large_tensor() {
    let Some(mut backend) = backend(flavour(), 0) else { return };
    let tensor = Tensor::new(&uniform(40_003, 1), 40_003, 1);
    for gradient in tensor.gradients() {
        for (bucket, scale) in [(512, Scale::MaxNorm), (100, Scale::MinMax), (30_000, Scale::MaxNorm)] {
            let base = Qsgd { bucket, scale, ..Qsgd::default() };
            check_encode(&mut backend, &Setting::Qsgd(base), &gradient, Stream::default());
            let candidates = Candidates::Qsgd { base, bits: &[1, 2, 4, 8] };
            check_rows(&mut backend, &[Job { gradient, candidates, stream: Stream::default() }], ROWS);
        }
    }
}

#[test]
fn topk() {
    in_all_orders(|backend| check_topk(backend, ROWS));
}

#[test]
fn powersgd() {
    in_all_orders(|backend| check_powersgd(backend, ROWS));
}

#[test]
fn batches() {
    in_all_orders(|backend| check_batches(backend, ROWS, true));
}
