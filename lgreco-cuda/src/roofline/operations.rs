//! Operations of the backend, and how long they should take on a GPU.

use super::bounds::{Counts, bound};
use super::hot::HOT;
use super::occupancy::{self, Multiprocessor};
use crate::counting::Counting;
use crate::device::Part;
use crate::{CudaBackend, DeviceGradient, DeviceJob, Error};
use lgreco_core::compress::Candidates;
use lgreco_core::compress::qsgd::Qsgd;
use lgreco_core::gradient::{Dtype, Shape};
use lgreco_core::rng::Stream;
use lgreco_core::testing::models::resnet_50;
use std::sync::atomic::Ordering;

/// Of the cycles of a scheduler, those in which kernels that wait for nothing else issue.
const ISSUED: f64 = 0.85;
/// Seconds of a command (a launch, a copy of a few bytes, memory filled) among others.
const COMMAND: f64 = 2e-6;
const LANES: f64 = 32.0;
const SCHEDULERS: f64 = 4.0;

/// A kind of GPU, from NVIDIA's data sheets but for `copy` and `latency`.
#[derive(Clone, Copy, Debug)]
pub struct Gpu {
    /// Its name.
    pub name: &'static str,
    /// Which of the crate's code it runs: 90 for 9.0.
    code: u32,
    multiprocessors: f64,
    /// Hz.
    clock: f64,
    /// Bytes per second that a copy reads and writes, as measured by others.
    pub copy: f64,
    /// Seconds that memory takes to answer.
    latency: f64,
    /// Cycles of a scheduler that a warp's conversion and a sum in f64 take.
    special: f64,
    double: f64,
    each: Multiprocessor,
}

impl Gpu {
    /// An H200 (SXM) and a GeForce RTX 4090.
    pub const ALL: [Gpu; 2] = [
        Gpu {
            name: "H200",
            code: 90,
            multiprocessors: 132.0,
            clock: 1.98e9,
            copy: 4.3e12,
            latency: 8e-7,
            special: 8.0,
            double: 2.0,
            each: occupancy::of_code(90),
        },
        Gpu {
            name: "RTX 4090",
            code: 80,
            multiprocessors: 128.0,
            clock: 2.52e9,
            copy: 9.2e11,
            latency: 7e-7,
            special: 8.0,
            double: 64.0,
            each: occupancy::of_code(89),
        },
    ];

    /// The kind that a driver's name for a device tells.
    pub fn named(device: &str) -> Option<Gpu> {
        Gpu::ALL.into_iter().find(|gpu| device.contains(gpu.name))
    }

    /// Seconds of a pass over so many values by a kernel of blocks of `block` threads.
    fn pass(&self, pass: &Pass, counts: &Counts, block: u32, values: f64) -> f64 {
        let cycles = [
            (counts.instructions + counts.once / pass.of_thread) / ISSUED,
            counts.fma,
            2.0 * counts.product,
            2.0 * counts.alu,
            self.special * counts.special,
            self.double * counts.double,
            4.0 * counts.shared,
        ];
        let cycles = cycles.into_iter().fold(0.0, f64::max);
        let computing = values * cycles / (self.multiprocessors * SCHEDULERS * LANES * self.clock);
        let warps = self.resident(block, counts);
        let waiting = values / counts.turn * self.latency / (f64::from(warps) * LANES * self.multiprocessors);
        (values * pass.bytes / self.copy).max(computing).max(waiting)
    }

    /// Warps that a multiprocessor holds at once.
    fn resident(&self, block: u32, counts: &Counts) -> u32 {
        self.each.resident(block, counts.registers as u32, counts.shared_bytes as u32)
    }
}

/// A pass of an operation over all values.
struct Pass {
    /// As `bounds.txt` names it, or empty where memory alone counts.
    kernel: &'static str,
    /// Bytes of device memory that a value takes there, on average.
    bytes: f64,
    /// Values of a thread, where there are 2^26.
    of_thread: f64,
    /// Where it is over a sample: how many there are.
    sampled: Option<f64>,
}

/// What the backend is asked for.
pub struct Operation {
    /// As `examples/on_device.rs` calls it.
    pub name: &'static str,
    /// Bytes per f32 value that have to be read and written whatever is done.
    pub bytes: f64,
    passes: &'static [Pass],
    /// Commands that are enqueued for one layer, where eight are asked for at once.
    commands: f64,
    /// The least share of a copy's bandwidth that is predicted for 2^26 values on an H200.
    pub(super) floor: f64,
}

const fn pass(kernel: &'static str, bytes: f64, of_thread: f64) -> Pass {
    Pass { kernel, bytes, of_thread, sampled: None }
}

/// TopK's sample, with the bytes of one value: those of whole sectors of memory, of 32 bytes, which single values are read in.
const fn sample(bytes: f64) -> Pass {
    Pass { kernel: "selection/sample", bytes, of_thread: 4.0, sampled: Some(65536.0) }
}

const fn operation(name: &'static str, bytes: f64, commands: f64, floor: f64, passes: &'static [Pass]) -> Operation {
    Operation { name, bytes, passes, commands, floor }
}

/// Bytes of a code of 4 bits with its share of a bucket's scale.
const CODE: f64 = 0.5 + 4.0 / 512.0;

/// Bytes of a value's share of what is gathered where 1 % are kept: entries of 8 bytes for 1.5 %. They are written once, and read by
/// three launches.
const GATHERED: f64 = 0.015 * 8.0;
/// And of the payload: values and positions, and words of these that are zeroed first.
const KEPT: f64 = 0.06;

/// Without these words: 4 bytes of a value and 10 bits of a position.
const SENT: f64 = 0.0525;

/// The operations that there is a prediction for.
pub const OPERATIONS: &[Operation] = &[
    operation("row of QSGD, 7 widths", 4.0, 0.5, 0.7, &[pass("qsgd/usual_row", 4.0, 128.0)]),
    operation("encode QSGD, 4 bits", 4.0 + CODE, 1.0, 0.8, &[pass("qsgd/usual_encode", 4.0 + CODE, 128.0)]),
    operation("decode QSGD, 4 bits", 4.0 + CODE, 1.0, 0.9, &[pass("qsgd/decode", 4.0 + CODE, 8.0)]),
    operation("row of TopK, 100 densities", 4.0, 6.0, 0.7, &[pass("topk/count_exact", 4.0, 128.0)]),
    operation(
        "encode TopK, 1 %",
        4.1,
        8.0,
        0.7,
        // The payload is made in the workspace, and copied.
        &[sample(32.0), pass("selection/offer", 4.0 + GATHERED, 128.0), pass("", 3.0 * GATHERED + 3.0 * KEPT, 1.0)],
    ),
    operation("decode TopK, 1 %", 4.1, 5.0, 0.8, &[pass("", 4.1, 1.0)]),
    operation(
        "encode PowerSGD, rank 4",
        4.0,
        13.0,
        0.35,
        &[pass("powersgd/project", 4.0, 256.0), pass("powersgd/back_project", 4.0, 256.0)],
    ),
    operation(
        "exchange: feedback and QSGD, 4 bits",
        12.0 + CODE,
        2.0,
        0.9,
        &[pass("exchange/encode", 12.0 + CODE, 128.0)],
    ),
    operation(
        "exchange: means of 8 ranks",
        4.0 + 8.0 * CODE,
        2.0,
        0.66,
        // Scales are read before.
        &[pass("", 8.0 * 4.0 / 512.0, 1.0), pass("exchange/average", 4.0 + 8.0 * CODE, 128.0)],
    ),
    operation(
        "exchange: feedback and TopK, 1 %",
        12.1,
        5.0,
        0.8,
        // Of residuals of what is kept two sectors take part.
        &[
            sample(64.0),
            pass("selection/offer", 12.0 + GATHERED, 128.0),
            pass("", 3.0 * GATHERED + KEPT + 0.01 * 64.0, 1.0),
        ],
    ),
    operation(
        "exchange: means of 8 ranks, TopK, 1 %",
        4.0 + 8.0 * SENT,
        3.0,
        0.38,
        // Positions are read twice before, and values once; where windows begin is written and read.
        &[
            pass("", 8.0 * (2.0 * 0.0125 + 0.04 + 8.0 / 1024.0), 1.0),
            pass("selection/average_kept", 4.0 + 8.0 * SENT, 128.0),
        ],
    ),
    operation(
        "feedback without the codec",
        28.0,
        2.0,
        0.9,
        &[pass("feedback/offer", 12.0, 128.0), pass("feedback/remember", 16.0, 128.0)],
    ),
];

/// QSGD's rows of a model's layers, which share launches.
pub const ROWS_OF_MODEL: Operation =
    operation("QSGD rows of a model", 4.0, 4.0, 0.5, &[pass("qsgd/usual_row", 4.0, 64.0)]);

/// Seconds, and the bandwidth of the bytes that have to be read and written, as a share of a copy's.
#[derive(Clone, Copy, Debug)]
pub struct Prediction {
    /// Seconds.
    pub seconds: f64,
    /// Of the bandwidth of a copy.
    pub of_copy: f64,
}

impl Operation {
    /// What is predicted for so many values in `commands` commands, or in those of one layer.
    pub fn predict(&self, gpu: &Gpu, values: f64, commands: Option<usize>) -> Prediction {
        let passes = self.passes.iter().map(|pass| match (pass.kernel, pass.sampled.unwrap_or(values)) {
            ("", values) => values * pass.bytes / gpu.copy,
            (kernel, values) => {
                let (block, counts) = known(kernel, gpu.code);
                gpu.pass(pass, &counts, block, values)
            }
        });
        let commands = commands.map_or(self.commands, |commands| commands as f64);
        let seconds = passes.sum::<f64>() + COMMAND * commands;
        Prediction { seconds, of_copy: self.bytes * values / gpu.copy / seconds }
    }
}

/// The code that there is a floor of warps for.
const CODES: [u32; 6] = [70, 75, 80, 90, 100, 120];

/// A kernel's threads per block, and its bound.
fn known(kernel: &str, code: u32) -> (u32, Counts) {
    let hot = HOT.iter().find(|hot| hot.name() == kernel).unwrap_or_else(|| panic!("no hot kernel is called {kernel}"));
    (hot.block, bound(kernel, code).unwrap_or_else(|| panic!("bounds.txt has no {kernel} for sm_{code}")))
}

/// Commands that QSGD's rows of a whole model take, widths 2 to 8.
///
/// # Errors
/// [`Error`] as of [`CudaBackend::measure_device`].
pub fn commands_of_rows(shapes: &[Shape]) -> Result<usize, Error> {
    let counting = Counting::default();
    let commands = counting.commands.clone();
    let mut backend = CudaBackend::on(Box::new(counting));
    let candidates = Candidates::Qsgd { base: Qsgd::default(), bits: &[2, 3, 4, 5, 6, 7, 8] };
    let job = |&shape: &Shape| {
        let part = Part { address: 0, bytes: 4 * shape.elements() as u64 };
        DeviceJob { gradient: DeviceGradient::of_part(part, Dtype::F32, shape), candidates, stream: Stream::default() }
    };
    let jobs: Vec<DeviceJob<'_>> = shapes.iter().map(job).collect();
    let mut rows = vec![0.0; jobs.len() * candidates.len()];
    backend.measure_device(&jobs, &mut rows).map_err(|failed| failed.error)?;
    Ok(commands.load(Ordering::Relaxed))
}

/// The table: every operation on 2^26 values, and the model of 161 layers, on every [`Gpu`].
///
/// # Errors
/// As [`commands_of_rows`].
pub fn report() -> Result<String, Error> {
    let shapes = resnet_50();
    let of_model: usize = shapes.iter().map(|shape| shape.elements()).sum();
    let commands = commands_of_rows(&shapes)?;
    let mut lines = Vec::new();
    for gpu in Gpu::ALL {
        lines.push(format!("{}: a copy moves {:.0} GB/s", gpu.name, gpu.copy / 1e9));
        lines.push(format!("{:<52} {:>9} {:>9}", "", "ms", "of copy"));
        let line = |name: &str, found: Prediction| {
            format!("{name:<52} {:>9.3} {:>7.0} %", 1e3 * found.seconds, 100.0 * found.of_copy)
        };
        lines.extend(OPERATIONS.iter().map(|of| line(of.name, of.predict(&gpu, (1u64 << 26) as f64, None))));
        let rows = ROWS_OF_MODEL.predict(&gpu, of_model as f64, Some(commands));
        lines.push(line(&format!("{} layers of ResNet-50: QSGD rows, {commands} commands", shapes.len()), rows));
        lines.push(format!("\n{:<24} {:>12} {:>9} {:>6}", "", "instructions", "registers", "warps"));
        for hot in HOT {
            let (block, counts) = known(&hot.name(), gpu.code);
            let warps = gpu.resident(block, &counts);
            let Counts { instructions, registers, .. } = counts;
            lines.push(format!("{:<24} {instructions:>12.1} {registers:>9} {warps:>6}", hot.name()));
        }
        lines.push(String::new());
    }
    let codes = CODES.map(|code| format!("{:>7}", format!("sm_{code}"))).concat();
    lines.push(format!("{:<24}{codes}", "warps at least, code for"));
    for hot in HOT {
        let warps = CODES.map(|code| format!("{:>7}", known(&hot.name(), code).1.warps)).concat();
        lines.push(format!("{:<24}{warps}", hot.name()));
    }
    Ok(lines.join("\n"))
}
