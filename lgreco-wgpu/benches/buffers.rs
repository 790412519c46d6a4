//! Measures the time of rows of the error table (for one layer and for 150 layers), of payloads, and of error feedback.
//! The 2^26 f32 values are in a buffer of the device. The benchmark prints the time in milliseconds, and the CPU's time
//! as a multiple of the GPU's. It also prints the bandwidth as a share of a copy's bandwidth in the same run. The
//! bandwidth counts the bytes that must be read and written. The values take 256 MiB, more than the caches of GPUs can
//! hold. The environment variable `LGRECO_BENCH_ELEMENTS`, a multiple of 4096, replaces 2^26.
//!
//! Every measured result is also checked. On llvmpipe, which runs shaders on the CPU, the times say nothing about GPUs.
//! On llvmpipe, `tests/run` runs this benchmark with few values, only to check the results.

use lgreco::backend::{Backend, Job, Portable};
use lgreco::compress::eden::Eden;
use lgreco::compress::powersgd::PowerSgd;
use lgreco::compress::qsgd::Qsgd;
use lgreco::compress::quantised_topk::QuantisedTopK;
use lgreco::compress::topk::TopK;
use lgreco::compress::{Candidates, Compressor, Setting};
use lgreco::gradient::{Dtype, Gradient, Shape, Values};
use lgreco::rng::Stream;
use lgreco_testing::powersgd::uniform;
use lgreco_train::feedback::Storage;
use lgreco_wgpu::{BufferGradient, BufferJob, BufferResidual, WgpuBackend, wgpu};
use std::time::Instant;

/// Number of layers into which the values are divided.
const LAYERS: usize = 150;
/// Rank of PowerSGD's payloads.
const RANK: u32 = 4;

/// Below this number of values, times are not meaningful, so each operation runs only once.
const FEW: usize = 1 << 20;

fn elements() -> usize {
    std::env::var("LGRECO_BENCH_ELEMENTS").ok().and_then(|text| text.parse().ok()).unwrap_or(1 << 26)
}

/// Measures the fastest of several runs, in seconds.
fn seconds(mut run: impl FnMut()) -> f64 {
    let mut once = || {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    };
    if elements() < FEW {
        return once();
    }
    once();
    (0..5).map(|_| once()).fold(f64::INFINITY, f64::min)
}

/// The device, its gradient, and the bandwidth of a copy.
struct Bench {
    backend: WgpuBackend,
    shape: Shape,
    values: Vec<f32>,
    held: wgpu::Buffer,
    other: wgpu::Buffer,
    /// Bytes that a copy reads and writes per second.
    bandwidth: f64,
}

impl Bench {
    fn new(mut backend: WgpuBackend, shape: Shape) -> Bench {
        let values: Vec<f32> = uniform(shape.elements(), 1).into_iter().map(|x| x * x * x).collect();
        let [held, other] = [(); 2].map(|()| buffer(&mut backend, 4 * shape.elements() as u64));
        let mut bench = Bench { backend, shape, values, held, other, bandwidth: 0.0 };
        bench.refill();
        let (device, queue) = (bench.backend.device().clone(), bench.backend.queue().clone());
        let copy = seconds(|| {
            let mut encoder = device.create_command_encoder(&Default::default());
            encoder.copy_buffer_to_buffer(&bench.held, 0, &bench.other, 0, bench.bytes());
            queue.submit([encoder.finish()]);
            device.poll(wgpu::PollType::wait_indefinitely()).expect("the copy to end");
        });
        bench.bandwidth = 2.0 * bench.bytes() as f64 / copy;
        bench
    }

    /// Size of the gradient in bytes.
    fn bytes(&self) -> u64 {
        4 * self.shape.elements() as u64
    }

    /// Writes the gradient's original values to its buffer.
    fn refill(&self) {
        self.backend.queue().write_buffer(&self.held, 0, bytemuck::cast_slice(&self.values));
    }

    fn on_device(&self) -> BufferGradient<'_> {
        BufferGradient { buffer: &self.held, offset: 0, dtype: Dtype::F32, shape: self.shape }
    }

    fn host(&self) -> Gradient<'_> {
        Gradient::new(Values::F32(&self.values), self.shape).expect("a value per element")
    }

    /// Prints a line about an operation that must read and write `bytes` bytes in all.
    fn line(&self, name: &str, bytes: u64, here: f64, cpu: f64) {
        let rate = bytes as f64 / here;
        let share = 100.0 * rate / self.bandwidth;
        println!("{name:<48} {:>10.3} {:>10.2} {share:>12.1} % {:>12.2}", 1e3 * here, rate / 1e9, cpu / here);
    }

    /// Returns the values in a buffer.
    fn read(&self, buffer: &wgpu::Buffer) -> Vec<f32> {
        let (device, queue) = (self.backend.device(), self.backend.queue());
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let descriptor = wgpu::BufferDescriptor { label: None, size: self.bytes(), usage, mapped_at_creation: false };
        let staged = device.create_buffer(&descriptor);
        let mut encoder = device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(buffer, 0, &staged, 0, self.bytes());
        queue.submit([encoder.finish()]);
        staged.map_async(wgpu::MapMode::Read, .., |mapped| mapped.expect("a buffer to read"));
        device.poll(wgpu::PollType::wait_indefinitely()).expect("the copy to end");
        bytemuck::pod_collect_to_vec(&staged.get_mapped_range(..).expect("what is mapped"))
    }
}

fn buffer(backend: &mut WgpuBackend, size: u64) -> wgpu::Buffer {
    let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
    backend.device().create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false })
}

/// Divides the gradient into `layers` layers of equal size, and measures their rows of the error table.
fn rows(bench: &mut Bench, layers: usize) {
    let shape = Shape::new(bench.shape.rows() / layers, bench.shape.cols()).expect("a shape");
    let elements = shape.elements();
    let mut keeps: Vec<u32> = (1..=100).map(|i| (i * elements / 1000).max(1) as u32).collect();
    keeps.dedup();
    let ranks: Vec<u32> = (1..=8).filter(|&rank| (rank as usize) < shape.rows().min(shape.cols())).collect();
    for (name, candidates) in [
        ("one read (largest magnitude)", Candidates::Qsgd { base: Qsgd::default(), bits: &[] }),
        ("QSGD row, 7 widths", Candidates::Qsgd { base: Qsgd::default(), bits: &[2, 3, 4, 5, 6, 7, 8] }),
        ("TopK row, 100 densities", Candidates::TopK { values: Dtype::F32, keeps: &keeps }),
        ("TopK row, 100 densities, 6 widths", Candidates::QuantisedTopK { keeps: &keeps, bits: &[8, 6, 5, 4, 3, 2] }),
        ("PowerSGD row, ranks 1 to 8", Candidates::PowerSgd { iterations: 1, ranks: &ranks }),
        ("EDEN row, 6 widths", Candidates::Eden { base: Eden::default(), bits: &[1, 2, 3, 4, 5, 6] }),
    ] {
        let [mut found, mut expected] = [(); 2].map(|()| vec![0.0; layers * candidates.len()]);
        let (stream, held) = (Stream::default(), bench.held.clone());
        let on_device = (0..layers).map(|layer| {
            let gradient =
                BufferGradient { buffer: &held, offset: (4 * layer * elements) as u64, dtype: Dtype::F32, shape };
            BufferJob { gradient, candidates, stream }
        });
        let on_device: Vec<BufferJob<'_>> = on_device.collect();
        let here = seconds(|| bench.backend.measure_buffers(&on_device, &mut found).expect("rows"));
        let on_host = bench.values.chunks_exact(elements).take(layers).map(|values| {
            let gradient = Gradient::new(Values::F32(values), shape).expect("a value per element");
            Job { gradient, candidates, stream }
        });
        let on_host: Vec<Job<'_>> = on_host.collect();
        let mut workspace = vec![0; Portable.workspace_len(&on_host)];
        let cpu = seconds(|| Portable.measure(&on_host, &mut workspace, &mut expected).expect("rows"));
        assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= 1e-4 * b), "{name}: not those of the core");
        let name = if layers == 1 { name.to_owned() } else { format!("{name}, {layers} layers") };
        bench.line(&name, (4 * layers * elements) as u64, here, cpu);
    }
}

fn payloads(bench: &mut Bench) {
    let keep = bench.shape.elements() as u32 / 100;
    for (name, setting) in [
        ("QSGD 4 bits", Setting::Qsgd(Qsgd::default())),
        ("TopK 1 %", Setting::TopK(TopK { keep, values: Dtype::F32 })),
        ("TopK 1 % in 4 bits", Setting::QuantisedTopK(QuantisedTopK { keep, bits: 4 })),
        ("PowerSGD rank 4", Setting::PowerSgd(PowerSgd { rank: RANK, iterations: 1 })),
        ("EDEN 3 bits", Setting::Eden(Eden::default())),
    ] {
        let shape = bench.shape;
        let len = setting.payload_len(shape, Dtype::F32).expect("a size");
        let (mut found, mut expected) = (vec![0; len], vec![0; len]);
        let mut workspace = vec![0; setting.encode_workspace_len(shape, Dtype::F32)];
        let (stream, held, other) = (Stream::default(), bench.held.clone(), bench.other.clone());
        let gradient = BufferGradient { buffer: &held, ..bench.on_device() };
        let here = seconds(|| {
            bench.backend.encode_buffer(&setting, &gradient, stream, &mut found).expect("a payload");
        });
        let cpu = seconds(|| {
            Portable.encode(&setting, &bench.host(), stream, &mut workspace, &mut expected).expect("a payload");
        });
        let exact = !matches!(setting, Setting::PowerSgd(_));
        assert!(found == expected || !exact, "{name}: another payload");
        let moved = bench.bytes() + len as u64;
        bench.line(&format!("{name}, encode"), moved, here, cpu);
        let here = seconds(|| bench.backend.decode_to_buffer(&found, &other, 0).expect("its own payload"));
        let mut values = vec![0.0; shape.elements()];
        let cpu = seconds(|| Portable.decode(&expected, &mut values).expect("a payload"));
        check_near(name, &bench.read(&other), &values, exact);
        bench.line(&format!("{name}, decode"), moved, here, cpu);
    }
}

/// Asserts that values equal the expected values, up to a small tolerance unless `exact`.
fn check_near(name: &str, found: &[f32], expected: &[f32], exact: bool) {
    if exact {
        let differs = found.iter().zip(expected).position(|(a, b)| a.to_bits() != b.to_bits());
        assert_eq!(differs, None, "{name}: other values");
        return;
    }
    let square = |x: f64| x * x;
    let norm: f64 = expected.iter().map(|&b| square(b.into())).sum();
    let apart: f64 = found.iter().zip(expected).map(|(&a, &b)| square(f64::from(a) - f64::from(b))).sum();
    assert!(apart <= 1e-8 * norm, "{name}: another matrix, {} of its norm away", (apart / norm).sqrt());
}

/// Measures a step of error feedback, which reads the gradient and residual, and writes the payload and residual.
fn feedback(bench: &mut Bench) {
    let setting = Setting::Qsgd(Qsgd::default());
    let len = setting.payload_len(bench.shape, Dtype::F32).expect("a size");
    let (bytes, mut payload) = (bench.bytes(), vec![0; len]);
    let (held, kept) = (bench.held.clone(), buffer(&mut bench.backend, bytes));
    let gradient = BufferGradient { buffer: &held, ..bench.on_device() };
    let residual = BufferResidual { buffer: &kept, storage: Storage::F32 };
    let mut step = || {
        let done =
            bench.backend.encode_with_feedback(&setting, &gradient, &residual, 1.0, Stream::default(), &mut payload);
        done.expect("a payload");
    };
    step();
    let mut decoded = vec![0.0; gradient.shape.elements()];
    let once = payload.clone();
    let expected = |values: &[f32]| -> Vec<f32> {
        let mut decoded = vec![0.0; values.len()];
        Portable.decode(&once, &mut decoded).expect("a payload");
        values.iter().zip(&decoded).map(|(x, sent)| x - sent).collect()
    };
    check_near("feedback", &bench.read(&kept), &expected(&bench.values), true);
    let here = seconds(|| {
        let done =
            bench.backend.encode_with_feedback(&setting, &gradient, &residual, 1.0, Stream::default(), &mut payload);
        done.expect("a payload");
    });
    let mut workspace = vec![0; setting.encode_workspace_len(bench.shape, Dtype::F32)];
    let cpu = seconds(|| {
        Portable.encode(&setting, &bench.host(), Stream::default(), &mut workspace, &mut payload).expect("a payload");
        Portable.decode(&payload, &mut decoded).expect("a payload");
    });
    bench.line("QSGD 4 bits, step with residual", 3 * bytes + len as u64, here, cpu);
}

fn main() {
    let backend = match WgpuBackend::new() {
        Ok(backend) => backend,
        Err(error) => {
            let required = std::env::var("LGRECO_REQUIRE").unwrap_or_default();
            assert!(!required.split(',').any(|name| name == "wgpu"), "no wgpu adapter, but LGRECO_REQUIRE: {error}");
            return println!("SKIP: {error}");
        }
    };
    let elements = elements();
    let mut bench = Bench::new(backend, Shape::new(elements / 4096, 4096).expect("a matrix"));
    let adapter = bench.backend.device().adapter_info().name;
    println!("{adapter}, {elements} values: a copy moves {:.1} GB/s", bench.bandwidth / 1e9);
    println!("{:<48} {:>10} {:>10} {:>14} {:>12}", "", "ms", "GB/s", "of the copy", "CPU / this");
    rows(&mut bench, 1);
    let layers = LAYERS.min(bench.shape.rows());
    rows(&mut bench, layers);
    payloads(&mut bench);
    feedback(&mut bench);
}
