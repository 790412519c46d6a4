//! Compares TopK on 16 M values, on one core, with a sum-of-squares pass over the same buffer.
//!
//! Prints one line per figure: its name, its time divided by the time of the pass, and the target. The benchmark checks
//! the answers, but not the times.

use lgreco_compress::wire::Payload;
use lgreco_compress::{Compressor, topk, topk::TopK};
use lgreco_core::gradient::{Dtype, Gradient, Shape, Values};
use lgreco_core::rng::Stream;
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: usize = 7;

/// The reference for all times: a pass with a speed limited by memory bandwidth.
fn sum_of_squares(values: &[f32]) -> f32 {
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            let mut lanes = [0f32; 64];
            for block in values.as_chunks::<64>().0 {
                for (lane, x) in lanes.iter_mut().zip(block) {
                    *lane += x * x;
                }
            }
            lanes.iter().sum()
        },
    )
}

/// Heavy-tailed values, as in gradients: normal values with a scale that changes every 4096 values, and outliers.
fn heavy_tailed(elements: usize) -> Vec<f32> {
    let stream = Stream { seed: 1, ..Stream::default() };
    let unit = |word: u32| (word as f32 + 0.5) * (1.0 / 4_294_967_296.0);
    (0..elements)
        .map(|i| {
            let [a, b, c, _] = stream.block(i as u32);
            let normal = (-2.0 * unit(a).ln()).sqrt() * (std::f32::consts::TAU * unit(b)).cos();
            let tail = if unit(c) < 0.01 { 0.3 / unit(c).sqrt() } else { 1.0 };
            normal * tail * ((i / 4096 % 7) as f32 - 3.0).exp2() * 1e-3
        })
        .collect()
}

fn uniform(elements: usize) -> Vec<f32> {
    let stream = Stream { seed: 2, ..Stream::default() };
    (0..elements).map(|i| stream.block(i as u32)[0] as i32 as f32 * (1.0 / 2_147_483_648.0)).collect()
}

/// For each k of `keeps`, the exact squared error: the sum of all squares except the k largest.
fn oracle(values: &[f32], keeps: &[u32]) -> Vec<f64> {
    let mut sorted: Vec<f32> = values.iter().map(|x| x.abs()).collect();
    sorted.sort_unstable_by(f32::total_cmp);
    let mut sums = vec![0.0];
    for x in &sorted {
        sums.push(sums[sums.len() - 1] + *x as f64 * *x as f64);
    }
    keeps.iter().map(|&k| sums[values.len() - k as usize]).collect()
}

/// Smallest time of each task in seconds. The tasks run in turn.
fn least<const N: usize>(mut tasks: [&mut dyn FnMut(); N]) -> [f64; N] {
    let mut best = [f64::INFINITY; N];
    for _ in 0..ROUNDS {
        for (task, best) in tasks.iter_mut().zip(&mut best) {
            let start = Instant::now();
            task();
            *best = best.min(start.elapsed().as_secs_f64());
        }
    }
    best
}

fn run(name: &str, values: &[f32]) {
    let shape = Shape::new(values.len() / 4096, 4096).unwrap();
    let gradient = Gradient::new(Values::F32(values), shape).unwrap();
    let densities = (1..=100).map(|i| i as f64 / 1000.0);
    let keeps: Vec<u32> = densities.map(|d| TopK::with_density(d, values.len(), Dtype::F32).unwrap().keep).collect();
    let top = TopK { keep: keeps[9], values: Dtype::F32 };
    let half = TopK { values: Dtype::Bf16, ..top };

    let words = topk::measure_workspace_len(shape, keeps.len()).max(top.encode_workspace_len(shape, Dtype::F32));
    let (mut row_words, mut encode_words) = (vec![0; words], vec![0; words]);
    let mut half_words = vec![0; words];
    let (mut row, mut half_row) = (vec![0.0; keeps.len()], vec![0.0; keeps.len()]);
    let mut payload = vec![0; top.payload_len(shape, Dtype::F32).unwrap()];
    let mut decoded = vec![0f32; values.len()];

    top.encode(&gradient, Stream::default(), &mut encode_words, &mut payload).unwrap();
    let sent = payload.clone();
    let [floor, measure, measure_half, encode, decode] = least([
        &mut || _ = black_box(sum_of_squares(black_box(values))),
        &mut || topk::measure(&gradient, Dtype::F32, &keeps, &mut row_words, &mut row).unwrap(),
        &mut || topk::measure(&gradient, half.values, &keeps, &mut half_words, &mut half_row).unwrap(),
        &mut || _ = top.encode(&gradient, Stream::default(), &mut encode_words, &mut payload).unwrap(),
        &mut || topk::decode(&Payload::parse(&sent).unwrap(), &mut decoded).unwrap(),
    ]);

    for (i, (&measured, expected)) in row.iter().zip(oracle(values, &keeps)).enumerate() {
        assert!((measured - expected).abs() <= 1e-9 * expected, "k = {}: {measured} {expected}", keeps[i]);
        assert!(half_row[i] > measured);
    }
    assert_eq!(decoded.iter().filter(|&&y| y != 0.0).count(), top.keep as usize);
    let error: f64 = values.iter().zip(&decoded).map(|(x, y)| ((x - y) as f64).powi(2)).sum();
    assert!((error - row[9]).abs() <= 1e-9 * error, "{error} {}", row[9]);

    let bits = (sent.len() - 16 - 4 * top.keep as usize) as f64 * 8.0 / top.keep as f64;
    println!("{name}: floor {:.2} ms, {bits:.2} bits per position", floor * 1e3);
    println!("{name}: row of 100 densities {:.2} x the floor (target 12)", measure / floor);
    println!("{name}: row of 100 densities, bf16 values {:.2} x the floor", measure_half / floor);
    println!("{name}: encode 1 % {:.2} x the floor (target 8)", encode / floor);
    println!("{name}: decode 1 % {:.2} x the floor", decode / floor);
}

fn main() {
    const ELEMENTS: usize = 1 << 24;
    run("heavy-tailed", &heavy_tailed(ELEMENTS));
    run("uniform", &uniform(ELEMENTS));
}
