//! Messages of a cut: activations, gradients, repeated messages, and messages for evaluation.

use super::cut::{CutState, End, either, lgreco_cut};
use super::gradient::{dtype, lgreco_dtype, values};
use crate::failure::{Failure, Result};
use crate::pointers::{Range, disjoint, encoded, place, slice, slice_mut, write};
use crate::status::lgreco_status;
use core::ffi::c_void;
use core::ptr::null;
use lgreco_pipeline::{CoreError, CutSetting, Downstream, Evaluation, Upstream};
use lgreco_train::gradient::Values;

/// Replaces the id of a sample that AQ-SGD must not remember.
pub const LGRECO_UNREMEMBERED: u64 = u64::MAX;

/// The upstream end, its workspace, and the ids of the batch.
type UpstreamParts<'a> = (&'a mut Upstream, &'a mut [u64], &'a [Option<u64>]);

impl CutState {
    fn upstream(&mut self) -> Result<UpstreamParts<'_>> {
        match &mut self.end {
            End::Upstream(end) => Ok((end, &mut self.workspace, &self.ids)),
            End::Downstream(_) => Err(Failure::OtherEnd),
        }
    }

    /// Returns the downstream end and its workspace.
    fn downstream(&mut self) -> Result<(&mut Downstream, &mut [u64])> {
        match &mut self.end {
            End::Downstream(end) => Ok((end, &mut self.workspace)),
            End::Upstream(_) => Err(Failure::OtherEnd),
        }
    }

    /// Returns the values and the message buffer of a sending call. Checks that the two do not overlap, and stores the
    /// ids.
    ///
    /// # Safety
    /// Pointers meet the requirements of lgreco-ffi/README.md; `'a` ends within the call.
    unsafe fn batch<'a>(
        &mut self,
        (values, code, samples): (*const c_void, lgreco_dtype, usize),
        ids: *const u64,
        (message, capacity): (*mut u8, usize),
    ) -> Result<(Values<'a>, &'a mut [u8])> {
        let (dtype, CutSetting { batch, features, .. }) = (dtype(code)?, self.setting());
        if samples > batch as usize {
            return Err(CoreError::Length { what: "samples", expected: batch as usize, found: samples }.into());
        }
        let elements = samples * features as usize;
        let read = [Range::of(values.cast::<u8>(), elements * dtype.bytes(), "values"), Range::of(ids, samples, "ids")];
        disjoint(Range::of(message, capacity, "message"), &read)?;
        self.ids.clear();
        // SAFETY: the caller meets the safety requirements of this function.
        unsafe {
            if !ids.is_null() {
                let known = |&id: &u64| (id != LGRECO_UNREMEMBERED).then_some(id);
                self.ids.extend(slice(ids, samples, "ids")?.iter().map(known));
            }
            Ok((self::values(values, dtype, elements)?, slice_mut(message, capacity, "message")?))
        }
    }
}

/// Upstream: compresses the activations of a micro-batch into `message`. `values` has `samples` rows with one value per
/// feature. `length` receives the number of bytes. `ticket` receives the micro-batch's number. Later,
/// lgreco_cut_receive returns the same number with the micro-batch's gradients. With the forward memory samples
/// (AQ-SGD), `ids` has one id per sample, or LGRECO_UNREMEMBERED for a sample that must not be remembered. With other
/// memories, the ids are not used, and `ids` may be NULL. Allocates only while the memory of samples grows.
///
/// Fails with LGRECO_OTHER_END for a downstream end. Also fails with LGRECO_NON_FINITE, LGRECO_OVERFLOW,
/// LGRECO_ELEMENT_OVERFLOW, LGRECO_LENGTH, LGRECO_DUPLICATE_SAMPLE and LGRECO_TOO_MANY_IN_FLIGHT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_send_activations(
    cut: *mut lgreco_cut,
    values: *const c_void,
    dtype: lgreco_dtype,
    samples: usize,
    ids: *const u64,
    message: *mut u8,
    capacity: usize,
    length: *mut usize,
    ticket: *mut u64,
) -> lgreco_status {
    call!(cut, |state| {
        let (values, message) = state.batch((values, dtype, samples), ids, (message, capacity))?;
        let ((end, workspace, ids), ticket) = (state.upstream()?, place(ticket, "ticket")?);
        write(length, "length", || {
            let sent = end.send(values, ids, workspace, message)?;
            ticket.write(sent.ticket);
            Ok(sent.len)
        })
    })
}

/// Upstream: writes the message of a micro-batch in flight once more. Use this call when the message was lost, or when
/// the same step makes another forward pass over the same values. Changes nothing.
///
/// Fails like lgreco_cut_send_activations. Also fails with LGRECO_NOT_IN_FLIGHT, with LGRECO_OUT_OF_STEP when the step
/// has been committed since, and with LGRECO_FEEDBACK_RULE for the forward memories residual, mixed and ef21.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_repeat_activations(
    cut: *mut lgreco_cut,
    ticket: u64,
    values: *const c_void,
    dtype: lgreco_dtype,
    samples: usize,
    ids: *const u64,
    message: *mut u8,
    capacity: usize,
    length: *mut usize,
) -> lgreco_status {
    call!(cut, |state| {
        let (values, message) = state.batch((values, dtype, samples), ids, (message, capacity))?;
        let (end, workspace, ids) = state.upstream()?;
        write(length, "length", || Ok(end.repeat(ticket, values, ids, workspace, message)?))
    })
}

/// Decompresses the other end's message into `values`. A downstream end receives activations, an upstream end
/// gradients. `values_len` is the number of samples in the message times the number of features. `ticket` receives the
/// micro-batch's number, which the upstream end has chosen.
///
/// Fails with LGRECO_OUT_OF_STEP when this is not the next message, and with LGRECO_SAMPLE_OUT_OF_STEP when the two
/// ends remember different values of a sample. Fails with LGRECO_PAYLOAD_HEADER for a message of another cut, or for
/// the other end. Also fails with LGRECO_TOO_MANY_IN_FLIGHT, LGRECO_NOT_IN_FLIGHT, LGRECO_PAYLOAD_BODY and
/// LGRECO_LENGTH.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_receive(
    cut: *mut lgreco_cut,
    message: *const u8,
    length: usize,
    values: *mut f32,
    values_len: usize,
    ticket: *mut u64,
) -> lgreco_status {
    call!(cut, |state| {
        let (message, values) = encoded("message", (message, length), (values, values_len))?;
        let CutState { end, workspace, .. } = state;
        write(ticket, "ticket", || Ok(either!(end, end => end.receive(message, workspace, values))?))
    })
}

/// Downstream: decompresses a message of lgreco_cut_repeat_activations, or the micro-batch's first message again.
/// Changes nothing.
///
/// Fails like lgreco_cut_receive. Also fails with LGRECO_NOT_IN_FLIGHT, and with LGRECO_FEEDBACK_RULE for the forward
/// memories residual, mixed and ef21.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_receive_repeated(
    cut: *mut lgreco_cut,
    message: *const u8,
    length: usize,
    values: *mut f32,
    values_len: usize,
) -> lgreco_status {
    call!(cut, |state| {
        let (message, values) = encoded("message", (message, length), (values, values_len))?;
        let (end, workspace) = state.downstream()?;
        Ok(end.repeat(message, workspace, values)?)
    })
}

/// Downstream: compresses the gradients of a micro-batch into `message`. `ticket` is the micro-batch's number from
/// lgreco_cut_receive, and can be used once. The message has the same number of values as the micro-batch's
/// activations. Gradients of different micro-batches may be sent in any order.
///
/// Fails with LGRECO_OTHER_END for an upstream end. Also fails with LGRECO_NOT_IN_FLIGHT, LGRECO_NON_FINITE,
/// LGRECO_OVERFLOW, LGRECO_ELEMENT_OVERFLOW and LGRECO_LENGTH.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_send_gradients(
    cut: *mut lgreco_cut,
    ticket: u64,
    values: *const c_void,
    dtype: lgreco_dtype,
    samples: usize,
    message: *mut u8,
    capacity: usize,
    length: *mut usize,
) -> lgreco_status {
    call!(cut, |state| {
        let (values, message) = state.batch((values, dtype, samples), null(), (message, capacity))?;
        let (end, workspace) = state.downstream()?;
        write(length, "length", || Ok(end.send(ticket, values, workspace, message)?))
    })
}

/// Upstream: writes a message for evaluation. If `compressed` is not 0, the forward codec compresses the values,
/// without a memory. Changes nothing.
///
/// Fails like lgreco_cut_send_activations for wrong values and buffers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_evaluate(
    cut: *mut lgreco_cut,
    compressed: u32,
    values: *const c_void,
    dtype: lgreco_dtype,
    samples: usize,
    message: *mut u8,
    capacity: usize,
    length: *mut usize,
) -> lgreco_status {
    call!(cut, |state| {
        let how = if compressed == 0 { Evaluation::Plain } else { Evaluation::Compressed };
        let (values, message) = state.batch((values, dtype, samples), null(), (message, capacity))?;
        let (end, workspace, _) = state.upstream()?;
        write(length, "length", || Ok(end.evaluate(how, values, workspace, message)?))
    })
}

/// Downstream: decompresses a message for evaluation. Changes nothing.
///
/// Fails like lgreco_cut_receive for wrong messages and buffers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_receive_evaluation(
    cut: *mut lgreco_cut,
    message: *const u8,
    length: usize,
    values: *mut f32,
    values_len: usize,
) -> lgreco_status {
    call!(cut, |state| {
        let (message, values) = encoded("message", (message, length), (values, values_len))?;
        let (end, _) = state.downstream()?;
        Ok(end.evaluate(message, values).map(drop)?)
    })
}
