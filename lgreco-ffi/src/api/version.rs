use core::ffi::{CStr, c_char};

const fn number(text: &str) -> u32 {
    match u32::from_str_radix(text, 10) {
        Ok(number) => number,
        Err(_) => panic!("a part of the version is no number"),
    }
}

const PACKED: u32 = 10_000 * number(env!("CARGO_PKG_VERSION_MAJOR"))
    + 100 * number(env!("CARGO_PKG_VERSION_MINOR"))
    + number(env!("CARGO_PKG_VERSION_PATCH"));
const TEXT: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(text) => text,
    Err(_) => panic!("the version holds a NUL"),
};

/// Version of the library in use, as LGRECO_VERSION is of the header: major * 10000 + minor * 100 + patch.
#[unsafe(no_mangle)]
pub extern "C" fn lgreco_version() -> u32 {
    PACKED
}

/// Version of the library in use, as LGRECO_VERSION_STRING is of the header. Static text.
#[unsafe(no_mangle)]
pub extern "C" fn lgreco_version_string() -> *const c_char {
    TEXT.as_ptr()
}
