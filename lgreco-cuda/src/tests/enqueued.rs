//! Tests events between the return of an enqueuing call and the wait for the enqueued work. The stand-in for the driver
//! runs enqueued work in several orders.
#![allow(unsafe_code)]

use super::driver::{State, is_child, run_in_all_orders, state, trainer};
use crate::checks::graphs::Graph;
use crate::{CudaBackend, DeviceExchange, DeviceGradient, Error, ExchangeConfig, ExchangeProgram};
use cudarc::driver::sys;
use lgreco::backend::{Backend, Portable};
use lgreco::compress::quantised_topk::QuantisedTopK;
use lgreco::compress::{Compressor, Setting, powersgd::PowerSgd, qsgd::Qsgd, topk::TopK};
use lgreco::gradient::{Dtype, Shape};
use lgreco::rng::Stream;
use lgreco_testing::backend::Tensor;
use lgreco_testing::powersgd::uniform;
use std::ffi::c_void;

pub(super) const ROWS: usize = 61;
pub(super) const COLS: usize = 147;

pub(super) fn qsgd(bits: u8) -> Setting {
    Setting::Qsgd(Qsgd { bits, ..Qsgd::default() })
}

fn settings() -> [Setting; 4] {
    let (top, few) = (TopK { keep: 500, values: Dtype::F32 }, QuantisedTopK { keep: 500, bits: 3 });
    [qsgd(4), Setting::TopK(top), Setting::QuantisedTopK(few), Setting::PowerSgd(PowerSgd { rank: 3, iterations: 1 })]
}

fn with_the_fake(test: &str, variables: &[(&str, &str)]) {
    run_in_all_orders("enqueued", test, variables);
}

/// Returns a function of the stand-in for the driver.
fn fake<T: Copy>(name: &str) -> T {
    // SAFETY: the stand-in is loaded and stays loaded. The callers ensure that `T` is the function's type.
    unsafe {
        let fake = libloading::Library::new("libcuda.so.1").unwrap();
        let function = *fake.get::<T>(name.as_bytes()).unwrap();
        std::mem::forget(fake);
        function
    }
}

/// Begins or ends a capture of the stream, and returns the driver's code.
pub(super) fn capture(stream: sys::CUstream, begun: bool) -> i32 {
    let (mode, mut graph) = (sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL, std::ptr::null_mut());
    // SAFETY: the pointer is valid for a graph, which is never replayed.
    unsafe {
        if begun {
            return sys::cuStreamBeginCapture_v2(stream, mode) as i32;
        }
        let code = sys::cuStreamEndCapture(stream, &mut graph);
        if !graph.is_null() {
            sys::cuGraphDestroy(graph).result().unwrap();
        }
        code as i32
    }
}

/// Enqueues the host function `call`, which returns an error code, or 0 for success.
fn enqueue(call: extern "C" fn(*mut c_void) -> i32, argument: *mut c_void, stream: sys::CUstream) {
    type Enqueue = unsafe extern "C" fn(extern "C" fn(*mut c_void) -> i32, *mut c_void, sys::CUstream) -> i32;
    // SAFETY: the function has this type; the callers keep the argument's memory.
    assert_eq!(unsafe { fake::<Enqueue>("fake_cuda_enqueue")(call, argument, stream) }, 0);
}

/// The context that is current on this thread.
pub(super) fn current_context() -> sys::CUcontext {
    let mut context = std::ptr::null_mut();
    // SAFETY: the pointer is valid for a context.
    unsafe { sys::cuCtxGetCurrent(&mut context).result().unwrap() };
    context
}

pub(super) fn tensor() -> Tensor {
    Tensor::new(&uniform(ROWS * COLS, 1), ROWS, COLS)
}

pub(super) fn payload(setting: &Setting) -> Vec<u8> {
    let (tensor, shape) = (tensor(), Shape::new(ROWS, COLS).unwrap());
    let mut payload = vec![0; setting.payload_len(shape, Dtype::F32).unwrap()];
    let mut workspace = vec![0; setting.encode_workspace_len(shape, Dtype::F32)];
    Portable.encode(setting, &tensor.gradients()[0], Stream::default(), &mut workspace, &mut payload).unwrap();
    payload
}

/// Allocates device memory, aligned to 256 bytes, which is never freed.
pub(super) fn device(bytes: usize) -> u64 {
    let mut address = 0;
    // SAFETY: a context is current, and the pointer is valid for an address.
    unsafe { sys::cuMemAlloc_v2(&mut address, bytes).result().unwrap() };
    address
}

/// Returns the values at a device address. The stand-in driver's memory is the CPU's.
pub(super) fn values(address: u64, count: usize) -> &'static [f32] {
    // SAFETY: `device` allocated this many values, and no enqueued work writes them.
    unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(address as usize), count) }
}

/// Returns a backend on a trainer's stream, and the stream.
pub(super) fn beside_a_trainer() -> (CudaBackend, sys::CUstream) {
    let (_, stream) = trainer(0);
    // SAFETY: the stream and its context stay alive.
    (unsafe { CudaBackend::with_stream(stream.cast()) }.unwrap(), stream)
}

#[test]
fn payloads_may_go_when_the_call_has_returned() {
    with_the_fake("payloads_that_go", &[]);
}

#[test]
#[ignore = "needs the fake driver"]
fn payloads_that_go() {
    if !is_child() {
        return;
    }
    let (mut backend, _) = beside_a_trainer();
    for setting in settings() {
        let payload = payload(&setting);
        let mut expected = vec![0.0; ROWS * COLS];
        Portable.decode(&payload, &mut expected).unwrap();
        let target = device(4 * expected.len());
        // SAFETY: the memory is page-locked and as long as the payload; the target is as long as the values.
        unsafe {
            let mut lent = std::ptr::null_mut();
            sys::cuMemHostAlloc(&mut lent, payload.len(), 0).result().unwrap();
            let lent = std::slice::from_raw_parts_mut(lent.cast::<u8>(), payload.len());
            lent.copy_from_slice(&payload);
            backend.decode_to_device(lent, target).unwrap();
            lent.fill(0xee);
            sys::cuMemFreeHost(lent.as_mut_ptr().cast()).result().unwrap();
        }
        backend.synchronise().unwrap();
        assert!(values(target, expected.len()) == expected, "{setting:?}");
    }
    assert_eq!(state().pageable, 0);
}

#[test]
fn more_uploads_than_are_staged_at_once_arrive() {
    with_the_fake("many_uploads", &[]);
}

#[test]
#[ignore = "needs the fake driver"]
fn many_uploads() {
    if !is_child() {
        return;
    }
    let (mut backend, _) = beside_a_trainer();
    // The payload of 61 × 147 values of 8 bits is larger than both halves of the staging memory in tests.
    let setting = qsgd(8);
    let payload = payload(&setting);
    assert!(payload.len() > 8192);
    let mut expected = vec![0.0; ROWS * COLS];
    Portable.decode(&payload, &mut expected).unwrap();
    let targets = [(); 5].map(|()| device(4 * expected.len()));
    let before = state().waits;
    for target in targets {
        // SAFETY: the target is as long as the values.
        unsafe { backend.decode_to_device(&payload, target).unwrap() };
    }
    assert_eq!(state().waits, before, "waits for the whole stream");
    backend.synchronise().unwrap();
    assert!(targets.iter().all(|&target| values(target, expected.len()) == expected));
}

#[test]
fn a_stream_that_is_being_captured_is_refused() {
    with_the_fake("captured", &[]);
}

#[test]
#[ignore = "needs the fake driver"]
fn captured() {
    if !is_child() {
        return;
    }
    let (mut backend, stream) = beside_a_trainer();
    let shape = Shape::new(ROWS, COLS).unwrap();
    let (gradient, sent, back) = (device(4 * ROWS * COLS), device(4 * ROWS * COLS), device(4 * ROWS * COLS));
    // SAFETY: the memory has this many values.
    let gradient = unsafe { DeviceGradient::new(gradient, Dtype::F32, shape) }.unwrap();
    for setting in settings() {
        for round in 0..2 {
            // The first round runs before the setting's kernels are loaded, and the second round after that.
            capture(stream, true);
            // SAFETY: the memory is large enough for payloads and values of this shape.
            let (encoded, decoded) = unsafe {
                let encoded = backend.encode_to_device(&setting, &gradient, Stream::default(), sent);
                (encoded, backend.decode_on_device(&setting, shape, sent, back))
            };
            assert_eq!(backend.synchronise(), Err(Error::Captured));
            assert_eq!(capture(stream, false), 0, "the capture is still valid");
            assert_eq!((encoded, decoded), (Err(Error::Captured), Err(Error::Captured)), "{setting:?}, {round}");
            // SAFETY: as before.
            unsafe { backend.encode_to_device(&setting, &gradient, Stream::default(), sent) }.unwrap();
            let _ = backend.check();
        }
    }
}

#[test]
fn a_streams_context_is_used_from_any_thread() {
    with_the_fake("fresh_thread", &[("FAKE_CUDA_DEVICES", "2")]);
}

#[test]
#[ignore = "needs the fake driver"]
fn fresh_thread() {
    if !is_child() {
        return;
    }
    let (_, stream) = trainer(0);
    let (stream, target) = (stream.expose_provenance(), device(4 * ROWS * COLS));
    let decode = move || {
        let payload = payload(&qsgd(4));
        let mut expected = vec![0.0; ROWS * COLS];
        Portable.decode(&payload, &mut expected).unwrap();
        // SAFETY: the stream and its context stay alive; the target is as long as the values.
        unsafe {
            let mut backend = CudaBackend::with_stream(std::ptr::with_exposed_provenance_mut(stream)).unwrap();
            backend.decode_to_device(&payload, target).unwrap();
            backend.synchronise().unwrap();
        }
        assert!(values(target, expected.len()) == expected);
    };
    // The first thread has no current context. On the second thread, the context of another device is current.
    std::thread::spawn(decode).join().unwrap();
    let beside_another = move || {
        let (other, _) = trainer(1);
        decode();
        assert_eq!(current_context(), other);
    };
    std::thread::spawn(beside_another).join().unwrap();
    assert_eq!(state().left, [1, 2, 2, 0, 1, 0], "what is left: the trainers', of whose contexts one is current here");
}

#[test]
fn what_was_not_checked_is_checked_again() {
    with_the_fake("failing_check", &[]);
}

#[test]
#[ignore = "needs the fake driver"]
fn failing_check() {
    if !is_child() {
        return;
    }
    let (mut backend, _) = beside_a_trainer();
    let (address, sent) = (device(4 * 64), device(4096));
    // SAFETY: the stand-in driver's memory is the CPU's memory.
    unsafe {
        let values = std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut::<f32>(address as usize), 64);
        values.fill(1.0);
        values[5] = f32::NAN;
    }
    let shape = Shape::new(8, 8).unwrap();
    // SAFETY: `address` has this many values, and `sent` is longer than a payload.
    unsafe {
        let gradient = DeviceGradient::new(address, Dtype::F32, shape).unwrap();
        backend.encode_to_device(&qsgd(4), &gradient, Stream::default(), sent).unwrap();
        std::env::set_var("FAKE_CUDA_FAIL", "cuMemcpyDtoHAsync_v2=719");
    }
    let failed = backend.check().unwrap_err();
    assert!(failed.job.is_none() && matches!(failed.error, Error::Driver { .. }), "{failed}");
    // SAFETY: no other thread reads the environment.
    unsafe { std::env::remove_var("FAKE_CUDA_FAIL") };
    let failed = backend.check().unwrap_err();
    assert_eq!(failed.to_string(), "job 0: element 5 is NaN: gradients must be finite");
    assert_eq!(backend.check(), Ok(()), "told once");
}

#[test]
fn what_enqueued_work_has_failed_with_is_not_forgotten() {
    with_the_fake("failing_work", &[]);
}

#[test]
#[ignore = "needs the fake driver"]
fn failing_work() {
    if !is_child() {
        return;
    }
    let (mut backend, stream) = beside_a_trainer();
    extern "C" fn fail(_: *mut c_void) -> i32 {
        700
    }
    let (address, sent) = (device(4 * 64), device(4096));
    // SAFETY: `address` has this many values, and `sent` is longer than a payload.
    unsafe {
        let gradient = DeviceGradient::new(address, Dtype::F32, Shape::new(8, 8).unwrap()).unwrap();
        backend.encode_to_device(&qsgd(4), &gradient, Stream::default(), sent).unwrap();
    }
    // Opens another backend in the same context, with a separate stream.
    let left = state().left;
    let mut own = CudaBackend::new(0).unwrap();
    own.decode(&payload(&qsgd(4)), &mut vec![0.0; ROWS * COLS]).unwrap();
    enqueue(fail, std::ptr::null_mut(), stream);
    for _ in 0..2 {
        let failed = backend.check().unwrap_err();
        assert!(failed.job.is_none() && failed.to_string().contains("700"), "{failed}");
    }
    assert!(backend.synchronise().is_err() && own.synchronise().is_err());
    drop(own);
    assert_eq!(state().left, left, "everything is freed all the same");
}

#[test]
fn a_device_that_is_full_can_still_do_what_fits() {
    with_the_fake("full", &[("FAKE_CUDA_MEMORY", "3000000")]);
}

#[test]
#[ignore = "needs the fake driver"]
fn full() {
    if !is_child() {
        return;
    }
    let mut backend = CudaBackend::new(0).unwrap();
    let mut encode = |rows: usize| {
        let (values, shape) = (uniform(64 * rows, 1), Shape::new(rows, 64).unwrap());
        let (tensor, setting) = (Tensor::new(&values, rows, 64), qsgd(4));
        let mut payload = vec![0; setting.payload_len(shape, Dtype::F32).unwrap()];
        let encoded = backend.encode(&setting, &tensor.gradients()[0], Stream::default(), &mut [], &mut payload);
        encoded.map_err(|_| backend.failure().cloned())
    };
    assert!(encode(64).is_ok());
    assert!(matches!(encode(16_384), Err(Some(Error::OutOfMemory { bytes })) if bytes >= 4 * 64 * 16_384));
    assert!(encode(64).is_ok());
    let State { left: [allocations, ..], .. } = state();
    assert!(allocations > 0);
    drop(backend);
    assert_eq!(state().left, [0; 6]);
}

#[test]
fn a_graph_of_an_exchange_replays_as_steps_do() {
    with_the_fake("replayed", &[]);
}

/// Arguments of an all-reduce of two buffers. The all-reduce is enqueued in a stream.
struct AllReduce {
    buffers: [u64; 2],
    count: usize,
}

extern "C" fn all_reduce(argument: *mut c_void) -> i32 {
    // SAFETY: `enqueue_all_reduce` passes an argument that stays alive, with valid memory.
    unsafe {
        let AllReduce { buffers, count } = *argument.cast::<AllReduce>();
        let [one, other] = buffers.map(|address| {
            std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut::<f32>(address as usize), count)
        });
        one.iter_mut().zip(&*other).for_each(|(sum, x)| *sum += x);
        other.copy_from_slice(one);
    }
    0
}

fn enqueue_all_reduce(buffers: [u64; 2], count: usize, stream: sys::CUstream) {
    enqueue(all_reduce, Box::into_raw(Box::new(AllReduce { buffers, count })).cast(), stream);
}

/// A rank of an exchange, and the memory that the exchange uses.
struct Rank {
    exchange: DeviceExchange,
    gradients: u64,
    sums: u64,
    factors: u64,
    means: u64,
}

#[test]
#[ignore = "needs the fake driver"]
fn replayed() {
    if !is_child() {
        return;
    }
    let (mut backend, stream) = beside_a_trainer();
    let power = Setting::PowerSgd(PowerSgd { rank: 3, iterations: 1 });
    let top = Setting::TopK(TopK { keep: 40, values: Dtype::Bf16 });
    let layers = [(ROWS, COLS, qsgd(4)), (64, 1, Setting::Dense), (COLS, ROWS, power), (ROWS, COLS, top)]
        .map(|(rows, cols, setting)| (Shape::new(rows, cols).unwrap(), setting));
    let (elements, config) = (3 * ROWS * COLS + 64, ExchangeConfig { world: 2, ..ExchangeConfig::default() });
    let program = |rank| {
        let stream = Stream { rank, ..Stream::default() };
        ExchangeProgram::new(&layers, ExchangeConfig { stream, ..config }).unwrap()
    };
    let (message, sums, factors) = (program(0).message_bytes(), program(0).sum_values(), program(0).factor_values());
    let begin = |backend: &mut CudaBackend, rank| {
        let program = program(rank);
        let (memory, residuals) = (device(program.memory_bytes() as usize), device(program.residual_bytes() as usize));
        // SAFETY: the memory has the program's sizes, and no other work uses it.
        let exchange = unsafe { backend.begin_exchange(program, memory, residuals) }.unwrap();
        let [gradients, sums, factors, means] = [elements, sums, factors, elements].map(|count| device(4 * count));
        // SAFETY: the memory has this many values, and no enqueued work uses them yet.
        let values = unsafe {
            std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(gradients as usize), elements)
        };
        values.copy_from_slice(&uniform(elements, 1 + u64::from(rank)));
        Rank { exchange, gradients, sums, factors, means }
    };
    let mut all = Vec::new();
    for captured in [false, true] {
        let ranks = [0, 1].map(|rank| begin(&mut backend, rank));
        let messages = device(2 * message);
        // SAFETY: all memory has the program's sizes.
        let step = |backend: &mut CudaBackend| unsafe {
            for (rank, number) in ranks.iter().zip(0..) {
                backend.encode_exchange(&rank.exchange, rank.gradients, messages + number * message as u64).unwrap();
                backend.project_exchange(&rank.exchange, rank.gradients, rank.sums).unwrap();
            }
            enqueue_all_reduce([0, 1].map(|rank| ranks[rank].sums), sums, stream);
            ranks
                .iter()
                .for_each(|rank| backend.back_project_exchange(&rank.exchange, rank.sums, rank.factors).unwrap());
            enqueue_all_reduce([0, 1].map(|rank| ranks[rank].factors), factors, stream);
            for rank in &ranks {
                backend.average_exchange(&rank.exchange, rank.sums, rank.factors, rank.means).unwrap();
                backend.finish_exchange(&rank.exchange, messages, rank.means).unwrap();
            }
        };
        backend.synchronise().unwrap();
        let before = state();
        // SAFETY: the stream belongs to the backend.
        let graph = captured.then(|| unsafe { Graph::capture(stream, || step(&mut backend)) }.unwrap());
        if let Some(graph) = &graph {
            assert_eq!(state().launches - before.launches, 2 * 22, "launches of two ranks");
            assert_eq!(graph.operations, 2 * 22 + 2);
        }
        let (mut seen, mut remembered) = (Vec::new(), [0; 2]);
        for number in 1u32..=3 {
            if number == 3 {
                // Without its residual, the first layer's third step equals its first step, except for random words.
                for residuals in remembered {
                    // SAFETY: the memory has this many values, and begins with the first layer's values.
                    unsafe { sys::cuMemsetD8Async(residuals, 0, 4 * ROWS * COLS, stream).result().unwrap() };
                }
            }
            match &graph {
                // SAFETY: the ranks' memory is alive.
                Some(graph) => unsafe { graph.launch(stream) }.unwrap(),
                None => step(&mut backend),
            }
            assert_eq!(state().waits - before.waits, 2 * (number as i32 - 1), "only what is asked below waits");
            let outcomes = [0, 1].map(|rank| backend.exchange_outcome(&ranks[rank].exchange).unwrap());
            assert!(outcomes.iter().all(|outcome| (outcome.step, outcome.failed) == (number, 0)), "{outcomes:?}");
            seen.push([0, 1].map(|rank| values(ranks[rank].means, elements).to_vec()));
            remembered = outcomes.map(|outcome| outcome.residuals);
            seen.push(remembered.map(|residuals| values(residuals, elements).to_vec()));
            assert!(values(outcomes[0].factors, factors - 2) == values(outcomes[1].factors, factors - 2));
        }
        assert!(seen[0][0] == seen[0][1], "all ranks have the same means");
        let first_layer = |step: usize| &seen[2 * step][0][..ROWS * COLS];
        assert!(first_layer(0) != first_layer(2), "every step has random words of its own");
        all.push(seen);
    }
    assert!(all[0] == all[1]);
    assert_eq!(state().pageable, 0);
}
