//! The C API: random sequences of calls, with NULLs, destroyed handles, handles of other kinds, damaged payloads and numbers
//! that are no constants. Trainers in other languages make such mistakes, and must get a status for them.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    lgreco_c::sequences::check(bytes);
});
