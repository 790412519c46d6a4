//! The exported functions, one file per noun.
//!
//! Each of them is one call: `call!` on a handle that it may change, `plain!` on what it only reads, `create!` of a handle, or
//! `create_on!` of a handle by another one. These macros hold the function's `unsafe` block and its reason.

/// Runs a closure on the state of the handle that an exported function is given.
macro_rules! call {
    ($handle:expr, $body:expr) => {
        // SAFETY: whoever calls an exported function promises what README.md says of handles, pointers and device memory.
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

/// The closure returns the state of a new handle, whose address is written to `$place`.
macro_rules! create {
    ($place:expr, $body:expr) => {
        // SAFETY: as in `call!`.
        unsafe { $crate::handle::create($place, $body) }
    };
}

/// As `create!`, on the state of another handle.
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
    bucket::*, collective::*, compressor::*, context::*, controller::*, cuda::*, cuda_bucket::*, cuda_measure::*,
    cuda_payload::*, cut::*, cut_messages::*, cut_setting::*, gradient::*, inspect::*, measure::*, memory::*, plan::*,
    plan_task::*, request::*, saved::*, sealed::*, setting::*, table::*, table_view::*, version::*,
};
