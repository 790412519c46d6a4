//! Dense payloads bring every bit pattern of every element type back, or name the first value that is not finite.
//! All other compressors are measured against what "uncompressed" costs, and receivers trust it to be exact.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::fuzz::dense(bytes));
