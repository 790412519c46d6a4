//! Rows and payloads of 2^24 f32 values in a buffer of the device, against copying the buffer and against the CPU.
//! `LGRECO_BENCH_ELEMENTS` takes the place of 2^24.
//!
//! Every figure's answer is asserted. On llvmpipe, which runs shaders on the processor, the figures say nothing of GPUs.

use lgreco_core::backend::{Backend, Job, Portable};
use lgreco_core::compress::powersgd::PowerSgd;
use lgreco_core::compress::qsgd::Qsgd;
use lgreco_core::compress::topk::TopK;
use lgreco_core::compress::{Candidates, Compressor, Setting};
use lgreco_core::gradient::{Dtype, Gradient, Shape, Values};
use lgreco_core::rng::Stream;
use lgreco_core::testing::powersgd::uniform;
use lgreco_wgpu::{BufferGradient, BufferJob, WgpuBackend, wgpu};
use std::time::Instant;

/// Seconds of the fastest of some runs.
fn seconds(mut run: impl FnMut()) -> f64 {
    let mut once = || {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    };
    once();
    (0..5).map(|_| once()).fold(f64::INFINITY, f64::min)
}

fn main() {
    let mut backend = match WgpuBackend::new() {
        Ok(backend) => backend,
        Err(error) => return println!("SKIP: {error}"),
    };
    let elements = std::env::var("LGRECO_BENCH_ELEMENTS").ok().and_then(|text| text.parse().ok()).unwrap_or(1 << 24);
    let shape = Shape::new(elements / 4096, 4096).expect("a matrix");
    let values: Vec<f32> = uniform(shape.elements(), 1).into_iter().map(|x| x * x * x).collect();
    let host = Gradient::new(Values::F32(&values), shape).expect("a value per element");
    let bytes = 4 * shape.elements() as u64;
    let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
    let buffer = |backend: &WgpuBackend| {
        let descriptor = wgpu::BufferDescriptor { label: None, size: bytes, usage, mapped_at_creation: false };
        backend.device().create_buffer(&descriptor)
    };
    let (held, other) = (buffer(&backend), buffer(&backend));
    backend.queue().write_buffer(&held, 0, bytemuck::cast_slice(&values));

    let (device, queue) = (backend.device().clone(), backend.queue().clone());
    let copy = seconds(|| {
        let mut encoder = device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(&held, 0, &other, 0, bytes);
        queue.submit([encoder.finish()]);
        device.poll(wgpu::PollType::wait_indefinitely()).expect("the copy to end");
    });
    // Reads and writes.
    let bandwidth = 2.0 * bytes as f64 / copy;
    println!("{}, {} values: a copy moves {:.1} GB/s", adapter_name(), shape.elements(), bandwidth / 1e9);
    println!("{:<40} {:>10} {:>10} {:>14} {:>12}", "", "ms", "GB/s read", "of the copy", "CPU / this");

    let on_device = BufferGradient { buffer: &held, offset: 0, dtype: Dtype::F32, shape };
    let line = |name: &str, here: f64, cpu: f64| {
        let read = bytes as f64 / here;
        let part = 100.0 * read / bandwidth;
        println!("{name:<40} {:>10.3} {:>10.2} {part:>12.1} % {:>12.2}", 1e3 * here, read / 1e9, cpu / here);
    };
    let keeps: Vec<u32> = (1..=100).map(|i| i * (shape.elements() as u32 / 1000)).collect();
    for (name, candidates) in [
        ("one read (largest magnitude)", Candidates::Qsgd { base: Qsgd::default(), bits: &[] }),
        ("QSGD row, 7 widths", Candidates::Qsgd { base: Qsgd::default(), bits: &[2, 3, 4, 5, 6, 7, 8] }),
        ("TopK row, 100 densities", Candidates::TopK { values: Dtype::F32, keeps: &keeps }),
        ("PowerSGD row, ranks 1 to 8", Candidates::PowerSgd { iterations: 1, ranks: &[1, 2, 3, 4, 5, 6, 7, 8] }),
    ] {
        let (mut found, mut expected) = (vec![0.0; candidates.len()], vec![0.0; candidates.len()]);
        let stream = Stream::default();
        let jobs = [BufferJob { gradient: on_device, candidates, stream }];
        let here = seconds(|| backend.measure_buffers(&jobs, &mut found).expect("a row"));
        let jobs = [Job { gradient: host, candidates, stream }];
        let mut workspace = vec![0; Portable.workspace_len(&jobs)];
        let cpu = seconds(|| Portable.measure(&jobs, &mut workspace, &mut expected).expect("a row"));
        assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= 1e-4 * b), "{found:?}, not {expected:?}");
        line(name, here, cpu);
    }
    for (name, setting) in [
        ("QSGD 4 bits", Setting::Qsgd(Qsgd::default())),
        ("TopK 1 %", Setting::TopK(TopK { keep: shape.elements() as u32 / 100, values: Dtype::F32 })),
        ("PowerSGD rank 4", Setting::PowerSgd(PowerSgd { rank: 4, iterations: 1 })),
    ] {
        let len = setting.payload_len(shape, Dtype::F32).expect("a size");
        let (mut found, mut expected) = (vec![0; len], vec![0; len]);
        let mut workspace = vec![0; setting.encode_workspace_len(shape, Dtype::F32)];
        let stream = Stream::default();
        let here = seconds(|| {
            backend.encode_buffer(&setting, &on_device, stream, &mut found).expect("a payload");
        });
        let cpu = seconds(|| {
            Portable.encode(&setting, &host, stream, &mut workspace, &mut expected).expect("a payload");
        });
        let exact = !matches!(setting, Setting::PowerSgd(_));
        assert!(found == expected || !exact, "{name}: another payload");
        line(&format!("{name}, encode"), here, cpu);
        let here = seconds(|| backend.decode_to_buffer(&found, &other, 0).expect("its own payload"));
        let mut values = vec![0.0; shape.elements()];
        let cpu = seconds(|| Portable.decode(&found, &mut values).expect("a payload"));
        if !exact {
            let mut others = vec![0.0; shape.elements()];
            Portable.decode(&expected, &mut others).expect("a payload");
            let square = |x: f64| x * x;
            let norm: f64 = others.iter().map(|&b| square(b.into())).sum();
            let apart: f64 = values.iter().zip(&others).map(|(&a, &b)| square(f64::from(a) - f64::from(b))).sum();
            assert!(apart <= 1e-8 * norm, "{name}: another matrix, {} of its norm away", (apart / norm).sqrt());
        }
        line(&format!("{name}, decode"), here, cpu);
    }
}

/// The adapter that `WgpuBackend::new` takes, if there is only one.
fn adapter_name() -> String {
    lgreco_wgpu::adapters().into_iter().map(|adapter| adapter.info.name).collect::<Vec<_>>().join(" or ")
}
