//! The kernels on the processor, and their shipped code.

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
mod enqueued;
mod exchange;
mod exchange_damage;
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
use crate::simt::{self, Flavour, Simt, unavailable};

/// What rows agree within.
const ROWS: f64 = 1e-4;

/// Whether the environment asks for all cases, not only for those that represent the others.
fn is_full() -> bool {
    std::env::var_os("LGRECO_FULL").is_some()
}

/// The backend with kernels that run on the processor.
fn backend(flavour: Flavour, order: i32) -> Option<CudaBackend> {
    Some(CudaBackend::on(Box::new(Simt::new(flavour, order, None)?)))
}
