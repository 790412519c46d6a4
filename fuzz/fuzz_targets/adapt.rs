//! The controller: any bytes as a run on up to three threads, in which ranks stay equal and no mass is lost, and as a
//! saved state, which is restored as it was or refused. States come from disks and other versions, so the reader is total.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_core::testing::adapt::check_bytes(bytes));
