use crate::failure::{Failure, Result};
use crate::options::{self, CutOptions};
use crate::pointers::{slice, write};
use crate::status::lgreco_status;
use core::ffi::{CStr, c_char};
use lgreco_pipeline::{Compatibility, CutSetting};

/// Number of bytes of a cut setting.
pub const LGRECO_CUT_SETTING_BYTES: usize = 76;

const _: () = assert!(LGRECO_CUT_SETTING_BYTES == CutSetting::BYTES);

/// Everything about a cut that both ends must agree on, with a checksum. The bytes are the same on every machine.
/// Compression at a cut is part of the trained model, so save this struct with the model. The layout of this struct
/// never changes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lgreco_cut_setting {
    /// Written by lgreco_cut_setting_make.
    pub bytes: [u8; LGRECO_CUT_SETTING_BYTES],
}

impl Default for lgreco_cut_setting {
    /// Zeros, which are not a valid setting.
    fn default() -> lgreco_cut_setting {
        lgreco_cut_setting { bytes: [0; LGRECO_CUT_SETTING_BYTES] }
    }
}

/// Reads the setting from the caller's struct.
///
/// # Safety
/// Pointers meet the requirements of lgreco-ffi/README.md.
pub(super) unsafe fn read_cut_setting(setting: *const lgreco_cut_setting, what: &'static str) -> Result<CutSetting> {
    // SAFETY: the caller meets the safety requirements of this function.
    let setting = unsafe { slice(setting, 1, what) }?;
    Ok(CutSetting::from_bytes(&setting[0].bytes)?)
}

/// Makes a setting from options. The options `batch` and `features` are required.
///
/// Fails with LGRECO_UNKNOWN_NAME for a text that is not a codec or a memory, and with LGRECO_FEEDBACK_RULE when a
/// memory or shared-index does not fit the other options. Also fails with LGRECO_UNKNOWN_OPTION, with LGRECO_PARAMETER
/// for numbers out of range, and with LGRECO_TOO_MANY_ELEMENTS for a batch of 2^32 or more values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_setting_make(
    options: *const *const c_char,
    setting: *mut lgreco_cut_setting,
) -> lgreco_status {
    plain!(|| {
        write(setting, "setting", || {
            let made = options::read::<CutOptions>(options)?.setting;
            made.check()?;
            Ok(lgreco_cut_setting { bytes: made.to_bytes() })
        })
    })
}

/// Whether a model that was trained with one setting of a cut may be run with another.
pub type lgreco_compatibility = u32;

/// The settings are the same.
pub const LGRECO_COMPATIBILITY_SAME: lgreco_compatibility = 0;
/// Evaluation gives the same numbers, but further training differs.
pub const LGRECO_COMPATIBILITY_TRAINS_DIFFERENTLY: lgreco_compatibility = 1;
/// Evaluation gives different numbers, because the setting changes the model.
pub const LGRECO_COMPATIBILITY_EVALUATES_DIFFERENTLY: lgreco_compatibility = 2;

/// Compares `setting` with `trained`, the setting that a model was trained with. If `what` is not NULL, it receives the
/// name of the first field that differs, such as "forward codec", or "" if no field differs. The text is static.
///
/// Fails with LGRECO_CHECKSUM or LGRECO_SAVED_STATE for bytes that are not a setting.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_setting_compare(
    setting: *const lgreco_cut_setting,
    trained: *const lgreco_cut_setting,
    compatibility: *mut lgreco_compatibility,
    what: *mut *const c_char,
) -> lgreco_status {
    plain!(|| {
        let (setting, trained) = (read_cut_setting(setting, "setting")?, read_cut_setting(trained, "trained")?);
        let (code, field) = match setting.compare(&trained) {
            Compatibility::Same => (LGRECO_COMPATIBILITY_SAME, ""),
            Compatibility::TrainsDifferently { what } => (LGRECO_COMPATIBILITY_TRAINS_DIFFERENTLY, what),
            Compatibility::EvaluatesDifferently { what } => (LGRECO_COMPATIBILITY_EVALUATES_DIFFERENTLY, what),
        };
        write(compatibility, "compatibility", || {
            if !what.is_null() {
                write(what, "what", || Ok(static_text(field)?.as_ptr()))?;
            }
            Ok(code)
        })
    })
}

/// Maps a field's name in the Rust library to static C text.
fn static_text(field: &str) -> Result<&'static CStr> {
    let fields = [
        c"",
        c"cut",
        c"features",
        c"forward codec",
        c"forward memory",
        c"backward codec",
        c"backward memory",
        c"batch",
        c"micro-batches in flight",
    ];
    let found = fields.into_iter().find(|name| name.to_bytes() == field.as_bytes());
    found.ok_or(Failure::Text { what: "name of a field", why: "is none that the C API knows" })
}
