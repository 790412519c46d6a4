//! Table and plan files: any bytes are refused or read, and what was read is written and read back to the same value.
//! These files come from other people and other programs, so the readers must be total.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::files::check_files(bytes));
