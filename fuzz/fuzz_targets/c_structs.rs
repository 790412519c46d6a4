//! Structs of the C API in sizes of older and newer headers and of none, with any numbers in them; layers of any shape in
//! f32, f16 and bf16. What C callers get wrong must become a status before it becomes a read beyond the end.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    lgreco_c::sequences::structs::check(bytes);
});
