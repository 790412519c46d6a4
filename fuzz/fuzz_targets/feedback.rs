//! Loads any bytes as a saved error-feedback memory. Loading must refuse the bytes, or give a memory that saves to the
//! same bytes and can take a step.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::feedback::check_saved_bytes(bytes));
