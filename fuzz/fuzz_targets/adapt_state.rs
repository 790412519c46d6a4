//! The controller's saved states: any bytes are restored as they were or refused, and a refusal changes nothing. States
//! come from disks and other versions, so the reader is total.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::controller::check_state(bytes));
