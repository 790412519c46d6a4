//! Runs any words as a command line. `lgreco` must reject or fail with one line that says why, or succeed. Only
//! commands that take little time are run. People type command lines, and scripts assemble them.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_cli::testing::check_arguments(bytes));
