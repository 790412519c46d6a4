use crate::failure::{Failure, Result};
use crate::pointers::check_array;
use core::ffi::{CStr, c_char};
use lgreco_train::compress::Setting;
use std::io::Write as _;

/// Size of a setting's text in bytes, including the NUL. Every text that the library writes fits this size.
pub const LGRECO_SETTING_TEXT_BYTES: usize = 64;

/// A compressor with its parameters as text: {"qsgd 4"}, {"topk 786"} or {"powersgd 4 iterations 2"}, as in table and plan
/// files. docs/src/reference/settings.md lists the words. Calls with a single setting take only the text. The layout of
/// this struct never changes.
///
/// Calls that read a setting fail with LGRECO_SETTING_WORD for an unknown word. The code is LGRECO_SETTING_SYNTAX where
/// another word or a number is expected, and for an empty text. The message names the word. The code is
/// LGRECO_PARAMETER for a number out of range. The code is LGRECO_TEXT for a text that is not UTF-8, or has no NUL
/// among its first LGRECO_SETTING_TEXT_BYTES bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lgreco_setting {
    /// The text and a NUL. The library fills the remaining bytes with NULs.
    pub text: [c_char; LGRECO_SETTING_TEXT_BYTES],
}

impl Default for lgreco_setting {
    /// An empty text, which is not a valid setting.
    fn default() -> lgreco_setting {
        lgreco_setting { text: [0; LGRECO_SETTING_TEXT_BYTES] }
    }
}

impl From<Setting> for lgreco_setting {
    fn from(setting: Setting) -> lgreco_setting {
        let mut text = [0u8; LGRECO_SETTING_TEXT_BYTES];
        // Only an outside method could have a longer text, and the C API has no outside methods.
        let _ = write!(&mut text[..LGRECO_SETTING_TEXT_BYTES - 1], "{setting}");
        lgreco_setting { text: text.map(|byte| byte.cast_signed() as c_char) }
    }
}

impl lgreco_setting {
    pub(super) fn to_core(self) -> Result<Setting> {
        let wrong = |why| Failure::Text { what: "setting", why };
        let bytes = self.text.map(|byte| byte as u8);
        let text = CStr::from_bytes_until_nul(&bytes).map_err(|_| wrong("has no NUL among its first 64 bytes"))?;
        Ok(text.to_str().map_err(|_| wrong("is not UTF-8"))?.parse()?)
    }
}

/// Parses the setting in the caller's text.
///
/// # Safety `text` is null, or is valid for reads up to its NUL, but of at most LGRECO_SETTING_TEXT_BYTES bytes.
pub(super) unsafe fn read_setting(text: *const c_char) -> Result<Setting> {
    if text.is_null() {
        return Err(Failure::Null("setting"));
    }
    let mut setting = lgreco_setting::default();
    for (at, byte) in setting.text.iter_mut().enumerate() {
        // SAFETY: no earlier byte was the NUL, so this byte is readable.
        *byte = unsafe { text.add(at).read() };
        if *byte == 0 {
            break;
        }
    }
    setting.to_core()
}

/// Reads the settings of the caller's array. A failure names the index of the wrong setting. Bytes after a text's NUL
/// are not read.
///
/// # Safety
/// `settings` is null, or points to `count` structs whose texts meet the requirements of [`read_setting`].
pub(super) unsafe fn read_settings(
    settings: *const lgreco_setting,
    count: usize,
    what: &'static str,
) -> Result<Vec<Setting>> {
    check_array(settings, count, what)?;
    let read = |index: usize| {
        // SAFETY: the array has `count` elements and at most isize::MAX bytes.
        let setting = unsafe { read_setting(settings.add(index).cast()) };
        setting.map_err(|failure| Failure::OfElement { what, index, failure: Box::new(failure) })
    };
    (0..count).map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{LGRECO_PARAMETER, LGRECO_SETTING_SYNTAX, LGRECO_SETTING_WORD, LGRECO_TEXT};

    /// Checks the longest text of each method: numbers with the most digits, and every word that differs from the default.
    #[test]
    fn every_setting_fits_with_its_nul() {
        for longest in [
            "dense",
            "qsgd 8 bucket 4294967295 min-max nearest",
            "eden 8 least-squares",
            "topk 4294967295 bf16",
            "topk 4294967295 bits 8",
            "powersgd 4294967295 iterations 1000",
            "clt-k 4294967295",
            "hard-threshold 1.1754944e-38 bf16",
            "adacomp 4294967295",
            "loco 4294967295",
            "sidco 2.2250738585072014e-308 gamma-pareto stages 1100 bf16",
        ] {
            let setting = lgreco_setting::from(longest.parse::<Setting>().unwrap());
            let written = setting.text.map(|byte| byte as u8);
            assert_eq!(CStr::from_bytes_until_nul(&written).unwrap().to_str(), Ok(longest));
            assert_eq!(setting.to_core().unwrap().to_string(), longest);
        }
    }

    #[test]
    fn text_that_is_no_setting_is_refused() {
        let of = |bytes: &[u8]| {
            let mut setting = lgreco_setting::default();
            setting.text.iter_mut().zip(bytes).for_each(|(to, &byte)| *to = byte.cast_signed() as c_char);
            // SAFETY: the text has LGRECO_SETTING_TEXT_BYTES bytes.
            let read = unsafe { read_setting(setting.text.as_ptr()) };
            read.map(|setting| setting.to_string()).map_err(|failure| (failure.status(), failure.to_string()))
        };
        assert_eq!(of(b" qsgd 1 nearest  bucket 512 "), Ok("qsgd 1 nearest".into()));
        assert_eq!(of(&[b"dense".as_slice(), &[b' '; 58]].concat()), Ok("dense".into()));
        for (bytes, status, message) in [
            (b"".as_slice(), LGRECO_SETTING_SYNTAX, "setting: found nothing, expected a method, such as dense or qsgd"),
            (b"qsdg 4", LGRECO_SETTING_WORD, "setting: `qsdg` is unknown: is `qsgd` meant?"),
            (b"topk 1%", LGRECO_SETTING_SYNTAX, "setting: found `1%`, expected a number of elements"),
            (b"qsgd 9", LGRECO_PARAMETER, "bits is 9, expected 1 to 8"),
            (b"qsgd \xff", LGRECO_TEXT, "setting is not UTF-8"),
            (&[b' '; 64], LGRECO_TEXT, "setting has no NUL among its first 64 bytes"),
        ] {
            assert_eq!(of(bytes), Err((status, message.into())));
        }
    }
}
