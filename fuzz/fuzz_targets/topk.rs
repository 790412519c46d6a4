//! TopK against a full sort and a decoder that reads bit by bit: the same elements kept, ties by position, sizes as
//! predicted, errors as measured. Radix selection and Elias–Fano codes have many boundary cases.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::fuzz::topk(bytes));
