//! Times PowerSGD. Compares measuring all ranks with encoding and decoding at one rank. Also compares our matrix
//! products and encodings with products by `matrixmultiply`.
//!
//! Run `cargo bench -p lgreco-compress --bench powersgd` for our own products, and again with `--features gemm`. The
//! benchmark also checks the answers. Times are minima over interleaved runs.
//!
//! Speeds of `M Q` and `Mᵀ P` for a 1024 × 4096 matrix on one core of a Sapphire Rapids Xeon, in GFLOP/s:
//!
//! | rank | our own | `matrixmultiply` | with the feature |
//! |---|---|---|---|
//! | 8 | 28, 25 | 31, 31 | 30, 30 |
//! | 16 | 51, 51 | 63, 64 | 58, 61 |
//! | 32 | 61, 57 | 90, 90 | 79, 84 |
//! | 64 | 66, 61 | 113, 113 | 96, 100 |
//!
//! Measuring ranks 16..=64 takes 33 ms for one iteration and 102 ms for five. With the feature `gemm`, these times are
//! 27 ms and 72 ms. Half of the time for one iteration goes into the reconstruction. The crate `gemm` (0.19) is the
//! fastest at rank 1: 13 GFLOP/s for each product, where our own products and `matrixmultiply` reach 4. For `Mᵀ P`,
//! `gemm` is also the fastest at ranks 4 and 8, with 37 and 44 GFLOP/s. For `M Q`, `gemm` is the slowest from rank 4
//! on, with 7 to 70 GFLOP/s.

use lgreco_compress::powersgd::{self, PowerSgd, decode, measure, measure_workspace_len, start_matrix};
use lgreco_compress::{Compressor, wire::Payload};
use lgreco_core::Error;
use lgreco_core::gradient::{Bf16, Dtype, Element, Gradient, Shape, Values};
use lgreco_core::rng::Stream;
use std::time::Instant;

const ROWS: usize = 1024;
const COLS: usize = 4096;
const REPEATS: usize = 15;

fn main() -> Result<(), Error> {
    let shape = Shape::new(ROWS, COLS)?;
    let noise = uniform(ROWS * COLS, 1);
    for rank in [1, 4, 8, 16, 32, 64] {
        products(shape, &noise, rank)?;
    }
    for rank in [16, 32, 64] {
        encode(shape, &noise, rank)?;
    }
    for rank in [1, 4, 8, 16, 64] {
        decoding(shape, &noise, rank)?;
    }
    // At rank 64, the error of the noise keeps most of its norm. The error of the nearly low-rank matrix is below 1/32
    // of its norm.
    for (name, values) in [("noise", &noise), ("nearly low rank", &nearly_low_rank(&noise))] {
        for iterations in [1, 5] {
            row(name, shape, values, iterations)?;
        }
    }
    Ok(())
}

fn uniform(n: usize, seed: u64) -> Vec<f32> {
    let mut values = vec![0.0; n];
    start_matrix(Stream { seed, ..Default::default() }, n, 1, &mut values).expect("the length is n");
    values
}

fn nearly_low_rank(noise: &[f32]) -> Vec<f32> {
    let (p, q) = (uniform(ROWS * 12, 2), uniform(COLS * 12, 3));
    let element = |i: usize| (0..12).map(|c| p[c * ROWS + i / COLS] * q[c * COLS + i % COLS]).sum::<f32>();
    noise.iter().enumerate().map(|(i, x)| element(i) + 0.1 * x).collect()
}

/// Smallest time of each contestant in seconds. The contestants run in turn.
fn race<const N: usize>(mut contestants: [&mut dyn FnMut(); N]) -> [f64; N] {
    let mut best = [f64::INFINITY; N];
    for _ in 0..REPEATS {
        for (best, run) in best.iter_mut().zip(&mut contestants) {
            let start = Instant::now();
            run();
            *best = best.min(start.elapsed().as_secs_f64());
        }
    }
    best
}

fn assert_close(a: &[f32], b: &[f32]) {
    let largest = a.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    assert!(a.iter().zip(b).all(|(x, y)| (x - y).abs() <= 1e-4 * largest));
}

/// Compares `M Q` and `Mᵀ P` with `matrixmultiply`, which also reads M in row-major order.
fn products(shape: Shape, values: &[f32], rank: usize) -> Result<(), Error> {
    let gradient = Gradient::new(Values::F32(values), shape)?;
    let (q, p) = (unit_columns(uniform(COLS * rank, 4), COLS), uniform(ROWS * rank, 5));
    let mut workspace = vec![0; powersgd::steps_workspace_len(shape, rank as u32)];
    let [mut p_ours, mut p_theirs] = [0; 2].map(|_| vec![0.0; ROWS * rank]);
    let seconds = race([
        &mut || powersgd::project(&gradient, rank as u32, &q, &mut workspace, &mut p_ours).unwrap(),
        &mut || sgemm([ROWS, COLS, rank], values, [COLS, 1], &q, &mut p_theirs),
    ]);
    assert_close(&p_ours, &p_theirs);
    report("M Q", rank, seconds);
    let [mut q_ours, mut q_theirs] = [0; 2].map(|_| vec![0.0; COLS * rank]);
    let seconds = race([
        &mut || powersgd::back_project(&gradient, rank as u32, &p, &mut workspace, &mut q_ours).unwrap(),
        &mut || sgemm([COLS, ROWS, rank], values, [1, COLS], &p, &mut q_theirs),
    ]);
    assert_close(&q_ours, &q_theirs);
    report("Mᵀ P", rank, seconds);
    Ok(())
}

/// Makes the largest magnitude of each column lie in [1, 2), so that `project` does not scale the columns.
fn unit_columns(mut q: Vec<f32>, len: usize) -> Vec<f32> {
    q.chunks_mut(len).for_each(|column| column[0] = 1.0);
    q
}

fn report(product: &str, rank: usize, [ours, theirs]: [f64; 2]) {
    let flops = 2e-9 * (ROWS * COLS * rank) as f64;
    println!(
        "{product:5} {ROWS}x{COLS} rank {rank:2}: {:5.1} GFLOP/s, matrixmultiply {:5.1}; time over its {:.2}",
        flops / ours,
        flops / theirs,
        ours / theirs
    );
}

/// Computes `out = A B`. A has m rows, k columns and the given strides. B and `out` are stored column after column.
fn sgemm([m, k, n]: [usize; 3], a: &[f32], strides: [usize; 2], b: &[f32], out: &mut [f32]) {
    assert!(a.len() == m * k && b.len() == k * n && out.len() == m * n);
    let [rs, cs] = strides.map(|s| s as isize);
    let (a, b, out, m_stride, k_stride) = (a.as_ptr(), b.as_ptr(), out.as_mut_ptr(), m as isize, k as isize);
    // SAFETY: with these strides the matrices span exactly the slices, whose lengths are checked above.
    unsafe { matrixmultiply::sgemm(m, k, n, 1.0, a, rs, cs, b, 1, k_stride, 0.0, out, 1, m_stride) }
}

/// Compares encoding f32 and bf16 gradients (one iteration) with computing only the two products by `matrixmultiply`.
fn encode(shape: Shape, values: &[f32], rank: usize) -> Result<(), Error> {
    let narrow: Vec<Bf16> = values.iter().map(|&x| Bf16::from_f32(x)).collect();
    let compressor = PowerSgd { rank: rank as u32, iterations: 1 };
    let [mut wide_workspace, mut workspace] =
        [0; 2].map(|_| vec![0; compressor.encode_workspace_len(shape, Dtype::F32)]);
    let [mut wide_payload, mut payload] = [0; 2].map(|_| vec![0; compressor.payload_len(shape, Dtype::F32).unwrap()]);
    let (wide, narrow) = (Gradient::new(Values::F32(values), shape)?, Gradient::new(Values::Bf16(&narrow), shape)?);
    let encode = |gradient: &Gradient<'_>, workspace: &mut [u64], payload: &mut [u8]| {
        compressor.encode(gradient, Stream::default(), workspace, payload).unwrap();
    };
    let (mut p, mut q) = (vec![0.0; ROWS * rank], uniform(COLS * rank, 4));
    let [wide, narrow, products] = race([
        &mut || encode(&wide, &mut wide_workspace, &mut wide_payload),
        &mut || encode(&narrow, &mut workspace, &mut payload),
        &mut || {
            sgemm([ROWS, COLS, rank], values, [COLS, 1], &q, &mut p);
            sgemm([COLS, ROWS, rank], values, [1, COLS], &p, &mut q);
        },
    ]);
    let kept = [&wide_payload, &payload].map(|payload| squared_norm_of_q(payload, rank));
    assert!((kept[0] - kept[1]).abs() <= 1e-3 * kept[0], "{kept:?}");
    for (dtype, seconds) in [("f32", wide), ("bf16", narrow)] {
        println!(
            "encode {dtype:4} rank {rank:2}: {:.1} ms, {:.2} of its two products by matrixmultiply",
            1e3 * seconds,
            seconds / products
        );
    }
    Ok(())
}

/// Compares decoding with computing only the product `P Qᵀ` by `matrixmultiply`.
fn decoding(shape: Shape, values: &[f32], rank: usize) -> Result<(), Error> {
    let compressor = PowerSgd { rank: rank as u32, iterations: 1 };
    let mut workspace = vec![0; compressor.encode_workspace_len(shape, Dtype::F32)];
    let mut payload = vec![0; compressor.payload_len(shape, Dtype::F32)?];
    let gradient = Gradient::new(Values::F32(values), shape)?;
    compressor.encode(&gradient, Stream::default(), &mut workspace, &mut payload)?;
    let payload = Payload::parse(&payload)?;
    let body = payload.body_of_len(4 * (ROWS + COLS) * rank)?;
    let factors: Vec<f32> = body.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect();
    let (p, q) = factors.split_at(ROWS * rank);
    let [mut decoded, mut product] = [0; 2].map(|_| vec![0.0; ROWS * COLS]);
    let seconds = race([
        &mut || decode(&payload, &mut decoded).unwrap(),
        // `sgemm` writes columns, so this is Q Pᵀ, whose columns are the rows of the decoded gradient.
        &mut || sgemm([COLS, rank, ROWS], q, [1, COLS], &transposed(p, ROWS, rank), &mut product),
    ]);
    assert_close(&decoded, &product);
    let [ours, theirs] = seconds;
    println!("decode rank {rank:2}: {:.2} ms, {:.2} of its product by matrixmultiply", 1e3 * ours, ours / theirs);
    Ok(())
}

fn transposed(columns: &[f32], rows: usize, cols: usize) -> Vec<f32> {
    (0..rows * cols).map(|i| columns[i % cols * rows + i / cols]).collect()
}

/// `‖Q‖²`, which is the part of `‖M‖²` that a payload keeps.
fn squared_norm_of_q(payload: &[u8], rank: usize) -> f64 {
    let numbers = payload[16 + 4 * ROWS * rank..].as_chunks().0;
    numbers.iter().map(|&x| (f32::from_le_bytes(x) as f64).powi(2)).sum()
}

/// Compares measuring ranks 16..=64 with encoding and decoding once at rank 64.
fn row(name: &str, shape: Shape, values: &[f32], iterations: u32) -> Result<(), Error> {
    let gradient = Gradient::new(Values::F32(values), shape)?;
    let ranks: Vec<u32> = (16..=64).collect();
    let mut workspace = vec![0; measure_workspace_len(shape, Dtype::F32, 64)];
    let mut errors = vec![0.0; ranks.len()];
    let largest = PowerSgd { rank: 64, iterations };
    let mut encode_workspace = vec![0; largest.encode_workspace_len(shape, Dtype::F32)];
    let mut payload = vec![0; largest.payload_len(shape, Dtype::F32)?];
    let mut decoded = vec![0.0; values.len()];
    let mut simulate = |rank| {
        let compressor = PowerSgd { rank, iterations };
        let len = compressor.encode(&gradient, Stream::default(), &mut encode_workspace, &mut payload).unwrap();
        decode(&Payload::parse(&payload[..len]).unwrap(), &mut decoded).unwrap();
        squared_distance(values, &decoded)
    };
    let mut simulated = 0.0;
    let seconds = race([
        &mut || measure(&gradient, &ranks, iterations, Stream::default(), &mut workspace, &mut errors).unwrap(),
        &mut || simulated = simulate(64),
    ]);
    for (at, simulated) in [(48, simulated), (0, simulate(16)), (20, simulate(36))] {
        assert!((errors[at] - simulated).abs() <= 1e-5 * simulated, "{} against {simulated}", errors[at]);
    }
    println!(
        "row 16..=64, {name}, {iterations} iterations: {:.1} ms, {:.2} of one rank-64 simulation (target 1.30)",
        1e3 * seconds[0],
        seconds[0] / seconds[1]
    );
    Ok(())
}

fn squared_distance(x: &[f32], y: &[f32]) -> f64 {
    let (x, y) = (x.as_chunks::<16>().0, y.as_chunks::<16>().0);
    let mut sums = [0.0f64; 16];
    for (x, y) in x.iter().zip(y) {
        for l in 0..16 {
            let difference = (x[l] - y[l]) as f64;
            sums[l] += difference * difference;
        }
    }
    sums.iter().sum()
}
