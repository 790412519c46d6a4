//! CUDA's decoders, compiled for the processor, on damaged payloads: the core's values, bit for bit, or its refusal. What
//! a kernel reads at positions that a payload says is not checked by anybody else.
#![no_main]
use lgreco_cuda::{CudaBackend, testing::on_the_processor};
use lgreco_testing::hostile::{Products, check_decoding};
use std::cell::RefCell;

// Kept, because its kernels take seconds to compile.
thread_local!(static DEVICE: RefCell<CudaBackend> = RefCell::new(on_the_processor()));
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    DEVICE.with_borrow_mut(|device| check_decoding(bytes, device, Products::Exact));
});
