use super::compressor::zeros;
use super::cut_setting::{lgreco_cut_setting, read_cut_setting};
use super::gradient::{dtype, lgreco_dtype, values};
use crate::failure::{Failure, Result};
use crate::handle::{self, kind};
use crate::pointers::{Output, Range, disjoint, encoded, place, slice, slice_mut, write};
use crate::status::lgreco_status;
use core::ffi::c_void;
use core::ptr::null;
use lgreco_pipeline::{CoreError, Error};
use lgreco_pipeline::{CutSetting, Downstream, Evaluation, Upstream};
use lgreco_train::gradient::Values;

/// Which end of a cut.
pub type lgreco_end = u32;

/// The stage above: sends activations, receives gradients.
pub const LGRECO_END_UPSTREAM: lgreco_end = 0;
/// The stage below: receives activations, sends gradients.
pub const LGRECO_END_DOWNSTREAM: lgreco_end = 1;

/// One end of a cut between two pipeline stages. The other is in another process; between them messages travel, which
/// must neither be lost nor change their order.
pub struct lgreco_cut {
    _private: [u8; 0],
}

kind!(lgreco_cut, "cut", b"lgcut\0\0\0", CutState);

pub(crate) enum End {
    Upstream(Upstream),
    Downstream(Downstream),
}

pub(crate) struct CutState {
    pub(super) end: End,
    pub(super) workspace: Vec<u64>,
    /// Room for a batch of ids.
    pub(super) ids: Vec<Option<u64>>,
}

/// Does the same with either end.
macro_rules! either {
    ($end:expr, $name:ident => $body:expr) => {
        match $end {
            End::Upstream($name) => $body,
            End::Downstream($name) => $body,
        }
    };
}

impl CutState {
    pub(super) fn new(end: End) -> Result<CutState> {
        let (words, batch) = either!(&end, end => (end.workspace_len(), end.setting().batch as usize));
        Ok(CutState { end, workspace: zeros(words)?, ids: zeros(batch)? })
    }

    pub(super) fn setting(&self) -> CutSetting {
        either!(&self.end, end => *end.setting())
    }

    fn samples(&self, message: &[u8]) -> Result<usize, Error> {
        let values = either!(&self.end, end => end.values_len(message)?);
        Ok(values / self.setting().features as usize)
    }
}

/// Makes an end without a past. Both ends need the same setting and generation; a run that resumes without saved ends
/// takes a generation it has not used, so that an old end is noticed.
///
/// LGRECO_CHECKSUM, LGRECO_SAVED_STATE for bytes that are no setting.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_create(
    setting: *const lgreco_cut_setting,
    end: lgreco_end,
    generation: u32,
    cut: *mut *mut lgreco_cut,
) -> lgreco_status {
    create!(cut, || {
        let setting = read_cut_setting(setting, "setting")?;
        CutState::new(match end {
            LGRECO_END_UPSTREAM => End::Upstream(Upstream::new(setting, generation)?),
            LGRECO_END_DOWNSTREAM => End::Downstream(Downstream::new(setting, generation)?),
            found => return Err(Failure::UnknownConstant { what: "end", found }),
        })
    })
}

/// Frees an end and sets the caller's pointer to NULL; NULL, or a pointer to NULL, does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_destroy(cut: *mut *mut lgreco_cut) -> lgreco_status {
    // SAFETY: README.md, handles.
    unsafe { handle::destroy(cut) }
}

/// Tells the most bytes of a message that this end writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_bound(cut: *mut lgreco_cut, bytes: *mut usize) -> lgreco_status {
    call!(cut, |state| write(bytes, "bytes", || Ok(either!(&state.end, end => end.message_len()))))
}

/// Tells of how many samples a message for this end is, at most a batch: the values that it gets are as many times the
/// features.
///
/// LGRECO_PAYLOAD_HEADER, LGRECO_PAYLOAD_FIELD, LGRECO_LENGTH for bytes that are no message of the other end's;
/// LGRECO_OUT_OF_STEP for those of another generation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_samples(
    cut: *mut lgreco_cut,
    message: *const u8,
    length: usize,
    samples: *mut usize,
) -> lgreco_status {
    call!(cut, |state| write(samples, "samples", || Ok(state.samples(slice(message, length, "message")?)?)))
}

/// The id of samples that are not to be remembered.
pub const LGRECO_UNREMEMBERED: u64 = u64::MAX;

/// The upstream end, with workspace and the ids of the batch.
type UpstreamParts<'a> = (&'a mut Upstream, &'a mut [u64], &'a [Option<u64>]);

impl CutState {
    fn upstream(&mut self) -> Result<UpstreamParts<'_>> {
        match &mut self.end {
            End::Upstream(end) => Ok((end, &mut self.workspace, &self.ids)),
            End::Downstream(_) => Err(Failure::OtherEnd),
        }
    }

    /// The downstream end, with workspace.
    fn downstream(&mut self) -> Result<(&mut Downstream, &mut [u64])> {
        match &mut self.end {
            End::Downstream(end) => Ok((end, &mut self.workspace)),
            End::Upstream(_) => Err(Failure::OtherEnd),
        }
    }

    /// The values and the message of a call that sends; keeps the ids. None of them overlap.
    ///
    /// # Safety
    /// README.md, pointers; `'a` is within the call.
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
        // SAFETY: passed on.
        unsafe {
            if !ids.is_null() {
                let known = |&id: &u64| (id != LGRECO_UNREMEMBERED).then_some(id);
                self.ids.extend(slice(ids, samples, "ids")?.iter().map(known));
            }
            Ok((self::values(values, dtype, elements)?, slice_mut(message, capacity, "message")?))
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
) -> lgreco_status {
    call!(cut, |state| {
        let (values, message) = state.batch((values, dtype, samples), ids, (message, capacity))?;
        let (end, workspace, ids) = state.upstream()?;
        write(length, "length", || Ok(end.repeat(ticket, values, ids, workspace, message)?))
    })
}

/// Decompresses the other end's message into `values`, `values_len` = its samples times the features: downstream activations,
/// upstream gradients. `ticket` receives the micro-batch's number, which the upstream end gives back.
///
/// LGRECO_OUT_OF_STEP when it is not the next message, LGRECO_SAMPLE_OUT_OF_STEP when the ends remember different things;
/// LGRECO_PAYLOAD_HEADER when it is another cut's or not for this end; LGRECO_TOO_MANY_IN_FLIGHT, LGRECO_NOT_IN_FLIGHT,
/// LGRECO_PAYLOAD_BODY, LGRECO_LENGTH.
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

/// Downstream: decompresses a message that lgreco_cut_repeat_activations wrote, or the first one again. Changes nothing.
///
/// As lgreco_cut_receive; LGRECO_NOT_IN_FLIGHT; LGRECO_FEEDBACK_RULE under a memory by position.
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
) -> lgreco_status {
    call!(cut, |state| {
        let (values, message) = state.batch((values, dtype, samples), null(), (message, capacity))?;
        let (end, workspace) = state.downstream()?;
        write(length, "length", || Ok(end.send(ticket, values, workspace, message)?))
    })
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
) -> lgreco_status {
    call!(cut, |state| {
        let how = if compressed == 0 { Evaluation::Plain } else { Evaluation::Compressed };
        let (values, message) = state.batch((values, dtype, samples), null(), (message, capacity))?;
        let (end, workspace, _) = state.upstream()?;
        write(length, "length", || Ok(end.evaluate(how, values, workspace, message)?))
    })
}

/// Downstream: decompresses a message of evaluation. Changes nothing.
///
/// As lgreco_cut_receive on messages and buffers.
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

/// Ends an optimiser step: what its messages made of the samples is remembered from now on. Both ends must commit between
/// the same two activation messages.
///
/// LGRECO_PARAMETER when no activations went through the cut in this step.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_commit_step(cut: *mut lgreco_cut) -> lgreco_status {
    call!(cut, |state| Ok(either!(&mut state.end, end => end.commit_step())?))
}

/// Gives back the ticket of a micro-batch whose gradients will never travel. The other end must do the same.
///
/// LGRECO_NOT_IN_FLIGHT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_forget(cut: *mut lgreco_cut, ticket: u64) -> lgreco_status {
    call!(cut, |state| Ok(either!(&mut state.end, end => end.forget(ticket))?))
}

/// AQ-SGD: writes what is remembered of a sample to `values`, `values_len` = the features, and 1 to `found`; when nothing is,
/// `found` receives 0, and `values` are as they were.
///
/// LGRECO_LENGTH when `values_len` is another.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_remembered(
    cut: *mut lgreco_cut,
    sample: u64,
    values: *mut f32,
    values_len: usize,
    found: *mut u32,
) -> lgreco_status {
    call!(cut, |state| {
        let (values, found) = (slice_mut(values, values_len, "values")?, place(found, "found")?);
        let remembered = either!(&state.end, end => end.remembered(sample, values));
        found.write(remembered?.into());
        Ok(())
    })
}

/// AQ-SGD: writes the ids of all samples remembered to samples[0 .. length], least recently updated first; `length`, which
/// must not be NULL, receives their number.
///
/// LGRECO_LENGTH when `capacity` is less: `length` is then set all the same, and `samples` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_remembered_samples(
    cut: *mut lgreco_cut,
    samples: *mut u64,
    capacity: usize,
    length: *mut usize,
) -> lgreco_status {
    call!(cut, |state| {
        let count = either!(&state.end, end => end.remembered_samples().count());
        Output { what: "samples", to: samples, capacity, length }.fill(count, count, |to| {
            either!(&state.end, end => to.iter_mut().zip(end.remembered_samples()).for_each(|(to, id)| *to = id));
            Ok(())
        })
    })
}

/// Writes the whole end. Both ends must be saved after the same step. `length`, which must not be NULL, receives the number of
/// bytes.
///
/// LGRECO_MID_STEP while updates wait for lgreco_cut_commit_step or tickets are in flight; LGRECO_LENGTH when `capacity` is
/// less: `length` is then set all the same, and `saved` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_save(
    cut: *mut lgreco_cut,
    saved: *mut u8,
    capacity: usize,
    length: *mut usize,
) -> lgreco_status {
    call!(cut, |state| {
        let len = either!(&state.end, end => end.saved_len());
        let save = |to: &mut [u8]| Ok(either!(&state.end, end => end.save(to)).map(drop)?);
        Output { what: "saved", to: saved, capacity, length }.fill(len, len, save)
    })
}

/// Makes the end that was saved, which continues bit for bit. Any bytes may be given.
///
/// LGRECO_OTHER_SETTING when it was saved under another setting; LGRECO_CHECKSUM when it is damaged; LGRECO_SAVED_STATE and
/// others for bytes that no such end writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_restore(
    setting: *const lgreco_cut_setting,
    end: lgreco_end,
    saved: *const u8,
    length: usize,
    cut: *mut *mut lgreco_cut,
) -> lgreco_status {
    create!(cut, || {
        let (setting, saved) = (read_cut_setting(setting, "setting")?, slice(saved, length, "saved")?);
        CutState::new(match end {
            LGRECO_END_UPSTREAM => End::Upstream(Upstream::restore(setting, saved)?),
            LGRECO_END_DOWNSTREAM => End::Downstream(Downstream::restore(setting, saved)?),
            found => return Err(Failure::UnknownConstant { what: "end", found }),
        })
    })
}
