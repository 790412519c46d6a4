//! Checks the mean of a model's last gradients on the device, and error-table rows of this mean, against the CPU.

use super::memory::Memory;
use lgreco::backend::{Backend, Job, Portable};
use lgreco::compress::{Candidates, qsgd::Qsgd};
use lgreco::gradient::{Bf16, Dtype, Element, F16, Gradient, Shape, Values, with_elements};
use lgreco::rng::Stream;
use lgreco_cuda::{CudaBackend, DeviceJob, DeviceWindow};
use lgreco_testing::backend::Tensor;
use lgreco_testing::powersgd::uniform;

/// The shapes of the layers. One layer has no elements, and another layer takes several blocks.
const SHAPES: [(usize, usize); 5] = [(61, 47), (5, 1), (0, 7), (130, 509), (1, 1)];
/// Largest accepted relative difference between errors in rows.
const ROWS: f64 = 1e-4;

fn layers(dtype: Dtype) -> [(Shape, Dtype); 5] {
    SHAPES.map(|(rows, cols)| (Shape::new(rows, cols).expect("a small shape"), dtype))
}

/// Returns a model's gradients in one step.
fn tensors(step: u64) -> Vec<Tensor> {
    let tensor = |(layer, (rows, cols)): (usize, (usize, usize))| {
        let values = uniform(rows * cols, 10 * step + layer as u64);
        Tensor::new(&values.iter().map(|x| x * x * x * 3.0).collect::<Vec<f32>>(), rows, cols)
    };
    SHAPES.into_iter().enumerate().map(tensor).collect()
}

fn of(tensor: &Tensor, dtype: Dtype) -> Gradient<'_> {
    tensor.gradients()[dtype as usize]
}

/// Updates a mean with a gradient as the planner does.
fn blend(mean: &mut [f32], gradient: &Gradient<'_>, steps: u64) {
    let steps = steps as f32;
    let (old, new) = ((steps - 1.0) / steps, 1.0 / steps);
    with_elements!(gradient.values(), values => {
        mean.iter_mut().zip(values).for_each(|(mean, x)| *mean = *mean * old + x.to_f32() * new);
    });
}

fn rounded(mean: &[f32], dtype: Dtype) -> Vec<f32> {
    let round = |&x: &f32| match dtype {
        Dtype::F32 => x,
        Dtype::F16 => F16::from_f32(x).to_f32(),
        Dtype::Bf16 => Bf16::from_f32(x).to_f32(),
    };
    mean.iter().map(round).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Observes three steps. Returns the window and the expected means. The second step does not observe the first layer.
fn window<M: Memory>(backend: &mut CudaBackend, dtype: Dtype, address: u64) -> (DeviceWindow, Vec<Vec<f32>>) {
    let layers = layers(dtype);
    let mut means: Vec<Vec<f32>> = SHAPES.iter().map(|(rows, cols)| vec![0.0; rows * cols]).collect();
    // SAFETY: the memory has the window's size, and the gradients live until the host has waited for the stream.
    unsafe {
        let window = backend.begin_window(&layers, address).expect("memory of the window's");
        for step in 1..=3 {
            let tensors = tensors(step);
            let held = tensors.iter().map(|tensor| {
                let bytes: &[u8] = with_elements!(of(tensor, dtype).values(), values => bytemuck::cast_slice(values));
                // The gradient's address is a multiple of 4, but not of 8.
                let mut memory = M::new(4 + bytes.len() as u64);
                memory.fill(&[&[0; 4], bytes].concat());
                memory
            });
            let mut held: Vec<M> = held.collect();
            let first = usize::from(step == 2);
            // The test observes the layers in two calls, in reverse order, as DDP's buckets do.
            let seen: Vec<(usize, u64)> =
                (first..layers.len()).rev().map(|layer| (layer, held[layer].address() + 4)).collect();
            let (one, other) = seen.split_at(2);
            backend.observe(&window, one, step).expect("layers of the window");
            backend.observe(&window, other, step).expect("layers of the window");
            backend.synchronise().expect("a device that does what it was asked to");
            (first..layers.len()).for_each(|layer| blend(&mut means[layer], &of(&tensors[layer], dtype), step));
        }
        (window, means)
    }
}

/// Checks the means before and after the window is closed, the norms, and rows of the closed window.
///
/// # Panics
/// If a result differs from the CPU's result for the same gradients.
pub fn check_window<M: Memory>(backend: &mut CudaBackend) {
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        let mut memory = M::new(DeviceWindow::bytes(&layers(dtype)));
        let (window, means) = window::<M>(backend, dtype, memory.address());
        check_means(backend, &window, &means, "open");
        backend.close_window(&window).expect("a window");
        let means: Vec<Vec<f32>> = means.iter().map(|mean| rounded(mean, dtype)).collect();
        check_means(backend, &window, &means, "closed");
        let norms = backend.window_norms(&window).expect("a window");
        assert_eq!(norms.len(), means.len());
        for ((layer, mean), norm) in means.iter().enumerate().zip(norms) {
            let expected: f64 = mean.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
            assert!((norm - expected).abs() <= 1e-12 * expected, "{dtype:?}, layer {layer}: {norm}, not {expected}");
        }
        check_rows::<M>(backend, &window, &means, dtype);
        // Checks the guard area.
        memory.bytes();
    }
}

fn check_means(backend: &mut CudaBackend, window: &DeviceWindow, means: &[Vec<f32>], what: &str) {
    for (layer, mean) in means.iter().enumerate() {
        let mut found = vec![0.0; mean.len()];
        backend.window_mean(window, layer, &mut found).expect("a layer of the window");
        assert!(bits(&found) == bits(mean), "layer {layer}, {what}: other bits than the host's");
    }
}

/// Checks the rows of the window's means, which a planner would use. All rows are enqueued in one call.
fn check_rows<M: Memory>(backend: &mut CudaBackend, window: &DeviceWindow, means: &[Vec<f32>], dtype: Dtype) {
    let candidates = [
        Candidates::Qsgd { base: Qsgd::default(), bits: &[2, 4] },
        Candidates::TopK { values: dtype, keeps: &[3, 70, 1000] },
        Candidates::QuantisedTopK { keeps: &[70, 1000], bits: &[2, 5] },
        Candidates::PowerSgd { iterations: 5, ranks: &[1, 3] },
    ];
    let (mut jobs, mut expected) = (Vec::new(), Vec::new());
    for layer in [0, 3] {
        // The expected rows use the means in the layers' type, as the planner does.
        let halves: Vec<F16> = means[layer].iter().map(|&x| F16::from_f32(x)).collect();
        let brains: Vec<Bf16> = means[layer].iter().map(|&x| Bf16::from_f32(x)).collect();
        let values = match dtype {
            Dtype::F32 => Values::F32(&means[layer]),
            Dtype::F16 => Values::F16(&halves),
            Dtype::Bf16 => Values::Bf16(&brains),
        };
        let gradient = Gradient::new(values, layers(dtype)[layer].0).expect("as many values");
        for candidates in candidates {
            let stream = Stream { seed: 5, layer: layer as u32, ..Stream::default() };
            let job = [Job { gradient, candidates, stream }];
            let mut row = vec![0.0; candidates.len()];
            Portable.measure(&job, &mut vec![0; Portable.workspace_len(&job)], &mut row).expect("a gradient");
            expected.extend(row);
            jobs.push(DeviceJob { gradient: window.gradient(layer).expect("a layer"), candidates, stream });
        }
    }
    let bytes = backend.rows_bytes(&jobs).expect("candidates of the device's");
    // Aligns the workspace to 256 bytes.
    let [mut workspace, mut results] = [bytes.workspace + 256, bytes.results].map(M::new);
    let lent = workspace.address().next_multiple_of(256);
    // SAFETY: both memories have the sizes that `rows_bytes` returned.
    unsafe { backend.enqueue_rows(&jobs, lent, results.address()) }.expect("candidates of the device's");
    backend.synchronise().expect("a device that does what it was asked to");
    let words: Vec<u64> = results.bytes().as_chunks().0.iter().map(|&word| u64::from_ne_bytes(word)).collect();
    workspace.bytes();
    let (mut rows, mut waited_for) = (vec![0.0; expected.len()], vec![0.0; expected.len()]);
    backend.read_rows(&jobs, &words, &mut rows).expect("finite gradients");
    backend.measure_device(&jobs, &mut waited_for).expect("finite gradients");
    assert_eq!(rows, waited_for, "{dtype:?}: what is enqueued has other bits than what is waited for");
    for (found, expected) in rows.iter().zip(&expected) {
        assert!((found - expected).abs() <= ROWS * expected, "{dtype:?}: {found}, not {expected}");
    }
}
