//! Tests the order of work in several streams, and captures of one stream, with the stand-in for the driver. The
//! environment variable `FAKE_CUDA_ORDER` decides in which order unordered work runs.
#![allow(unsafe_code)]

use super::driver::{is_child, run, run_in_all_orders, state, trainer};
use super::enqueued::{COLS, ROWS, capture, device, payload, qsgd, values};
use crate::kernels::{Kernel, Module};
use crate::libcuda::Cuda;
use crate::staging::{HALF, Staging};
use crate::{Call, CudaBackend, DeviceGradient, Error};
use cudarc::driver::sys::{self, CUresult, CUstream};
use lgreco::backend::{Backend, Portable};
use lgreco::gradient::{Dtype, Shape};
use lgreco::rng::Stream;
use lgreco_testing::powersgd::uniform;
use std::ptr::null_mut;

fn with_the_fake(test: &str, variables: &[(&str, &str)]) -> Option<String> {
    run("streams", test, variables)
}

/// Orders two streams: work that is enqueued in `later` after this call waits for the work that `earlier` has now.
fn order(earlier: CUstream, later: CUstream) {
    let mut event = null_mut();
    // SAFETY: the pointer is valid for an event; the streams are alive.
    unsafe {
        sys::cuEventCreate(&mut event, 0).result().unwrap();
        sys::cuEventRecord(event, earlier).result().unwrap();
        sys::cuStreamWaitEvent(later, event, 0).result().unwrap();
    }
}

/// Returns the gradient of `payload` in device memory, and its address. If `ordered`, the call waits for the copy to
/// the device, so that later work of other streams runs after the copy.
fn gradient_copied(ordered: bool) -> (DeviceGradient, u64) {
    let (address, values) = (device(4 * ROWS * COLS), uniform(ROWS * COLS, 1));
    let shape = Shape::new(ROWS, COLS).unwrap();
    // SAFETY: the memory has this many values.
    unsafe {
        sys::cuMemcpyHtoD_v2(address, values.as_ptr().cast(), 4 * ROWS * COLS).result().unwrap();
        if ordered {
            sys::cuStreamSynchronize(null_mut()).result().unwrap();
        }
        (DeviceGradient::new(address, Dtype::F32, shape).unwrap(), address)
    }
}

fn gradient() -> (DeviceGradient, u64) {
    gradient_copied(true)
}

/// Runs a test in the three extreme orders. The test prints whether the second of two unordered operations runs before
/// the first operation.
fn extremes(test: &str) {
    let texts = run_in_all_orders("streams", test, &[]);
    let expected = [("latest", true), ("others", false), ("earliest", false)];
    for ((order, text), (name, reversed)) in texts.iter().zip(expected) {
        assert_eq!((order.as_str(), text.contains("reversed: true")), (name, reversed), "{text}");
    }
}

#[test]
fn streams_that_no_event_orders_are_found() {
    run_in_all_orders("streams", "two_streams", &[]);
}

/// Whether a stream decodes another stream's payload correctly. If `ordered`, the decoding stream waits for the
/// payload.
fn is_received(backends: &mut [CudaBackend; 2], streams: [CUstream; 2], ordered: bool) -> bool {
    let mut expected = vec![0.0; ROWS * COLS];
    Portable.decode(&payload(&qsgd(4)), &mut expected).unwrap();
    let ((gradient, _), sent, received) = (gradient(), device(4 * ROWS * COLS), device(4 * ROWS * COLS));
    let [encoder, decoder] = backends;
    // SAFETY: `sent` is longer than a payload, and `received` is as long as the values.
    unsafe {
        encoder.encode_to_device(&qsgd(4), &gradient, Stream::default(), sent).unwrap();
        if ordered {
            order(streams[0], streams[1]);
        }
        decoder.decode_on_device(&qsgd(4), gradient.shape(), sent, received).unwrap();
    }
    let done = decoder.check().is_ok();
    encoder.check().unwrap();
    done && values(received, ROWS * COLS) == expected
}

/// Whether a payload is correct although another stream clears the gradient afterwards. If `ordered`, the stream that
/// clears waits for the encoder.
fn is_sent(backends: &mut [CudaBackend; 2], streams: [CUstream; 2], ordered: bool) -> bool {
    let ((gradient, address), expected) = (gradient(), payload(&qsgd(4)));
    let mut sent = vec![0; expected.len()];
    let target = device(4 * ROWS * COLS);
    // SAFETY: the target is longer than a payload, and the gradient has this length.
    unsafe {
        backends[0].encode_to_device(&qsgd(4), &gradient, Stream::default(), target).unwrap();
        if ordered {
            order(streams[0], streams[1]);
        }
        sys::cuMemsetD8Async(address, 0, 4 * ROWS * COLS, streams[1]).result().unwrap();
        let _ = backends[0].check();
        sys::cuMemcpyDtoH_v2(sent.as_mut_ptr().cast(), target, sent.len()).result().unwrap();
    }
    backends[1].synchronise().unwrap();
    sent == expected
}

#[test]
#[ignore = "needs the fake driver"]
fn two_streams() {
    if !is_child() {
        return;
    }
    let streams = [trainer(0).1, trainer(0).1];
    // SAFETY: the streams and their context stay alive.
    let mut backends = streams.map(|stream| unsafe { CudaBackend::with_stream(stream.cast()) }.unwrap());
    for _ in 0..3 {
        assert!(is_received(&mut backends, streams, true) && is_sent(&mut backends, streams, true));
    }
    // Without an order between the streams, the first result is true if the decoder runs after the encoder. The second
    // result is true if the gradient is cleared after the encoder has run.
    let unordered = (is_received(&mut backends, streams, false), is_sent(&mut backends, streams, false));
    match std::env::var("FAKE_CUDA_ORDER").unwrap().as_str() {
        "latest" => assert_eq!(unordered, (false, true)),
        "others" => assert_eq!(unordered, (true, false)),
        "earliest" => assert_eq!(unordered, (true, true)),
        _ => {}
    }
}

/// Tests for a fault that `examples/on_device` had in the past: the example copied a payload on the null stream. The
/// null stream does not wait for a backend's own stream, and a wait for the whole context does not order these two
/// streams.
#[test]
fn copies_of_the_null_stream_that_wait_for_no_backend_are_found() {
    extremes("copied_after");
}

#[test]
#[ignore = "needs the fake driver"]
fn copied_after() {
    if !is_child() {
        return;
    }
    trainer(0);
    let mut backend = CudaBackend::new(0).unwrap();
    let ((gradient, _), expected) = (gradient(), payload(&qsgd(4)));
    let mut is_copied = |ordered: bool| {
        let ([sent, copied], mut found) = ([(); 2].map(|()| device(expected.len())), vec![0; expected.len()]);
        // SAFETY: the memory is as long as the payload.
        unsafe {
            backend.encode_to_device(&qsgd(4), &gradient, Stream::default(), sent).unwrap();
            if ordered {
                backend.check().unwrap();
            }
            sys::cuMemcpyDtoDAsync_v2(copied, sent, expected.len(), null_mut()).result().unwrap();
            sys::cuCtxSynchronize().result().unwrap();
            sys::cuMemcpyDtoH_v2(found.as_mut_ptr().cast(), copied, expected.len()).result().unwrap();
        }
        backend.check().unwrap();
        found == expected
    };
    assert!((0..3).all(|_| is_copied(true)));
    println!("reversed: {}", !is_copied(false));
}

/// Tests for unordered uploads. A copy from pageable memory may be unfinished when the call returns, and a backend's
/// own stream does not wait for the copy.
#[test]
fn uploads_that_no_backend_waits_for_are_found() {
    extremes("uploaded_before");
}

#[test]
#[ignore = "needs the fake driver"]
fn uploaded_before() {
    if !is_child() {
        return;
    }
    trainer(0);
    let mut backend = CudaBackend::new(0).unwrap();
    let expected = payload(&qsgd(4));
    let mut is_uploaded = |ordered: bool| {
        let ((gradient, _), mut found) = (gradient_copied(ordered), vec![0; expected.len()]);
        let sent = device(expected.len());
        // SAFETY: the memory is as long as the payload.
        unsafe {
            backend.encode_to_device(&qsgd(4), &gradient, Stream::default(), sent).unwrap();
            // The gradient may not have arrived yet, and the previous content of the memory need not be finite.
            let _ = backend.check();
            sys::cuMemcpyDtoH_v2(found.as_mut_ptr().cast(), sent, expected.len()).result().unwrap();
        }
        found == expected
    };
    assert!((0..3).all(|_| is_uploaded(true)));
    println!("reversed: {}", !is_uploaded(false));
}

/// Freeing memory, destroying a stream and unloading a module do not run enqueued work.
#[test]
fn only_waits_are_waits() {
    with_the_fake("no_waits", &[("FAKE_CUDA_ORDER", "latest")]);
}

#[test]
#[ignore = "needs the fake driver"]
fn no_waits() {
    if !is_child() {
        return;
    }
    let ([stream, other], words) = ([trainer(0).1, trainer(0).1], [device(4), device(4)]);
    let (mut of_stream, freed) = (0, device(4));
    let now = || words.map(|word| values(word, 1)[0].to_bits());
    // SAFETY: the addresses are valid for words, and streams and memory are unused when they are released.
    unsafe {
        sys::cuMemAllocAsync(&mut of_stream, 4, stream).result().unwrap();
        sys::cuMemsetD32Async(of_stream, 7, 1, stream).result().unwrap();
        sys::cuMemcpyDtoDAsync_v2(words[0], of_stream, 4, stream).result().unwrap();
        sys::cuMemsetD32Async(words[1], 8, 1, other).result().unwrap();
        sys::cuMemFreeAsync(of_stream, stream).result().unwrap();
        sys::cuMemFree_v2(freed).result().unwrap();
        sys::cuStreamDestroy_v2(other).result().unwrap();
        assert_eq!(now(), [0xa5a5_a5a5; 2]);
        sys::cuStreamSynchronize(stream).result().unwrap();
        assert_eq!(now(), [7, 0xa5a5_a5a5]);
        sys::cuCtxSynchronize().result().unwrap();
        assert_eq!(now(), [7, 8]);
    }
}

#[test]
fn events_are_places_in_their_streams() {
    with_the_fake("places", &[("FAKE_CUDA_ORDER", "latest")]);
}

#[test]
#[ignore = "needs the fake driver"]
fn places() {
    if !is_child() {
        return;
    }
    let stream = trainer(0).1;
    let (mut event, words) = (null_mut(), device(8));
    let now = || values(words, 2).to_vec().into_iter().map(f32::to_bits).collect::<Vec<_>>();
    // SAFETY: the memory has two words, and the pointers are valid for handles.
    unsafe {
        sys::cuEventCreate(&mut event, 0).result().unwrap();
        assert_eq!(sys::cuEventQuery(event), CUresult::CUDA_SUCCESS, "never recorded");
        sys::cuMemsetD32Async(words, 1, 1, stream).result().unwrap();
        sys::cuEventRecord(event, stream).result().unwrap();
        sys::cuMemsetD32Async(words, 2, 2, stream).result().unwrap();
        assert_eq!(sys::cuEventQuery(event), CUresult::CUDA_ERROR_NOT_READY);
        sys::cuEventSynchronize(event).result().unwrap();
        assert_eq!(now(), [1, 0xa5a5_a5a5]);
        assert_eq!(sys::cuEventQuery(event), CUresult::CUDA_SUCCESS);
        sys::cuStreamSynchronize(stream).result().unwrap();
        assert_eq!(now(), [2, 2]);
        sys::cuEventDestroy_v2(event).result().unwrap();
        assert_eq!(sys::cuEventSynchronize(event), CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
}

#[test]
fn pageable_memory_is_copied_at_once_and_counted() {
    with_the_fake("pageable", &[]);
}

#[test]
#[ignore = "needs the fake driver"]
fn pageable() {
    if !is_child() {
        return;
    }
    let (stream, word) = (trainer(0).1, device(4));
    let mut bits = 7u32;
    assert_eq!(state().pageable, 0);
    // SAFETY: source and target have one word each.
    unsafe { sys::cuMemcpyHtoDAsync_v2(word, (&raw const bits).cast(), 4, stream).result().unwrap() };
    assert_eq!(state().pageable, 1);
    bits += 1;
    // SAFETY: the stream is alive.
    unsafe { sys::cuStreamSynchronize(stream).result().unwrap() };
    assert_eq!((values(word, 1)[0].to_bits(), bits), (7, 8));
}

#[test]
fn the_null_stream_is_ordered_with_those_that_block() {
    extremes("null_stream");
}

#[test]
#[ignore = "needs the fake driver"]
fn null_stream() {
    if !is_child() {
        return;
    }
    let other = trainer(0).1;
    let (mut blocking, words) = (null_mut(), device(4));
    // SAFETY: the pointer is valid for a stream, and the memory has one word.
    unsafe {
        sys::cuStreamCreate(&mut blocking, 0).result().unwrap();
        for stream in [blocking, other] {
            sys::cuMemsetD32Async(words, 1, 1, stream).result().unwrap();
            sys::cuMemsetD32Async(words, 2, 1, null_mut()).result().unwrap();
            sys::cuStreamSynchronize(null_mut()).result().unwrap();
            sys::cuStreamSynchronize(stream).result().unwrap();
            let last = values(words, 1)[0].to_bits();
            if stream == blocking {
                assert_eq!(last, 2);
            } else {
                println!("reversed: {}", last == 1);
            }
        }
    }
}

/// Before an upload writes a half of the staging memory again, the upload must wait until the device has read that
/// half, and for no other work.
#[test]
fn staging_waits_for_the_half_that_it_writes() {
    for (mistake, expected) in
        [("", "[true, false, false]"), ("none", "[false, false, false]"), ("last", "[true, true, false]")]
    {
        let variables = [("FAKE_CUDA_EVENT", mistake)];
        let variables = if mistake.is_empty() { &[][..] } else { &variables };
        let Some(text) = with_the_fake("halves", variables) else { return };
        assert!(text.contains(&format!("read: {expected}")), "{mistake}: {text}");
    }
}

#[test]
#[ignore = "needs the fake driver"]
fn halves() {
    if !is_child() {
        return;
    }
    let stream = trainer(0).1;
    let target = device(3 * HALF);
    let mut staging = Staging::new(Cuda::load().unwrap(), HALF).unwrap();
    // The upload has three parts. The third part goes through the same half of the staging memory as the first part.
    let bytes: Vec<u8> = [1, 2, 3].iter().flat_map(|&value| [value; HALF]).collect();
    staging.upload(&bytes, target, stream).unwrap();
    let words = values(target, 3 * HALF / 4);
    let arrived: Vec<bool> = words.chunks(HALF / 4).map(|half| half[0].to_bits() != 0xa5a5_a5a5).collect();
    println!("read: {arrived:?}");
    // SAFETY: the stream is alive.
    unsafe { sys::cuStreamSynchronize(stream).result().unwrap() };
    staging.all_read();
    staging.free();
    let arrived: Vec<u32> =
        values(target, 3 * HALF / 4).chunks(HALF / 4).map(|half| half[0].to_bits() & 0xff).collect();
    let waited_for = std::env::var("FAKE_CUDA_EVENT").as_deref() != Ok("none");
    assert_eq!(arrived, [if waited_for { 1 } else { 3 }, 2, 3]);
}

#[test]
fn captures_refuse_what_waits_and_loads() {
    with_the_fake("refusals", &[]);
}

#[test]
#[ignore = "needs the fake driver"]
fn refusals() {
    if !is_child() {
        return;
    }
    let (stream, other) = (trainer(0).1, trainer(0).1);
    let (mut event, mut memory, mut module) = (null_mut(), 0, null_mut());
    let mut word = 0u32;
    // SAFETY: the pointers are valid for handles and words.
    unsafe {
        sys::cuEventCreate(&mut event, 0).result().unwrap();
        let words = device(4);
        let refused: [&mut dyn FnMut() -> CUresult; 7] = [
            &mut || sys::cuStreamSynchronize(stream),
            &mut || sys::cuCtxSynchronize(),
            &mut || sys::cuEventSynchronize(event),
            &mut || sys::cuEventQuery(event),
            &mut || sys::cuMemAlloc_v2(&mut memory, 4),
            &mut || sys::cuMemcpyDtoH_v2((&raw mut word).cast(), words, 4),
            &mut || sys::cuModuleLoadData(&mut module, c"none".as_ptr().cast()),
        ];
        for (number, call) in refused.into_iter().enumerate() {
            capture(stream, true);
            assert_eq!(call(), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "{number}");
            let enqueued = sys::cuMemsetD32Async(words, 1, 1, stream);
            assert_eq!(enqueued, CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "{number}");
            assert_eq!(capture(stream, false), enqueued as i32, "{number}");
        }
        // Other streams stay usable during the capture.
        capture(stream, true);
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
        sys::cuStreamIsCapturing(other, &mut status).result().unwrap();
        assert_eq!(status, sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE);
        sys::cuMemsetD32Async(words, 7, 1, other).result().unwrap();
        sys::cuStreamSynchronize(other).result().unwrap();
        assert_eq!((values(words, 1)[0].to_bits(), capture(stream, false)), (7, 0));
    }
}

/// A call that would have to allocate memory or load kernels during a capture must return an error, and must leave the
/// capture valid.
#[test]
fn a_backend_spoils_no_capture() {
    with_the_fake("spoilt", &[]);
}

#[test]
#[ignore = "needs the fake driver"]
fn spoilt() {
    if !is_child() {
        return;
    }
    let stream = trainer(0).1;
    // SAFETY: the stream and its context stay alive.
    let backend = || unsafe { CudaBackend::with_stream(stream.cast()) };
    let mut early = backend().unwrap();
    // After the next call, the backend `late` has workspace and a loaded module, but `early` has neither.
    let mut late = backend().unwrap();
    // SAFETY: the memory has as many values as the payload.
    unsafe { late.decode_to_device(&payload(&qsgd(2)), device(4 * ROWS * COLS)) }.unwrap();
    let kernel = Kernel { module: Module::Qsgd, entry: "usual_encode" };
    capture(stream, true);
    assert_eq!(backend().map(drop), Err(Error::Captured));
    assert_eq!(early.reserve(&[], &[Call::Measure]).map_err(|failed| failed.error), Err(Error::Captured));
    assert_eq!(early.gpu_mut().prepare(kernel), Err(Error::Captured));
    assert_eq!(early.synchronise(), Err(Error::Captured));
    drop(late);
    assert_eq!(capture(stream, false), 0);
}

#[test]
fn workspace_that_would_grow_in_a_capture_is_kept() {
    with_the_fake("growing", &[]);
}

#[test]
#[ignore = "needs the fake driver"]
fn growing() {
    if !is_child() {
        return;
    }
    let stream = trainer(0).1;
    let target = device(4 * ROWS * COLS);
    let own = state().left[0];
    // SAFETY: the stream and its context stay alive.
    let mut backend = unsafe { CudaBackend::with_stream(stream.cast()) }.unwrap();
    // SAFETY: the memory has as many values as the payload.
    let mut decode = |bits| unsafe { backend.decode_to_device(&payload(&qsgd(bits)), target) };
    decode(2).unwrap();
    capture(stream, true);
    assert_eq!(decode(8), Err(Error::Captured));
    assert_eq!(capture(stream, false), 0);
    decode(2).unwrap();
    let before = state().waits;
    decode(8).unwrap();
    assert_eq!(state().waits, before, "memory that is too small is given back in the stream's order");
    drop(backend);
    assert_eq!(state().left[0], own, "what is left: the test's own memory");
}
