//! LoCo's codes against division in f64 and a decoder that reads half a byte at a time: the nearest code, halves to even,
//! errors as measured, in groups that end anywhere and at any magnitude of f32.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::loco::check_bytes(bytes));
