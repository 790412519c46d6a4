//! Compares TopK with a full sort and with a decoder that reads bit by bit. TopK and the sort must keep the same
//! elements, with ties by position, in the predicted size and with the measured error. Selection and Elias–Fano codes
//! have many boundary cases.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::fuzz::topk(bytes));
