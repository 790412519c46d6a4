use core::ffi::{CStr, c_char};

const TEXT: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(text) => text,
    Err(_) => panic!("the version holds a NUL"),
};

/// Returns the version of the library in use, such as "0.1.0". LGRECO_VERSION has the version of the headers. The text
/// is static.
#[unsafe(no_mangle)]
pub extern "C" fn lgreco_version() -> *const c_char {
    TEXT.as_ptr()
}
