//! lgreco in a training loop: error feedback, the exchange of compressed gradients, and the controller that decides how strongly
//! each layer is compressed.
//!
//! A trainer creates a [`Controller`](controller::Controller) per worker and calls it once per step. [`controller`] begins with an
//! example. Trainers that choose settings themselves can use the controller's parts, [`feedback`] and [`exchange`]. Compressors,
//! searches and plans are in [`lgreco`]. This crate re-exports the modules of [`lgreco`] under the same names.
//!
//! Training is a separate crate, so that the core has only the paper's subject and works without an allocator. GPU crates need
//! this crate for residuals and for the exchange of buckets. The feature `train` of the GPU crates adds this dependency. The
//! `lgreco` command does not need this crate.
//!
//! # Features
//! The crate is `no_std` and needs an allocator.
//! * `std` (default): run-time choice of vector instructions, AVX-512 among them. Implies `threads`.
//! * `threads`: `exchange::threads`, a group of workers in one process.
//! * `json`: `controller::metrics_line`, and the module `file` of the core.
//! * `gemm`, `rayon`: the features of the core. With `rayon`, layers of a bucket are compressed and decoded at the same time. Both
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
