//! The exported functions, one file per kind of object.
//!
//! The body of each function is one macro call. `call!` may change a handle, and `plain!` changes no handle. `create!`
//! makes a handle, and `create_on!` makes a handle with the help of another handle. These macros contain the `unsafe`
//! block and its SAFETY comment.

/// Runs a closure on the state of the function's handle.
macro_rules! call {
    ($handle:expr, $body:expr) => {
        // SAFETY: the caller of an exported function meets the requirements of lgreco-ffi/README.md on handles,
        // pointers and device memory.
        unsafe { $crate::handle::call($handle, $body) }
    };
}

/// Runs a closure that changes no handle.
macro_rules! plain {
    ($body:expr) => {
        // SAFETY: as in `call!`.
        unsafe { $crate::handle::call_without_handle($body) }
    };
}

/// Makes a handle from the state that the closure returns, and writes the handle's address to `$place`.
macro_rules! create {
    ($place:expr, $body:expr) => {
        // SAFETY: as in `call!`.
        unsafe { $crate::handle::create($place, $body) }
    };
}

/// Like `create!`, with the state of another handle as the closure's argument.
macro_rules! create_on {
    ($handle:expr, $place:expr, $body:expr) => {
        // SAFETY: as in `call!`.
        unsafe { $crate::handle::create_on($handle, $place, $body) }
    };
}

mod bucket;
mod collective;
mod compressor;
mod context;
mod controller;
mod create;
mod cuda;
mod cuda_bucket;
mod cuda_measure;
mod cuda_payload;
mod cut;
mod cut_messages;
mod cut_setting;
mod gradient;
mod inspect;
mod measure;
mod memory;
mod plan;
mod plan_task;
mod request;
mod saved;
mod sealed;
mod setting;
mod table;
mod table_view;
mod version;

#[cfg(feature = "testing")]
mod testing;

#[cfg(feature = "testing")]
pub use testing::*;
pub use {
    bucket::*, collective::*, compressor::*, context::*, controller::*, create::*, cuda::*, cuda_bucket::*,
    cuda_measure::*, cuda_payload::*, cut::*, cut_messages::*, cut_setting::*, gradient::*, inspect::*, measure::*,
    memory::*, plan::*, plan_task::*, request::*, saved::*, sealed::*, setting::*, table::*, table_view::*, version::*,
};
