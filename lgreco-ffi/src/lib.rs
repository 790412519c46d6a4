//! The C API of lgreco. Its manual is `include/lgreco.h`, what holds for all of it stands in `README.md`; this page is
//! for those who work on it.
//!
//! | module | holds |
//! |---|---|
//! | `api` | the exported functions and the structs they take, one file per C noun |
//! | `cuda` | what `api` asks of a CUDA device on device pointers; without the feature `cuda` nobody answers |
//! | `device` | where a context works: the CPU, or a GPU shared by what was made with it |
//! | `handle` | opaque handles: tag, lock, message, panics that become a status |
//! | `pointers` | the caller's pointers as references, after the checks that can be made |
//! | `status` | codes and the text of failures |
//!
//! `unsafe` blocks stand in `handle`, `pointers`, `api` and `cuda` alone, and in `sequences`, which calls `api` for
//! tests. What the exported functions demand of their callers is what `README.md` promises C callers: pointers are null
//! or valid for what the header says, handles null or live.
#![allow(non_camel_case_types, reason = "the names of C types")]
#![allow(rustdoc::broken_intra_doc_links, reason = "documentation is the header's, where brackets index arrays")]
#![allow(clippy::missing_safety_doc, reason = "one contract holds for every function: README.md")]
#[cfg(panic = "abort")]
compile_error!("the C API turns panics into LGRECO_PANIC and must be built to unwind");

// Before the others, as in the header.
mod status;

mod api;
mod cuda;
mod device;
mod handle;
mod message;
mod pointers;
#[cfg(any(test, feature = "testing"))]
pub mod sequences;

pub use api::*;
pub use status::*;
