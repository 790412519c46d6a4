//! Tests the requests to a device: memory must be allocated once, and an error table must take few submissions and one
//! download.

use super::USAGE;
use super::backend;
use super::buffers::buffer;
use super::is_full;
use crate::{BufferGradient, BufferJob, BufferResidual, WgpuBackend};
use lgreco::backend::{Backend, Job, Portable};
use lgreco::compress::powersgd::PowerSgd;
use lgreco::compress::quantised_topk::QuantisedTopK;
use lgreco::compress::{Candidates, Compressor, Setting, eden::Eden, qsgd::Qsgd, topk::TopK};
use lgreco::gradient::Dtype;
use lgreco::rng::Stream;
use lgreco_testing::backend::Tensor;
use lgreco_testing::powersgd::uniform;
use lgreco_train::feedback::Storage;

fn noop() -> WgpuBackend {
    let (device, queue) = wgpu::Device::noop(&wgpu::DeviceDescriptor::default());
    WgpuBackend::with_device(device, queue).unwrap()
}

/// Returns a backend on a device that does nothing, and a backend on the adapter if there is one.
pub(super) fn backends() -> impl Iterator<Item = WgpuBackend> {
    [Some(noop()), backend()].into_iter().flatten()
}

/// Returns the layers of a transformer, with sides divided by 16.
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
        Candidates::Eden { base: Eden::default(), bits: &[1, 2, 3, 4, 5, 6] },
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
    let jobs = jobs(if is_full() { &layers } else { &layers[..20] }, 0);
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
        for (method, most) in [(0, 1), (1, 1), (2, 1), (3, 2), (4, 1)] {
            let jobs: Vec<Job<'_>> = jobs.iter().skip(method).step_by(5).copied().collect();
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
    let jobs = jobs(if is_full() { &layers } else { &layers[..20] }, 0);
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

/// The bindings of this device may be larger than the limit of a submission.
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

/// Makes every kind of call for a few layers.
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
        Setting::Eden(Eden::default()),
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
