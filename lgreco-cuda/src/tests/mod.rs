//! Tests of the kernels on the CPU, and of the shipped code.

mod beyond;
mod beyond_exchange;
#[cfg(feature = "train")]
mod beyond_shards;
mod beyond_window;
#[cfg(feature = "train")]
mod bucket;
mod conformance;
mod contexts;
mod driver;
mod eden;
mod enqueued;
mod exchange;
mod exchange_damage;
mod exchange_eden;
mod exchange_faults;
mod exchange_host;
mod exchange_shards;
mod exchange_sums;
mod exchange_topk;
mod faults;
mod fences;
mod few_bits;
mod hostile;
mod large;
mod later;
mod launches;
mod memory;
mod orders;
mod orthonormal;
mod powersgd;
mod ptx;
mod qsgd;
mod reads;
mod replays;
mod reserve;
mod resources;
mod sample;
mod sources;
#[cfg(feature = "train")]
mod space;
mod streams;
mod topk;
mod wide;
mod window;

use crate::CudaBackend;
use crate::kernels::Module;
use crate::simt::{self, Flavour, Simt, unavailable};
use std::sync::OnceLock;

/// Relative tolerance of rows.
const ROWS: f64 = 1e-4;

/// Whether the environment variable `LGRECO_FULL` requests all cases instead of a selection.
fn is_full() -> bool {
    std::env::var_os("LGRECO_FULL").is_some()
}

/// Returns all cases if `LGRECO_FULL` requests all cases, and otherwise every sixth case. A hash of the kernels'
/// sources selects the first case.
fn some<T>(cases: impl IntoIterator<Item = T>) -> Vec<T> {
    const ONE_IN: usize = 6;
    static HASH: OnceLock<u64> = OnceLock::new();
    let cases: Vec<T> = cases.into_iter().collect();
    if is_full() {
        return cases;
    }
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let of_all = || Module::ALL.into_iter().fold(0, |hash, module| module.source().bytes().fold(hash, step));
    let first = (*HASH.get_or_init(of_all) % cases.len().clamp(1, ONE_IN) as u64) as usize;
    cases.into_iter().skip(first).step_by(ONE_IN).collect()
}

/// Returns the faults that a test plants after its checks: all of them if `LGRECO_FULL` requests all cases, and
/// otherwise none.
fn planted<T>(faults: impl IntoIterator<Item = T>) -> Vec<T> {
    faults.into_iter().filter(|_| is_full()).collect()
}

/// Returns a backend whose kernels run on the CPU, or `None` if there is no g++.
fn backend(flavour: Flavour, order: i32) -> Option<CudaBackend> {
    Some(CudaBackend::on(Box::new(Simt::new(flavour, order, None)?)))
}
