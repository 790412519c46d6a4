//! Both ends of a pipeline cut under any setting and any sequence of calls: they never part, whatever fails changes
//! nothing, and saved ends continue. States that only a rare order of calls reaches are what fuzzing is for.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::pipeline::check_program(bytes));
