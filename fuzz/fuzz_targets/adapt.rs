//! Runs controllers on up to three workers. The fuzzer's bytes determine the run. Ranks must stay equal, and no part of
//! a gradient may be lost.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::controller::check_bytes(bytes));
