//! PowerSGD: the row of all ranks against one simulation, and the products against GEMM crates.
//!
//! `cargo bench -p lgreco-core --bench powersgd`. Answers are asserted; times are minima over interleaved runs.

use lgreco_core::Error;
use lgreco_core::compress::powersgd::{self, PowerSgd, decode, measure, measure_workspace_len, start_matrix};
use lgreco_core::compress::{Compressor, wire::Payload};
use lgreco_core::gradient::{Dtype, Gradient, Shape, Values};
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
    // Noise keeps most of its norm beyond rank 64; the second matrix keeps less than 1/32 of it.
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

/// Least seconds of each contestant, run in turn.
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

/// `M Q` and `Mᵀ P` against the crates, which are given M as it lies in memory too.
fn products(shape: Shape, values: &[f32], rank: usize) -> Result<(), Error> {
    let gradient = Gradient::new(Values::F32(values), shape)?;
    let (q, p) = (unit_columns(uniform(COLS * rank, 4), COLS), uniform(ROWS * rank, 5));
    let mut workspace = vec![0; powersgd::steps_workspace_len(shape, rank as u32)];
    let mut ps: [_; 3] = core::array::from_fn(|_| vec![0.0; ROWS * rank]);
    let mut qs: [_; 3] = core::array::from_fn(|_| vec![0.0; COLS * rank]);
    let [p_ours, p_gemm, p_mm] = &mut ps;
    let seconds = race([
        &mut || powersgd::project(&gradient, rank as u32, &q, &mut workspace, p_ours).unwrap(),
        &mut || gemm_crate([ROWS, COLS, rank], values, [COLS, 1], &q, p_gemm),
        &mut || matrixmultiply_crate([ROWS, COLS, rank], values, [COLS, 1], &q, p_mm),
    ]);
    assert_close(&ps[0], &ps[1]);
    assert_close(&ps[0], &ps[2]);
    report("M Q", rank, seconds);
    let [q_ours, q_gemm, q_mm] = &mut qs;
    let seconds = race([
        &mut || powersgd::back_project(&gradient, rank as u32, &p, &mut workspace, q_ours).unwrap(),
        &mut || gemm_crate([COLS, ROWS, rank], values, [1, COLS], &p, q_gemm),
        &mut || matrixmultiply_crate([COLS, ROWS, rank], values, [1, COLS], &p, q_mm),
    ]);
    assert_close(&qs[0], &qs[1]);
    assert_close(&qs[0], &qs[2]);
    report("Mᵀ P", rank, seconds);
    Ok(())
}

/// Columns whose largest magnitude is in [1, 2), which `project` leaves as they are.
fn unit_columns(mut q: Vec<f32>, len: usize) -> Vec<f32> {
    q.chunks_mut(len).for_each(|column| column[0] = 1.0);
    q
}

fn report(product: &str, rank: usize, [ours, gemm, matrixmultiply]: [f64; 3]) {
    let flops = 2e-9 * (ROWS * COLS * rank) as f64;
    println!(
        "{product:5} {ROWS}x{COLS} rank {rank:2}: {:5.1} GFLOP/s, gemm {:5.1}, matrixmultiply {:5.1}; \
         time over the better crate's {:.2}",
        flops / ours,
        flops / gemm,
        flops / matrixmultiply,
        ours / gemm.min(matrixmultiply)
    );
}

/// `out = A B`, A [m, k] with the given strides, B and out column after column.
fn gemm_crate([m, k, n]: [usize; 3], a: &[f32], strides: [usize; 2], b: &[f32], out: &mut [f32]) {
    assert!(a.len() == m * k && b.len() == k * n && out.len() == m * n);
    let [rs, cs] = strides.map(|s| s as isize);
    let (a, b, out, m_stride, k_stride) = (a.as_ptr(), b.as_ptr(), out.as_mut_ptr(), m as isize, k as isize);
    let one_thread = gemm::Parallelism::None;
    // SAFETY: with these strides the matrices span exactly the slices, whose lengths are checked above.
    unsafe {
        gemm::gemm(
            m, n, k, out, m_stride, 1, false, a, cs, rs, b, k_stride, 1, 0.0, 1.0, false, false, false, one_thread,
        )
    }
}

/// As [`gemm_crate`].
fn matrixmultiply_crate([m, k, n]: [usize; 3], a: &[f32], strides: [usize; 2], b: &[f32], out: &mut [f32]) {
    assert!(a.len() == m * k && b.len() == k * n && out.len() == m * n);
    let [rs, cs] = strides.map(|s| s as isize);
    let (a, b, out, m_stride, k_stride) = (a.as_ptr(), b.as_ptr(), out.as_mut_ptr(), m as isize, k as isize);
    // SAFETY: with these strides the matrices span exactly the slices, whose lengths are checked above.
    unsafe { matrixmultiply::sgemm(m, k, n, 1.0, a, rs, cs, b, 1, k_stride, 0.0, out, 1, m_stride) }
}

/// The row for ranks 16..=64 against one simulation at rank 64.
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
