//! Encodes any bit patterns of every element type as dense payloads. Decoding must return the exact values, or encoding
//! must name the first value that is not finite. Receivers rely on exact values, and the sizes of other compressors are
//! compared with the dense size.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::fuzz::dense(bytes));
