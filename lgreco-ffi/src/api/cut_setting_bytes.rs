use super::context::lgreco_context;
use super::cut_setting::{lgreco_cut_setting, lgreco_link};
use crate::handle;
use crate::pointers::{filled, place, read_struct, slice, slice_mut};
use crate::status::{Failure, lgreco_status};
use core::ffi::{CStr, c_char};
use lgreco_train::CoreError;
use lgreco_train::pipeline::{Compatibility, CutSetting};

/// Bytes of a saved cut setting.
pub const LGRECO_CUT_SETTING_BYTES: usize = 76;

const _: () = assert!(LGRECO_CUT_SETTING_BYTES == CutSetting::BYTES);

/// Whether a model trained with one setting of a cut may be run with another: LGRECO_COMPATIBILITY_...
pub type lgreco_compatibility = u32;

/// The settings are the same.
pub const LGRECO_COMPATIBILITY_SAME: lgreco_compatibility = 0;
/// Evaluation gives the same numbers, training goes on differently.
pub const LGRECO_COMPATIBILITY_TRAINS_DIFFERENTLY: lgreco_compatibility = 1;
/// Evaluation is of another model than was trained.
pub const LGRECO_COMPATIBILITY_EVALUATES_DIFFERENTLY: lgreco_compatibility = 2;

/// Writes a setting to bytes[0 .. LGRECO_CUT_SETTING_BYTES], read_struct and the same on every machine. Compression at a cut
/// becomes part of the model: save this with it.
///
/// LGRECO_LENGTH when `capacity` is less; codes of lgreco_cut_create for what makes no sense in the setting.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_setting_to_bytes(
    context: *mut lgreco_context,
    setting: *const lgreco_cut_setting,
    bytes: *mut u8,
    capacity: usize,
) -> lgreco_status {
    // SAFETY: README.md, handles and pointers.
    unsafe {
        handle::call(context, |_| {
            let setting = read_struct(setting)?.to_core()?;
            setting.check()?;
            let to = slice_mut(bytes, capacity, "bytes")?.first_chunk_mut();
            let expected = LGRECO_CUT_SETTING_BYTES;
            *to.ok_or(CoreError::Length { what: "bytes", expected, found: capacity })? = setting.to_bytes();
            Ok(())
        })
    }
}

/// Fills `setting`, and `forward` and `backward`, to which the setting then points, with what lgreco_cut_setting_to_bytes
/// wrote. Any bytes may be given.
///
/// LGRECO_CHECKSUM for a setting that is damaged; LGRECO_LENGTH, LGRECO_SAVED_STATE for bytes that are no setting; codes of
/// lgreco_cut_create.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_setting_from_bytes(
    context: *mut lgreco_context,
    bytes: *const u8,
    length: usize,
    setting: *mut lgreco_cut_setting,
    forward: *mut lgreco_link,
    backward: *mut lgreco_link,
) -> lgreco_status {
    // SAFETY: README.md, handles and pointers.
    unsafe {
        handle::call(context, |_| {
            let places = (filled(setting)?, filled(forward)?, filled(backward)?);
            let saved = CutSetting::from_bytes(slice(bytes, length, "bytes")?)?;
            places.0.fill(lgreco_cut_setting {
                forward,
                backward,
                cut: saved.cut,
                batch: saved.batch,
                features: saved.features,
                in_flight: saved.in_flight,
                ..Default::default()
            });
            places.1.fill(lgreco_link::from_core(saved.forward));
            places.2.fill(lgreco_link::from_core(saved.backward));
            Ok(())
        })
    }
}

/// Tells what running with `setting` means for a model trained with `trained`, and in `what`, unless it is NULL, the first
/// field that differs: static text, such as "forward codec"; "" when none does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_setting_compare(
    context: *mut lgreco_context,
    setting: *const lgreco_cut_setting,
    trained: *const lgreco_cut_setting,
    compatibility: *mut lgreco_compatibility,
    what: *mut *const c_char,
) -> lgreco_status {
    // SAFETY: README.md, handles and pointers.
    unsafe {
        handle::call(context, |_| {
            let compatibility = place(compatibility, "compatibility")?;
            let what = if what.is_null() { None } else { Some(place(what, "what")?) };
            let (code, field) = match read_struct(setting)?.to_core()?.compare(&read_struct(trained)?.to_core()?) {
                Compatibility::Same => (LGRECO_COMPATIBILITY_SAME, ""),
                Compatibility::TrainsDifferently { what } => (LGRECO_COMPATIBILITY_TRAINS_DIFFERENTLY, what),
                Compatibility::EvaluatesDifferently { what } => (LGRECO_COMPATIBILITY_EVALUATES_DIFFERENTLY, what),
            };
            let field = static_text(field)?;
            compatibility.write(code);
            if let Some(what) = what {
                what.write(field.as_ptr());
            }
            Ok(())
        })
    }
}

/// The core's names of fields, as C wants them.
fn static_text(field: &str) -> Result<&'static CStr, Failure> {
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
