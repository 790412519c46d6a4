//! Loads any bytes as a controller's saved state. The controller must load the bytes and save the same bytes again, or
//! refuse the bytes without a change of its state. States come from disks and other versions, so any bytes are
//! possible.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::controller::check_state(bytes));
