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

/// Number of this header, which changes with every declaration in it. The INIT macros put it into their structs: the first call
/// that is given a struct, a callback among them, by a program that was compiled with another header than the library's fails
/// with LGRECO_STRUCT_SIZE.
pub const LGRECO_HEADER_REVISION: u32 = 1;

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
