//! Compares EDEN, in which each rank has its own rotation, with a variant in which all ranks share one rotation.
//!
//! `cargo bench -p lgreco-testing --bench rotations`. With a shared rotation, payloads can be added first, and their
//! sum is rotated back once. But ranks with similar gradients then have similar errors, which do not average out.
//! Random rounding to a grid of equal steps prevents such similar errors.
//!
//! The bench prints a row for each number of bits (1 to 4) and of ranks (2 to 16). Each row has the squared error of
//! the mean with a shared rotation, first with random rounding, then with rounding to nearest. Each row also has the
//! time to decode and add all payloads. All numbers are multiples of EDEN's. The grid of equal steps has the range with
//! the least error. The variant with a shared rotation is not implemented, so the bench estimates its time. The
//! estimate is the time to add the same number of QSGD payloads with one bucket per block, plus the time of one
//! rotation. The bench asserts that the error with a shared rotation is larger than EDEN's.

use lgreco::compress::payload::{Combine, combine};
use lgreco::compress::wire::Payload;
use lgreco::compress::{Compressor, Setting, decode, eden::Eden, qsgd::Qsgd};
use lgreco::gradient::{Gradient, Shape, Values};
use lgreco::rng::Stream;
use std::hint::black_box;
use std::time::Instant;

const BLOCK: usize = 4096;
const ELEMENTS: usize = 16 * BLOCK;
/// Number of elements of the payloads that are timed.
const TIMED: usize = 1 << 22;

/// The positive points of EDEN's grids (Max, 1960).
const GRIDS: [&[f64]; 4] = [
    &[0.7980],
    &[0.4528, 1.510],
    &[0.2451, 0.7560, 1.344, 2.152],
    &[0.1284, 0.3881, 0.6568, 0.9424, 1.256, 1.618, 2.069, 2.733],
];

fn unit(word: u32) -> f64 {
    (f64::from(word) + 0.5) / 4_294_967_296.0
}

/// A rank's gradient of normal values. Half of its energy is common to all ranks.
fn gradient(rank: u32) -> Vec<f32> {
    let normal = |layer: u32, i: usize| {
        let [a, b, ..] = Stream { seed: 5, layer, ..Stream::default() }.block(i as u32);
        (-2.0 * unit(a).ln()).sqrt() * (std::f64::consts::TAU * unit(b)).cos()
    };
    (0..ELEMENTS).map(|i| (normal(0, i) + normal(1 + rank, i)) as f32).collect()
}

/// Returns `H D x / √d` for each block. All ranks share the signs `D`.
fn rotated(x: &[f32]) -> Vec<f64> {
    let sign = |i: usize| if (Stream { seed: 9, ..Stream::default() }).word(i as u64) & 1 == 0 { 1.0 } else { -1.0 };
    let mut r: Vec<f64> = x.iter().enumerate().map(|(i, &x)| sign(i) * f64::from(x)).collect();
    for block in r.chunks_mut(BLOCK) {
        let mut stride = 1;
        while stride < BLOCK {
            for pair in block.chunks_mut(2 * stride) {
                let (low, high) = pair.split_at_mut(stride);
                for (a, b) in low.iter_mut().zip(high) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            stride *= 2;
        }
        block.iter_mut().for_each(|r| *r /= 64.0);
    }
    r
}

/// Rounds each coordinate by `point`, which gets the coordinate, scaled to unit variance, and its index. Then
/// multiplies each block by EDEN's unbiased scale.
fn rounded(r: &[f64], point: impl Fn(f64, usize) -> f64) -> Vec<f64> {
    let block = |(at, r): (usize, &[f64])| {
        let norm = r.iter().map(|r| r * r).sum::<f64>();
        let deviation = (norm / r.len() as f64).sqrt();
        let q: Vec<f64> = r.iter().zip(at * BLOCK..).map(|(r, i)| point(r / deviation, i)).collect();
        let scale = norm / r.iter().zip(&q).map(|(r, q)| r * q).sum::<f64>();
        q.into_iter().map(move |q| scale * q).collect::<Vec<_>>()
    };
    r.chunks(BLOCK).enumerate().flat_map(block).collect()
}

fn mean(all: &[Vec<f64>]) -> Vec<f64> {
    (0..all[0].len()).map(|i| all.iter().map(|x| x[i]).sum::<f64>() / all.len() as f64).collect()
}

fn squared_distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
}

/// Squared errors of the mean: with EDEN, with a shared rotation and random rounding, and with a shared rotation and rounding
/// to nearest.
fn errors(ranks: u32, bits: u8) -> [f64; 3] {
    let gradients: Vec<Vec<f32>> = (0..ranks).map(gradient).collect();
    let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    let own: Vec<Vec<f64>> = (0..).zip(&gradients).map(|(rank, x)| wide(&round_trip(x, rank, bits))).collect();
    let exact: Vec<Vec<f64>> = gradients.iter().map(|x| wide(x)).collect();
    let eden = squared_distance(&mean(&own), &mean(&exact));

    let rotations: Vec<Vec<f64>> = gradients.iter().map(|x| rotated(x)).collect();
    let whole = mean(&rotations);
    let of = |round: &dyn Fn(f64, usize, u32) -> f64| {
        let all: Vec<_> = (0..).zip(&rotations).map(|(rank, r)| rounded(r, |z, i| round(z, i, rank))).collect();
        squared_distance(&mean(&all), &whole)
    };
    let random = |end: f64| {
        let step = 2.0 * end / (f64::from(1u32 << bits) - 1.0);
        of(&|z, i, rank| {
            let draw = unit(Stream { seed: 7, rank, ..Stream::default() }.word(i as u64));
            let level = ((z.clamp(-end, end) + end) / step + draw).floor();
            level.min(f64::from(1u32 << bits) - 1.0) * step - end
        })
    };
    let least = (4..20).map(|end| random(0.2 * f64::from(end))).fold(f64::INFINITY, f64::min);
    let grid = GRIDS[bits as usize - 1];
    let nearest = of(&|z: f64, _, _| {
        let closer = |a: &&f64, b: &&f64| (z.abs() - **a).abs().total_cmp(&(z.abs() - **b).abs());
        grid.iter().min_by(closer).copied().unwrap_or(0.0).copysign(z)
    });
    [eden, least, nearest]
}

fn round_trip(x: &[f32], rank: u32, bits: u8) -> Vec<f32> {
    let gradient = Gradient::new(Values::F32(x), Shape::new(1, x.len()).expect("a shape")).expect("as long");
    let payload = encoded(&Eden { bits, ..Eden::default() }, &gradient, rank);
    let mut decoded = vec![0.0; x.len()];
    decode(&payload, &mut decoded).expect("a payload");
    decoded
}

fn encoded(compressor: &impl Compressor, gradient: &Gradient<'_>, rank: u32) -> Vec<u8> {
    let len = compressor.payload_len(gradient.shape(), gradient.values().dtype()).expect("a setting");
    let mut payload = vec![0; len];
    let stream = Stream { rank, ..Stream::default() };
    compressor.encode(gradient, stream, &mut [], &mut payload).expect("a gradient");
    payload
}

/// Seconds to add one payload to a sum.
fn seconds(setting: Setting, payload: &[u8]) -> f64 {
    let (parsed, mut sum) = (Payload::parse(payload).expect("a payload"), vec![0.0; TIMED]);
    let once = || {
        let start = Instant::now();
        combine(&setting, black_box(&parsed), Combine::Add, &mut sum, &mut []).expect("a payload");
        start.elapsed().as_secs_f64()
    };
    std::iter::repeat_with(once).take(15).fold(f64::INFINITY, f64::min)
}

fn main() {
    let values: Vec<f32> = gradient(0).into_iter().cycle().take(TIMED).collect();
    let shape = Shape::new(1, TIMED).expect("a shape");
    let gradient = Gradient::new(Values::F32(&values), shape).expect("as long");
    println!("| bits | ranks | shared, at random | shared, to nearest | time, shared |\n|--:|--:|--:|--:|--:|");
    for bits in 1..=4 {
        let (eden, qsgd) = (Eden { bits, ..Eden::default() }, Qsgd { bits, bucket: BLOCK as u32, ..Qsgd::default() });
        let turned = seconds(Setting::Eden(eden), &encoded(&eden, &gradient, 0));
        let added = seconds(Setting::Qsgd(qsgd), &encoded(&qsgd, &gradient, 0));
        for ranks in [2, 4, 8, 16] {
            let [own, random, nearest] = errors(ranks, bits);
            let (random, nearest) = (random / own, nearest / own);
            let all = f64::from(ranks);
            let time = ((all - 1.0) * added + turned.max(added)) / (all * turned);
            println!("| {bits} | {ranks} | {random:.2} | {nearest:.2} | {time:.2} |");
            assert!(random > 1.0 && nearest > 1.0, "a shared rotation would be the better one");
        }
    }
}
