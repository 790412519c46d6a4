//! Calls on buckets of controllers with a single rank. With one rank, a requested collective needs no work.

use super::train::{collective_of_one, planned};
use super::{Bytes, DIMS, List, State, gradient, pick, setting};
use crate::*;
use core::ffi::c_void;
use core::fmt::Display;
use core::ptr::{null, null_mut};

/// Makes a controller, or returns NULL if the random setting is not valid.
fn controller(bytes: &mut Bytes) -> *mut lgreco_controller {
    let (collective, fixed) = (collective_of_one(), setting(bytes));
    let layer = lgreco_layer { name: c"fc1".as_ptr(), dims: DIMS.as_ptr(), dims_len: 2, ..Default::default() };
    let (lead, route) = (bytes.below(2), pick(bytes, &["all_gather", "scatter_reduce"]));
    let non_finite = pick(bytes, &["error", "skip", "pass_through"]);
    let pairs: [(&str, &dyn Display); 4] =
        [("start_iter", &2), ("lead", &lead), ("non_finite", &non_finite), ("route", &route)];
    let options = List::new(bytes, &pairs);
    let mut controller = null_mut();
    // SAFETY: every pointer is NULL, or points to a value that outlives the call.
    unsafe {
        lgreco_controller_create(null(), &collective, &layer, 1, &fixed, options.pointer(), &mut controller);
    }
    controller
}

/// Makes the calls of several steps, mostly in a valid order. Returns LGRECO_OK if gradients became means.
pub(super) fn call(bytes: &mut Bytes, state: &mut State, which: usize) -> lgreco_status {
    if state.controllers[which].is_null() {
        state.controllers[which] = controller(bytes);
    }
    let (mut at, mut last, mut exchanged) = (7, LGRECO_OK, false);
    for _ in 0..4 + bytes.below(24) {
        at = if bytes.below(8) == 7 { bytes.below(14) } else { (at + 1) % 8 };
        let controller = bytes.maybe_mut(state.controllers[which]);
        let bucket = bytes.maybe_mut(state.buckets[which]);
        let mut request = lgreco_request::default();
        // SAFETY: every pointer is NULL, or points to a value that outlives the call and has the stated length.
        // Gradients stay in place until the state is dropped. Handles are live or NULL.
        last = unsafe {
            match at {
                0 => lgreco_controller_begin_step(controller, f64::from(bytes.value()).abs()),
                1 => lgreco_controller_control(controller, bytes.maybe_mut(&raw mut request)),
                2 => open(bytes, state, which, controller),
                3 => {
                    let own = &mut state.gradients[which];
                    own.copy_from_slice(&gradient(bytes));
                    let pointers = [bytes.maybe_mut(own.as_mut_ptr().cast::<c_void>())];
                    lgreco_bucket_submit(bucket, pointers.as_ptr(), 1 - usize::from(bytes.below(16) / 15))
                }
                4 | 5 => {
                    let to = bytes.maybe_mut(&raw mut request);
                    let mut status = lgreco_bucket_next(bucket, to);
                    while status == LGRECO_OK && request.kind != LGRECO_REQUEST_NONE && bytes.below(16) > 0 {
                        status = lgreco_bucket_next(bucket, to);
                    }
                    let ended = status == LGRECO_OK && request.kind == LGRECO_REQUEST_NONE;
                    exchanged |= ended && state.gradients[which].iter().all(|x| x.is_finite());
                    status
                }
                6 => {
                    let other = usize::from(bytes.below(8) / 7);
                    let of = bytes.maybe_mut(state.controllers[which ^ other]);
                    lgreco_bucket_close(of, &raw mut state.buckets[which])
                }
                7 => lgreco_controller_finish_step(controller, null_mut()),
                8 => lgreco_controller_roll_back(controller),
                9 => lgreco_controller_rescale_residuals(controller, bytes.value()),
                10 => lgreco_controller_abandon_step(controller),
                13 => lgreco_bucket_submit_failure(bucket),
                11 => planned(bytes, &mut state.tasks[which], controller),
                _ => lgreco_bucket_withhold(bucket, usize::from(bytes.below(8) / 7)),
            }
        };
        assert_ne!(last, LGRECO_PANIC);
    }
    match last {
        _ if exchanged => LGRECO_OK,
        LGRECO_OK => LGRECO_STEP_ORDER,
        failed => failed,
    }
}

/// Closes the current bucket with one of the controllers, or with NULL if the bucket's controller is destroyed. Then
/// opens a new bucket.
fn open(bytes: &mut Bytes, state: &mut State, which: usize, controller: *mut lgreco_controller) -> lgreco_status {
    let place = &raw mut state.buckets[which];
    // SAFETY: handles are live or NULL.
    unsafe {
        for of in [state.controllers[0], state.controllers[1], null_mut()] {
            lgreco_bucket_close(of, place);
        }
        assert!(state.buckets[which].is_null(), "a bucket that nobody takes back");
        let layers = [usize::from(bytes.below(16) / 15), 0];
        let count = [1, 1, 1, 1, 1, 1, 0, 2][usize::from(bytes.below(8))];
        state.buckets[which] = core::ptr::dangling_mut();
        let place = &raw mut state.buckets[which];
        let status = lgreco_bucket_open(controller, bytes.maybe(layers.as_ptr()), count, place);
        assert_eq!(status == LGRECO_OK, !state.buckets[which].is_null(), "a failed call leaves NULL");
        status
    }
}
