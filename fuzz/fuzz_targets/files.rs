//! Reads any bytes as a table file and as a plan file. A reader must refuse the bytes, or return a value that stays the
//! same when it is written and read again. These files come from other people and other programs, so any bytes are
//! possible.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::files::check_files(bytes));
