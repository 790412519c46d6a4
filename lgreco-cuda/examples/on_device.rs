//! What has to be seen on a GPU: the conformance suite, then times of rows and payloads against copying, and against what
//! the machine code promises where that is known (`src/roofline`). README.md says how to carry it to a machine that has one.
//! `LGRECO_BENCH_ELEMENTS` takes the place of 2^26 values.
//!
//! Every figure's answer is asserted to be the CPU's; of a model's table the rows of two layers.

use cudarc::driver::{result, sys};
use lgreco_core::backend::{Backend, Job, Portable};
use lgreco_core::compress::powersgd::{self, PowerSgd};
use lgreco_core::compress::qsgd::Qsgd;
use lgreco_core::compress::topk::TopK;
use lgreco_core::compress::{Candidates, Compressor, Setting};
use lgreco_core::gradient::{Dtype, Gradient, Shape, Values};
use lgreco_core::rng::Stream;
use lgreco_core::testing::backend::check_all;
use lgreco_core::testing::models::resnet_50;
use lgreco_core::testing::powersgd::uniform;
use lgreco_cuda::testing::{Gpu, OF_MODELS, OPERATIONS, Operation};
use lgreco_cuda::{Call, CudaBackend, DeviceGradient, DeviceJob, ExchangeConfig, ExchangeProgram, devices};
use std::collections::BTreeSet;
use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

/// Calls that are enqueued before the device is waited for.
const CALLS: usize = 8;
/// What rows agree within, and matrices that PowerSGD's payloads decode to, of their norm.
const ROWS: f64 = 1e-4;
const NORM: f64 = 1e-4;
/// Ranks of an exchange.
const RANKS: usize = 8;
/// What a measured time may be of its prediction.
const MISSED: f64 = 1.25;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Seconds of a call, of which `run` makes [`CALLS`]: the least of some runs.
fn seconds(mut run: impl FnMut() -> Outcome<()>) -> Outcome<f64> {
    let mut least = f64::INFINITY;
    for _ in 0..6 {
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
    let gpu = devices()?.first().and_then(|device| Gpu::named(&device.name));
    let mut backend = CudaBackend::new(0)?;
    let start = Instant::now();
    check_all(&mut backend, ROWS);
    println!("the conformance suite passes, {:.1} s, kernels compiled meanwhile\n", start.elapsed().as_secs_f64());

    // SAFETY: the first device is there; its primary context stays current on this thread.
    unsafe { result::ctx::set_current(result::primary_ctx::retain(result::device::get(0)?)?)? };
    Bench::new(backend, gpu)?.run()
}

/// How far apart two matrices are, of the norm of the first.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    let norm: f64 = a.iter().map(|&a| f64::from(a).powi(2)).sum();
    let apart: f64 = a.iter().zip(b).map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2)).sum();
    (apart / norm).sqrt()
}

struct Bench {
    backend: CudaBackend,
    shape: Shape,
    values: Vec<f32>,
    gradient: u64,
    other: u64,
    /// Bytes per second that a copy reads and writes.
    bandwidth: f64,
    /// Whose predictions are set against the figures.
    gpu: Option<Gpu>,
    /// Lines that took longer than predicted, and those that do not reach what they were to reach.
    missed: Vec<String>,
    below: Vec<String>,
    /// The operations that have been measured, of one layer and of models.
    measured: [BTreeSet<&'static str>; 2],
}

impl Bench {
    fn new(backend: CudaBackend, gpu: Option<Gpu>) -> Outcome<Self> {
        let elements = match std::env::var("LGRECO_BENCH_ELEMENTS") {
            Ok(text) => text.parse().map_err(|error| format!("LGRECO_BENCH_ELEMENTS is {text}: {error}"))?,
            Err(_) => 1usize << 26,
        };
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
        match &gpu {
            Some(gpu) => println!("predictions are for {}, whose copy moves {:.1} GB/s", gpu.name, gpu.copy / 1e9),
            None => println!("there are no predictions for this device"),
        }
        println!("{:<44} {:>9} {:>9} {:>9} {:>11}", "", "ms", "GB/s", "of copy", "one core, ms");
        Ok(Bench {
            backend,
            shape,
            values,
            gradient,
            other,
            bandwidth,
            gpu,
            missed: Vec::new(),
            below: Vec::new(),
            measured: Default::default(),
        })
    }

    fn run(mut self) -> Outcome<()> {
        let elements = self.shape.elements() as u32;
        let keeps: Vec<u32> = (1..=100).map(|i| (u64::from(elements) * i / 1000) as u32).collect();
        let widths: &[u8] = &[2, 3, 4, 5, 6, 7, 8];
        self.rows("QSGD, 7 widths", Candidates::Qsgd { base: Qsgd::default(), bits: widths })?;
        self.rows("TopK, 100 densities", Candidates::TopK { values: Dtype::F32, keeps: &keeps })?;
        self.rows("PowerSGD, ranks 1 to 32", Candidates::PowerSgd { iterations: 5, ranks: &[1, 2, 4, 8, 16, 32] })?;
        self.payloads("QSGD, 4 bits", qsgd(self.shape))?;
        self.payloads("TopK, 1 %", top(self.shape))?;
        self.payloads("PowerSGD, rank 4", Setting::PowerSgd(PowerSgd { rank: 4, iterations: 1 }))?;
        let shape = [self.shape];
        self.exchange("", "QSGD, 4 bits", qsgd, &shape)?;
        self.exchange("", "TopK, 1 %", top, &shape)?;
        self.sums()?;
        self.models()?;
        for (operations, measured) in [OPERATIONS, OF_MODELS].into_iter().zip(&self.measured) {
            let left = operations.iter().find(|of| !measured.contains(of.name));
            if let Some(left) = left {
                return Err(format!("{} has not been measured", left.name).into());
            }
        }
        println!();
        for (what, lines) in [
            ("longer than predicted, by more than a quarter", &self.missed),
            ("below what was to be reached", &self.below),
        ] {
            println!("{what}: {}", if lines.is_empty() { "none".into() } else { lines.join("; ") });
        }
        Ok(())
    }

    /// What ends a line: the prediction, if there is one, and whether the time misses it, or what was to be reached. `of` is 0 for
    /// operations on one layer, 1 for those on a model's.
    fn against(&mut self, of: usize, (model, name): (&str, &str), shapes: &[Shape], here: f64) -> Outcome<String> {
        let Some(operation) = [OPERATIONS, OF_MODELS][of].iter().find(|operation| operation.name == name) else {
            return Ok(String::new());
        };
        self.measured[of].insert(operation.name);
        let Operation { bytes, target, .. } = operation;
        let values: usize = shapes.iter().map(|shape| shape.elements()).sum();
        let of_copy = bytes * values as f64 / here / self.bandwidth;
        let mut said = String::new();
        if let Some(gpu) = self.gpu {
            let predicted = operation.predict(&gpu, shapes, operation.commands(shapes)?).seconds;
            said = format!("  predicted {:.3} ms", 1e3 * predicted);
            if here > MISSED * predicted {
                self.missed.push(format!("{model}{name}"));
                said += ", misses";
            }
        }
        if let Some(target) = target.filter(|&target| of_copy < target) {
            self.below.push(format!("{model}{name} ({:.0} %, not {:.0} %)", 100.0 * of_copy, 100.0 * target));
        }
        Ok(said)
    }

    fn on_device(&self) -> Outcome<DeviceGradient> {
        // SAFETY: as many values, kept as long as the program runs.
        Ok(unsafe { DeviceGradient::new(self.gradient, Dtype::F32, self.shape) }?)
    }

    /// One line, of a call that reads the gradient at least once.
    fn line(&mut self, name: &str, here: f64, cpu: f64) -> Outcome<()> {
        self.line_of(name, 4 * self.values.len(), here, cpu)
    }

    /// One line, of a call that has to read and write so many bytes.
    fn line_of(&mut self, name: &str, bytes: usize, here: f64, cpu: f64) -> Outcome<()> {
        let shape = [self.shape];
        let against = self.against(0, ("", name), &shape, here)?;
        let read = bytes as f64 / here;
        println!(
            "{name:<44} {:>9.3} {:>9.1} {:>7.0} % {:>11.0}{against}",
            1e3 * here,
            read / 1e9,
            100.0 * read / self.bandwidth,
            1e3 * cpu
        );
        Ok(())
    }

    fn rows(&mut self, name: &str, candidates: Candidates<'_>) -> Outcome<()> {
        let (gradient, stream) = (self.on_device()?, Stream::default());
        let jobs = [DeviceJob { gradient, candidates, stream }; CALLS];
        let mut rows = vec![f64::NAN; CALLS * candidates.len()];
        let here = seconds(|| Ok(self.backend.measure_device(&jobs, &mut rows)?))?;
        let cpu = self.check_rows(name, self.shape, candidates, &rows)?;
        self.line(&format!("row of {name}"), here, cpu)
    }

    /// Asserts that rows of the first values are the CPU's, whose seconds are returned.
    fn check_rows(&self, name: &str, shape: Shape, candidates: Candidates<'_>, rows: &[f64]) -> Outcome<f64> {
        let gradient = Gradient::new(Values::F32(&self.values[..shape.elements()]), shape)?;
        let job = Job { gradient, candidates, stream: Stream::default() };
        let (mut expected, mut workspace) = (vec![f64::NAN; candidates.len()], vec![0; Portable.workspace_len(&[job])]);
        let start = Instant::now();
        Portable.measure(&[job], &mut workspace, &mut expected)?;
        let cpu = start.elapsed().as_secs_f64();
        // Where a rank is full, only rounding is left.
        let rounding = 1e-10 * expected[0];
        for row in rows.chunks(candidates.len()) {
            let agree = row.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= ROWS * b + rounding);
            assert!(agree, "{name}: {row:?}, not {expected:?}");
        }
        Ok(cpu)
    }

    fn payloads(&mut self, name: &str, setting: Setting) -> Outcome<()> {
        let gradient = self.on_device()?;
        let len = setting.payload_len(self.shape, Dtype::F32)?;
        let payload = memory(len.next_multiple_of(4))?;
        let here = seconds(|| {
            for _ in 0..CALLS {
                // SAFETY: room for a payload.
                unsafe { self.backend.encode_to_device(&setting, &gradient, Stream::default(), payload) }?;
            }
            Ok(self.backend.check()?)
        })?;
        let host = Gradient::new(Values::F32(&self.values), self.shape)?;
        let mut workspace = vec![0; setting.encode_workspace_len(self.shape, Dtype::F32)];
        let (mut expected, mut found) = (vec![0; len], vec![0u8; len]);
        let start = Instant::now();
        setting.encode(&host, Stream::default(), &mut workspace, &mut expected)?;
        let cpu = start.elapsed().as_secs_f64();
        // SAFETY: the payload is that long.
        unsafe { result::memcpy_dtoh_sync(&mut found, payload) }?;
        let of_core = |payload: &[u8]| -> Outcome<Vec<f32>> {
            let mut values = vec![0.0f32; self.values.len()];
            lgreco_core::compress::decode(payload, &mut values)?;
            Ok(values)
        };
        match setting {
            Setting::PowerSgd(_) => {
                let apart = distance(&of_core(&expected)?, &of_core(&found)?);
                assert!(apart <= NORM, "{name}: the payload, by {apart} of the norm");
            }
            _ => assert!(found == expected, "{name}: the payload"),
        }
        self.line(&format!("encode {name}"), here, cpu)?;

        let here = seconds(|| {
            for _ in 0..CALLS {
                // SAFETY: the payload just made, and room for as many values.
                unsafe { self.backend.decode_on_device(&setting, self.shape, payload, self.other) }?;
            }
            Ok(self.backend.synchronise()?)
        })?;
        let (mut values, mut decoded) = (vec![0.0f32; self.values.len()], vec![0.0f32; self.values.len()]);
        let start = Instant::now();
        lgreco_core::compress::decode(&found, &mut values)?;
        let cpu = start.elapsed().as_secs_f64();
        // SAFETY: as many values.
        unsafe { result::memcpy_dtoh_sync(&mut decoded, self.other) }?;
        assert!(decoded == values, "{name}: the values");
        self.line(&format!("decode {name}"), here, cpu)?;
        // SAFETY: allocated above, and used no more.
        Ok(unsafe { sys::cuMemFree_v2(payload) }.result()?)
    }

    /// Steps of an exchange of [`RANKS`] ranks, which all send what this one does: of one layer, or of a model's.
    fn exchange(&mut self, model: &str, name: &str, setting: fn(Shape) -> Setting, shapes: &[Shape]) -> Outcome<()> {
        let config = ExchangeConfig { world: RANKS as u32, ..ExchangeConfig::default() };
        let layers: Vec<(Shape, Setting)> = shapes.iter().map(|&shape| (shape, setting(shape))).collect();
        let program = ExchangeProgram::new(&layers, config)?;
        let message = program.message_bytes();
        let (table, residuals) = (memory(program.memory_bytes() as usize)?, memory(program.residual_bytes() as usize)?);
        let messages = memory(RANKS * message)?;
        // SAFETY: as large as the program says, and used here alone.
        let exchange = unsafe { self.backend.begin_exchange(program, table, residuals) }?;
        let encode = seconds(|| {
            for _ in 0..CALLS {
                // SAFETY: the gradients and room for a message. Before a step has ended, residuals stay zeros.
                unsafe { self.backend.encode_exchange(&exchange, self.gradient, messages) }?;
            }
            Ok(self.backend.synchronise()?)
        })?;
        // Of the first layer.
        let &(shape, setting) = layers.first().ok_or("no layer")?;
        let (values, len) = (shape.elements(), setting.payload_len(shape, Dtype::F32)?);
        let (mut expected, mut found) = (vec![0; len], vec![0u8; len]);
        let host = Gradient::new(Values::F32(&self.values[..values]), shape)?;
        let mut workspace = vec![0; setting.encode_workspace_len(shape, Dtype::F32)];
        let start = Instant::now();
        setting.encode(&host, Stream::default(), &mut workspace, &mut expected)?;
        let cpu = start.elapsed().as_secs_f64();
        // SAFETY: the payload is that long, behind the message's 16 bytes.
        unsafe { result::memcpy_dtoh_sync(&mut found, messages + 16) }?;
        assert!(found == expected, "{model}{name}: the exchange's payload");
        // Gradients and residuals read, residuals and payloads written.
        let total: usize = shapes.iter().map(|shape| shape.elements()).sum();
        let line = format!("exchange: feedback and {name}");
        self.line_of_exchange(model, &line, shapes, (12 * total + message, encode, cpu))?;

        // Every step ends with others' messages of its own number.
        let mut finish = f64::INFINITY;
        for step in 0..6 {
            // SAFETY: the gradients and room for all messages.
            unsafe {
                self.backend.encode_exchange(&exchange, self.gradient, messages)?;
                for rank in 1..RANKS as u64 {
                    let to = messages + rank * message as u64;
                    result::memcpy_dtod_async(to, messages, message, std::ptr::null_mut())?;
                }
                result::ctx::synchronize()?;
                self.backend.synchronise()?;
                let start = Instant::now();
                self.backend.finish_exchange(&exchange, messages, self.other)?;
                self.backend.synchronise()?;
                finish = finish.min(start.elapsed().as_secs_f64());
            }
            let outcome = self.backend.exchange_outcome(&exchange)?;
            assert!((outcome.step, outcome.failed) == (step + 1, 0), "{outcome:?}");
        }
        let (mut payload, mut decoded, mut means) = (vec![0u8; len], vec![0.0f32; values], vec![0.0f32; values]);
        // SAFETY: as long.
        unsafe {
            result::memcpy_dtoh_sync(&mut payload, messages + 16)?;
            result::memcpy_dtoh_sync(&mut means, self.other)?;
        }
        let start = Instant::now();
        lgreco_core::compress::decode(&payload, &mut decoded)?;
        let cpu = RANKS as f64 * start.elapsed().as_secs_f64();
        let mean = |&x: &f32| (1..RANKS).fold(x, |sum, _| sum + x) / RANKS as f32;
        assert!(means.iter().zip(&decoded).all(|(found, x)| *found == mean(x)), "{model}{name}: the exchange's means");
        let line = format!("exchange: means of {RANKS} ranks, {name}");
        self.line_of_exchange(model, &line, shapes, (4 * total + RANKS * message, finish, cpu))?;
        for address in [table, residuals, messages] {
            // SAFETY: allocated above, and used no more.
            unsafe { sys::cuMemFree_v2(address) }.result()?;
        }
        Ok(())
    }

    /// A line of an exchange, of a model if that has a name.
    fn line_of_exchange(
        &mut self,
        model: &str,
        name: &str,
        shapes: &[Shape],
        (bytes, here, cpu): (usize, f64, f64),
    ) -> Outcome<()> {
        if model.is_empty() {
            return self.line_of(name, bytes, here, cpu);
        }
        let against = self.against(1, (model, name), shapes, here)?;
        let of_copy = 100.0 * bytes as f64 / here / self.bandwidth;
        println!("{name}: {:.3} ms, {of_copy:.0} % of copy{against}", 1e3 * here);
        Ok(())
    }

    /// Steps of an exchange of PowerSGD's factors with no other rank.
    fn sums(&mut self) -> Outcome<()> {
        let (shape, rank, values) = (self.shape, 4, self.values.len());
        let setting = Setting::PowerSgd(PowerSgd { rank, iterations: 1 });
        let program = ExchangeProgram::new(&[(shape, setting)], ExchangeConfig::default())?;
        let (of_rows, of_cols) = (program.sum_values(), program.factor_values());
        let (table, residuals) = (memory(program.memory_bytes() as usize)?, memory(program.residual_bytes() as usize)?);
        let (sums, factors) = (memory(4 * of_rows)?, memory(4 * of_cols)?);
        // SAFETY: as large as the program says, and used here alone.
        let exchange = unsafe { self.backend.begin_exchange(program, table, residuals) }?;
        // No other rank: what is summed stays as it is.
        let here = seconds(|| {
            for _ in 0..CALLS {
                // SAFETY: the gradient, room for both sums and for the means.
                unsafe {
                    self.backend.project_exchange(&exchange, self.gradient, sums)?;
                    self.backend.back_project_exchange(&exchange, sums, factors)?;
                    self.backend.average_exchange(&exchange, sums, factors, self.other)?;
                }
            }
            Ok(self.backend.synchronise()?)
        })?;
        let outcome = self.backend.exchange_outcome(&exchange)?;
        assert!((outcome.failed, outcome.fault) == (0, None), "{outcome:?}");
        let (mut p, mut q, mut means) = (vec![0.0f32; of_rows], vec![0.0f32; of_cols], vec![0.0f32; values]);
        // SAFETY: as long.
        unsafe {
            result::memcpy_dtoh_sync(&mut p, sums)?;
            result::memcpy_dtoh_sync(&mut q, factors)?;
            result::memcpy_dtoh_sync(&mut means, self.other)?;
        }
        let (p, q) = (&p[..shape.rows() * rank as usize], &q[..shape.cols() * rank as usize]);
        let mut expected = vec![0.0; values];
        let mut workspace = vec![0; powersgd::steps_workspace_len(shape, rank)];
        let (mut own_p, mut own_q) = (p.to_vec(), q.to_vec());
        powersgd::orthonormalise(shape, rank, &mut workspace, &mut own_p)?;
        powersgd::reconstruct(shape, rank, &own_p, q, &mut expected)?;
        let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        let apart = norm(&mut means.iter().zip(&expected).map(|(found, expected)| found - expected));
        // Products are added up in another order.
        assert!(apart <= 1e-4 * norm(&mut expected.iter().copied()), "the exchange's means of factors");
        let host = Gradient::new(Values::F32(&self.values), shape)?;
        let start = Instant::now();
        powersgd::project(&host, rank, q, &mut workspace, &mut own_p)?;
        powersgd::orthonormalise(shape, rank, &mut workspace, &mut own_p)?;
        powersgd::back_project(&host, rank, &own_p, &mut workspace, &mut own_q)?;
        powersgd::take_off(shape, rank, &own_p, &own_q, &mut expected)?;
        powersgd::reconstruct(shape, rank, &own_p, &own_q, &mut expected)?;
        // Gradient and residual, their sum written and read twice, the residual and the mean written.
        self.line_of("exchange: PowerSGD, rank 4, a whole step", 28 * values, here, start.elapsed().as_secs_f64())?;
        for address in [table, residuals, sums, factors] {
            // SAFETY: allocated above, and used no more.
            unsafe { sys::cuMemFree_v2(address) }.result()?;
        }
        Ok(())
    }

    /// The whole tables of ResNet-50 and of a transformer with GPT-2's shapes; `tests/peers/gpu.py` takes the published method's
    /// time for the latter. Where there are fewer values than that takes, some layers of the one, and of the other one block, of
    /// sides an eighth as long.
    fn models(&mut self) -> Outcome<()> {
        let is_small = self.values.len() < 3072 * 768;
        let (blocks, part) = if is_small { (1, 8) } else { (37, 1) };
        let block = [(2304, 768), (768, 768), (3072, 768), (768, 3072)];
        let shapes = [(50257, 768), (1024, 768)].into_iter().chain(std::iter::repeat_n(block, blocks).flatten());
        let shapes = shapes.map(|(rows, cols)| Shape::new(rows / part, cols / part)).collect::<Result<Vec<_>, _>>()?;
        let mut of_resnet = resnet_50();
        of_resnet.truncate(if is_small { 6 } else { of_resnet.len() });
        self.tables("ResNet-50", &fitting(of_resnet, self.values.len()))?;
        self.tables("the transformer", &fitting(shapes, self.values.len()))
    }

    /// The tables of a model under three methods. Every layer has memory of its own, so that none is in a cache because another
    /// was read.
    fn tables(&mut self, model: &str, shapes: &[Shape]) -> Outcome<()> {
        let keeps = |shape: &Shape| (1..=100u32).map(|i| (shape.elements() as u32 / 1000 * i).max(1)).collect();
        let keeps: Vec<Vec<u32>> = shapes.iter().map(keeps).collect();
        let total: usize = shapes.iter().map(|shape| shape.elements()).sum();
        let memory_of_all = memory(4 * total)?;
        println!("\n{model}: {} layers, {total} values", shapes.len());
        for (name, options) in [("QSGD", 7), ("TopK", 100), ("PowerSGD", 7)] {
            let (mut jobs, mut at) = (Vec::new(), memory_of_all);
            for (&shape, keeps) in shapes.iter().zip(&keeps) {
                let candidates = match name {
                    "QSGD" => Candidates::Qsgd { base: Qsgd::default(), bits: &[2, 3, 4, 5, 6, 7, 8] },
                    "TopK" => Candidates::TopK { values: Dtype::F32, keeps },
                    _ => Candidates::PowerSgd { iterations: 5, ranks: &[1, 2, 4, 8, 16, 32, 64] },
                };
                let bytes = 4 * shape.elements();
                // SAFETY: there are as many values, and the layers together are as long as the memory.
                let gradient = unsafe {
                    result::memcpy_dtod_async(at, self.gradient, bytes, std::ptr::null_mut())?;
                    DeviceGradient::new(at, Dtype::F32, shape)
                }?;
                jobs.push(DeviceJob { gradient, candidates, stream: Stream::default() });
                at += bytes as u64;
            }
            result::ctx::synchronize()?;
            self.backend.reserve(&jobs, &[Call::Measure])?;
            let mut table = vec![f64::NAN; options * jobs.len()];
            let here = CALLS as f64 * seconds(|| Ok(self.backend.measure_device(&jobs, &mut table)?))?;
            // Of a single column PowerSGD leaves nothing but rounding.
            let is_matrix = |layer: &usize| shapes[*layer].rows().min(shapes[*layer].cols()) > 1;
            let matrices: Vec<usize> = (0..shapes.len()).filter(is_matrix).collect();
            for &layer in matrices.first().into_iter().chain(matrices.last()) {
                let (shape, row) = (jobs[layer].gradient.shape(), &table[options * layer..][..options]);
                self.check_rows(name, shape, jobs[layer].candidates, row)?;
            }
            let workspace = self.backend.workspace_bytes(&jobs, &[Call::Measure])? >> 20;
            let against = self.against(1, (&format!("{model}: "), &format!("rows of {name}")), shapes, here)?;
            let of_copy = 100.0 * 4.0 * total as f64 / here / self.bandwidth;
            println!(
                "{name}: table of {} × {options}: {:.3} ms, {of_copy:.0} % of copy, workspace {workspace} MiB{against}",
                jobs.len(),
                1e3 * here
            );
        }
        // SAFETY: allocated above, and used no more.
        unsafe { sys::cuMemFree_v2(memory_of_all) }.result()?;
        let fits = total <= self.values.len();
        // The gradients are the first values, one layer behind the other.
        for (name, setting) in [("QSGD, 4 bits", qsgd as fn(Shape) -> Setting), ("TopK, 1 %", top)] {
            if fits {
                self.exchange(&format!("{model}: "), name, setting, shapes)?;
            } else {
                println!("exchange of {name}: left out, it has more than {} values", self.values.len());
            }
        }
        Ok(())
    }
}

fn qsgd(_: Shape) -> Setting {
    Setting::Qsgd(Qsgd::default())
}

/// One in a hundred.
fn top(shape: Shape) -> Setting {
    Setting::TopK(TopK { keep: (shape.elements() as u32 / 100).max(1), values: Dtype::F32 })
}

/// The layers that have as many values at most.
fn fitting(shapes: Vec<Shape>, most: usize) -> Vec<Shape> {
    shapes.into_iter().filter(|shape| shape.elements() <= most).collect()
}
