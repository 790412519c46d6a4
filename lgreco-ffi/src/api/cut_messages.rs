use super::context::check_stream;
use super::cut::{CutState, End, lgreco_cut};
use super::encoded::Encoded;
use super::gradient::{dtype, lgreco_dtype, values};
use crate::handle;
use crate::pointers::{Range, disjoint, place, slice, slice_mut};
use crate::status::{Failure, lgreco_status};
use core::ffi::c_void;
use lgreco_train::CoreError;
use lgreco_train::gradient::Values;
use lgreco_train::pipeline::{CutSetting, Downstream, Evaluation, Upstream};

/// The id of samples that are not to be remembered.
pub const LGRECO_UNREMEMBERED: u64 = u64::MAX;

/// What an upstream call works with.
struct Above<'a> {
    end: &'a mut Upstream,
    workspace: &'a mut [u64],
    ids: &'a mut Vec<Option<u64>>,
}

impl CutState {
    fn upstream(&mut self) -> Result<Above<'_>, Failure> {
        match &mut self.end {
            End::Upstream(end) => Ok(Above { end, workspace: &mut self.workspace, ids: &mut self.ids }),
            End::Downstream(_) => Err(Failure::OtherEnd),
        }
    }

    /// The downstream end, with workspace.
    fn downstream(&mut self) -> Result<(&mut Downstream, &mut [u64]), Failure> {
        match &mut self.end {
            End::Downstream(end) => Ok((end, &mut self.workspace)),
            End::Upstream(_) => Err(Failure::OtherEnd),
        }
    }

    /// # Safety
    /// README.md, pointers; `'a` is within the call.
    unsafe fn values<'a>(
        &self,
        pointer: *const c_void,
        code: lgreco_dtype,
        samples: usize,
    ) -> Result<Values<'a>, Failure> {
        let CutSetting { batch, features, .. } = self.setting();
        if samples > batch as usize {
            return Err(CoreError::Length { what: "samples", expected: batch as usize, found: samples }.into());
        }
        // SAFETY: passed on.
        unsafe { values(pointer, dtype(code)?, samples * features as usize) }
    }
}

/// Replaces `ids` by the caller's, as many as `samples`, or none.
///
/// # Safety
/// README.md, pointers.
unsafe fn read_ids(ids: &mut Vec<Option<u64>>, pointer: *const u64, samples: usize) -> Result<(), Failure> {
    ids.clear();
    if !pointer.is_null() {
        // SAFETY: passed on.
        let given = unsafe { slice(pointer, samples, "ids") }?;
        ids.extend(given.iter().map(|&id| (id != LGRECO_UNREMEMBERED).then_some(id)));
    }
    Ok(())
}

/// What a call that sends is given.
struct Batch {
    values: *const c_void,
    dtype: lgreco_dtype,
    samples: usize,
    /// NULL without.
    ids: *const u64,
}

/// Where it is to write.
struct Output {
    message: *mut u8,
    capacity: usize,
    length: *mut usize,
}

impl Batch {
    /// Where the elements lie; of an unknown type, which is refused later, 0 bytes.
    fn range(&self, state: &CutState) -> Range {
        let bytes = dtype(self.dtype).map_or(0, |dtype| dtype.bytes());
        let elements = self.samples.saturating_mul(state.setting().features as usize);
        Range::of(self.values.cast::<u8>(), elements.saturating_mul(bytes), "values")
    }

    /// Runs a call that sends the batch and returns the message's length.
    ///
    /// # Safety
    /// README.md, handles and pointers.
    unsafe fn send(
        self,
        cut: *mut lgreco_cut,
        to: Output,
        stream: *mut c_void,
        call: impl FnOnce(&mut CutState, Values<'_>, &mut [u8]) -> Result<usize, Failure>,
    ) -> lgreco_status {
        // SAFETY: passed on.
        unsafe {
            handle::call(cut, |state| {
                check_stream(stream)?;
                let Output { message, capacity, length } = to;
                let ids = Range::of(self.ids, self.samples, "ids");
                disjoint(Range::of(message, capacity, "message"), &[self.range(state), ids])?;
                let values = state.values(self.values, self.dtype, self.samples)?;
                let (message, length) = (slice_mut(message, capacity, "message")?, place(length, "length")?);
                length.write(call(state, values, message)?);
                Ok(())
            })
        }
    }
}

/// Upstream: compresses the activations of a micro-batch, `samples` rows of the features, into `message`. `length`
/// receives its bytes, `ticket` the number under which its gradients come back. `ids`, one per sample, name the samples to
/// AQ-SGD (LGRECO_UNREMEMBERED: not this one); NULL otherwise. Allocates only while a memory of samples grows.
///
/// LGRECO_NON_FINITE, LGRECO_OVERFLOW, LGRECO_ELEMENT_OVERFLOW, LGRECO_LENGTH, LGRECO_DUPLICATE_SAMPLE,
/// LGRECO_TOO_MANY_IN_FLIGHT; LGRECO_OTHER_END downstream.
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
    stream: *mut c_void,
) -> lgreco_status {
    // SAFETY: README.md, handles and pointers.
    unsafe {
        let batch = Batch { values, dtype, samples, ids };
        batch.send(cut, Output { message, capacity, length }, stream, |state, values, message| {
            let ticket = place(ticket, "ticket")?;
            let Above { end, workspace, ids: known } = state.upstream()?;
            read_ids(known, ids, samples)?;
            let sent = end.send(values, known, workspace, message)?;
            ticket.write(sent.ticket);
            Ok(sent.len)
        })
    }
}

/// Upstream: writes the message of a micro-batch in flight once more, when it was lost or for another forward pass of the
/// same step over the same values. Changes nothing.
///
/// As lgreco_cut_send_activations; LGRECO_NOT_IN_FLIGHT; LGRECO_OUT_OF_STEP when the step has been committed since;
/// LGRECO_FEEDBACK_RULE under a memory by position.
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
    stream: *mut c_void,
) -> lgreco_status {
    // SAFETY: README.md, handles and pointers.
    unsafe {
        let batch = Batch { values, dtype, samples, ids };
        batch.send(cut, Output { message, capacity, length }, stream, |state, values, message| {
            let Above { end, workspace, ids: known } = state.upstream()?;
            read_ids(known, ids, samples)?;
            Ok(end.repeat(ticket, values, known, workspace, message)?)
        })
    }
}

/// Downstream: decompresses a message of activations into `values`, `values_len` = its samples times the features; `ticket`
/// receives the micro-batch's number.
///
/// LGRECO_OUT_OF_STEP when it is not the next message, LGRECO_SAMPLE_OUT_OF_STEP when the ends remember different things;
/// LGRECO_PAYLOAD_HEADER when it is another cut's; LGRECO_TOO_MANY_IN_FLIGHT, LGRECO_PAYLOAD_BODY, LGRECO_LENGTH;
/// LGRECO_OTHER_END upstream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_receive_activations(
    cut: *mut lgreco_cut,
    message: *const u8,
    length: usize,
    values: *mut f32,
    values_len: usize,
    ticket: *mut u64,
    stream: *mut c_void,
) -> lgreco_status {
    // SAFETY: README.md, handles and pointers.
    unsafe {
        let message = Encoded { what: "message", bytes: message, length };
        message.decode(cut, values, values_len, stream, |state, message, values| {
            let ticket = place(ticket, "ticket")?;
            let (end, workspace) = state.downstream()?;
            ticket.write(end.receive(message, workspace, values)?);
            Ok(())
        })
    }
}

/// Downstream: decompresses a message that lgreco_cut_repeat_activations wrote, or the first one again. Changes nothing.
///
/// As lgreco_cut_receive_activations; LGRECO_NOT_IN_FLIGHT; LGRECO_FEEDBACK_RULE under a memory by position.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_receive_repeated(
    cut: *mut lgreco_cut,
    message: *const u8,
    length: usize,
    values: *mut f32,
    values_len: usize,
    stream: *mut c_void,
) -> lgreco_status {
    // SAFETY: README.md, handles and pointers.
    unsafe {
        let message = Encoded { what: "message", bytes: message, length };
        message.decode(cut, values, values_len, stream, |state, message, values| {
            let (end, workspace) = state.downstream()?;
            Ok(end.repeat(message, workspace, values)?)
        })
    }
}

/// Downstream: compresses the gradients of a micro-batch, as many as its activations, into `message`, and gives its ticket
/// back. The micro-batches' gradients may go back in any order.
///
/// LGRECO_NOT_IN_FLIGHT, LGRECO_NON_FINITE, LGRECO_OVERFLOW, LGRECO_ELEMENT_OVERFLOW, LGRECO_LENGTH; LGRECO_OTHER_END
/// upstream.
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
    stream: *mut c_void,
) -> lgreco_status {
    // SAFETY: README.md, handles and pointers.
    unsafe {
        let batch = Batch { values, dtype, samples, ids: core::ptr::null() };
        batch.send(cut, Output { message, capacity, length }, stream, |state, values, message| {
            let (end, workspace) = state.downstream()?;
            Ok(end.send(ticket, values, workspace, message)?)
        })
    }
}

/// Upstream: decompresses a message of gradients into `values`, `values_len` = its samples times the features; `ticket`
/// receives the micro-batch's number, which is given back.
///
/// As lgreco_cut_receive_activations; LGRECO_NOT_IN_FLIGHT; LGRECO_OTHER_END downstream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_receive_gradients(
    cut: *mut lgreco_cut,
    message: *const u8,
    length: usize,
    values: *mut f32,
    values_len: usize,
    ticket: *mut u64,
    stream: *mut c_void,
) -> lgreco_status {
    // SAFETY: README.md, handles and pointers.
    unsafe {
        let message = Encoded { what: "message", bytes: message, length };
        message.decode(cut, values, values_len, stream, |state, message, values| {
            let ticket = place(ticket, "ticket")?;
            let Above { end, workspace, .. } = state.upstream()?;
            ticket.write(end.receive(message, workspace, values)?);
            Ok(())
        })
    }
}

/// Upstream: writes a message of evaluation, by the forward codec without memory if `compressed` is not 0, else
/// uncompressed. Changes nothing.
///
/// As lgreco_cut_send_activations on values and buffers.
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
    stream: *mut c_void,
) -> lgreco_status {
    // SAFETY: README.md, handles and pointers.
    unsafe {
        let batch = Batch { values, dtype, samples, ids: core::ptr::null() };
        batch.send(cut, Output { message, capacity, length }, stream, |state, values, message| {
            let how = if compressed == 0 { Evaluation::Plain } else { Evaluation::Compressed };
            let Above { end, workspace, .. } = state.upstream()?;
            Ok(end.evaluate(how, values, workspace, message)?)
        })
    }
}

/// Downstream: decompresses a message of evaluation. Changes nothing.
///
/// As lgreco_cut_receive_activations on messages and buffers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_receive_evaluation(
    cut: *mut lgreco_cut,
    message: *const u8,
    length: usize,
    values: *mut f32,
    values_len: usize,
    stream: *mut c_void,
) -> lgreco_status {
    // SAFETY: README.md, handles and pointers.
    unsafe {
        let message = Encoded { what: "message", bytes: message, length };
        message.decode(cut, values, values_len, stream, |state, message, values| {
            let (end, _) = state.downstream()?;
            end.evaluate(message, values)?;
            Ok(())
        })
    }
}
