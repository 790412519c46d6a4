//! Tests rows of many layers, which share dispatches, memory and bindings.

use super::buffers::{buffer, bytes, holding};
use super::devices::small;
use super::is_full;
use super::{ROWS, backend, cut, small_backend};
use crate::kernels::Shader;
use crate::{BufferGradient, BufferJob, WgpuBackend};
use lgreco::backend::{Backend, Job};
use lgreco::compress::Candidates;
use lgreco::compress::eden::{self, Eden};
use lgreco::compress::qsgd::{Qsgd, Rounding, Scale};
use lgreco::gradient::{Dtype, Gradient, Shape};
use lgreco::rng::Stream;
use lgreco_testing::backend::{Tensor, check_rows};
use lgreco_testing::models::resnet_50;
use lgreco_testing::powersgd::uniform;
use wgpu::BufferUsages;

#[test]
fn a_model_takes_a_handful_of_dispatches() {
    let shapes = resnet_50();
    let (device, queue) = wgpu::Device::noop(&wgpu::DeviceDescriptor::default());
    let mut backend = WgpuBackend::with_device(device, queue).unwrap();
    let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC;
    let of_layer = |shape: &Shape| buffer(&backend, 4 * shape.elements() as u64, usage);
    let buffers: Vec<wgpu::Buffer> = shapes.iter().map(of_layer).collect();
    let keeps: Vec<Vec<u32>> = shapes.iter().map(|shape| keeps(shape.elements(), 10)).collect();
    let mut dispatches = |candidates: Vec<Candidates<'_>>| {
        let job = |((&shape, buffer), candidates)| {
            let gradient = BufferGradient { buffer, offset: 0, dtype: Dtype::F32, shape };
            BufferJob { gradient, candidates, stream: Stream::default() }
        };
        let jobs: Vec<BufferJob<'_>> = shapes.iter().zip(&buffers).zip(candidates).map(job).collect();
        let mut rows = vec![0.0; jobs.iter().map(|job| job.candidates.len()).sum()];
        let before = backend.gpu().dispatches;
        backend.measure_buffers(&jobs, &mut rows).unwrap();
        backend.gpu().dispatches - before
    };
    let qsgd = Candidates::Qsgd { base: Qsgd::default(), bits: &[1, 2, 3, 4, 5, 6, 7, 8] };
    // QSGD rows read all values twice: once for 1 bit, and once for more bits. Tasks share a dispatch up to
    // 128 MiB.
    assert_eq!(dispatches(vec![qsgd; 161]), 7);
    let topk = keeps.iter().map(|keeps| Candidates::TopK { values: Dtype::F32, keeps });
    assert_eq!(dispatches(topk.collect()), 8);
    let few_bits = keeps.iter().map(|keeps| Candidates::QuantisedTopK { keeps, bits: &[2, 4, 8] });
    assert_eq!(dispatches(few_bits.collect()), 12);
    let powersgd = Candidates::PowerSgd { iterations: 5, ranks: &[1, 2, 4, 8, 16, 32, 64] };
    assert_eq!(dispatches(vec![powersgd; 161]), 40);
    let eden = Candidates::Eden { base: Eden::default(), bits: &[1, 2, 3, 4, 5, 6, 7, 8] };
    assert_eq!(dispatches(vec![eden; 161]), 3);
}

/// Returns values of k in steps of a thousandth of the elements.
fn keeps(elements: usize, steps: usize) -> Vec<u32> {
    let mut keeps: Vec<u32> = (1..=steps).map(|step| (elements * step).div_ceil(1000) as u32).collect();
    keeps.dedup();
    keeps
}

/// Layers of all types and of different sizes, some of them empty. Each layer has candidates of some methods.
struct Model {
    layers: Vec<(Tensor, usize, Vec<u32>)>,
}

impl Model {
    fn new(shapes: &[(usize, usize)]) -> Model {
        let layer = |(number, &(rows, cols)): (usize, &(usize, usize))| {
            let values: Vec<f32> = uniform(rows * cols, 7 + number as u64).into_iter().map(|x| x * x * x).collect();
            // The last layers have more values of k than there are slots.
            let steps = if number + 2 < shapes.len() { 30 } else { 300 };
            let keeps = if rows * cols == 0 { vec![] } else { keeps(rows * cols, steps) };
            (Tensor::new(&values, rows, cols), number % 3, keeps)
        };
        Model { layers: shapes.iter().enumerate().map(layer).collect() }
    }

    fn jobs(&self) -> Vec<Job<'_>> {
        let jobs = self.layers.iter().enumerate().flat_map(|(number, (tensor, dtype, keeps))| {
            let gradient = tensor.gradients()[*dtype];
            let rounding = if number % 2 == 0 { Rounding::Nearest } else { Rounding::Stochastic };
            let base = Qsgd { bits: 4, bucket: 90 + 100 * number as u32, scale: Scale::MinMax, rounding };
            let candidates = [
                Candidates::Qsgd { base: Qsgd::default(), bits: &[1, 2, 5] },
                Candidates::PowerSgd { iterations: 2, ranks: &[1, 2, 3, 4, 5, 6, 7, 8, 9, 16] },
                Candidates::TopK { values: Dtype::F32, keeps },
                Candidates::TopK { values: Dtype::Bf16, keeps },
                Candidates::QuantisedTopK { keeps: &keeps[..keeps.len().min(40)], bits: &[1, 3, 8] },
                Candidates::TopK { values: Dtype::F32, keeps: &[] },
                Candidates::Qsgd { base, bits: &[3, 6] },
                Candidates::PowerSgd { iterations: 1, ranks: [&[2][..], &[1, 4], &[3]][number % 3] },
                Candidates::Eden { base: Eden::default(), bits: &[1, 3, 8] },
                Candidates::Eden { base: Eden { bits: 3, scale: eden::Scale::LeastSquares }, bits: &[2] },
            ];
            let stream = Stream { seed: 3, layer: number as u32, ..Stream::default() };
            candidates.into_iter().map(move |candidates| Job { gradient, candidates, stream })
        });
        jobs.filter(|job| job.gradient.shape().elements() > 0 || !matches!(job.candidates, Candidates::PowerSgd { .. }))
            .collect()
    }
}

fn bits(rows: &[f64]) -> Vec<u64> {
    rows.iter().map(|row| row.to_bits()).collect()
}

/// Returns the bits of the rows if each job is measured alone.
fn alone(backend: &mut WgpuBackend, jobs: &[Job<'_>]) -> Vec<u64> {
    jobs.iter().flat_map(|job| together(backend, std::slice::from_ref(job))).collect()
}

/// Returns the bits of the rows if all jobs are measured together.
fn together(backend: &mut WgpuBackend, jobs: &[Job<'_>]) -> Vec<u64> {
    let mut rows = vec![f64::NAN; jobs.iter().map(|job| job.candidates.len()).sum()];
    backend.measure(jobs, &mut [], &mut rows).unwrap();
    bits(&rows)
}

/// Like [`together`], for gradients in buffers. Each gradient has a separate buffer or, if `in_one`, all gradients lie
/// in one buffer, one after another.
fn in_buffers(backend: &mut WgpuBackend, jobs: &[Job<'_>], in_one: bool) -> Vec<u64> {
    let at = |job: &Job<'_>| 4 * (job.stream.layer as usize % 5);
    let mut held: Vec<(wgpu::Buffer, usize)> = Vec::new();
    if in_one {
        let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
        let size = |job: &Job<'_>| 4 * job.gradient.shape().elements() + 2000;
        let whole = buffer(backend, jobs.iter().map(size).sum::<usize>() as u64, usage);
        let mut offset = 1000;
        for job in jobs {
            backend.queue().write_buffer(&whole, (offset + at(job)) as u64, &padded(&job.gradient));
            held.push((whole.clone(), offset + at(job)));
            offset += size(job);
        }
    } else {
        held.extend(jobs.iter().map(|job| (holding(backend, &job.gradient, at(job)), at(job))));
    }
    let on_device = jobs.iter().zip(&held).map(|(job, (buffer, offset))| {
        let (dtype, shape) = (job.gradient.values().dtype(), job.gradient.shape());
        let gradient = BufferGradient { buffer, offset: *offset as u64, dtype, shape };
        BufferJob { gradient, candidates: job.candidates, stream: job.stream }
    });
    let on_device: Vec<BufferJob<'_>> = on_device.collect();
    let mut rows = vec![f64::NAN; jobs.iter().map(|job| job.candidates.len()).sum()];
    backend.measure_buffers(&on_device, &mut rows).unwrap();
    bits(&rows)
}

/// Returns the gradient's bytes, padded to words.
fn padded(gradient: &Gradient<'_>) -> Vec<u8> {
    let mut padded = bytes(gradient).to_vec();
    padded.resize(padded.len().next_multiple_of(4), 0xff);
    padded
}

/// Asserts that jobs have the same rows if they are measured together as if each is measured alone.
fn check(backend: &mut WgpuBackend, model: &Model) {
    let jobs = model.jobs();
    let alone = alone(backend, &jobs);
    assert!(alone.iter().all(|&bits| f64::from_bits(bits).is_finite()));
    assert!(together(backend, &jobs) == alone, "rows from host slices are others");
    assert!(in_buffers(backend, &jobs, false) == alone, "rows from buffers are others");
    if backend.gpu().limits.max_buffer_size > 2 << 20 {
        assert!(in_buffers(backend, &jobs, true) == alone, "rows from one buffer are others");
    }
}

const SHAPES: [(usize, usize); 9] =
    [(144, 48), (1, 1), (0, 7), (300, 70), (48, 192), (7, 3), (33, 2070), (3, 5001), (90, 130)];

type Device = fn() -> Option<WgpuBackend>;

#[test]
fn rows_of_layers_together_are_those_of_each_alone() {
    let (model, small_model) = (Model::new(&SHAPES), Model::new(&SHAPES[..5]));
    // A binding can hold all layers (`backend`), some layers (`small_backend`), or only a part of a layer (`cut`).
    // Memory has the content of earlier calls.
    let devices: &[(Device, &Model)] = if is_full() {
        &[(backend, &model), (small_backend, &model), (cut, &model)]
    } else {
        &[(backend, &model), (cut, &small_model)]
    };
    for (device, model) in devices {
        let Some(mut backend) = device() else { return };
        check(&mut backend, model);
        if is_full() && backend.gpu().limits.max_storage_buffer_binding_size > 2 << 20 {
            backend.gpu().window = 300 << 10;
            check(&mut backend, model);
        }
    }
}

#[test]
fn what_is_not_finite_is_named_by_layer_and_place() {
    let Some(mut backend) = backend() else { return };
    let mut values = uniform(60 * 50, 4);
    let sound = Tensor::new(&values, 60, 50);
    values[1234] = f32::INFINITY;
    let damaged = Tensor::new(&values, 60, 50);
    let tensors = [&sound, &damaged, &sound];
    for candidates in [
        Candidates::Qsgd { base: Qsgd::default(), bits: &[2, 3] },
        Candidates::TopK { values: Dtype::F32, keeps: &[5, 10] },
        Candidates::TopK { values: Dtype::F32, keeps: &[] },
        Candidates::QuantisedTopK { keeps: &[5, 10], bits: &[4] },
        Candidates::PowerSgd { iterations: 1, ranks: &[2] },
        Candidates::Eden { base: Eden::default(), bits: &[2, 4] },
    ] {
        let jobs = tensors.map(|tensor| Job { gradient: tensor.gradients()[1], candidates, stream: Stream::default() });
        let mut rows = vec![0.0; 3 * candidates.len()];
        let failed = backend.measure(&jobs, &mut [], &mut rows).unwrap_err();
        let expected = lgreco::Error::NonFinite { index: 1234, value: f32::INFINITY };
        assert_eq!((failed.job, failed.error), (Some(1), expected), "{candidates:?}");
    }
}

/// The bytes that a submission reads are limited, because the watchdogs of desktops limit its time. If a call reads a
/// buffer several times, the buffer's bytes are counted each time.
#[test]
fn dispatches_of_many_jobs_are_cut_by_bytes() {
    let (device, queue) = wgpu::Device::noop(&wgpu::DeviceDescriptor::default());
    let mut backend = WgpuBackend::with_device(device, queue).unwrap();
    let shape = Shape::new(1 << 10, 1 << 10).unwrap();
    let held = buffer(&backend, 4 << 20, BufferUsages::STORAGE | BufferUsages::COPY_SRC);
    let gradient = BufferGradient { buffer: &held, offset: 0, dtype: Dtype::F32, shape };
    let candidates = Candidates::Qsgd { base: Qsgd::default(), bits: &[] };
    let jobs = vec![BufferJob { gradient, candidates, stream: Stream::default() }; 100];
    let before = backend.gpu().submissions;
    backend.measure_buffers(&jobs, &mut []).unwrap();
    // The jobs read 400 MiB, at most 128 MiB per submission.
    assert_eq!((backend.gpu().dispatches, backend.gpu().submissions - before), (4, 4));
}

/// Jobs are recorded by method, but the first failing job is reported.
#[test]
fn the_first_job_that_fails_is_told() {
    let mut backend = cut_noop();
    let long = buffer(&backend, 1 << 20, BufferUsages::STORAGE | BufferUsages::COPY_SRC);
    let unreadable = buffer(&backend, 4 << 10, BufferUsages::COPY_DST);
    let of = |buffer, rows: usize, cols: usize| {
        let shape = Shape::new(rows, cols).unwrap();
        BufferGradient { buffer, offset: 0, dtype: Dtype::F32, shape }
    };
    let stream = Stream::default();
    let keeps: Vec<u32> = (1..=70_000).collect();
    let too_many = Candidates::TopK { values: Dtype::F32, keeps: &keeps };
    let too_many = BufferJob { gradient: of(&long, 70_000, 1), candidates: too_many, stream };
    let qsgd = Candidates::Qsgd { base: Qsgd::default(), bits: &[2] };
    let wrong = BufferJob { gradient: of(&unreadable, 10, 10), candidates: qsgd, stream };
    let sound = BufferJob { gradient: of(&long, 10, 10), candidates: qsgd, stream };
    let mut failed = |jobs: &[BufferJob<'_>]| {
        let mut rows = vec![0.0; jobs.iter().map(|job| job.candidates.len()).sum()];
        backend.measure_buffers(jobs, &mut rows).unwrap_err().job
    };
    assert_eq!(failed(&[sound, too_many, wrong]), Some(1));
    assert_eq!(failed(&[sound, wrong, too_many]), Some(1));
}

/// Returns a backend on a device that does nothing, with the lowest limits.
fn cut_noop() -> WgpuBackend {
    let required_limits = small(wgpu::Limits::default());
    let (device, queue) = wgpu::Device::noop(&wgpu::DeviceDescriptor { required_limits, ..Default::default() });
    WgpuBackend::with_device(device, queue).unwrap()
}

/// Tests a bucket as long as the tensor, and buckets that end within pieces of host slices. The sums of all rows do not
/// fit one binding.
#[test]
fn rows_of_qsgd_fit_any_binding() {
    let Some(mut backend) = cut() else { return };
    let tensor = Tensor::new(&uniform(331_000, 3), 331_000, 1);
    for bucket in [u32::MAX, 330_000, 1000, 130] {
        let candidates = Candidates::Qsgd { base: Qsgd { bucket, ..Qsgd::default() }, bits: &[1, 4] };
        let jobs = [Job { gradient: tensor.gradients()[0], candidates, stream: Stream::default() }; 2];
        check_rows(&mut backend, &jobs, ROWS);
    }
}

/// Plants faults in the offsets of layers in shared tables.
#[test]
#[ignore = "slow"]
fn faults_in_what_layers_share_are_found() {
    let Some(mut good) = backend() else { return };
    // Several workgroups orthonormalise the columns of the long layers. Between the dispatches of a long layer, the
    // device works on other layers.
    let model = Model::new(&[&SHAPES[3..7], &[(16_500, 8), (16_400, 9), (90, 130)]].concat());
    let jobs = model.jobs();
    let alone = alone(&mut good, &jobs);
    for (shader, text, fault) in [
        (Shader::Qsgd, "let bucket = params.first_grid + group.x", "let bucket = group.x"),
        (Shader::Qsgd, "(params.record + group.x) * 16u", "(group.x) * 16u"),
        (Shader::Sums, "(params.first + record) * 16u", "record * 16u"),
        (Shader::TopK, "params.table * 6u * BINS", "0u"),
        (Shader::TopK, "params.table * 5u * BINS", "0u"),
        (Shader::TopK, "params.table * (BINS + params.slots * MIDDLES)", "0u"),
        (Shader::TopK, "params.table * params.slots * (4u * MIDDLES + LASTS)", "0u"),
        (Shader::TopK, "let block = params.first_block + group.x;", "let block = group.x;"),
        (Shader::TopK, "params.block_counts + 2u * (block - 1u - back)", "params.block_counts + 2u * back"),
        (Shader::TopK, "IN_BINS * (params.first_sum + group.x) + own", "IN_BINS * group.x + own"),
        (Shader::PowerSgd, "return params.factor + i;", "return i;"),
        (Shader::PowerSgd, "return params.product + i;", "return i;"),
        (Shader::PowerSgd, "return params.inner + i;", "return i;"),
        (Shader::PowerSgd, "partial[params.partial + (group.z", "partial[(group.z"),
        (Shader::PowerSgd, "params.sought + next", "next"),
        (Shader::PowerSgd, "tasks[middle].first <= at", "tasks[middle].first < at"),
        (Shader::TopK, "let own = at - tasks[low].first;", "let own = at;"),
    ] {
        let mut backend = backend().expect("the device there was before");
        backend.gpu().kernels.edit(shader, text, fault);
        assert!(together(&mut backend, &jobs) != alone, "not found: {text}");
    }
}

/// The counts of every 256 workgroups are added to one partial sum. Each layer must have its own sums, also if it has
/// more than 256 workgroups.
#[test]
fn long_layers_in_few_bits_have_their_own_sums() {
    let Some(mut good) = backend() else { return };
    let tensors = [5, 6].map(|seed| Tensor::new(&uniform(540_000, seed), 540_000, 1));
    let candidates = Candidates::QuantisedTopK { keeps: &[1000, 270_000], bits: &[3] };
    let job = |tensor| Job { gradient: Tensor::gradients(tensor)[0], candidates, stream: Stream::default() };
    let jobs = tensors.each_ref().map(job);
    check_rows(&mut good, &jobs, ROWS);
    let alone = alone(&mut good, &jobs);
    assert!(together(&mut good, &jobs) == alone);
    let mut backend = backend().expect("the device there was before");
    backend.gpu().kernels.edit(Shader::TopK, "params.block_sums + 2u * together", "2u * together");
    assert!(together(&mut backend, &jobs) != alone);
}
