//! AdaComp against its textbook, bin by bin, and a decoder that reads as TopK's does: the same elements sent with the same
//! magnitude, sizes within what was predicted, errors as measured. Bins, blocks and stretches of positions end anywhere.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::adacomp::check_bytes(bytes));
