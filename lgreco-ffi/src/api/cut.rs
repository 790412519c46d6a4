//! The two ends of a cut between pipeline stages: creation, the end of a step, remembered samples, and saved states.

use super::compressor::zeros;
use super::cut_setting::{lgreco_cut_setting, read_cut_setting};
use crate::failure::{Failure, Result};
use crate::handle::{self, kind};
use crate::pointers::{Output, place, slice, slice_mut, write};
use crate::status::lgreco_status;
use lgreco_pipeline::{CutSetting, Downstream, Error, Upstream};

/// An end of a cut.
pub type lgreco_end = u32;

/// The stage above. The upstream end sends activations and receives gradients.
pub const LGRECO_END_UPSTREAM: lgreco_end = 0;
/// The stage below. The downstream end receives activations and sends gradients.
pub const LGRECO_END_DOWNSTREAM: lgreco_end = 1;

/// One end of a cut between two pipeline stages. The other end is in another process. Messages between the two ends
/// must not be lost or change their order.
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
    /// Memory for the ids of a batch.
    pub(super) ids: Vec<Option<u64>>,
}

/// Evaluates the same expression for an upstream or a downstream end.
macro_rules! either {
    ($end:expr, $name:ident => $body:expr) => {
        match $end {
            End::Upstream($name) => $body,
            End::Downstream($name) => $body,
        }
    };
}
pub(super) use either;

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

/// Creates a new end. Both ends need the same setting and generation. A run that resumes without saved ends must take
/// an unused generation, so that messages of old ends are refused.
///
/// Fails with LGRECO_CHECKSUM or LGRECO_SAVED_STATE for bytes that are not a setting.
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

/// Frees an end and sets the caller's pointer to NULL. Does nothing for NULL, or for a pointer to NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_destroy(cut: *mut *mut lgreco_cut) -> lgreco_status {
    // SAFETY: the caller promises a handle that meets the requirements of lgreco-ffi/README.md.
    unsafe { handle::destroy(cut) }
}

/// Writes the largest length of this end's messages, in bytes, to `bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_bound(cut: *mut lgreco_cut, bytes: *mut usize) -> lgreco_status {
    call!(cut, |state| write(bytes, "bytes", || Ok(either!(&state.end, end => end.message_len()))))
}

/// Writes the number of samples in a message for this end to `samples`. The number is at most the batch size. The
/// message holds one value for each sample and feature.
///
/// Fails with LGRECO_PAYLOAD_HEADER, LGRECO_PAYLOAD_FIELD or LGRECO_LENGTH for bytes that are not a message of the
/// other end, and with LGRECO_OUT_OF_STEP for a message of another generation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_samples(
    cut: *mut lgreco_cut,
    message: *const u8,
    length: usize,
    samples: *mut usize,
) -> lgreco_status {
    call!(cut, |state| write(samples, "samples", || Ok(state.samples(slice(message, length, "message")?)?)))
}

/// Ends an optimiser step. The updates from the step's messages become part of this end's state. Both ends must commit
/// between the same two activation messages.
///
/// Fails with LGRECO_PARAMETER when no activations went through the cut in this step.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_commit_step(cut: *mut lgreco_cut) -> lgreco_status {
    call!(cut, |state| Ok(either!(&mut state.end, end => end.commit_step())?))
}

/// Gives back the ticket of a micro-batch whose gradients will never be sent. The other end must make the same call.
///
/// Fails with LGRECO_NOT_IN_FLIGHT when the ticket is not in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_forget(cut: *mut lgreco_cut, ticket: u64) -> lgreco_status {
    call!(cut, |state| Ok(either!(&mut state.end, end => end.forget(ticket))?))
}

/// For AQ-SGD: writes the remembered activations of a sample to `values`, and 1 to `found`. `values_len` is the number
/// of features. For an unknown sample, `found` receives 0, and `values` are unchanged.
///
/// Fails with LGRECO_LENGTH if `values_len` is not the number of features.
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

/// For AQ-SGD: writes the ids of all remembered samples to samples[0 .. length], least recently updated first. `length`
/// receives the number of ids, and must not be NULL.
///
/// Fails with LGRECO_LENGTH when `capacity` is less than the number of ids. Even then `length` is set, and `samples`
/// may be NULL.
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

/// Writes the state of this end to `saved`. Save both ends after the same step. `length` receives the number of bytes
/// and must not be NULL.
///
/// Fails with LGRECO_MID_STEP while updates wait for lgreco_cut_commit_step or tickets are in flight. Fails with
/// LGRECO_LENGTH when `capacity` is less than the number of bytes; even then `length` is set, and `saved` may be NULL.
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

/// Creates an end from a saved state. The run continues bit for bit. Any bytes are allowed as input.
///
/// Fails with LGRECO_OTHER_SETTING for a state with another setting, and with LGRECO_CHECKSUM for a damaged state.
/// Fails with LGRECO_SAVED_STATE or another code for bytes that are not the state of an upstream or downstream end, as
/// `end` says.
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
