//! The algorithm core of lgreco: decides, layer by layer, how hard to compress each gradient, and compresses it.
//!
//! Data takes one road: gradients → measured rows → [`table`] → [`plan`] → [`compress`] → payloads.
//!
//! # Units
//! * `size`: bits that one worker puts on the wire for one layer, header included; `u64`.
//! * `squared error`: squared L2 norm of `gradient − decode(encode(gradient))`, in `f64`; `error` is what the chosen
//!   metric makes of it.
//! * workspaces: counted in 8-byte words (`&mut [u64]`); stale content never changes a result.
//!
//! # Features
//! With none the crate is `no_std` without an allocator: every planner, compressor and measurement works on caller
//! buffers. `alloc` adds owned tables and plans; `std` (default) adds run-time choice of vector instructions; `rayon`
//! measures layers in parallel; `json` reads and writes table and plan files; `testing` exports generators, oracles
//! and property checks.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(any(test, feature = "alloc"))]
extern crate alloc;
#[cfg(any(test, feature = "std"))]
extern crate std;

pub mod backend;
pub mod compress;
mod error;
pub mod feedback;
#[cfg(feature = "json")]
pub mod file;
pub mod gradient;
mod linalg;
mod num;
pub mod plan;
pub mod rng;
#[cfg(feature = "alloc")]
pub mod search;
mod select;
mod simd;
pub mod table;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use error::Error;
