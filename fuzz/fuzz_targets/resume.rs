//! Continues training from damaged states of controllers, memories and the ends of a cut. Training must continue with
//! finite values, or return an error. The result must be equal on all ranks. Most damage leaves a state readable.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::hostile::check_resume(bytes));
