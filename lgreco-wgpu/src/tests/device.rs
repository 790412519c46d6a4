//! Tests devices that fail and devices that do nothing. Also tests limits that kernels must respect on all devices.

use super::backend;
use super::buffers::buffer;
use super::devices::alone;
use crate::gpu::PER_GROUP;
use crate::kernels::{Kernel, Shader};
use crate::orthonormal::Tall;
use crate::{BufferGradient, BufferResidual, Error, WgpuBackend, factor, orthonormal};
use lgreco::backend::{Backend, Job, Portable};
use lgreco::compress::{Candidates, Compressor, Setting, eden::Eden, qsgd::Qsgd};
use lgreco::gradient::{Dtype, Shape};
use lgreco::rng::Stream;
use lgreco_testing::backend::Tensor;
use lgreco_testing::powersgd::uniform;
use lgreco_train::feedback::Storage;
use wgpu::BufferUsages;

fn rows(backend: &mut WgpuBackend, tensor: &Tensor) -> Result<Vec<f64>, lgreco::Error> {
    let gradient = tensor.gradients()[0];
    let job = |candidates| Job { gradient, candidates, stream: Stream::default() };
    let jobs = [
        job(Candidates::Qsgd { base: Qsgd::default(), bits: &[1, 2, 3, 4, 5, 6, 7, 8] }),
        job(Candidates::TopK { values: Dtype::Bf16, keeps: &[1, 10, 100, 1000] }),
        job(Candidates::PowerSgd { iterations: 1, ranks: &[1, 2, 3] }),
        job(Candidates::Eden { base: Eden::default(), bits: &[2, 4] }),
    ];
    let mut rows = vec![f64::NAN; 17];
    backend.measure(&jobs, &mut [], &mut rows).map(|()| rows).map_err(|failed| failed.error)
}

#[test]
fn the_same_input_gives_the_same_bits() {
    let Some(mut backend) = backend() else { return };
    let tensor = Tensor::new(&uniform(300 * 200, 1), 300, 200);
    let first: Vec<u64> = rows(&mut backend, &tensor).unwrap().into_iter().map(f64::to_bits).collect();
    rows(&mut backend, &Tensor::new(&uniform(500 * 200, 2), 500, 200)).unwrap();
    let second: Vec<u64> = rows(&mut backend, &tensor).unwrap().into_iter().map(f64::to_bits).collect();
    assert_eq!(first, second);
}

fn is_measured_on_the_cpu(backend: &mut WgpuBackend, job: Job<'_>) {
    let (mut row, mut expected) = (vec![0.0; job.candidates.len()], vec![0.0; job.candidates.len()]);
    backend.measure(&[job], &mut [], &mut row).unwrap();
    let mut workspace = vec![0; Portable.workspace_len(&[job])];
    Portable.measure(&[job], &mut workspace, &mut expected).unwrap();
    assert_eq!(row, expected);
}

#[test]
fn methods_without_kernels_are_refused_by_name() {
    let (device, queue) = wgpu::Device::noop(&wgpu::DeviceDescriptor::default());
    let mut backend = WgpuBackend::with_device(device, queue).unwrap();
    let (full, empty) = (Tensor::new(&uniform(60, 1), 6, 10), Tensor::new(&[], 0, 10));
    for (text, name) in
        [("hard-threshold 0.5", "hard-threshold"), ("adacomp 8", "adacomp"), ("loco 8", "loco"), ("sidco 0.1", "sidco")]
    {
        let setting = [text.parse().unwrap()];
        let expected = Some(Error::Method(name));
        let refused = backend.encode(&setting[0], &full.gradients()[0], Stream::default(), &mut [], &mut [0; 2000]);
        assert!(matches!(refused, Err(lgreco::Error::Device { .. })), "{refused:?}");
        assert_eq!(backend.failure(), expected.as_ref());
        // A search may offer methods without kernels. The CPU must measure their rows.
        for gradient in [full.gradients()[0], empty.gradients()[0]] {
            is_measured_on_the_cpu(
                &mut backend,
                Job { gradient, candidates: Candidates::Each(&setting), stream: Stream::default() },
            );
        }
    }
    assert_eq!(Error::Method("loco").to_string(), "loco does not run on wgpu devices");
    let candidates = Candidates::CltK { keeps: &[8] };
    is_measured_on_the_cpu(&mut backend, Job { gradient: full.gradients()[0], candidates, stream: Stream::default() });
}

fn job<'a>(tensor: &'a Tensor, candidates: Candidates<'a>) -> Job<'a> {
    Job { gradient: tensor.gradients()[0], candidates, stream: Stream::default() }
}

#[test]
fn a_lost_device_is_an_error() {
    let Some(mut backend) = alone() else { return };
    let tensor = Tensor::new(&uniform(3000, 1), 60, 50);
    rows(&mut backend, &tensor).unwrap();
    backend.device().destroy();
    let candidates = Candidates::Qsgd { base: Qsgd::default(), bits: &[4] };
    let failed = backend.measure(&[job(&tensor, candidates); 2], &mut [], &mut [0.0; 2]).unwrap_err();
    assert!(failed.job.is_none() && matches!(failed.error, lgreco::Error::Device { .. }), "{failed:?}");
    assert!(matches!(backend.failure(), Some(Error::Lost(_) | Error::Refused(_))), "{:?}", backend.failure());
}

/// The backend accepts a lost device, and the first call returns the error.
#[test]
fn a_device_that_is_lost_before_it_is_used_is_an_error() {
    let Some(backend) = alone() else { return };
    backend.device().destroy();
    let mut backend = WgpuBackend::with_device(backend.device().clone(), backend.queue().clone()).unwrap();
    assert!(rows(&mut backend, &Tensor::new(&uniform(3000, 1), 60, 50)).is_err());
    assert!(matches!(backend.failure(), Some(Error::Lost(_) | Error::Refused(_))), "{:?}", backend.failure());
}

/// Constructs errors that no driver on the test machines produces.
#[test]
fn errors_of_all_kinds_keep_their_text() {
    let of = |text: &'static str| -> Box<dyn std::error::Error + Send + Sync> { text.into() };
    let refused =
        |description: &str, found: wgpu::Error| assert_eq!(Error::from(found), Error::Refused(description.into()));
    assert_eq!(Error::from(wgpu::Error::OutOfMemory { source: of("full") }), Error::OutOfMemory("full".into()));
    refused("a", wgpu::Error::Validation { source: of("wrong"), description: "a".into() });
    refused("b", wgpu::Error::Internal { source: of("broken"), description: "b".into() });
}

/// A job that is too large is reported with its number. The job before it succeeds.
#[test]
fn what_is_wrong_with_a_job_comes_with_its_number() {
    let (device, queue) = wgpu::Device::noop(&wgpu::DeviceDescriptor::default());
    let mut backend = WgpuBackend::with_device(device, queue).unwrap();
    let tensor = Tensor::new(&uniform(60, 1), 6, 10);
    let long = Tensor::new(&vec![1.0; (1 << 22) + 1], (1 << 22) + 1, 1);
    let low_rank = Candidates::PowerSgd { iterations: 1, ranks: &[1] };
    let sides =
        Error::Method("PowerSGD with a side above 4,194,304, a rank above 1024, or a P of more than 2^31 values");
    let jobs = [job(&tensor, low_rank), job(&long, low_rank)];
    let failed = backend.measure(&jobs, &mut [], &mut [0.0; 2]).unwrap_err();
    assert_eq!((failed.job, backend.failure()), (Some(1), Some(&sides)));
}

/// The sums of gradient and residual do not fit a buffer, because these f32 values take twice as many bytes as the
/// gradient in bf16.
#[test]
fn what_does_not_fit_a_buffer_is_refused_with_the_limit() {
    let limits =
        wgpu::Limits { max_buffer_size: 4 << 20, max_storage_buffer_binding_size: 4 << 20, ..Default::default() };
    let descriptor = wgpu::DeviceDescriptor { required_limits: limits, ..Default::default() };
    let (device, queue) = wgpu::Device::noop(&descriptor);
    let mut backend = WgpuBackend::with_device(device, queue).unwrap();
    let shape = Shape::new(1500, 1000).unwrap();
    let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
    let [held, memory] = [(); 2].map(|()| buffer(&backend, 3_000_000, usage));
    let gradient = BufferGradient { buffer: &held, offset: 0, dtype: Dtype::Bf16, shape };
    let residual = BufferResidual { buffer: &memory, storage: Storage::Bf16 };
    let setting = Setting::Qsgd(Qsgd { bits: 8, ..Qsgd::default() });
    let mut payload = vec![0; setting.payload_len(shape, Dtype::Bf16).unwrap()];
    let stream = Stream::default();
    let refused = backend.encode_with_feedback(&setting, &gradient, &residual, 1.0, stream, &mut payload);
    let (what, limit) = ("a buffer", "max_buffer_size");
    assert_eq!(refused, Err(Error::TooLarge { what, bytes: 6_000_000, limit, largest: 4 << 20 }));
    // The next call is unaffected.
    assert_eq!(backend.encode_buffer(&setting, &gradient, stream, &mut payload), Ok(payload.len()));
}

#[test]
fn a_device_below_what_kernels_need_is_refused() {
    let limits = wgpu::Limits { max_compute_workgroup_storage_size: 8192, ..wgpu::Limits::default() };
    let descriptor = wgpu::DeviceDescriptor { required_limits: limits, ..Default::default() };
    let (device, queue) = wgpu::Device::noop(&descriptor);
    let refused = WgpuBackend::with_device(device, queue).err();
    let expected = Error::Limit { what: "max_compute_workgroup_storage_size", needed: 16384, found: 8192 };
    assert_eq!(refused, Some(expected));
    let limits = wgpu::Limits { max_buffer_size: 1 << 19, ..wgpu::Limits::default() };
    let descriptor = wgpu::DeviceDescriptor { required_limits: limits, ..Default::default() };
    let (device, queue) = wgpu::Device::noop(&descriptor);
    let refused = WgpuBackend::with_device(device, queue).err();
    assert_eq!(refused, Some(Error::Limit { what: "max_buffer_size", needed: 2 << 20, found: 1 << 19 }));
}

/// wgpu validates every kernel, binding and dispatch at WebGPU's default limits, even without a driver.
#[test]
fn a_device_that_does_nothing_accepts_every_call() {
    let (device, queue) = wgpu::Device::noop(&wgpu::DeviceDescriptor::default());
    let mut backend = WgpuBackend::with_device(device, queue).unwrap();
    let tensor = Tensor::new(&uniform(3000, 1), 60, 50);
    assert_eq!(rows(&mut backend, &tensor), Ok(vec![0.0; 17]));
    assert!(backend.held_bytes() > 0);
}

/// If the driver refuses a call, the call must return the error. Logging the error is not enough.
#[test]
fn what_the_driver_refuses_reaches_the_caller() {
    let (device, queue) = wgpu::Device::noop(&wgpu::DeviceDescriptor::default());
    let mut backend = WgpuBackend::with_device(device, queue).unwrap();
    let gpu = backend.gpu();
    let mut batch = crate::batch::Batch::new(gpu).unwrap();
    let small = batch.buffer(16, wgpu::BufferUsages::COPY_SRC).unwrap();
    batch.copy(&small, 0, &small, 1 << 20, 16);
    let refused = batch.read(&[]);
    assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
    // The buffers of the failed batch must not be used again.
    let held = backend.held_bytes();
    crate::batch::Batch::new(backend.gpu()).unwrap().read(&[]).unwrap();
    assert!(held > 0 && backend.held_bytes() == 0);
}

/// llvmpipe silently ends loops after 65,535 iterations, counted over all loops of an invocation. This test lists the
/// largest number of iterations of each kernel, for the largest tensor.
#[test]
fn no_kernel_comes_near_the_iterations_at_which_loops_are_cut() {
    const CUT: u64 = 65_535;
    let elements = u64::from(u32::MAX);
    let blocks = elements.div_ceil(PER_GROUP as u64);
    let (rank, tiles) = (1024, 16);
    let most = [
        ("qsgd: 32 values, 8 widths, twice for buckets of one", 32 * (1 + 8 + 8 + 8)),
        ("qsgd: 25 steps of division per bucket", 25),
        ("topk prefixes: 70 bins three times, 256 shares twice", 3 * 70 + 2 * 256),
        (
            "topk histograms: 64 values, each of which may find its place just taken, places cleared and told",
            2 * 64 + 15,
        ),
        ("topk total: two levels", 512 + 512 + 256),
        ("few bits: 64 values in seven steps each, places cleared", 64 * (1 + 7) + 3),
        (
            "few bits: eight widths, each a mean in 32 steps, seven sums of 128 bits, two moved, lanes' errors",
            8 * (32 + 21 + 8 + 7),
        ),
        ("topk sample: a workgroup's draws", 128 / 64),
        (
            "topk gather: 32 values, seen and then counted, places cleared and told, 64 lanes twice",
            2 * 32 + 4 * 4 + 2 * (2 * 64),
        ),
        ("topk settle: 32 values, places cleared and told", 3 * 32),
        ("topk cut: all that is gathered in seven rounds, 64 lanes twice", 7 * (1 + 32_768 / 64 + 2 * 64)),
        (
            "topk write: sums of blocks, blocks, 32 values twice, places",
            blocks.div_ceil(256 * 64) + 4 + 3 * 32 + 2 * 64 + 4,
        ),
        ("few bits: two bins in seven steps, exponents between both ends", 2 * (2 + 254) + 32 * 7),
        ("sums: 64 records of 8", 8 * 64 + 6 * 8),
        ("powersgd: a chunk in tiles of 32, two loads each", 4096 / 32 * (32 + 2 + 1)),
        ("powersgd: tiles by columns, eight sums", tiles * (rank + rank / 16 + 8) + 100),
        ("topk read: ones of a word, a workgroup's words before it", 32 + 64),
        ("powersgd: columns of 2^22 rows, scaled", 2 * (1 << 22) / 256),
        ("powersgd: a row times a triangle, by fours of columns", (1..=rank / 4).map(|fours| fours + 1 + 4).sum()),
        // The first two terms count a norm, and a rotation with the sums of all widths. The last term counts two
        // transforms, sums in rounds of 64 lanes, and two quotients, for each width.
        ("eden: a block under all widths", (64 + 53 + 54) + (900 + 16 * 8 * 9) + 8 * (2 * 900 + 2 * 64 * 9 + 3 * 54)),
        ("lanes: places and sums of a workgroup of 256", 2 * 256),
    ];
    for (what, iterations) in most {
        assert!(iterations < CUT - 10_000, "{what}: {iterations}");
    }
    let sides = (0..=22).flat_map(|log_rows| (0..=10).map(move |log_rank| (1usize << log_rows, 1 << log_rank)));
    for (rows, rank) in sides.filter(|(rows, rank)| rank <= rows && rows * rank <= 1 << 31) {
        for window in [2 << 20, 128 << 20, 1 << 32] {
            let tall = Tall::new(rows, factor::height(window, rank), rank);
            if 4 * tall.inner() as u64 > window {
                continue; // The backend refuses such a factor.
            }
            for tall in [Some(tall), tall.triangles()].into_iter().flatten() {
                for steps in orthonormal::dispatches(&[tall]) {
                    let iterations: usize =
                        steps.clone().map(|step| orthonormal::iterations(tall.chunk_rows, step)).sum();
                    let what = format!("steps {steps:?} of {tall:?}, {rows} rows, window {window}");
                    assert!((iterations as u64) < CUT - 10_000, "{what}: {iterations}");
                }
            }
        }
    }
    // The driver must run the whole loop, or end the loop after 65,535 iterations, as the bounds above assume.
    let Some(mut backend) = backend() else { return };
    let counted = counted_iterations(&mut backend, 70_000);
    assert!(counted == 70_000 || counted == 65_535, "{counted}");
}

/// Runs a loop of `wanted` iterations on the device. Returns how many iterations the device makes.
fn counted_iterations(backend: &mut WgpuBackend, wanted: u32) -> u32 {
    let device = backend.device().clone();
    let source = format!(
        "@group(0) @binding(0) var<storage, read_write> count: array<u32>;
         @compute @workgroup_size(1) fn main() {{
             var n = 0u;
             while (n < {wanted}u + count[1]) {{ n++; }}
             count[0] = n;
         }}"
    );
    let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
        label: None,
        source: wgpu::ShaderSource::Wgsl(source.into()),
    });
    let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: None,
        layout: None,
        module: &module,
        entry_point: None,
        compilation_options: Default::default(),
        cache: None,
    });
    let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC;
    let count =
        device.create_buffer(&wgpu::BufferDescriptor { label: None, size: 16, usage, mapped_at_creation: false });
    let group = device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout: &pipeline.get_bind_group_layout(0),
        entries: &[wgpu::BindGroupEntry { binding: 0, resource: count.as_entire_binding() }],
    });
    let mut encoder = device.create_command_encoder(&Default::default());
    let mut pass = encoder.begin_compute_pass(&Default::default());
    pass.set_pipeline(&pipeline);
    pass.set_bind_group(0, &group, &[]);
    pass.dispatch_workgroups(1, 1, 1);
    drop(pass);
    backend.queue().submit([encoder.finish()]);
    let batch = crate::batch::Batch::new(backend.gpu()).unwrap();
    bytemuck::pod_read_unaligned(&batch.read(&[crate::batch::Part::from(&count)]).unwrap()[..4])
}

/// Compiles every entry point to a pipeline of the device.
#[test]
fn every_kernel_compiles() {
    let Some(mut backend) = backend() else { return };
    let device = backend.gpu().device.clone();
    let scope = device.push_error_scope(wgpu::ErrorFilter::Validation);
    for shader in Shader::ALL {
        let source = shader.source(false);
        let module = naga::front::wgsl::parse_str(&source).unwrap();
        for entry in &module.entry_points {
            backend.gpu().kernels.get(&device, Kernel { shader, entry: entry.name.clone().leak() });
        }
    }
    assert!(pollster::block_on(scope.pop()).is_none());
}
