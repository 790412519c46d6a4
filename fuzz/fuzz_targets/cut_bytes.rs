//! Messages and saved ends of a pipeline cut: any bytes are refused or decode to finite values, and what is restored saves
//! to the same bytes. Messages come over the network, checkpoints from other runs.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::pipeline::check_bytes(bytes));
