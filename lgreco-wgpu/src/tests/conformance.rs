//! The core's conformance suite, at the adapter's limits and at small ones.

use super::{ROWS, backend, backend_with, small};
use lgreco_core::testing::backend::{check_batches, check_dense, check_powersgd, check_qsgd, check_topk};
use wgpu::Features;

#[test]
fn dense() {
    let Some(mut backend) = backend() else { return };
    check_dense(&mut backend);
}

#[test]
fn qsgd() {
    let Some(mut backend) = backend() else { return };
    check_qsgd(&mut backend, ROWS);
}

#[test]
fn topk() {
    let Some(mut backend) = backend() else { return };
    check_topk(&mut backend, ROWS);
}

#[test]
fn powersgd() {
    let Some(mut backend) = backend() else { return };
    check_powersgd(&mut backend, ROWS);
}

#[test]
fn batches() {
    let Some(mut backend) = backend() else { return };
    check_batches(&mut backend, ROWS, true);
}

/// At WebGPU's defaults, but smaller: no feature, and bindings and dispatches that tensors do not fit.
#[test]
fn small_limits() {
    let Some(mut backend) = backend_with(Features::empty(), small) else { return };
    check_qsgd(&mut backend, ROWS);
    check_topk(&mut backend, ROWS);
    check_powersgd(&mut backend, ROWS);
}
