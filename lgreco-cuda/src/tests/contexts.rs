//! Tests several contexts and threads with the stand-in for the driver. Each device has one context, and each thread
//! has a stack of contexts.
#![allow(unsafe_code)]

use super::driver::{is_child, run_in_all_orders, state, trainer};
use super::enqueued::{COLS, ROWS, capture, current_context, payload, qsgd, tensor};
use crate::CudaBackend;
use cudarc::driver::sys::{self, CUresult};
use lgreco::backend::{Backend, Portable};
use lgreco::rng::Stream;
use std::ptr::null_mut;
use std::sync::Barrier;

fn with_two_devices(test: &str) {
    run_in_all_orders("contexts", test, &[("FAKE_CUDA_DEVICES", "2")]);
}

#[test]
fn two_threads_use_two_devices_at_once() {
    with_two_devices("two_threads");
}

/// Uses a new backend on a device. The barrier `together` makes two threads use their backends at the same time.
fn encode_and_decode(device: usize, together: &Barrier) {
    let mut backend = CudaBackend::new(device).unwrap();
    let tensor = tensor();
    for bits in [2, 4, 8] {
        let (setting, expected) = (qsgd(bits), payload(&qsgd(bits)));
        let (mut sent, mut received) = (vec![0; expected.len()], vec![0.0; ROWS * COLS]);
        together.wait();
        backend.encode(&setting, &tensor.gradients()[0], Stream::default(), &mut [], &mut sent).unwrap();
        backend.decode(&sent, &mut received).unwrap();
        assert!(sent == expected, "{bits} bits on device {device}");
        let mut decoded = vec![0.0; ROWS * COLS];
        Portable.decode(&expected, &mut decoded).unwrap();
        assert!(received == decoded, "{bits} bits on device {device}");
        assert!(current_context().is_null(), "device {device}");
    }
}

#[test]
#[ignore = "needs the fake driver"]
fn two_threads() {
    if !is_child() {
        return;
    }
    let together = Barrier::new(2);
    std::thread::scope(|scope| {
        let threads = [0, 1].map(|device| {
            let together = &together;
            scope.spawn(move || encode_and_decode(device, together))
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    assert_eq!(state().left, [0; 6], "what is left");
}

#[test]
fn backends_of_a_context_share_its_modules() {
    with_two_devices("shared_modules");
}

#[test]
#[ignore = "needs the fake driver"]
fn shared_modules() {
    if !is_child() {
        return;
    }
    let decode = |backend: &mut CudaBackend| {
        let expected = payload(&qsgd(4));
        backend.decode(&expected, &mut vec![0.0; ROWS * COLS]).unwrap();
        state().left[3]
    };
    let mut first = CudaBackend::new(0).unwrap();
    let own = decode(&mut first);
    assert!(own > 0);
    // Creates backends of the same context and of another context, after other backends were dropped. The new backends
    // outlive the backend that loaded the modules.
    let mut second = CudaBackend::new(0).unwrap();
    assert_eq!(decode(&mut second), own);
    let mut other = CudaBackend::new(1).unwrap();
    assert_eq!(decode(&mut other), 2 * own);
    drop(first);
    assert_eq!(decode(&mut second), 2 * own);
    drop(second);
    assert_eq!(state().left[3], own, "what is left: the other context's");
    drop(other);
    assert_eq!(state().left, [0; 6], "what is left");
    // A context that is created again after its end has no modules yet.
    let mut again = CudaBackend::new(0).unwrap();
    assert_eq!(decode(&mut again), own);
    // A backend that is dropped while its stream is captured leaves its modules loaded, and no later backend gets these
    // modules.
    let (_, stream) = trainer(0);
    // SAFETY: the stream and its context stay alive.
    let mut captured = unsafe { CudaBackend::with_stream(stream.cast()) }.unwrap();
    drop(again);
    assert_eq!(decode(&mut captured), own);
    capture(stream, true);
    drop(captured);
    assert_eq!(capture(stream, false), 0);
    assert_eq!(decode(&mut CudaBackend::new(0).unwrap()), 2 * own);
    assert_eq!(state().left[3], own);
}

#[test]
fn what_belongs_to_another_context_is_refused() {
    with_two_devices("another_context");
}

#[test]
#[ignore = "needs the fake driver"]
fn another_context() {
    if !is_child() {
        return;
    }
    let (first, own) = trainer(0);
    let (second, other) = trainer(1);
    let (mut memory, mut event) = (0, null_mut());
    // SAFETY: the pointers are valid for the results. The simulated driver refuses wrong handles.
    unsafe {
        // The new memory and the new event belong to the second context, which is current.
        sys::cuMemAlloc_v2(&mut memory, 64).result().unwrap();
        sys::cuEventCreate(&mut event, 0).result().unwrap();
        assert_eq!(sys::cuEventRecord(event, own), CUresult::CUDA_ERROR_INVALID_HANDLE);
        assert_eq!(sys::cuEventRecord(event, other), CUresult::CUDA_SUCCESS);
        assert_eq!(sys::cuMemsetD8Async(memory, 0, 64, own), CUresult::CUDA_ERROR_INVALID_CONTEXT);
        assert_eq!(sys::cuMemsetD8Async(memory, 0, 64, other), CUresult::CUDA_SUCCESS);
        let mut popped = null_mut();
        sys::cuCtxPopCurrent_v2(&mut popped).result().unwrap();
        assert_eq!((popped, current_context()), (second, first));
        assert_eq!(sys::cuMemFree_v2(memory), CUresult::CUDA_ERROR_INVALID_CONTEXT);
        // Waits, and waits for events, are allowed from any context.
        assert_eq!(sys::cuStreamWaitEvent(own, event, 0), CUresult::CUDA_SUCCESS);
        assert_eq!(sys::cuStreamSynchronize(other), CUresult::CUDA_SUCCESS);
        sys::cuStreamDestroy_v2(other).result().unwrap();
        assert_eq!(sys::cuStreamSynchronize(other), CUresult::CUDA_ERROR_INVALID_HANDLE);
        // The device's context ends when its last holder releases it.
        sys::cuDevicePrimaryCtxRelease_v2(1).result().unwrap();
        assert_eq!(sys::cuCtxPushCurrent_v2(second), CUresult::CUDA_ERROR_INVALID_CONTEXT);
        // No context is current on another thread.
        let refused = std::thread::spawn(move || sys::cuMemFree_v2(memory)).join().unwrap();
        assert_eq!(refused, CUresult::CUDA_ERROR_INVALID_CONTEXT);
    }
}
