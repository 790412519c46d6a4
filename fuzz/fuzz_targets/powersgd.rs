//! Checks PowerSGD: measured errors equal the errors of real payloads, smaller ranks are prefixes of larger ranks bit
//! for bit, and zeros stay zeros. Columns may be dependent or zero, where Gram–Schmidt could divide by zero.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::fuzz::powersgd(bytes));
