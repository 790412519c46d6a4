//! Compares AdaComp with a direct implementation of the paper and with a decoder that reads bit by bit. Compressor and
//! paper must send the same elements with the same magnitude, within the predicted size and with the measured error.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::adacomp::check_bytes(bytes));
