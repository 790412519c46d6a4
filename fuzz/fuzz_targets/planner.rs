//! Compares every solver with the verifier and with an exhaustive search. Plans must be within the budget and not
//! larger than a reference plan that fits. Bounds must be in order, and the same input must give the same plan.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::fuzz::planner(bytes));
