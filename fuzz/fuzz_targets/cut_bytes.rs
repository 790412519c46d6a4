//! Reads any bytes as a message and as saved ends of a pipeline cut. Invalid bytes must be refused. Valid messages must
//! give finite values, and valid ends must save as the same bytes. Messages come over the network, and checkpoints from
//! other runs.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::pipeline::check_bytes(bytes));
