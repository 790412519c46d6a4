//! Takes steps of one worker whose peers send damaged greetings, agreements, plans, payloads and sums. Every step must
//! give finite means or an error. After the state from before the damage is loaded, the run must continue as if there
//! had been no damage.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::hostile::check_peer(bytes));
