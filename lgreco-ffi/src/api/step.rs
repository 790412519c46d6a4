use super::context::check_stream;
use super::controller::{lgreco_controller, lgreco_report};
use super::request::lgreco_request;
use crate::handle;
use crate::pointers::filled;
use crate::status::lgreco_status;
use core::ffi::c_void;

/// Begins a step of which the caller performs the collectives: then come the requests of lgreco_controller_control, the
/// buckets (lgreco_bucket_open), as many as the caller likes at the same time, and lgreco_controller_finish_step. All
/// workers do, with the same `learning_rate`, which matters to Accordion alone. lgreco_controller_step does all of this
/// in one call, and finds out before anything is exchanged whether all gradients can be.
///
/// LGRECO_STEP_ORDER when a step is under way; LGRECO_PARAMETER.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_begin_step(
    controller: *mut lgreco_controller,
    learning_rate: f64,
    stream: *mut c_void,
) -> lgreco_status {
    // SAFETY: README.md, handles.
    unsafe {
        handle::call(controller, |state| {
            check_stream(stream)?;
            state.controller.begin_step(learning_rate).map_err(|error| state.named(error))
        })
    }
}

/// Tells the next collective to perform before buckets may be opened; to be called again once it is done, until the
/// kind is LGRECO_REQUEST_NONE: at once at most steps. Where a decision is due, the measuring rank measures and plans
/// during a call. Allocates at decisions only.
///
/// What fails on one rank fails on all, and the step may be begun again: LGRECO_PEER, LGRECO_PEER_PLAN,
/// LGRECO_PEER_MESSAGE, codes of measuring and planning. LGRECO_STEP_ORDER when no step is under way. Where a
/// collective cannot be performed, ranks may differ: lgreco_controller_load ends the step.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_control(
    controller: *mut lgreco_controller,
    request: *mut lgreco_request,
) -> lgreco_status {
    // SAFETY: README.md, handles and pointers.
    unsafe {
        handle::call(controller, |state| {
            let request = filled(request)?;
            let world_size = state.world_size;
            let next = state.controller.control().map(|next| lgreco_request::of(next, world_size));
            request.fill(next.map_err(|error| state.named(error))?);
            Ok(())
        })
    }
}

/// Ends the step, of which all buckets have been closed. Layers that were in none keep what is remembered of them.
/// `report` may be NULL; its outcome is LGRECO_OUTCOME_FAILED when the exchange of some bucket has failed,
/// LGRECO_OUTCOME_PASSED_THROUGH when the gradients of some were not finite.
///
/// LGRECO_IN_FLIGHT when a bucket has not been closed; LGRECO_STEP_ORDER when no step is under way, or its control
/// requests are not done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_finish_step(
    controller: *mut lgreco_controller,
    report: *mut lgreco_report,
) -> lgreco_status {
    // SAFETY: README.md, handles and pointers.
    unsafe {
        handle::call(controller, |state| {
            let report = if report.is_null() { None } else { Some(filled(report)?) };
            let done = state.controller.finish_step().map_err(|error| state.named(error))?;
            state.report = Some(done);
            if let Some(report) = report {
                report.fill(done.into());
            }
            Ok(())
        })
    }
}

/// Takes back what the last step has done to residuals, because its means have not been applied: a loss scaler has
/// skipped the update, say. The step still counts. Every rank does it or none; once only.
///
/// LGRECO_STEP_ORDER while a step is under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_roll_back(controller: *mut lgreco_controller) -> lgreco_status {
    // SAFETY: README.md, handles.
    unsafe { handle::call(controller, |state| state.controller.roll_back().map_err(|error| state.named(error))) }
}

/// Gives up the step under way, because a collective has failed: residuals are what they were before it, and it may be begun
/// again. All buckets are closed first, once the engine no longer touches their memory. Ranks may have got differently far:
/// whatever they go on with, all load the plan of one of them, each with its own residuals. lgreco_controller_step does it
/// by itself when a callback fails.
///
/// LGRECO_IN_FLIGHT when a bucket is not closed, LGRECO_STEP_ORDER when no step is under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_abandon_step(controller: *mut lgreco_controller) -> lgreco_status {
    // SAFETY: README.md, handles.
    unsafe { handle::call(controller, |state| state.controller.abandon_step().map_err(|error| state.named(error))) }
}

/// Multiplies all residuals by `factor`, because gradients are from now on so many times what they were: the scale of
/// the loss has changed. Every rank does it with the same factor, or none. The last step can then no longer be rolled
/// back.
///
/// LGRECO_PARAMETER unless `factor` is positive and finite, LGRECO_OVERFLOW when a residual no longer fits its format,
/// LGRECO_STEP_ORDER while a step is under way: no residual has changed then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_rescale_residuals(
    controller: *mut lgreco_controller,
    factor: f32,
) -> lgreco_status {
    // SAFETY: README.md, handles.
    unsafe {
        handle::call(controller, |state| state.controller.rescale_residuals(factor).map_err(|error| state.named(error)))
    }
}
