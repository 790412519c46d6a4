//! Kinds of GPUs, and how long a pass over values should take on one.

use super::bounds::Counts;
use super::occupancy::{self, Multiprocessor};

/// Of the cycles of a scheduler, those in which kernels that wait for nothing else issue.
const ISSUED: f64 = 0.85;
const LANES: f64 = 32.0;
const SCHEDULERS: f64 = 4.0;

/// A kind of GPU, from NVIDIA's data sheets but for `copy` and `latency`.
#[derive(Clone, Copy, Debug)]
pub struct Gpu {
    /// Its name.
    pub name: &'static str,
    /// What a driver calls it.
    called: &'static [&'static str],
    /// Which of the crate's code it runs: 90 for 9.0.
    pub(super) code: u32,
    multiprocessors: f64,
    /// Hz.
    clock: f64,
    /// Bytes per second that a copy reads and writes.
    pub copy: f64,
    /// Seconds that memory takes to answer.
    latency: f64,
    /// Cycles of a scheduler that a warp's conversion and a sum in f64 take.
    special: f64,
    double: f64,
    each: Multiprocessor,
}

const H200: Gpu = Gpu {
    name: "H200",
    called: &["NVIDIA H200", "Fake H200"],
    code: 90,
    multiprocessors: 132.0,
    clock: 1.98e9,
    copy: 4.3e12,
    latency: 8e-7,
    special: 8.0,
    double: 2.0,
    each: occupancy::of_code(90),
};

impl Gpu {
    /// An H200 and an H100 (both SXM) and a GeForce RTX 4090. Copies are as others have measured them; that of the H100 is taken to be
    /// the same part of its data sheet's as the H200's.
    pub const ALL: [Gpu; 3] = [
        H200,
        Gpu { name: "H100", called: &["NVIDIA H100 80GB HBM3"], copy: 3.0e12, ..H200 },
        Gpu {
            name: "RTX 4090",
            called: &["NVIDIA GeForce RTX 4090"],
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

    /// The kind of the device that a driver calls so. Others of like names (for laptops, with slower memory) are none of them.
    pub fn named(device: &str) -> Option<Gpu> {
        Gpu::ALL.into_iter().find(|gpu| gpu.called.contains(&device))
    }

    /// Seconds of a pass over so many values, of each of which `bytes` are read and written, by threads that have `of_thread` values
    /// each in blocks of `block` threads.
    pub(super) fn pass(&self, (values, bytes): (f64, f64), counts: &Counts, block: u32, of_thread: f64) -> f64 {
        let cycles = [
            (counts.instructions + counts.once / of_thread) / ISSUED,
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
        (values * bytes / self.copy).max(computing).max(waiting)
    }

    /// Warps that a multiprocessor holds at once.
    pub(super) fn resident(&self, block: u32, counts: &Counts) -> u32 {
        self.each.resident(block, counts.registers as u32, counts.shared_bytes as u32)
    }
}
