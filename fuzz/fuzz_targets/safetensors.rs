//! Gradient files: any bytes are refused or read, never a panic; what was read can be measured and planned, or the
//! reason why not is an error. Files come from other programs, and tensors in them may be empty or hold NaN.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_cli::testing::safetensors(bytes));
