//! The mean of a model's last gradients on the device, against the core's arithmetic on the host.
#![allow(unsafe_code)]

use super::launches::{Calls, Counted};
use super::memory::Held;
use super::simt::flavour;
use super::{ROWS, backend};
use crate::{CudaBackend, DeviceJob, DeviceWindow, Error};
use lgreco_core::backend::{Backend, Job, Portable};
use lgreco_core::compress::{Candidates, qsgd::Qsgd};
use lgreco_core::gradient::{Bf16, Dtype, Element, F16, Gradient, Shape, Values, with_elements};
use lgreco_core::rng::Stream;
use lgreco_core::testing::backend::Tensor;
use lgreco_core::testing::powersgd::uniform;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Layers with ends that are no multiple of anything, one without elements, one that takes several blocks.
const SHAPES: [(usize, usize); 5] = [(61, 47), (5, 1), (0, 7), (130, 509), (1, 1)];

/// 16-byte aligned memory of the device, full of rubbish.
struct Memory(Vec<u128>);

impl Memory {
    fn new(bytes: u64) -> Memory {
        Memory(vec![u128::MAX; bytes.div_ceil(16) as usize])
    }

    fn address(&self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }
}

/// A model's gradients of a step.
fn tensors(step: u64) -> Vec<Tensor> {
    let tensor = |(layer, (rows, cols)): (usize, (usize, usize))| {
        let values = uniform(rows * cols, 10 * step + layer as u64);
        Tensor::new(&values.iter().map(|x| x * x * x * 3.0).collect::<Vec<f32>>(), rows, cols)
    };
    SHAPES.into_iter().enumerate().map(tensor).collect()
}

fn of(tensor: &Tensor, dtype: Dtype) -> Gradient<'_> {
    tensor.gradients().into_iter().find(|gradient| gradient.values().dtype() == dtype).unwrap()
}

/// As a planner does.
fn blended(mean: &mut [f32], gradient: &Gradient<'_>, steps: u64) {
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

/// A window of three steps, the second without the first layer, begun in memory that is given; and the means expected.
fn window(backend: &mut CudaBackend, dtype: Dtype, memory: &Memory) -> (DeviceWindow, Vec<Vec<f32>>) {
    let layers = SHAPES.map(|(rows, cols)| (Shape::new(rows, cols).unwrap(), dtype));
    let mut means: Vec<Vec<f32>> = SHAPES.iter().map(|(rows, cols)| vec![0.0; rows * cols]).collect();
    // SAFETY: as large as the window says; gradients live through the calls, which the processor is done with when they return.
    unsafe {
        let window = backend.begin_window(&layers, memory.address()).unwrap();
        for step in 1..=3 {
            let tensors = tensors(step);
            let held: Vec<Held> = tensors.iter().map(|tensor| Held::new(&of(tensor, dtype), 4)).collect();
            let first = usize::from(step == 2);
            // In two buckets, backwards, as DDP has them.
            let seen: Vec<(usize, u64)> =
                (first..layers.len()).rev().map(|layer| (layer, held[layer].address())).collect();
            let (one, other) = seen.split_at(2);
            backend.observe(&window, one, step).unwrap();
            backend.observe(&window, other, step).unwrap();
            (first..layers.len()).for_each(|layer| blended(&mut means[layer], &of(&tensors[layer], dtype), step));
        }
        (window, means)
    }
}

#[test]
fn means_have_the_planners_bits_and_are_rounded_to_their_type() {
    for order in 0..3 {
        let Some(mut backend) = backend(flavour(), order) else { return };
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            let layers = SHAPES.map(|(rows, cols)| (Shape::new(rows, cols).unwrap(), dtype));
            let memory = Memory::new(DeviceWindow::bytes(&layers));
            let (window, means) = window(&mut backend, dtype, &memory);
            let read = |backend: &mut CudaBackend, layer: usize| {
                let mut values = vec![0.0; means[layer].len()];
                backend.window_mean(&window, layer, &mut values).unwrap();
                values
            };
            for (layer, mean) in means.iter().enumerate() {
                assert!(bits(&read(&mut backend, layer)) == bits(mean), "{dtype:?}, layer {layer}");
            }
            backend.close_window(&window).unwrap();
            let start = (window.norms_address() - memory.address()) as usize / 8;
            let norms: &[f64] = &bytemuck::cast_slice(&memory.0)[start..][..layers.len()];
            for (layer, mean) in means.iter().enumerate() {
                let mean = rounded(mean, dtype);
                assert!(bits(&read(&mut backend, layer)) == bits(&mean), "{dtype:?}, layer {layer}, closed");
                let norm: f64 = mean.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
                assert!(
                    (norms[layer] - norm).abs() <= 1e-12 * norm,
                    "{dtype:?}, layer {layer}: {} {norm}",
                    norms[layer]
                );
            }
        }
    }
}

/// What a plan is made of: rows of means where they are, under the candidates of their layers' types.
#[test]
fn rows_of_a_closed_window_are_those_of_the_means() {
    let Some(mut backend) = backend(flavour(), 2) else { return };
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        let layers = SHAPES.map(|(rows, cols)| (Shape::new(rows, cols).unwrap(), dtype));
        let memory = Memory::new(DeviceWindow::bytes(&layers));
        let (window, means) = window(&mut backend, dtype, &memory);
        backend.close_window(&window).unwrap();
        let candidates = [
            Candidates::Qsgd { base: Qsgd::default(), bits: &[2, 4] },
            Candidates::TopK { values: dtype, keeps: &[3, 70, 1000] },
            Candidates::QuantisedTopK { keeps: &[70, 1000], bits: &[2, 5] },
            Candidates::PowerSgd { iterations: 5, ranks: &[1, 3] },
        ];
        for layer in [0, 3] {
            let mean = rounded(&means[layer], dtype);
            // As the planner has them, in their own type.
            let (halves, brains): (Vec<F16>, Vec<Bf16>) =
                mean.iter().map(|&x| (F16::from_f32(x), Bf16::from_f32(x))).unzip();
            let values = match dtype {
                Dtype::F32 => Values::F32(&mean),
                Dtype::F16 => Values::F16(&halves),
                Dtype::Bf16 => Values::Bf16(&brains),
            };
            let gradient = Gradient::new(values, layers[layer].0).unwrap();
            for candidates in candidates {
                let stream = Stream { seed: 5, layer: layer as u32, ..Stream::default() };
                let job = Job { gradient, candidates, stream };
                let mut expected = vec![0.0; candidates.len()];
                let mut workspace = vec![0; Portable.workspace_len(&[job])];
                Portable.measure(&[job], &mut workspace, &mut expected).unwrap();
                let mut found = vec![0.0; candidates.len()];
                let jobs = [DeviceJob { gradient: window.gradient(layer).unwrap(), candidates, stream }];
                backend.measure_device(&jobs, &mut found).unwrap();
                for (found, expected) in found.iter().zip(&expected) {
                    let near = (found - expected).abs() <= ROWS * expected;
                    assert!(near, "{dtype:?}, layer {layer}, {candidates:?}: {found} {expected}");
                }
            }
        }
    }
}

#[test]
fn what_is_no_window_is_refused() {
    let Some(mut backend) = backend(flavour(), 0) else { return };
    let layers = [(Shape::new(4, 4).unwrap(), Dtype::F32)];
    let memory = Memory::new(DeviceWindow::bytes(&layers));
    // SAFETY: as large as the window says; what is refused is not looked at.
    unsafe {
        let misplaced = backend.begin_window(&layers, memory.address() + 8).unwrap_err();
        assert!(matches!(misplaced, Error::Memory { .. }), "{misplaced}");
        let window = backend.begin_window(&layers, memory.address()).unwrap();
        for (seen, steps) in [(&[(1, 16)][..], 1), (&[(0, 16)], 0), (&[(0, 0)], 1), (&[(0, 18)], 1)] {
            assert!(backend.observe(&window, seen, steps).is_err(), "{seen:?}, {steps}");
        }
        backend.observe(&window, &[], 1).unwrap();
        assert!(window.gradient(1).is_none());
        assert!(backend.window_mean(&window, 1, &mut []).is_err());
        assert!(backend.window_mean(&window, 0, &mut [0.0; 15]).is_err());
        let mut mean = [1.0; 16];
        backend.window_mean(&window, 0, &mut mean).unwrap();
        assert_eq!(mean, [0.0; 16]);
    }
}

/// However many layers there are: one launch for the layers that are observed together, two at the end.
#[test]
fn a_window_takes_one_launch_per_bucket_and_two_to_close() {
    let calls = Arc::new(Calls::default());
    let mut backend = CudaBackend::on(Box::new(Counted(calls.clone())));
    let shape = Shape::new(768, 768).unwrap();
    let layers = [(shape, Dtype::F32); 150];
    let counted = || [0, 2].map(|kind| calls.kinds[kind].load(Ordering::Relaxed));
    // SAFETY: a device that counts looks at no address.
    unsafe {
        let window = backend.begin_window(&layers, 4096).unwrap();
        assert_eq!(counted(), [0, 0]);
        let seen: Vec<(usize, u64)> = (0..150).map(|layer| (layer, 4096)).collect();
        backend.observe(&window, &seen, 1).unwrap();
        assert_eq!(counted(), [1, 0]);
        backend.close_window(&window).unwrap();
        assert_eq!(counted(), [3, 0]);
    }
    assert_eq!(calls.allocations.load(Ordering::Relaxed), 0);
    assert!(calls.launched.get().iter().all(|kernel| calls.prepared.get().contains(kernel)));
}
