//! What a device is asked for: memory once, few submissions, one readback per table.

use super::backend;
use super::buffers::buffer;
use super::exchange::USAGE;
use crate::batch::{Batch, Part};
use crate::{BufferBucket, BufferGradient, BufferJob, BufferLayer, BufferResidual, Error, WgpuBackend};
use lgreco_core::backend::{Backend, Job, Portable};
use lgreco_core::compress::powersgd::PowerSgd;
use lgreco_core::compress::quantised_topk::QuantisedTopK;
use lgreco_core::compress::{Candidates, Compressor, Setting, clt::CltK, qsgd::Qsgd, topk::TopK};
use lgreco_core::gradient::{Dtype, Shape};
use lgreco_core::rng::Stream;
use lgreco_testing::backend::Tensor;
use lgreco_testing::powersgd::uniform;
use lgreco_train::exchange::{Agreement, Flight, Moment, Route};
use lgreco_train::feedback::Storage;

fn noop() -> WgpuBackend {
    let (device, queue) = wgpu::Device::noop(&wgpu::DeviceDescriptor::default());
    WgpuBackend::with_device(device, queue).unwrap()
}

/// A device that does nothing, and the adapter's if there is one.
pub(super) fn backends() -> impl Iterator<Item = WgpuBackend> {
    [Some(noop()), backend()].into_iter().flatten()
}

/// The layers of a transformer, sides divided by 16.
fn layers() -> Vec<Tensor> {
    let block = [(144, 48), (48, 48), (192, 48), (48, 192), (48, 1), (144, 1), (192, 1), (48, 1), (3, 16), (48, 3)];
    (0..15)
        .flat_map(|number| block.map(|(rows, cols)| Tensor::new(&uniform(rows * cols, number), rows, cols)))
        .collect()
}

fn jobs(layers: &[Tensor], dtype: usize) -> Vec<Job<'_>> {
    let candidates = [
        Candidates::Qsgd { base: Qsgd::default(), bits: &[2, 3, 4, 5, 6, 7, 8] },
        Candidates::TopK { values: Dtype::F32, keeps: &[1, 5, 24, 48] },
        Candidates::QuantisedTopK { keeps: &[1, 5, 24, 48], bits: &[2, 4, 8] },
        Candidates::PowerSgd { iterations: 1, ranks: &[1, 2, 4, 8, 16] },
    ];
    let gradients = layers.iter().map(|layer| layer.gradients()[dtype]);
    let job = |gradient| candidates.map(|candidates| Job { gradient, candidates, stream: Stream::default() });
    gradients.flat_map(job).collect()
}

fn row_len(jobs: &[Job<'_>]) -> usize {
    jobs.iter().map(|job| job.candidates.len()).sum()
}

#[test]
fn memory_is_reserved_before_the_first_measurement() {
    let layers = layers();
    let jobs = jobs(&layers, 0);
    for mut backend in backends() {
        let reserved = backend.reserve(&jobs).unwrap();
        let created = backend.gpu().memory.created;
        assert!(created > 0 && reserved > 0 && backend.gpu().submissions == 0);
        for _ in 0..2 {
            backend.measure(&jobs, &mut [], &mut vec![0.0; row_len(&jobs)]).unwrap();
            assert_eq!(backend.gpu().memory.created, created);
            assert_eq!(backend.held_bytes(), reserved);
        }
    }
}

#[test]
fn a_table_of_150_layers_takes_few_submissions_and_one_readback() {
    let layers = layers();
    assert_eq!(layers.len(), 150);
    let jobs = jobs(&layers, 0);
    for mut backend in backends() {
        for (method, most) in [(0, 1), (1, 1), (2, 1), (3, 2)] {
            let jobs: Vec<Job<'_>> = jobs.iter().skip(method).step_by(4).copied().collect();
            let (submissions, reads) = (backend.gpu().submissions, backend.gpu().reads);
            backend.measure(&jobs, &mut [], &mut vec![0.0; row_len(&jobs)]).unwrap();
            let submissions = backend.gpu().submissions - submissions;
            assert!(submissions <= most, "{submissions} submissions, {:?}", jobs[0].candidates);
            assert_eq!(backend.gpu().reads - reads, 1);
        }
    }
}

#[test]
fn submissions_are_cut_by_bytes() {
    let layers = layers();
    let jobs = jobs(&layers, 0);
    for mut backend in backends() {
        let mut whole = vec![0.0; row_len(&jobs)];
        backend.measure(&jobs, &mut [], &mut whole).unwrap();
        let before = backend.gpu().submissions;
        (backend.gpu().submission, backend.gpu().widest) = (1 << 19, 0);
        let mut rows = vec![0.0; row_len(&jobs)];
        backend.measure(&jobs, &mut [], &mut rows).unwrap();
        assert!(backend.gpu().submissions - before > 10, "{}", backend.gpu().submissions - before);
        let widest = backend.gpu().widest;
        assert!(widest > 0 && widest <= 1 << 19, "{widest} bytes together");
        assert_eq!(rows, whole);
    }
}

/// Where bindings may be larger than what is submitted together.
#[test]
fn no_piece_of_a_tensor_is_longer_than_a_submission() {
    let (max_buffer_size, max_storage_buffer_binding_size) = (1 << 29, 1 << 29);
    let limits = wgpu::Limits { max_buffer_size, max_storage_buffer_binding_size, ..wgpu::Limits::default() };
    let (device, queue) = wgpu::Device::noop(&wgpu::DeviceDescriptor { required_limits: limits, ..Default::default() });
    let mut backend = WgpuBackend::with_device(device, queue).unwrap();
    let (piece, submission) = (4 * backend.gpu().piece_len() as u64, backend.gpu().submission);
    assert!(piece <= submission && piece > submission / 2, "{piece} bytes, {submission}");
}

fn four_buffers(backend: &WgpuBackend) -> [wgpu::Buffer; 4] {
    [(); 4].map(|()| buffer(backend, 40_000, USAGE))
}

/// Every kind of call, about a few layers.
pub(super) fn calls(backend: &mut WgpuBackend) {
    let buffers = four_buffers(backend);
    everything(backend, &layers()[..4], &buffers);
}

fn everything(backend: &mut WgpuBackend, layers: &[Tensor], buffers: &[wgpu::Buffer; 4]) {
    let stream = Stream::default();
    for dtype in [0, 2] {
        let jobs = jobs(layers, dtype);
        backend.measure(&jobs, &mut [], &mut vec![0.0; row_len(&jobs)]).unwrap();
    }
    let gradient = layers[2].gradients()[0];
    let shape = gradient.shape();
    let on_device = BufferGradient { buffer: &buffers[0], offset: 0, dtype: Dtype::F32, shape };
    let candidates = Candidates::TopK { values: Dtype::F16, keeps: &[5, 50] };
    backend.measure_buffers(&[BufferJob { gradient: on_device, candidates, stream }], &mut [0.0; 2]).unwrap();
    for setting in [
        Setting::Dense,
        Setting::Qsgd(Qsgd::default()),
        Setting::TopK(TopK { keep: 55, values: Dtype::F16 }),
        Setting::QuantisedTopK(QuantisedTopK { keep: 55, bits: 3 }),
        Setting::PowerSgd(PowerSgd { rank: 3, iterations: 2 }),
    ] {
        let mut payload = vec![0; setting.payload_len(shape, Dtype::F32).unwrap()];
        backend.encode(&setting, &gradient, stream, &mut [], &mut payload).unwrap();
        backend.encode_buffer(&setting, &on_device, stream, &mut payload).unwrap();
        let mut workspace = vec![0; setting.encode_workspace_len(shape, Dtype::F32)];
        Portable.encode(&setting, &gradient, stream, &mut workspace, &mut payload).unwrap();
        backend.decode(&payload, &mut vec![0.0; shape.elements()]).unwrap();
        backend.decode_to_buffer(&payload, &buffers[0], 0).unwrap();
    }
    let (setting, mut payload) = (Setting::Qsgd(Qsgd::default()), vec![0; 20_000]);
    for (buffer, storage) in buffers[1..].iter().zip([Storage::F32, Storage::Bf16, Storage::Int8]) {
        let residual = BufferResidual { buffer, storage };
        backend.encode_with_feedback(&setting, &on_device, &residual, 1.0, stream, &mut payload).unwrap();
    }
}

#[test]
fn nothing_is_taken_after_the_first_call() {
    let layers = &layers()[..12];
    for mut backend in backends() {
        let buffers = four_buffers(&backend);
        everything(&mut backend, layers, &buffers);
        let (created, held) = (backend.gpu().memory.created, backend.held_bytes());
        everything(&mut backend, layers, &buffers);
        assert_eq!((backend.gpu().memory.created, backend.held_bytes()), (created, held));
    }
}

/// Steps of an exchange with itself. What each asks of the device: submissions, readbacks, dispatches, buffers and
/// copies.
pub(super) fn exchange(backend: &mut WgpuBackend, layers: &[BufferLayer<'_>]) -> [[usize; 5]; 3] {
    let mut bucket = BufferBucket::new(backend, layers, true, 1).unwrap();
    [0, 1, 2].map(|step| {
        let asked = |backend: &mut WgpuBackend| {
            let gpu = backend.gpu();
            [gpu.submissions, gpu.reads, gpu.dispatches, gpu.memory.created, gpu.copies]
        };
        let before = asked(backend);
        let (route, reduce_dtype) = (Route::AllGather, Dtype::F32);
        let moment = Moment { rank: 0, world_size: 1, route, reduce_dtype, seed: 7, step, terms: 0 };
        let mut space = bucket.on(backend);
        let mut flight = Flight::begin(&mut space, moment, Agreement::Reached, None).unwrap();
        while flight.next(&mut space).unwrap().is_some() {}
        bucket.finish(backend).unwrap();
        let after = asked(backend);
        std::array::from_fn(|i| after[i] - before[i])
    })
}

/// Dispatches of an exchange, as the README says: that in which all layers offer what is exchanged, the one that
/// ends the step, and those for methods.
const OFFERED: usize = 1;
const ENDED: usize = 1;
const OF_UNCOMPRESSED: usize = 1;
const OF_POWERSGD: usize = 10;

#[test]
fn each_method_takes_its_dispatches() {
    let mut backend = noop();
    let held = buffer(&backend, 4 * 4096, USAGE);
    let shape = Shape::new(64, 64).unwrap();
    for (setting, own) in [
        (Setting::Dense, OF_UNCOMPRESSED),
        (Setting::Qsgd(Qsgd::default()), 1),
        (Setting::Qsgd(Qsgd { bucket: 1000, ..Qsgd::default() }), 1 + 1),
        (Setting::PowerSgd(PowerSgd { rank: 3, iterations: 1 }), OF_POWERSGD),
    ] {
        let gradient = BufferGradient { buffer: &held, offset: 0, dtype: Dtype::F32, shape };
        let steps = exchange(&mut backend, &[BufferLayer { index: 0, setting, gradient }]);
        assert_eq!(steps.map(|[_, _, dispatches, ..]| dispatches), [OFFERED + own + ENDED; 3], "{setting:?}");
    }
}

#[test]
fn an_exchange_asks_as_little_of_the_device_for_many_layers_as_for_few() {
    let shape = |layer: usize| Shape::new(30 + layer, 40).unwrap();
    for mut backend in backends() {
        // The device that does nothing makes no payloads of TopK either, which a rank then refuses.
        let is_noop = backend.device().adapter_info().backend == wgpu::Backend::Noop;
        let [topk, few] = if is_noop {
            [Setting::Dense; 2]
        } else {
            let few = QuantisedTopK { keep: 56, bits: 3 };
            [Setting::TopK(TopK { keep: 55, values: Dtype::F16 }), Setting::QuantisedTopK(few)]
        };
        let buffers: Vec<wgpu::Buffer> = (0..150).map(|_| buffer(&backend, 4 * 40 * 200, USAGE)).collect();
        let layer = |(layer, buffer)| {
            let gradient = BufferGradient { buffer, offset: 0, dtype: Dtype::F32, shape: shape(layer) };
            let powersgd = Setting::PowerSgd(PowerSgd { rank: 3, iterations: 1 });
            let setting = [Setting::Qsgd(Qsgd::default()), topk, few, Setting::Dense, powersgd][layer % 5];
            BufferLayer { index: layer as u32, setting, gradient }
        };
        let layers: Vec<BufferLayer<'_>> = buffers.iter().enumerate().map(layer).collect();
        // Payloads and means of them: more where TopK is among the methods.
        let of_payloads = if is_noop { 1 + 1 } else { 5 + 3 };
        let few = exchange(&mut backend, &layers[..5]);
        let many = exchange(&mut backend, &layers);
        for step in 0..3 {
            let [submissions, reads, dispatches, created, _] = many[step];
            // Seven ops, one of which finds its work done where QSGD alone makes payloads, three collectives, with a readback each, and
            // the end.
            assert_eq!((submissions, reads), (if is_noop { 10 } else { 11 }, 3));
            assert_eq!(many[step][..3], few[step][..3]);
            assert_eq!(dispatches, OFFERED + of_payloads + OF_POWERSGD + OF_UNCOMPRESSED + ENDED);
            assert!(created == 0 || step == 0, "{created} buffers in step {step}");
        }
    }
}

/// Where all dispatches and copies of an op move more than a submission may, each is submitted by itself; the means are the same.
#[test]
fn exchanges_are_cut_by_bytes() {
    let shape = Shape::new(200, 64).unwrap();
    let values: Vec<f32> = uniform(shape.elements(), 3);
    for mut backend in backends() {
        let held = [(); 3].map(|()| buffer(&backend, 4 * values.len() as u64, USAGE));
        let powersgd = Setting::PowerSgd(PowerSgd { rank: 3, iterations: 1 });
        let settings = [Setting::Qsgd(Qsgd::default()), Setting::Dense, powersgd];
        let layers: Vec<BufferLayer<'_>> = (0..)
            .zip(held.iter().zip(settings))
            .map(|(index, (buffer, setting))| {
                let gradient = BufferGradient { buffer, offset: 0, dtype: Dtype::F32, shape };
                BufferLayer { index, setting, gradient }
            })
            .collect();
        let mut means = |limit: u64, expected: fn(usize) -> usize| {
            backend.gpu().submission = limit;
            held.iter().for_each(|held| backend.queue().write_buffer(held, 0, bytemuck::cast_slice(&values)));
            for [submissions, _, dispatches, _, copies] in exchange(&mut backend, &layers) {
                assert_eq!(submissions, expected(dispatches + copies), "at most {limit} bytes");
            }
            let parts: Vec<Part> = held.iter().map(Part::from).collect();
            Batch::new(backend.gpu()).unwrap().read(&parts).unwrap()
        };
        // Six ops, readbacks of three collectives, and the end.
        let whole = means(1 << 30, |_| 6 + 4);
        assert!(whole == means(1, |commands| commands));
    }
}

#[test]
fn buckets_that_the_device_cannot_do_are_refused_by_name() {
    let mut backend = noop();
    let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
    let descriptor = wgpu::BufferDescriptor { label: None, size: 4 * 4096, usage, mapped_at_creation: false };
    let buffer = backend.device().create_buffer(&descriptor);
    let of = |buffer, setting, rows| {
        let gradient = BufferGradient { buffer, offset: 0, dtype: Dtype::F32, shape: Shape::new(rows, 64).unwrap() };
        BufferLayer { index: 3, setting, gradient }
    };
    let mut refused = |layer, world| BufferBucket::new(&mut backend, &[layer], true, world).unwrap_err();
    assert_eq!(refused(of(&buffer, Setting::CltK(CltK { keep: 2 }), 64), 2), Error::Method("CLT-k"));
    let short = refused(of(&buffer, Setting::Dense, 65), 2);
    assert_eq!(short, Error::Buffer { what: "ends before the gradient does" });
    let qsgd = Setting::Qsgd(Qsgd::default());
    for (setting, world) in [(Setting::Dense, 0), (Setting::Dense, 65_536), (qsgd, 1025)] {
        assert!(matches!(refused(of(&buffer, setting, 64), world), Error::Core(_)));
    }
    let descriptor = wgpu::BufferDescriptor { usage: wgpu::BufferUsages::STORAGE, ..descriptor };
    let unreadable = backend.device().create_buffer(&descriptor);
    let mut refused = |layer| BufferBucket::new(&mut backend, &[layer], true, 2).unwrap_err();
    assert!(matches!(refused(of(&unreadable, Setting::Dense, 64)), Error::Buffer { .. }));

    let mut bucket = BufferBucket::new(&mut backend, &[of(&buffer, Setting::Dense, 64)], false, 2).unwrap();
    let reduce_dtype = Dtype::F32;
    let moment = Moment { rank: 0, world_size: 2, route: Route::AllGather, reduce_dtype, seed: 7, step: 0, terms: 0 };
    for moment in [Moment { route: Route::ScatterReduce, ..moment }, Moment { world_size: 3, ..moment }] {
        let begun = Flight::begin(&mut bucket.on(&mut backend), moment, Agreement::Reached, None);
        assert!(begun.is_err(), "{moment:?}");
    }
    assert!(matches!(bucket.finish(&mut backend), Err(lgreco_train::Error::StepOrder { .. })));
    assert!(bucket.residual(0).is_none());
}
