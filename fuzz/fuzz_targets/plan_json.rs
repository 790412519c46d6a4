//! Tables and plans as JSON, token by token: numbers at the ends of their types, keys twice or misspelt, members missing.
//! The target `files` reads any bytes, of which most are no JSON; these are, and get to the readers of fields.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::documents::check_documents(bytes));
