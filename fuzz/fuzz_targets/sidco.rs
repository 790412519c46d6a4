//! SIDCo against its stages over lists: the largest elements sent, as many as exceed the textbook's threshold, within their
//! bounds. Sums, fits and fallbacks meet any distribution of magnitudes, also those that fit nothing.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::sidco::check_bytes(bytes));
