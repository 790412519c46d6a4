//! What has to be seen on a GPU: the conformance suite and those of exchanges and captured steps, then times of rows and payloads against copying.
//! README.md says how to carry it to a machine that has one.
//! `LGRECO_BENCH_ELEMENTS` takes the place of 2^26 values; where they are fewer than 2^20, the suites of exchanges are shorter, and
//! every time is that of one run.
//!
//! Every figure's answer is asserted to be the CPU's; of a model's table the rows of two layers.

mod exchanges;
mod layers;
mod models;
mod narrow;
mod suites;
mod sums;

use cudarc::driver::result;
use lgreco_core::backend::Backend;
use lgreco_core::compress::powersgd::PowerSgd;
use lgreco_core::compress::qsgd::{Qsgd, Scale};
use lgreco_core::compress::quantised_topk::QuantisedTopK;
use lgreco_core::compress::topk::TopK;
use lgreco_core::compress::{Candidates, Setting};
use lgreco_core::gradient::{Bf16, Dtype, Shape};
use lgreco_core::testing::backend::check_all;
use lgreco_core::testing::powersgd::uniform;
use lgreco_cuda::{CudaBackend, DeviceGradient, devices};
use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

/// Calls that are enqueued before the device is waited for.
const CALLS: usize = 8;
/// What rows agree within, and matrices that PowerSGD's payloads decode to, of their norm.
const ROWS: f64 = 1e-4;
const NORM: f64 = 1e-4;
/// What bf16 loses of a number.
const SENT: f32 = 1.0 / 256.0;
/// Ranks of an exchange.
const RANKS: usize = 8;
/// Values below which times mean nothing.
const FEW: usize = 1 << 20;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Seconds of a call, of which `run` makes [`CALLS`]: the least of some runs.
fn seconds(mut run: impl FnMut() -> Outcome<()>) -> Outcome<f64> {
    let mut least = f64::INFINITY;
    for _ in 0..if elements()? < FEW { 1 } else { 6 } {
        let start = Instant::now();
        run()?;
        least = least.min(start.elapsed().as_secs_f64() / CALLS as f64);
    }
    Ok(least)
}

/// Device memory of the primary context, for as long as the program runs.
fn memory(bytes: usize) -> Outcome<u64> {
    // SAFETY: nothing reads it before it is written.
    Ok(unsafe { result::malloc_sync(bytes) }?)
}

/// Values of the figures.
fn elements() -> Outcome<usize> {
    match std::env::var("LGRECO_BENCH_ELEMENTS") {
        Ok(text) => Ok(text.parse().map_err(|error| format!("LGRECO_BENCH_ELEMENTS is {text}: {error}"))?),
        Err(_) => Ok(1 << 26),
    }
}

fn main() -> ExitCode {
    match check() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn check() -> Outcome<()> {
    for device in devices()? {
        println!("{}, compute capability {}, driver for CUDA {}", device.name, device.capability, device.driver);
        let usable = device.usable.unwrap_or_else(|error| error.to_string());
        println!("{} MiB, {usable}", device.memory >> 20);
    }
    let mut backend = CudaBackend::new(0)?;
    let start = Instant::now();
    check_all(&mut backend, ROWS);
    println!("the conformance suite passes, {:.1} s, kernels compiled meanwhile", start.elapsed().as_secs_f64());
    let elements = elements()?;
    suites::run(elements < FEW)?;
    Bench::new(backend, elements)?.run()
}

struct Bench {
    backend: CudaBackend,
    shape: Shape,
    values: Vec<f32>,
    /// The same, where gradients are bf16.
    narrow: Vec<Bf16>,
    dtype: Dtype,
    gradient: u64,
    other: u64,
    /// Bytes per second that a copy reads and writes.
    bandwidth: f64,
}

impl Bench {
    /// The device's context is current on this thread.
    fn new(backend: CudaBackend, elements: usize) -> Outcome<Self> {
        let shape = Shape::new(elements / 4096, 4096)?;
        let values: Vec<f32> = uniform(shape.elements(), 1).into_iter().map(|x| x * x * x).collect();
        let bytes = 4 * values.len();
        let (gradient, other) = (memory(bytes)?, memory(bytes + 4096)?);
        // SAFETY: both are that long.
        unsafe { result::memcpy_htod_sync(gradient, &values) }?;
        let copy = seconds(|| {
            for _ in 0..CALLS {
                // SAFETY: both are that long.
                unsafe { result::memcpy_dtod_async(other, gradient, bytes, std::ptr::null_mut()) }?;
            }
            Ok(result::ctx::synchronize()?)
        })?;
        let bandwidth = 2.0 * bytes as f64 / copy;
        println!("{} f32 values; a copy of them moves {:.1} GB/s", values.len(), bandwidth / 1e9);
        println!("{:<44} {:>9} {:>9} {:>9} {:>11}", "", "ms", "GB/s", "of copy", "one core, ms");
        Ok(Bench { backend, shape, values, narrow: Vec::new(), dtype: Dtype::F32, gradient, other, bandwidth })
    }

    fn run(mut self) -> Outcome<()> {
        let elements = self.shape.elements() as u32;
        let keeps: Vec<u32> = (1..=100).map(|i| (u64::from(elements) * i / 1000) as u32).collect();
        let widths: &[u8] = &[2, 3, 4, 5, 6, 7, 8];
        self.rows("QSGD, 7 widths", Candidates::Qsgd { base: Qsgd::default(), bits: widths })?;
        self.rows("TopK, 100 densities", Candidates::TopK { values: Dtype::F32, keeps: &keeps })?;
        let few = [1, 3, 10].map(|part| (elements / 1000 * part).max(1));
        let few = Candidates::QuantisedTopK { keeps: &few, bits: &[2, 4, 8] };
        self.rows("TopK in few bits, 3 densities", few)?;
        let ranks = Candidates::PowerSgd { iterations: 5, ranks: &[1, 2, 4, 8, 16, 32, 64] };
        self.rows("PowerSGD, ranks 1 to 64", ranks)?;
        self.step()?;
        self.models()?;
        self.narrow()?;
        self.rows("QSGD, 7 widths", Candidates::Qsgd { base: Qsgd::default(), bits: widths })?;
        self.rows("PowerSGD, ranks 1 to 64", ranks)?;
        self.step()?;
        self.models()
    }

    /// Payloads and exchanges, under every method.
    fn step(&mut self) -> Outcome<()> {
        let shape = [self.shape];
        for (name, setting) in METHODS {
            self.payloads(name, setting(self.shape))?;
        }
        for (name, setting) in METHODS.into_iter().filter(|(name, _)| !name.starts_with("PowerSGD")) {
            self.exchange("", name, setting, &shape)?;
        }
        self.sums("", "PowerSGD, rank 4", power, &shape)?;
        self.sums("", "uncompressed", |_| Setting::Dense, &shape)
    }

    fn on_device(&self) -> Outcome<DeviceGradient> {
        // SAFETY: as many values, kept as long as the program runs.
        Ok(unsafe { DeviceGradient::new(self.gradient, self.dtype, self.shape) }?)
    }

    /// One line, of a call that reads the gradient at least once.
    fn line(&mut self, name: &str, here: f64, cpu: f64) -> Outcome<()> {
        self.line_of(name, self.dtype.bytes() * self.values.len(), here, cpu)
    }

    /// One line, of a call that has to read and write so many bytes.
    fn line_of(&mut self, name: &str, bytes: usize, here: f64, cpu: f64) -> Outcome<()> {
        let (name, read) = (self.named(name), bytes as f64 / here);
        println!(
            "{name:<44} {:>9.3} {:>9.1} {:>7.0} % {:>11.0}",
            1e3 * here,
            read / 1e9,
            100.0 * read / self.bandwidth,
            1e3 * cpu
        );
        Ok(())
    }
}

fn qsgd(_: Shape) -> Setting {
    Setting::Qsgd(Qsgd::default())
}

type SettingOf = fn(Shape) -> Setting;

/// What a single layer is compressed by.
const METHODS: [(&str, SettingOf); 6] = [
    ("QSGD, 4 bits", qsgd),
    ("QSGD, 8 bits", |_| Setting::Qsgd(Qsgd { bits: 8, ..Qsgd::default() })),
    ("QSGD, 4 bits of an interval", |_| Setting::Qsgd(Qsgd { scale: Scale::MinMax, ..Qsgd::default() })),
    ("TopK, 1 %", top),
    ("TopK in 4 bits, 1 %", top_in_few_bits),
    ("PowerSGD, rank 4", power),
];

/// Vectors are not compressed.
fn power(shape: Shape) -> Setting {
    let is_vector = shape.rows().min(shape.cols()) == 1;
    if is_vector { Setting::Dense } else { Setting::PowerSgd(PowerSgd { rank: 4, iterations: 1 }) }
}

fn top_in_few_bits(shape: Shape) -> Setting {
    Setting::QuantisedTopK(QuantisedTopK { keep: (shape.elements() as u32 / 100).max(1), bits: 4 })
}

/// One in a hundred.
fn top(shape: Shape) -> Setting {
    Setting::TopK(TopK { keep: (shape.elements() as u32 / 100).max(1), values: Dtype::F32 })
}
