//! Compares QSGD with an implementation of its documentation that takes one element at a time: payload bytes, decoded
//! values and measured errors. The vectorised code uses integer tricks that special values could break.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::qsgd::check_round_trip(bytes));
