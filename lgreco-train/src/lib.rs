//! lgreco in a training loop: what workers remember between steps, the mean of their compressed gradients, and the
//! controller that decides how hard each layer is compressed.
//!
//! A trainer makes a [`Controller`](controller::Controller) per worker and calls it once per step; [`controller`] begins
//! with an example. [`feedback`] and [`exchange`] are its parts, for trainers that decide themselves. What is compressed
//! how, and how that is chosen, is [`lgreco`]'s, whose modules stand here under the same names.
//!
//! Training is a crate of its own, so that the core stays what the paper is about and what works without an allocator:
//! compressors, rows and files know nothing of it. GPU crates need it for residuals and for buckets of layers that
//! are exchanged, so their feature `train` brings it, and the command does without.
//!
//! # Features
//! The crate is `no_std` and needs an allocator.
//! * `std` (default): run-time choice of vector instructions. Implies `threads`.
//! * `threads`: `exchange::threads`, a group of workers in one process.
//! * `json`: `controller::metrics_line`, and the module `file` of the core.
//! * `gemm`, `rayon`: those of the core; with `rayon` layers of a bucket are compressed and decoded side by side. They
//!   imply `std`.
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(any(test, feature = "threads"))]
extern crate std;

pub mod controller;
mod error;
pub mod exchange;
pub mod feedback;
pub mod gradient;
pub mod outer;
mod state;

pub use error::{Error, OptionValue};
#[cfg(feature = "json")]
pub use lgreco::file;
pub use lgreco::{Error as CoreError, Word, backend, compress, plan, rng, search, simd, table};

use lgreco::{checksum, num};
