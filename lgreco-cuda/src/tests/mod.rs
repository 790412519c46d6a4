//! The kernels on the processor, and through NVRTC.

mod compiler;
mod conformance;
mod cublas;
mod driver;
mod faults;
mod feedback;
mod launches;
mod memory;
mod nvrtc;
mod orthonormal;
mod powersgd;
mod qsgd;
mod reserve;
mod simt;
mod sources;
mod topk;

use crate::CudaBackend;
use simt::{Flavour, Simt};
use std::collections::BTreeSet;
use std::io::Write as _;
use std::sync::{Mutex, PoisonError};

/// What rows agree within.
const ROWS: f64 = 1e-4;

/// Says that something cannot be checked here, and fails when `LGRECO_REQUIRE` names cuda.
fn unavailable(reason: &str) {
    let required = std::env::var("LGRECO_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|name| name == "cuda"), "{reason}, but LGRECO_REQUIRE");
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if SAID.lock().unwrap_or_else(PoisonError::into_inner).insert(reason.into()) {
        // Not by `eprintln!`, which libtest keeps to itself.
        writeln!(std::io::stderr(), "SKIP: {reason}").expect("standard error");
    }
}

/// The backend with kernels that run on the processor.
fn backend(flavour: Flavour, order: i32) -> Option<CudaBackend> {
    Some(CudaBackend::on(Box::new(Simt::new(flavour, order, None)?)))
}
