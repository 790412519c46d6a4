//! Payload parsers: any bytes decode to finite values or give an error, without panic and without writing beyond the
//! tensor. Payloads come over the network, from workers that may run another version.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::fuzz::payload(bytes));
