use super::context::lgreco_context;
use super::setting::lgreco_setting;
use super::table_file::write_text;
use crate::handle;
use crate::pointers::{filled, read_struct, text};
use crate::status::{Failure, lgreco_status};
use core::ffi::c_char;
use lgreco_train::compress::Setting;

/// Bytes that hold any setting's text and the NUL after it.
pub const LGRECO_SETTING_TEXT_BYTES: usize = 64;

/// Writes a setting as text with a NUL after it, such as "qsgd 4", "topk 786" or "powersgd 4 iterations 2", as it stands in
/// table and plan files; `length`, which must not be NULL, receives the number of bytes before the NUL. README.md has the
/// words.
///
/// LGRECO_LENGTH when `capacity` is not above that number: `length` is then set all the same, and `text` may be NULL.
/// LGRECO_UNKNOWN_CONSTANT, LGRECO_PARAMETER. Allocates.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_setting_to_text(
    context: *mut lgreco_context,
    setting: *const lgreco_setting,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> lgreco_status {
    // SAFETY: README.md, handles and pointers.
    unsafe {
        handle::call(context, |_| {
            let written = read_struct(setting)?.to_core()?.to_string();
            // Only what is in range can be read again.
            written.parse::<Setting>()?;
            write_text(&written, "text", text, capacity, length)
        })
    }
}

/// Fills `setting` with what `text`, which ends with a NUL, says, as lgreco_setting_to_text writes it. Whether the setting
/// fits a layer is for the calls that use it to say.
///
/// LGRECO_SETTING_WORD for a word that is unknown there, LGRECO_SETTING_SYNTAX where another word or a number is expected:
/// the message names the word; LGRECO_PARAMETER for a parameter out of range; LGRECO_TEXT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_setting_from_text(
    context: *mut lgreco_context,
    text: *const c_char,
    setting: *mut lgreco_setting,
) -> lgreco_status {
    // SAFETY: README.md, handles and pointers.
    unsafe {
        handle::call(context, |_| {
            let place = filled(setting)?;
            place.fill(lgreco_setting::from_core(read(text)?));
            Ok(())
        })
    }
}

/// # Safety
/// README.md, pointers.
unsafe fn read(from: *const c_char) -> Result<Setting, Failure> {
    // SAFETY: passed on.
    Ok(unsafe { text(from, "text") }?.parse()?)
}
