//! Compares SIDCo with an implementation of its stages on lists. Both implementations must send the same number of
//! largest elements, within the bounds. The magnitudes have any distribution, including distributions to which nothing
//! can be fitted.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::sidco::check_bytes(bytes));
