//! The shaders' decoders on the GPU that wgpu finds, or on lavapipe, on damaged payloads: the core's values, bit for bit
//! but for PowerSGD's products, or its refusal. What a shader reads at positions that a payload says is not checked by
//! anybody else.
#![no_main]
use lgreco_testing::hostile::{Products, check_decoding};
use lgreco_wgpu::WgpuBackend;
use std::cell::RefCell;
use std::mem::ManuallyDrop;

// Kept, with its buffers and pipelines, because they take seconds to make; never dropped, because at the end of a thread what
// wgpu itself keeps per thread may be gone.
thread_local!(static DEVICE: ManuallyDrop<RefCell<WgpuBackend>> =
    ManuallyDrop::new(RefCell::new(WgpuBackend::new().expect("an adapter"))));
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    DEVICE.with(|device| check_decoding(bytes, &mut *device.borrow_mut(), Products::Rounded));
});
