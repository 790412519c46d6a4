//! Reads any bytes as a table file and as a plan file. They must be refused, or written and read back to the same
//! value. These files come from other people and other programs, so any bytes are possible.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::files::check_files(bytes));
