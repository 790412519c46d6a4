//! Checks an NVIDIA GPU, and measures times on this GPU. `on_device [SECTION...]` runs the given sections, or all of
//! them. `on_device --list` prints the names of the sections, and `on_device --device` describes the device. A failed
//! section does not stop the later ones. The exit status is 1 if any section failed.
//!
//! Sections are either suites (conformance, exchanges, graphs) or figures. Figures measure error-table rows, whole
//! tables, payloads and exchanges: the time, and the bandwidth relative to that of a plain copy. Every result is
//! compared with the CPU's result. For a model's error table, only the rows of two layers are compared.
//!
//! Environment variables: `LGRECO_BENCH_ELEMENTS` sets the number of values (default 2^26). With fewer than 2^20
//! values, the suites damage fewer bytes, and each time is measured once. `LGRECO_BENCH_RUNS` sets the number of runs
//! (default 6); the time of the fastest run is printed.

#[path = "../../tests/checks/mod.rs"]
mod checks;
mod device;
mod exchanges;
mod layers;
mod models;
mod narrow;
mod suites;
mod sums;

use crate::checks::memory::enter;
use device::{Clock, Memory};
use lgreco::compress::eden::Eden;
use lgreco::compress::powersgd::PowerSgd;
use lgreco::compress::qsgd::{Qsgd, Scale};
use lgreco::compress::quantised_topk::QuantisedTopK;
use lgreco::compress::topk::TopK;
use lgreco::compress::{Candidates, Setting};
use lgreco::gradient::{Bf16, Dtype, Shape};
use lgreco_cuda::{CudaBackend, DeviceGradient, devices};
use lgreco_testing::powersgd::uniform;
use std::any::Any;
use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

/// Number of calls enqueued before the host waits for the device.
const CALLS: usize = 8;
/// Largest accepted relative difference between an error in a row and the CPU's error.
const ROWS: f64 = 1e-4;
/// Largest accepted norm of the difference between a matrix and the expected matrix, relative to the norm of the
/// expected matrix.
const NORM: f64 = 1e-4;
/// Bound on the relative rounding error of a bf16 value.
const SENT: f32 = 1.0 / 256.0;
/// Number of ranks of an exchange.
const RANKS: usize = 8;
/// Smallest number of values for which measured times are meaningful.
const FEW: usize = 1 << 20;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Reads a number from an environment variable. If the variable is not set, returns `otherwise`.
fn number(variable: &str, otherwise: usize) -> Outcome<usize> {
    match std::env::var(variable) {
        Ok(text) => Ok(text.parse().map_err(|error| format!("{variable} is {text}: {error}"))?),
        Err(_) => Ok(otherwise),
    }
}

/// Number of gradient values in measurements.
fn elements() -> Outcome<usize> {
    number("LGRECO_BENCH_ELEMENTS", 1 << 26)
}

/// Whether there are so few values that times are not meaningful.
fn is_few() -> Outcome<bool> {
    Ok(elements()? < FEW)
}

/// Number of runs per measurement. The time of the fastest run is the result.
fn runs() -> Outcome<usize> {
    number("LGRECO_BENCH_RUNS", if is_few()? { 1 } else { 6 })
}

/// Measures a call that waits for the device, in seconds on the host. Takes the minimum of several runs.
fn host_seconds(mut run: impl FnMut() -> Outcome<()>) -> Outcome<f64> {
    let mut least = f64::INFINITY;
    for _ in 0..runs()? {
        let start = Instant::now();
        run()?;
        least = least.min(start.elapsed().as_secs_f64());
    }
    Ok(least)
}

/// The function that runs a section, by the kind of the section.
#[derive(Clone, Copy)]
enum Section {
    Suite(fn(bool) -> Outcome<()>),
    Figures(fn(&mut Bench) -> Outcome<()>),
    /// Like `Figures`, but with gradients in bf16.
    Narrow(fn(&mut Bench) -> Outcome<()>),
}

use Section::{Figures, Narrow, Suite};

/// Name and function of every section, in the order in which they run.
const SECTIONS: [(&str, Section); 18] = [
    ("copy", Figures(|_| Ok(()))),
    ("conformance", Suite(suites::conformance)),
    ("payloads", Figures(Bench::all_payloads)),
    ("steps", Figures(Bench::steps)),
    ("rows", Figures(Bench::all_rows)),
    ("tables", Figures(Bench::tables)),
    ("models", Figures(Bench::steps_of_models)),
    ("payloads-bf16", Narrow(Bench::all_payloads)),
    ("steps-bf16", Narrow(Bench::steps)),
    ("rows-bf16", Narrow(Bench::all_rows)),
    ("tables-bf16", Narrow(Bench::tables)),
    ("models-bf16", Narrow(Bench::steps_of_models)),
    ("exchanges", Suite(suites::exchanges)),
    ("shards", Suite(suites::shards)),
    ("failures", Suite(suites::failures)),
    ("damage", Suite(suites::damage)),
    ("window", Suite(suites::window)),
    ("graphs", Suite(suites::graphs)),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments == ["--list"] {
        SECTIONS.iter().for_each(|(name, _)| println!("{name}"));
        return ExitCode::SUCCESS;
    }
    let is_known = |name: &str| name == "--device" || SECTIONS.iter().any(|(section, _)| *section == name);
    if let Some(unknown) = arguments.iter().find(|name| !is_known(name)) {
        eprintln!("on_device has no section {unknown}; on_device --list prints their names");
        return ExitCode::from(2);
    }
    let outcome = if arguments == ["--device"] { tell().map(|()| true) } else { run(&arguments) };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("FAILED: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Describes the first device on one line.
fn tell() -> Outcome<()> {
    let device = devices()?.into_iter().next().ok_or("there is no device")?;
    let usable = device.usable.unwrap_or_else(|error| error.to_string());
    let (name, capability, driver) = (device.name, device.capability, device.driver);
    println!(
        "{name}, compute capability {capability}, driver for CUDA {driver}, {} MiB, {usable}",
        device.memory >> 20
    );
    Ok(())
}

/// Runs the chosen sections, or all if none is chosen. Returns whether all of them passed.
fn run(chosen: &[String]) -> Outcome<bool> {
    tell()?;
    enter(0)?;
    let few = is_few()?;
    // The backend `_modules` keeps the kernels loaded, so that later backends do not load them again.
    let _modules = CudaBackend::new(0)?;
    let (mut bench, mut failed) = (None, Vec::new());
    for (name, section) in SECTIONS.iter().filter(|(name, _)| chosen.is_empty() || chosen.iter().any(|of| of == name)) {
        println!("\n== {name}");
        let start = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| match section {
            Suite(suite) => suite(few),
            Figures(figures) => figures(opened(&mut bench, Dtype::F32)?),
            Narrow(figures) => figures(opened(&mut bench, Dtype::Bf16)?),
        }));
        let wrong = match outcome {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(panic) => Some(words(&*panic)),
        };
        match wrong {
            None => println!("{name}: passed, {:.1} s", start.elapsed().as_secs_f64()),
            Some(wrong) => {
                println!("{name}: FAILED: {wrong}");
                failed.push(*name);
            }
        }
    }
    println!("\nfailed: {}", if failed.is_empty() { "none".into() } else { failed.join(", ") });
    Ok(failed.is_empty())
}

/// Returns the message of a panic.
fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words").to_owned()
}

/// Returns the bench with gradients of this type. The first call creates the bench.
fn opened(bench: &mut Option<Bench>, dtype: Dtype) -> Outcome<&mut Bench> {
    let bench = match bench {
        Some(bench) => bench,
        none => none.insert(Bench::new(elements()?)?),
    };
    if dtype != bench.dtype {
        bench.narrow()?;
    }
    Ok(bench)
}

/// Gradients on the device, and a backend that uses the clock's stream.
struct Bench {
    clock: Clock,
    backend: CudaBackend,
    shape: Shape,
    values: Vec<f32>,
    /// The gradient's values in bf16; empty while gradients are f32.
    narrow: Vec<Bf16>,
    dtype: Dtype,
    gradient: Memory,
    other: Memory,
    /// Bytes per second that a plain copy reads and writes.
    bandwidth: f64,
}

impl Bench {
    /// Creates the bench, and prints the bandwidth of a copy. The device's context must be current on this thread.
    fn new(elements: usize) -> Outcome<Self> {
        let clock = Clock::new()?;
        let shape = Shape::new(elements / 4096, 4096)?;
        let values: Vec<f32> = uniform(shape.elements(), 1).into_iter().map(|x| x * x * x).collect();
        let bytes = 4 * values.len();
        let (gradient, other) = (Memory::new(bytes)?, Memory::new(bytes + 4096)?);
        clock.upload(gradient.at(), &values)?;
        let copy = clock.seconds(CALLS, || clock.copy(other.at(), gradient.at(), bytes))?;
        let bandwidth = 2.0 * bytes as f64 / copy;
        println!("{} f32 values; a copy of them moves {:.1} GB/s", values.len(), bandwidth / 1e9);
        println!("{:<44} {:>9} {:>9} {:>9} {:>11}", "", "ms", "GB/s", "of copy", "one core, ms");
        // SAFETY: the clock's stream is never destroyed.
        let backend = unsafe { CudaBackend::with_stream(clock.stream().cast()) }?;
        let (narrow, dtype) = (Vec::new(), Dtype::F32);
        Ok(Bench { clock, backend, shape, values, narrow, dtype, gradient, other, bandwidth })
    }

    fn all_rows(&mut self) -> Outcome<()> {
        let elements = self.shape.elements() as u32;
        let widths: &[u8] = &[2, 3, 4, 5, 6, 7, 8];
        self.rows("QSGD, 7 widths", Candidates::Qsgd { base: Qsgd::default(), bits: widths })?;
        self.rows("EDEN, 4 widths", Candidates::Eden { base: Eden::default(), bits: &[1, 2, 3, 4] })?;
        if self.dtype == Dtype::F32 {
            let keeps: Vec<u32> = (1..=100).map(|i| (u64::from(elements) * i / 1000) as u32).collect();
            self.rows("TopK, 100 densities", Candidates::TopK { values: Dtype::F32, keeps: &keeps })?;
            let few = [1, 3, 10].map(|part| (elements / 1000 * part).max(1));
            let few = Candidates::QuantisedTopK { keeps: &few, bits: &[2, 4, 8] };
            self.rows("TopK in few bits, 3 densities", few)?;
        }
        let ranks = Candidates::PowerSgd { iterations: 5, ranks: &[1, 2, 4, 8, 16, 32, 64] };
        self.rows("PowerSGD, ranks 1 to 64", ranks)
    }

    fn all_payloads(&mut self) -> Outcome<()> {
        METHODS.into_iter().try_for_each(|(name, setting)| self.payloads(name, setting(self.shape)))
    }

    /// Measures exchanges of one layer under every method.
    fn steps(&mut self) -> Outcome<()> {
        let shape = [self.shape];
        for (name, setting) in METHODS.into_iter().filter(|(name, _)| !name.starts_with("PowerSGD")) {
            self.exchange("", name, setting, &shape)?;
        }
        self.sums("", "PowerSGD, rank 4", power, &shape)?;
        self.sums("", "uncompressed", |_| Setting::Dense, &shape)
    }

    fn on_device(&self) -> Outcome<DeviceGradient> {
        // SAFETY: the memory has this many values, and lives as long as the program runs.
        Ok(unsafe { DeviceGradient::new(self.gradient.at(), self.dtype, self.shape) }?)
    }

    /// Prints the time of a call, and its bandwidth as if it only read the gradient.
    fn line(&self, name: &str, here: f64, cpu: f64) {
        self.line_of(name, self.dtype.bytes() * self.values.len(), here, cpu);
    }

    /// Prints the time of a call that reads and writes `bytes` bytes in all, and its bandwidth.
    fn line_of(&self, name: &str, bytes: usize, here: f64, cpu: f64) {
        let (name, read) = (self.named(name), bytes as f64 / here);
        println!(
            "{name:<44} {:>9.3} {:>9.1} {:>7.0} % {:>11.0}",
            1e3 * here,
            read / 1e9,
            100.0 * read / self.bandwidth,
            1e3 * cpu
        );
    }
}

fn qsgd(_: Shape) -> Setting {
    Setting::Qsgd(Qsgd::default())
}

fn eden(_: Shape) -> Setting {
    Setting::Eden(Eden::default())
}

type SettingOf = fn(Shape) -> Setting;

/// Name and setting of each measured method.
const METHODS: [(&str, SettingOf); 7] = [
    ("QSGD, 4 bits", qsgd),
    ("QSGD, 8 bits", |_| Setting::Qsgd(Qsgd { bits: 8, ..Qsgd::default() })),
    ("QSGD, 4 bits of an interval", |_| Setting::Qsgd(Qsgd { scale: Scale::MinMax, ..Qsgd::default() })),
    ("EDEN, 3 bits", eden),
    ("TopK, 1 %", top),
    ("TopK in 4 bits, 1 %", top_in_few_bits),
    ("PowerSGD, rank 4", power),
];

/// PowerSGD of rank 4. Vectors are not compressed.
fn power(shape: Shape) -> Setting {
    let is_vector = shape.rows().min(shape.cols()) == 1;
    if is_vector { Setting::Dense } else { Setting::PowerSgd(PowerSgd { rank: 4, iterations: 1 }) }
}

fn top_in_few_bits(shape: Shape) -> Setting {
    Setting::QuantisedTopK(QuantisedTopK { keep: (shape.elements() as u32 / 100).max(1), bits: 4 })
}

/// TopK that keeps one value in a hundred.
fn top(shape: Shape) -> Setting {
    Setting::TopK(TopK { keep: (shape.elements() as u32 / 100).max(1), values: Dtype::F32 })
}
