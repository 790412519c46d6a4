//! Compares EDEN with an f64 implementation of its documentation: codes, decoded values and measured errors.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::eden::check_round_trip(bytes));
