//! The C API of lgreco. Its manual are the headers in `include`; what holds for all of it stands in `README.md`. This page is
//! for those who work on it. Declarations and their comments in `include/*.h` come from here, their order and the text
//! between them from `headers/*.h.in`. The C++ headers are written by hand.
//!
//! | module | holds |
//! |---|---|
//! | `api` | the exported functions and the structs they take, one file per C noun |
//! | `cuda` | what `api` asks of a CUDA device on device pointers; without the feature `cuda` every call is refused |
//! | `device` | where a context works: the CPU, or a GPU shared by what was made with it |
//! | `handle` | opaque handles: tag, lock, panics that become a status |
//! | `options` | options by name: a table for each call that takes them |
//! | `pointers` | the caller's pointers as references, after all checks that are possible |
//! | `structs` | the caller's structs, which carry their size |
//! | `message` | the text that each thread keeps of its last failed call |
//! | `status`, `failure` | codes, and the text of failures |
//! | `sequences` | random sequences of calls (feature `testing`), for unit tests and the fuzz target `c_api` |
//! | `sequences/structs` | structs of any size and content, for the fuzz target `c_structs` |
//!
//! Tables and plans cross into C as views: structs of pointers, filled by the caller or by the library. A caller's own table
//! needs no handle, and one call reads a whole table or plan.
//!
//! A message belongs to the thread of the call that failed, in a fixed buffer, so that a failed call allocates no text and needs
//! no handle. A handle locks itself for the length of a call, so that a second thread, or a callback into the same handle, gets
//! a status instead of two mutable references to one state. Tables, plans and contexts never change, and need no lock.
//!
//! A bucket is closed, not destroyed. It holds what its controller remembers of its layers, so the one call that frees it gives
//! that back. It knows its controller by an `Arc`, which tells another controller's bucket, one from before a saved state was
//! loaded, and one whose controller is gone, without a pointer between the two handles. Between calls it keeps the gradients'
//! pointers, never references: the caller's memory is borrowed for the length of a call alone.
//!
//! A library without CUDA exports the calls on device memory all the same, so there is one header and one list of symbols. As it
//! cannot make a handle for them, these calls find that what they are given is none, and refuse it first of all.
//!
//! `unsafe` blocks stand in `handle`, `pointers`, `structs`, `api` and `cuda` alone, and in `sequences`, which calls `api` for
//! tests. What the exported functions demand of their callers is what `README.md` promises C callers: pointers are null
//! or valid for what the header says, handles null or live.
#![allow(non_camel_case_types, reason = "the names of C types")]
#![allow(rustdoc::broken_intra_doc_links, reason = "documentation is the header's, where brackets index arrays")]
#![allow(clippy::missing_safety_doc, reason = "one contract holds for every function: README.md")]
#[cfg(panic = "abort")]
compile_error!("the C API turns panics into LGRECO_PANIC and must be built to unwind");

mod api;
mod cuda;
mod device;
mod failure;
mod handle;
mod message;
mod options;
mod pointers;
#[cfg(any(test, feature = "testing"))]
pub mod sequences;
mod status;
mod structs;

pub use api::*;
pub use message::lgreco_message;
#[doc(hidden)]
pub use options::documented;
pub use status::*;
