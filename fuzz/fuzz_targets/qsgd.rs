//! QSGD against its documentation done one element at a time: payload bytes, decoded values, the row of all widths.
//! The vectorised code decides on integer tricks that a special value could break.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::qsgd::check_round_trip(bytes));
