//! Reads any bytes as a gradient file. The reader must refuse or read the bytes, without a panic. Gradients that were
//! read must give a table and a plan, or an error with the reason. Files come from other programs; tensors may be empty
//! or contain NaN.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_cli::testing::safetensors(bytes));
