//! Compares hard thresholds with a comparison per element. Both must send the same elements in the measured number of
//! bytes, or all elements where that is shorter. Thresholds may equal values, and payloads may be empty.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::hard_threshold::check_bytes(bytes));
