//! The controller: any bytes as a run of up to three workers, in which ranks stay equal and no mass is lost.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::controller::check_bytes(bytes));
