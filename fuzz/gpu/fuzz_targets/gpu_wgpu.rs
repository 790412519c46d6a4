//! Runs the shaders' decoders on damaged payloads, on the GPU that wgpu finds or on lavapipe. The shaders must give the
//! CPU decoder's values or its error. Values must be equal bit for bit, except PowerSGD's products. No other test
//! checks that a shader stays within bounds when a payload states wrong positions.
#![no_main]
use lgreco_testing::hostile::{Products, check_decoding};
use lgreco_wgpu::WgpuBackend;
use std::cell::RefCell;
use std::mem::ManuallyDrop;

// The backend is kept for all inputs, because making its buffers and pipelines takes seconds. The backend is never
// dropped, because wgpu's thread-local data may already be gone when the thread ends.
thread_local!(static DEVICE: ManuallyDrop<RefCell<WgpuBackend>> =
    ManuallyDrop::new(RefCell::new(WgpuBackend::new().expect("an adapter"))));
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    DEVICE.with(|device| check_decoding(bytes, &mut *device.borrow_mut(), Products::Rounded));
});
