//! Calls the C API in random sequences, with NULLs, destroyed handles, handles of other kinds, damaged payloads and
//! unknown constants. Trainers in other languages make such mistakes, and must get an error status for them.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    lgreco_c::sequences::check(bytes);
});
