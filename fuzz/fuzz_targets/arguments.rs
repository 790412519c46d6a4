//! Command lines: any words are parsed or refused in one line that says why, and what is small runs to its end. People
//! type them, and scripts put them together.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_cli::testing::check_arguments(bytes));
