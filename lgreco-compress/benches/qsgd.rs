//! Compares the speed of QSGD and EDEN on one core with a sum-of-squares pass over the same 16 M values. Also checks
//! the answers.
//!
//! Prints one line per figure: its name, its time divided by the time of the pass, and the target. Each time is the
//! smallest of several interleaved runs.

use lgreco_compress::eden::{self, Eden};
use lgreco_compress::payload::{Combine, combine};
use lgreco_compress::qsgd::{self, Qsgd, Rounding, Scale};
use lgreco_compress::{Compressor, Setting, wire::Payload};
use lgreco_core::gradient::{Gradient, Shape, Values};
use lgreco_core::rng::Stream;
use std::hint::black_box;
use std::time::Instant;

const ROWS: usize = 1 << 12;
const COLS: usize = 1 << 12;
const RUNS: usize = 7;

/// The reference for all times: one pass that reads all values and computes little.
struct SumOfSquares<'a>(&'a [f32]);

impl pulp::WithSimd for SumOfSquares<'_> {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) -> f64 {
        let mut total = 0.0;
        for block in self.0.chunks(4096) {
            let mut sums = [0.0f32; 64];
            for values in block.as_chunks::<64>().0 {
                for lane in 0..64 {
                    sums[lane] += values[lane] * values[lane];
                }
            }
            total += sums.iter().map(|&sum| sum as f64).sum::<f64>();
        }
        total
    }
}

/// Roughly normal values whose spread differs from row to row.
fn values() -> Vec<f32> {
    let stream = Stream { seed: 1, ..Stream::default() };
    (0..(ROWS * COLS / 4) as u32)
        .flat_map(|block| {
            let spread = 1e-9 * (1 + block / (COLS / 4) as u32 % 13) as f32;
            stream.block(block).map(|word| {
                let bytes = word.to_le_bytes().map(|byte| byte as f32 - 127.5);
                spread * (bytes[0] + bytes[1] + bytes[2] + bytes[3])
            })
        })
        .collect()
}

/// Seconds that `work` takes.
fn seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

fn squared_distance(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| (a as f64 - b as f64).powi(2)).sum()
}

fn main() -> Result<(), lgreco_core::Error> {
    let values = values();
    let shape = Shape::new(ROWS, COLS)?;
    let gradient = Gradient::new(Values::F32(&values), shape)?;
    let widths = [2, 3, 4, 5, 6, 7, 8];
    let arch = pulp::Arch::new();

    let settings = [
        ("max norm, stochastic", Scale::MaxNorm, Rounding::Stochastic, Some([7.0, 6.0, 4.0])),
        ("max norm, nearest", Scale::MaxNorm, Rounding::Nearest, None),
        ("min-max, stochastic", Scale::MinMax, Rounding::Stochastic, None),
        ("min-max, nearest", Scale::MinMax, Rounding::Nearest, None),
    ];
    println!("times are multiples of one sum-of-squares pass over {} f32 values", values.len());
    for (name, scale, rounding, targets) in settings {
        let qsgd = Qsgd { bits: 4, bucket: 512, scale, rounding };
        let mut payload = vec![0; qsgd.payload_len(shape, gradient.values().dtype())?];
        let mut decoded = vec![0.0; values.len()];
        let mut errors = [0.0; 7];
        let mut floor = f64::INFINITY;
        let mut best = [f64::INFINITY; 3];
        for _ in 0..RUNS {
            floor = floor.min(seconds(|| {
                black_box(arch.dispatch(SumOfSquares(black_box(&values))));
            }));
            let row = seconds(|| qsgd::measure(black_box(&gradient), qsgd, &widths, &mut errors).unwrap());
            let encode = seconds(|| {
                qsgd.encode(black_box(&gradient), Stream::default(), &mut [], &mut payload).unwrap();
            });
            let parsed = Payload::parse(&payload)?;
            let decode = seconds(|| qsgd::decode(black_box(&parsed), &mut decoded).unwrap());
            for (best, time) in best.iter_mut().zip([row, encode, decode]) {
                *best = best.min(time);
            }
        }
        println!("floor: {:.1} GB/s", 4e-9 * values.len() as f64 / floor);
        for (i, what) in ["row of 7 widths", "4-bit encode", "4-bit decode"].into_iter().enumerate() {
            let target = targets.map_or(String::new(), |targets| format!(" target {:.0}", targets[i]));
            println!("{:<40} {:5.2} {target}", format!("{what} ({name})"), best[i] / floor);
        }

        // The sum of 16 M independent errors differs from its expectation by less than 0.1 %.
        let real = squared_distance(&values, &decoded);
        let tolerance = if rounding == Rounding::Nearest { 1e-5 } else { 1e-3 };
        assert!((real / errors[2] - 1.0).abs() < tolerance, "{name}: row {}, decoded {real}", errors[2]);
        assert!(errors.is_sorted_by(|a, b| a > b), "{name}: {errors:?}");
    }
    eden(&values, &gradient)
}

/// Times measuring 1 to 4 bits together. For each width, also times encoding, decoding, and decoding with addition.
fn eden(values: &[f32], gradient: &Gradient<'_>) -> Result<(), lgreco_core::Error> {
    let arch = pulp::Arch::new();
    let (mut decoded, mut errors) = (vec![0.0; values.len()], [0.0; 4]);
    let (mut floor, mut row) = (f64::INFINITY, f64::INFINITY);
    let mut best = [[f64::INFINITY; 3]; 4];
    let mut real = [0.0; 4];
    for run in 0..RUNS {
        floor = floor.min(seconds(|| {
            black_box(arch.dispatch(SumOfSquares(black_box(values))));
        }));
        let mut measure =
            || eden::measure(black_box(gradient), eden::Scale::Unbiased, &[1, 2, 3, 4], Stream::default(), &mut errors);
        row = row.min(seconds(|| measure().unwrap()));
        for (bits, best) in (1..).zip(&mut best) {
            let eden = Eden { bits, ..Eden::default() };
            let mut payload = vec![0; eden.payload_len(gradient.shape(), gradient.values().dtype())?];
            let encode = seconds(|| {
                eden.encode(black_box(gradient), Stream::default(), &mut [], &mut payload).unwrap();
            });
            let parsed = Payload::parse(&payload)?;
            let add = seconds(|| {
                combine(&Setting::Eden(eden), black_box(&parsed), Combine::Add, &mut decoded, &mut []).unwrap();
            });
            let decode = seconds(|| eden::decode(black_box(&parsed), &mut decoded).unwrap());
            for (best, time) in best.iter_mut().zip([encode, decode, add]) {
                *best = best.min(time);
            }
            if run == 0 {
                real[bits as usize - 1] = squared_distance(values, &decoded);
            }
        }
    }
    println!("{:<40} {:5.2}  target 8", "EDEN, row of 1 to 4 bits", row / floor);
    for (bits, best) in (1..).zip(best) {
        let [encode, decode, add] = best.map(|time| time / floor);
        println!(
            "EDEN, {bits} bits: encode {encode:.2} (target 6), decode {decode:.2} (5), decode and add {add:.2} (5)"
        );
        let (real, row): (f64, f64) = (real[bits - 1], errors[bits - 1]);
        assert!((real / row - 1.0).abs() < 1e-5, "{bits} bits: row {row}, decoded {real}");
    }
    Ok(())
}
