//! EDEN against its documentation in f64 with published grids: codes, decoded values, their length, the row.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::eden::check_round_trip(bytes));
