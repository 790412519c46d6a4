use super::context::check_stream;
use crate::handle::{self, Kind};
use crate::pointers::{Range, disjoint, slice, slice_mut};
use crate::status::{Failure, lgreco_status};
use core::ffi::c_void;

/// Bytes that a call is to decode.
pub(super) struct Encoded {
    /// The argument, for messages.
    pub(super) what: &'static str,
    pub(super) bytes: *const u8,
    pub(super) length: usize,
}

impl Encoded {
    /// Runs a call on `handle` that decodes the bytes into the caller's `values`.
    ///
    /// # Safety
    /// README.md, handles and pointers.
    pub(super) unsafe fn decode<K: Kind>(
        self,
        handle: *mut K,
        values: *mut f32,
        values_len: usize,
        stream: *mut c_void,
        call: impl FnOnce(&mut K::State, &[u8], &mut [f32]) -> Result<(), Failure>,
    ) -> lgreco_status {
        let Encoded { what, bytes, length } = self;
        // SAFETY: passed on.
        unsafe {
            handle::call(handle, |state| {
                check_stream(stream)?;
                disjoint(Range::of(values, values_len, "values"), &[Range::of(bytes, length, what)])?;
                call(state, slice(bytes, length, what)?, slice_mut(values, values_len, "values")?)
            })
        }
    }
}
