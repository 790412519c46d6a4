//! Damaged greetings, agreements, plans, payloads and sums of other workers: finite means or an error, and a state from
//! before goes on as if nothing had been. One worker's memory must not become another worker's problem.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::hostile::check_peer(bytes));
