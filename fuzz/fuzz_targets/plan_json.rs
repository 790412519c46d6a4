//! Reads tables and plans in which JSON tokens were replaced, left out or repeated, such as numbers at the ends of
//! their types. Most inputs of the target `files` are not JSON. The inputs of this target are close to JSON, so they
//! reach the readers of single fields.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::documents::check_documents(bytes));
