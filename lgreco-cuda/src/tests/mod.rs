//! The kernels on the processor, and through NVRTC.

mod beyond;
#[cfg(feature = "train")]
mod bucket;
mod compiler;
mod conformance;
mod contexts;
mod cublas;
mod driver;
mod enqueued;
mod exchange;
mod exchange_damage;
mod exchange_faults;
mod exchange_host;
mod exchange_shards;
mod exchange_sums;
mod exchange_topk;
mod faults;
mod feedback;
mod fences;
mod few_bits;
mod hostile;
mod large;
mod launches;
mod memory;
mod nvrtc;
mod orders;
mod orthonormal;
mod powersgd;
mod qsgd;
mod replays;
mod reserve;
mod sample;
mod sources;
#[cfg(feature = "train")]
mod space;
mod streams;
mod topk;

use crate::CudaBackend;
use crate::kernels::Module;
use crate::simt::{self, Flavour, Simt, unavailable};
use lgreco_core::testing::every_third;
use std::hash::{DefaultHasher, Hash, Hasher};

/// What rows agree within.
const ROWS: f64 = 1e-4;

/// A third of the faults that a test plants, for each is compiled: others when any kernel changes, and all of them with
/// `LGRECO_FAULTS=all`.
fn planted<T>(faults: impl IntoIterator<Item = T>) -> Vec<T> {
    if std::env::var("LGRECO_FAULTS").is_ok_and(|which| which == "all") {
        return faults.into_iter().collect();
    }
    let mut hasher = DefaultHasher::new();
    Module::ALL.iter().for_each(|module| module.source().hash(&mut hasher));
    every_third(faults, hasher.finish())
}

/// The backend with kernels that run on the processor.
fn backend(flavour: Flavour, order: i32) -> Option<CudaBackend> {
    Some(CudaBackend::on(Box::new(Simt::new(flavour, order, None)?)))
}
