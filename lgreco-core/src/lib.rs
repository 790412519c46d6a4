//! Error tables and the planners that choose from them: the algorithm of lgreco, without its compressors.
//!
//! A [`table`] holds, for each layer of a model, what it may be sent as: options with a size in bits and an error. A [`plan`]
//! chooses one option per layer, such that the model is as small as it can be within an error, or as exact as it can be
//! within a size. Whoever has measured options brings them: `lgreco-compress` has compressors, `lgreco` measures them.
//!
//! ```
//! use lgreco_core::plan::{Limit, check, dp};
//! use lgreco_core::table::{Choice, Table};
//! # let _ = (check::verify, dp::LEVELS);
//! # #[cfg(feature = "alloc")] {
//! use lgreco_core::plan::{self, Solver, budget::Budget};
//! // Two layers: 4 or 2 bits per element each. The second one's gradients are smaller.
//! let choices = [(400, 1.0), (200, 9.0), (400, 0.1), (200, 0.9)].map(|(size, error)| Choice { size, error });
//! let table = Table::new(&choices, &[2, 4])?;
//! // Twice the error of 4 bits everywhere.
//! let plan = plan::solve(&table, Budget::Defaults { alpha: 2.0, options: &[0, 0] }, Solver::default())?;
//! assert_eq!((plan.options(), plan.summary().size), (&[0, 1][..], 600));
//! assert!(plan.summary().proven());
//! # }
//! # Ok::<(), lgreco_core::Error>(())
//! ```
//!
//! What all crates share is here too: [`gradient`]s as borrowed slices, the random [streams](rng), [`Error`].
//!
//! # Units
//! * `size`: bits that one worker puts on the wire for one layer, header included; `u64`.
//! * `error`: what the chosen metric makes of the squared L2 norm of `gradient − decode(encode(gradient))`; `f64`.
//! * workspaces: counted in 8-byte words (`&mut [u64]`), one type for every call, of which parts are carved out as f32, f64 or
//!   u32; stale content never changes a result (tests fill them with garbage).
//!
//! # Features
//! The crate is `no_std`. With no feature it needs no allocator: every planner works on the caller's buffers.
//! * `std`: run-time choice of vector instructions; without it, loops use those the target is compiled for. Results are the same
//!   bits.
//! * `alloc`: owned plans, and the planner that allocates its workspace.
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

#[cfg(any(test, feature = "alloc"))]
extern crate alloc;
#[cfg(any(test, feature = "std"))]
extern crate std;

pub mod checksum;
pub mod error;
pub mod gradient;
pub mod method;
pub mod num;
pub mod plan;
pub mod rng;
pub mod simd;
pub mod table;

pub use error::{Error, Result, Word};
