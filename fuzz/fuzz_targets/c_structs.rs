//! Passes structs of any size and with any numbers to the C API, with layers of any shape in f32, f16 and bf16. Older
//! and newer headers have structs of other sizes. A mistake of the caller must give an error status, not a read beyond
//! the end of a struct.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    lgreco_c::sequences::structs::check(bytes);
});
