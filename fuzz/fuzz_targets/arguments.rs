//! Runs any words as a command line. The command must refuse them with one line that says why, or run to its end if it
//! is small. People type command lines, and scripts assemble them.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_cli::testing::check_arguments(bytes));
