//! Checks that replays of a captured step give the same results as steps that are enqueued one by one.

use super::memory::{Driven, Memory};
use cudarc::driver::result::{self, DriverError, stream::StreamKind};
use cudarc::driver::sys::{self, CUgraphExec, CUstream};
use lgreco::compress::quantised_topk::QuantisedTopK;
use lgreco::compress::{Setting, powersgd::PowerSgd, qsgd::Qsgd, topk::TopK};
use lgreco::gradient::{Dtype, Shape, with_elements};
use lgreco_cuda::{CudaBackend, DeviceBucket, DeviceLayer, ExchangeConfig};
use lgreco_testing::backend::Tensor;
use lgreco_testing::powersgd::uniform;

/// A captured CUDA graph, ready to launch.
pub struct Graph {
    exec: CUgraphExec,
    /// The number of captured operations.
    pub operations: usize,
}

impl Graph {
    /// Captures the work that `enqueue` enqueues. As with `torch.cuda.graph`, no thread may wait or allocate during the
    /// capture.
    ///
    /// # Errors
    /// The driver's errors, including errors for calls that a capture does not allow.
    ///
    /// # Safety
    /// The stream is valid, and its context is current.
    pub unsafe fn capture(stream: CUstream, enqueue: impl FnOnce()) -> Result<Graph, DriverError> {
        let (mut operations, none) = (0, sys::CUgraphInstantiate_flags(0));
        // SAFETY: the caller guarantees that the stream is valid. After the instantiation, the captured graph is no
        // longer needed.
        unsafe {
            result::stream::begin_capture(stream, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL)?;
            enqueue();
            let graph = result::stream::end_capture(stream)?;
            sys::cuGraphGetNodes(graph, std::ptr::null_mut(), &mut operations).result()?;
            let exec = result::graph::instantiate(graph, none)?;
            result::graph::destroy(graph)?;
            Ok(Graph { exec, operations })
        }
    }

    /// Enqueues the graph.
    ///
    /// # Errors
    /// The driver's errors.
    ///
    /// # Safety
    /// All memory that the graph uses is still valid, and the stream's context is current.
    pub unsafe fn launch(&self, stream: CUstream) -> Result<(), DriverError> {
        // SAFETY: the caller guarantees that the graph's memory is valid and that the stream's context is current.
        unsafe { result::graph::launch(self.exec, stream) }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: this value owns the graph. An error here repeats an earlier error, which has been reported.
        let _ = unsafe { result::graph::exec_destroy(self.exec) };
    }
}

/// Returns the bytes of `elements` gradient values of this type.
fn gradients(elements: usize, dtype: Dtype) -> Vec<u8> {
    let tensor = Tensor::new(&uniform(elements, 5), elements, 1);
    with_elements!(tensor.gradients()[dtype as usize].values(), values => bytemuck::cast_slice(values).to_vec())
}

/// Runs three steps of a bucket of a single rank, either enqueued one by one or as replays of a graph. Returns the
/// means and residuals after each step. Before the third step, the first layer's residual is cleared.
fn steps(
    (cuda, stream): (&mut CudaBackend, CUstream),
    layers: &[DeviceLayer<'_>],
    config: ExchangeConfig,
    captured: bool,
) -> Vec<(Vec<u8>, Vec<f32>)> {
    let elements: usize = layers.iter().map(|layer| layer.shape.elements()).sum();
    let offered = gradients(elements, config.dtype);
    let bytes = DeviceBucket::bytes(layers, config).expect("layers that the device takes");
    let [mut memory, mut kept, mut values] = [bytes, offered.len() as u64, offered.len() as u64].map(Driven::new);
    kept.fill(&offered);
    let (from, to) = (kept.address(), values.address());
    // SAFETY: the memory is large enough and lives as long as the bucket, and no other work uses it.
    let mut bucket = unsafe { DeviceBucket::new(cuda, layers, config, memory.address()) }.expect("a bucket");
    // Means replace the gradients, so each step first copies the gradients again. With a single rank, the collectives
    // have nothing to do.
    let step = |cuda: &mut CudaBackend, bucket: &mut DeviceBucket| unsafe {
        // SAFETY: both memories have this length, and the bucket's memory is valid.
        result::memcpy_dtod_async(to, from, offered.len(), stream).expect("a copy");
        bucket.submit(cuda, to).expect("a step");
        while bucket.next(cuda).expect("a step").is_some() {}
    };
    cuda.synchronise().expect("what comes before a step");
    let graph = captured.then(|| {
        // SAFETY: the stream is the backend's, and is valid.
        unsafe { Graph::capture(stream, || step(cuda, &mut bucket)) }.expect("a step that can be captured")
    });
    let mut seen = Vec::new();
    for number in 1..=3 {
        // Without its residual, the first layer's third step equals its first step, except for the random words.
        if number == 3 {
            bucket.forget(cuda, 0).expect("nothing remembered");
        }
        match &graph {
            // SAFETY: the memory and the bucket are still valid.
            Some(graph) => unsafe { graph.launch(stream) }.expect("a replay"),
            None => step(cuda, &mut bucket),
        }
        let outcome = bucket.outcome(cuda).expect("what came of it");
        assert_eq!((outcome.step, outcome.failed), (number, 0), "{outcome:?}");
        let mut residuals = vec![0.0; elements];
        bucket.residuals(cuda, &mut residuals).expect("residuals");
        seen.push((values.bytes(), residuals));
    }
    seen
}

/// Asserts that replays of a captured step give the same means and residuals, bit for bit, as steps that are enqueued
/// one by one. Tests whole layers and shards, in all types. The device's context must be current on this thread.
///
/// # Panics
/// If the results differ, or if the driver fails.
pub fn check_graphs() {
    let stream = result::stream::create(StreamKind::NonBlocking).expect("a stream");
    // SAFETY: the stream lives until the end, and its context as long as the process.
    let mut cuda = unsafe { CudaBackend::with_stream(stream.cast()) }.expect("a device");
    let shape = Shape::new(61, 47).expect("a small shape");
    let qsgd = |bits| Setting::Qsgd(Qsgd { bits, ..Qsgd::default() });
    let top = |values| Setting::TopK(TopK { keep: 90, values });
    let few = Setting::QuantisedTopK(QuantisedTopK { keep: 80, bits: 3 });
    let power = Setting::PowerSgd(PowerSgd { rank: 3, iterations: 1 });
    let all = [shape.elements() as u64];
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        for (settings, shards) in [
            (&[qsgd(4), Setting::Dense, power, top(Dtype::F32), few, top(Dtype::Bf16)][..], &[][..]),
            (&[qsgd(3), Setting::Dense, top(Dtype::F16), few], &all),
        ] {
            let layer = |(index, &setting)| DeviceLayer { index, shape, setting, shards };
            let layers: Vec<DeviceLayer<'_>> = (0..).zip(settings).map(layer).collect();
            for reduce_dtype in [Dtype::F32, Dtype::Bf16] {
                let config = ExchangeConfig { world: 1, dtype, reduce_dtype, ..ExchangeConfig::default() };
                let [one_by_one, replayed] =
                    [false, true].map(|captured| steps((&mut cuda, stream), &layers, config, captured));
                assert!(one_by_one == replayed, "{dtype:?}, {shards:?}, sums as {reduce_dtype:?}");
                let first_layer = |step: usize| &replayed[step].0[..shape.elements() * dtype.bytes()];
                assert!(first_layer(0) != first_layer(2), "each step has random words of its own");
            }
        }
    }
    drop(cuda);
    // SAFETY: no work uses the stream any more.
    unsafe { result::stream::destroy(stream) }.expect("a stream");
}
