//! Error tables of compression options, and planners that choose one option per layer. The compressors are in other
//! crates.
//!
//! A [`table`] lists the options of each layer of a model. Each option has a size in bits and an error. A [`plan`]
//! chooses one option per layer. Planners minimise the size within an error budget, or the error within a size limit.
//! The caller measures the options; the crate `lgreco` measures the compressors of `lgreco-compress`.
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
//! The crate also holds types that all lgreco crates share: [`gradient`]s as borrowed slices, random [streams](rng) and
//! [`Error`].
//!
//! # Units
//! * `size`: bits that one worker puts on the wire for one layer, header included; `u64`.
//! * `error`: the squared L2 norm of `gradient − decode(encode(gradient))`, converted to the chosen metric; `f64`.
//! * workspaces: counted in 8-byte words. All calls take a workspace as `&mut [u64]`, and use parts of it as f32, f64
//!   or u32. The old content of a workspace never changes a result; tests fill workspaces with arbitrary bits.
//!
//! # Features
//! The crate is `no_std`. Without features the crate needs no allocator: every planner works on the caller's buffers.
//! * `std`: chooses vector instructions at run time. Without this feature, loops use the instructions of the
//!   compilation target. Results have the same bits with and without `std`.
//! * `avx512`: also compiles loops for AVX-512. Compilation takes a third longer. Implies `std`.
//! * `alloc`: plans that own their choices, and a planner that allocates its workspace.
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
