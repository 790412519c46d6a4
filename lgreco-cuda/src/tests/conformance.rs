//! The core's conformance suite, with the kernels on the processor.

use super::simt::flavour;
use super::{ROWS, backend};
use crate::CudaBackend;
use lgreco_core::testing::backend::{check_dense, check_qsgd};

/// Threads of a block run forwards, backwards and at random.
fn in_all_orders(check: impl Fn(&mut CudaBackend)) {
    for order in 0..3 {
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
