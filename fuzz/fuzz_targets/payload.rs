//! Decodes any bytes as a payload. The result must be finite values or an error, without a panic and without writes
//! beyond the tensor. Payloads come over the network, from workers that may run another version.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::fuzz::payload(bytes));
