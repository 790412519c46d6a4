use super::compressor::zeros;
use super::context::lgreco_context;
use super::cut_setting::lgreco_cut_setting;
use crate::handle::{self, Kind};
use crate::pointers::{place, read_struct, slice};
use crate::status::{Failure, lgreco_status};
use core::ffi::c_char;
use lgreco_train::Error;
use lgreco_train::pipeline::{CutSetting, Downstream, Upstream};

/// Which end of a cut: LGRECO_END_...
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

impl Kind for lgreco_cut {
    const WHAT: &'static str = "cut";
    const TAG: [u8; 8] = *b"lgcut\0\0\0";
    type State = CutState;
}

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
pub(super) use either;

impl CutState {
    fn new(end: End) -> Result<CutState, Error> {
        let mut state = CutState { workspace: vec![], ids: vec![], end };
        state.workspace = zeros(state.workspace_len())?;
        state.ids = zeros(state.setting().batch as usize)?;
        Ok(state)
    }

    pub(super) fn setting(&self) -> CutSetting {
        either!(&self.end, end => *end.setting())
    }

    fn workspace_len(&self) -> usize {
        either!(&self.end, end => end.workspace_len())
    }

    fn samples(&self, message: &[u8]) -> Result<usize, Error> {
        let values = either!(&self.end, end => end.values_len(message)?);
        Ok(values / self.setting().features as usize)
    }

    fn bound(&self) -> usize {
        either!(&self.end, end => end.message_len())
    }
}

/// Makes an end without a past. Both ends need the same setting and generation; a run that resumes without saved ends
/// takes a generation it has not used, so that an old end is noticed.
///
/// LGRECO_PARAMETER, LGRECO_FEEDBACK_RULE for what makes no sense in the setting.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_create(
    context: *mut lgreco_context,
    setting: *const lgreco_cut_setting,
    end: lgreco_end,
    generation: u32,
    cut: *mut *mut lgreco_cut,
) -> lgreco_status {
    // SAFETY: README.md, handles and pointers.
    unsafe {
        make(context, setting, cut, |setting| {
            Ok(match end {
                LGRECO_END_UPSTREAM => End::Upstream(Upstream::new(setting, generation)?),
                LGRECO_END_DOWNSTREAM => End::Downstream(Downstream::new(setting, generation)?),
                found => return Err(Failure::UnknownConstant { what: "end", found }),
            })
        })
    }
}

/// # Safety
/// README.md, handles and pointers.
pub(super) unsafe fn make(
    context: *mut lgreco_context,
    setting: *const lgreco_cut_setting,
    cut: *mut *mut lgreco_cut,
    make: impl FnOnce(CutSetting) -> Result<End, Failure>,
) -> lgreco_status {
    // SAFETY: passed on.
    unsafe {
        handle::create::<_, lgreco_cut>(context, cut, |_| {
            let setting = read_struct(setting)?.to_core()?;
            Ok(CutState::new(make(setting)?)?)
        })
    }
}

/// Frees an end and sets the caller's pointer to NULL; NULL, or a pointer to NULL, does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_destroy(cut: *mut *mut lgreco_cut) -> lgreco_status {
    // SAFETY: README.md, handles.
    unsafe { handle::destroy(cut) }
}

/// What went wrong in the last failed call on the end; empty if none has failed. Valid until the next call on it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_message(cut: *const lgreco_cut) -> *const c_char {
    // SAFETY: README.md, handles.
    unsafe { handle::message(cut) }
}

/// Tells the most bytes of a message that this end writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_bound(cut: *mut lgreco_cut, bytes: *mut usize) -> lgreco_status {
    // SAFETY: README.md, handles and pointers.
    unsafe {
        handle::call(cut, |state| {
            place(bytes, "bytes")?.write(state.bound());
            Ok(())
        })
    }
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
    // SAFETY: README.md, handles and pointers.
    unsafe {
        handle::call(cut, |state| {
            let samples = place(samples, "samples")?;
            samples.write(state.samples(slice(message, length, "message")?)?);
            Ok(())
        })
    }
}
