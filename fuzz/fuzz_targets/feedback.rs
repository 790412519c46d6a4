//! Saved memories of workers: bytes are refused, or restored to a memory that saves to the same bytes and takes a step.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::feedback::check_saved_bytes(bytes));
