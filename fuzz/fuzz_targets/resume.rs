//! Continues training from damaged states of controllers, memories and the ends of a cut. The result must be steps or
//! an error, without values that are not finite, and equal on all ranks. Most damage leaves a state readable.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::hostile::check_resume(bytes));
