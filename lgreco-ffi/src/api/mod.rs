//! The exported functions, one file per noun.
//!
//! Each of them is one call on a handle: `call!`, or `create!` if it makes another handle. These macros hold the function's
//! `unsafe` block and its reason.

/// Runs a closure on the state of the handle that an exported function is given.
macro_rules! call {
    ($handle:expr, $body:expr) => {
        // SAFETY: whoever calls an exported function promises what README.md says of handles, pointers and device memory.
        unsafe { $crate::handle::call($handle, $body) }
    };
}

/// As `call!`. The closure returns the state of a new handle, whose address is written to `$place`.
macro_rules! create {
    ($handle:expr, $place:expr, $body:expr) => {
        // SAFETY: as in `call!`.
        unsafe { $crate::handle::create($handle, $place, $body) }
    };
}

// The order of the header, kept by the empty lines.
mod version;

mod context;

mod gradient;

mod setting;

mod measure;

mod table;

mod plan;

mod compressor;

mod sealed;

mod request;

mod collective;

mod controller_options;

mod controller;

mod bucket;

mod plan_task;

mod inspect;

mod saved;

mod cut_setting;

mod cut;

mod cuda;

mod cuda_measure;

mod cuda_payload;

mod cuda_bucket;

#[cfg(feature = "testing")]
mod testing;

#[cfg(feature = "testing")]
pub use testing::*;
pub use {
    bucket::*, collective::*, compressor::*, context::*, controller::*, controller_options::*, cuda::*, cuda_bucket::*,
    cuda_measure::*, cuda_payload::*, cut::*, cut_setting::*, gradient::*, inspect::*, measure::*, plan::*,
    plan_task::*, request::*, saved::*, sealed::*, setting::*, table::*, version::*,
};
