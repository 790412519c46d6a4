//! Loads any bytes as a controller's saved state. They must be loaded and saved again as the same bytes, or be refused
//! without a change of the controller. States come from disks and other versions, so any bytes are possible.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::controller::check_state(bytes));
