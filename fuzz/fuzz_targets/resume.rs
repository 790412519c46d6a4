//! Training on from damaged states of controllers, memories and the ends of a cut: steps or an error, nothing that is not
//! finite, ranks alike. States are long-lived files, and most of their damage leaves them readable.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::hostile::check_resume(bytes));
