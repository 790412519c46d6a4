//! Every solver against the verifier and against trying every plan: never over budget, never larger than the reference
//! plan that fits, bounds in order, the same input gives the same plan. A plan is only worth its proof.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::fuzz::planner(bytes));
