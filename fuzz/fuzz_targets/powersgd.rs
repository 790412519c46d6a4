//! PowerSGD: the row of the error table is the error of real encodes at every rank, ranks nest bit for bit, zeros stay
//! zeros. Gram–Schmidt on dependent and zero columns is where implementations divide by nothing.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lgreco_testing::fuzz::powersgd(bytes));
