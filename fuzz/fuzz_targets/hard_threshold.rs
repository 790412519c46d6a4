//! Hard thresholds against a comparison per element: the same elements sent, in exactly the bytes the rows state, all of
//! them where that is shorter. Thresholds tie with values, and payloads may be empty.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::hard_threshold::check_bytes(bytes));
