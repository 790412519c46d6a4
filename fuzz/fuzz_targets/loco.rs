//! Compares LoCo's codes with a division in f64, and with a decoder that reads half a byte at a time. Codes must be the
//! nearest ones, with ties to even, for any group size and magnitude. Errors must equal the measured errors.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::loco::check_bytes(bytes));
