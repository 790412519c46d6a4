//! The C API of lgreco. The headers in `include` are the manual. `docs/src/reference/c-contract.md` states the rules
//! for every call, and `lgreco-ffi/README.md` summarises the rules. This page is for readers who change the code. The
//! declarations and comments of `include/*.h` come from this source. The order of the declarations, and the text
//! between them, come from `headers/*.h.in`. The C++ headers are written by hand.
//!
//! | module | holds |
//! |---|---|
//! | `api` | the exported functions and the structs they take, one file per kind of object |
//! | `cuda` | the calls on memory of a CUDA device; without the feature `cuda` each of them fails |
//! | `device` | the device of a context: the CPU, or a GPU that the context's handles share |
//! | `handle` | opaque handles: their tag, their lock, and the status that a panic becomes |
//! | `options` | options by name: a table for each call that takes them |
//! | `pointers` | checks the caller's pointers and turns them into references |
//! | `structs` | reads the caller's structs, which state their size |
//! | `message` | each thread's text about its last failed call |
//! | `status`, `failure` | status codes; failures with their texts |
//! | `sequences` | random sequences of calls (feature `testing`), for unit tests and the fuzz target `c_api` |
//! | `sequences/structs` | structs of any size and content, for the fuzz target `c_structs` |
//!
//! Tables and plans cross into C as views: structs of pointers that the caller or the library fills. Because of views,
//! the caller's own table needs no handle, and one call reads a whole table or plan.
//!
//! A message belongs to the thread of the failed call and lies in a fixed buffer, so messages need neither an
//! allocation nor a handle. A handle is locked during a call. A second thread, or a callback that uses the same handle,
//! gets a status instead of a second mutable reference. Tables, plans and contexts never change and need no lock.
//!
//! A bucket is closed, not destroyed. A bucket holds its layers' residuals and factors, and the call that frees the
//! bucket returns them to the controller. An `Arc` identifies the controller, so no pointer links bucket and
//! controller. The call recognises three special cases: another controller's bucket, a bucket from before a saved state
//! was loaded, and a bucket of a destroyed controller. Between calls a bucket keeps only pointers to the gradients. A
//! bucket borrows the caller's memory only during a call.
//!
//! A library without CUDA exports the same calls on device memory, so that there is one header and one list of symbols.
//! A library without CUDA never creates a CUDA handle, so each of these calls refuses its handle argument.
//!
//! `unsafe` blocks appear only in `handle`, `pointers`, `structs`, `api` and `cuda`, and in `sequences`, which calls
//! `api` for tests. Callers of the exported functions must meet the requirements of `lgreco-ffi/README.md`: pointers
//! are null or valid as the header says, and handles are null or live.
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
