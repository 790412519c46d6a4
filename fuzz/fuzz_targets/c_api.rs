//! Calls the C API in random sequences, with NULLs, destroyed handles, handles of other kinds, damaged payloads and
//! unknown constants. Trainers in other languages make such mistakes. The API must answer each mistake with an error
//! status.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    lgreco_c::sequences::check(bytes);
});
