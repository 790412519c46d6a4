//! Makes any sequence of calls on both ends of a pipeline cut, under any setting. The ends must never diverge, a failed
//! call must change nothing, and saved ends must continue. Fuzzing finds states that only a rare order of calls
//! reaches.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::pipeline::check_program(bytes));
