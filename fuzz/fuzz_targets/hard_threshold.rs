//! Checks the hard-threshold compressor by comparing each element with the threshold. A payload must have exactly the
//! elements that reach the threshold, or all elements where that is shorter. The payload must have the measured length.
//! Thresholds may equal values, and payloads may be empty.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::hard_threshold::check_bytes(bytes));
