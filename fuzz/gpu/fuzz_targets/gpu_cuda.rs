//! Runs CUDA's decoders, compiled for the CPU, on damaged payloads. These decoders must give the CPU decoder's values,
//! bit for bit, or its error. No other test checks that a kernel stays within bounds when a payload states wrong
//! positions.
#![no_main]
use lgreco_cuda::{CudaBackend, testing::on_the_processor};
use lgreco_testing::hostile::{Products, check_decoding};
use std::cell::RefCell;

// The backend is kept for all inputs, because compiling its kernels takes seconds.
thread_local!(static DEVICE: RefCell<CudaBackend> = RefCell::new(on_the_processor()));
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    DEVICE.with_borrow_mut(|device| check_decoding(bytes, device, Products::Exact));
});
