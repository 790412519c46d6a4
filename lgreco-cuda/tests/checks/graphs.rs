//! CUDA graphs of a bucket's steps: replays do as steps that are enqueued one by one.

use super::memory::{Driven, Memory};
use cudarc::driver::result::{self, DriverError, stream::StreamKind};
use cudarc::driver::sys::{self, CUgraphExec, CUstream};
use lgreco::compress::quantised_topk::QuantisedTopK;
use lgreco::compress::{Setting, powersgd::PowerSgd, qsgd::Qsgd, topk::TopK};
use lgreco::gradient::{Dtype, Shape, with_elements};
use lgreco_cuda::{CudaBackend, DeviceBucket, DeviceLayer, ExchangeConfig};
use lgreco_testing::backend::Tensor;
use lgreco_testing::powersgd::uniform;

/// What was captured of a stream.
pub struct Graph {
    exec: CUgraphExec,
    /// How many operations that is.
    pub operations: usize,
}

impl Graph {
    /// Captures what is enqueued meanwhile. As for `torch.cuda.graph`, no thread may then wait or allocate.
    ///
    /// # Errors
    /// The driver's, also for what was not allowed in the capture.
    ///
    /// # Safety
    /// The stream is there, and its context is current.
    pub unsafe fn capture(stream: CUstream, enqueue: impl FnOnce()) -> Result<Graph, DriverError> {
        let (mut operations, none) = (0, sys::CUgraphInstantiate_flags(0));
        // SAFETY: as the caller says; the graph is no longer needed when it has been instantiated.
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

    /// Enqueues it.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// What it uses is still there, and the stream's context is current.
    pub unsafe fn launch(&self, stream: CUstream) -> Result<(), DriverError> {
        // SAFETY: as the caller says.
        unsafe { result::graph::launch(self.exec, stream) }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: its own. What has failed before fails here, too, and has been said.
        let _ = unsafe { result::graph::exec_destroy(self.exec) };
    }
}

/// Bytes of as many values of the type.
fn gradients(elements: usize, dtype: Dtype) -> Vec<u8> {
    let tensor = Tensor::new(&uniform(elements, 5), elements, 1);
    with_elements!(tensor.gradients()[dtype as usize].values(), values => bytemuck::cast_slice(values).to_vec())
}

/// Steps of a bucket of one rank, enqueued one by one or as a graph: means and residuals after each. Before the third, what is
/// remembered of the first layer is forgotten.
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
    // SAFETY: the memory is large enough, stays, and is used here alone.
    let mut bucket = unsafe { DeviceBucket::new(cuda, layers, config, memory.address()) }.expect("a bucket");
    // Means take the gradients' places, so that each step has these brought anew. What one rank sends itself is where it comes from.
    let step = |cuda: &mut CudaBackend, bucket: &mut DeviceBucket| unsafe {
        // SAFETY: as above.
        result::memcpy_dtod_async(to, from, offered.len(), stream).expect("a copy");
        bucket.submit(cuda, to).expect("a step");
        while bucket.next(cuda).expect("a step").is_some() {}
    };
    cuda.synchronise().expect("what comes before a step");
    let graph = captured.then(|| {
        // SAFETY: the stream is the backend's.
        unsafe { Graph::capture(stream, || step(cuda, &mut bucket)) }.expect("a step that can be captured")
    });
    let mut seen = Vec::new();
    for number in 1..=3 {
        // So that of the first layer the third step is like the first, but for random words.
        if number == 3 {
            bucket.forget(cuda, 0).expect("nothing remembered");
        }
        match &graph {
            // SAFETY: memory and bucket are there.
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

/// Asserts that graphs of a bucket's step, whole and by shards, of all types, leave the means and residuals, bit for bit, that as many
/// steps leave which are enqueued one by one. The context of a device is current on this thread.
///
/// # Panics
/// When that is not so, or the driver fails.
pub fn check_graphs() {
    let stream = result::stream::create(StreamKind::NonBlocking).expect("a stream");
    // SAFETY: the stream stays until the end, its context as long as the process.
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
    // SAFETY: nothing uses it any more.
    unsafe { result::stream::destroy(stream) }.expect("a stream");
}
