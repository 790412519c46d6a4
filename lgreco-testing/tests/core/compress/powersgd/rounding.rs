//! Tests of the error that bf16 factors cause. An exchange rounds `P` before it is orthonormalised, and also rounds
//! `Q`.

use super::*;

const STEPS: u32 = 5;

fn nearest(x: f32) -> f32 {
    Bf16::from_f32(x).to_f32()
}

/// Rounds towards zero, with one bit less. The error is at most four times that of [`nearest`].
fn truncated(x: f32) -> f32 {
    f32::from_bits(x.to_bits() & 0xfffe_0000)
}

fn energy(values: &[f32]) -> f64 {
    values.iter().map(|&x| x as f64 * x as f64).sum()
}

/// Gradients with flat, steep and slowly falling spectra, and of low rank with noise.
fn spectra() -> Vec<(Shape, Vec<f32>)> {
    let mut spectra = Vec::new();
    for (seed, (rows, cols)) in [(24, 40), (40, 33), (64, 27), (16, 64)].into_iter().enumerate() {
        let (shape, seed) = (shape(rows, cols), 10 * seed as u64);
        let scales = |scale: fn(i32) -> f64| (0..rows.min(cols) as i32).map(scale).collect::<Vec<f64>>();
        for scales in [
            scales(|c| 0.5f64.powi(c)),
            scales(|c| 0.8f64.powi(c)),
            scales(|c| 1.0 / f64::from(c + 1)),
            scales(|c| 1.0 / f64::from(c + 1).sqrt()),
        ] {
            spectra.push((shape, low_rank(shape, &scales, seed)));
        }
        let noise = uniform(rows * cols, seed + 3);
        let few = low_rank(shape, &[1.0, 0.5, 0.1], seed + 5);
        spectra.push((shape, few.iter().zip(&noise).map(|(x, y)| x + 0.03 * y).collect()));
        spectra.push((shape, noise));
    }
    spectra
}

/// Takes [`STEPS`] warm-started steps with factors rounded by `round`. Returns the squared errors of the last step, with
/// `Q` before and after rounding, and the energy of `Q`.
fn rounded(gradient: &Gradient<'_>, rank: u32, round: fn(f32) -> f32) -> ([f64; 2], f64) {
    let shape = gradient.shape();
    let r = effective_rank(shape, rank);
    let mut workspace = vec![!0; steps_workspace_len(shape, rank)];
    let (mut p, mut q) = (vec![0.0; shape.rows() * r], vec![0.0; shape.cols() * r]);
    let mut exact = q.clone();
    start_matrix(STREAM, shape.cols(), r as u32, &mut q).unwrap();
    for _ in 0..STEPS {
        project(gradient, rank, &q, &mut workspace, &mut p).unwrap();
        p.iter_mut().for_each(|x| *x = round(*x));
        orthonormalise(shape, rank, &mut workspace, &mut p).unwrap();
        back_project(gradient, rank, &p, &mut workspace, &mut q).unwrap();
        exact.copy_from_slice(&q);
        q.iter_mut().for_each(|x| *x = round(*x));
    }
    let error = |q: &[f32]| {
        let mut values = vec![0.0; shape.elements()];
        reconstruct(shape, rank, &p, q, &mut values).unwrap();
        squared_error(gradient, &values)
    };
    ([error(&exact), error(&q)], energy(&exact))
}

/// Returns the largest value of each of two costs, as fractions of the gradient's energy. The first cost is the squared
/// error that rounding `Q` adds, minus `2^-16` of the energy of `Q`. The second cost is the difference between the
/// whole squared error and the measured one.
fn costs(round: fn(f32) -> f32) -> [f64; 2] {
    let mut largest = [f64::NEG_INFINITY; 2];
    for (shape, values) in spectra() {
        let g = gradient(&values, shape);
        let ranks: Vec<u32> = (1..=shape.rows().min(shape.cols()) as u32).collect();
        let mut workspace = vec![!0; measure_workspace_len(shape, Dtype::F32, ranks.len() as u32)];
        let mut row = vec![f64::NAN; ranks.len()];
        measure(&g, &ranks, STEPS, STREAM, &mut workspace, &mut row).unwrap();
        for (rank, measured) in ranks.into_iter().zip(row) {
            let ([exact, all], sent) = rounded(&g, rank, round);
            let costs = [all - exact - sent / (1 << 16) as f64, (all - measured).abs()];
            largest.iter_mut().zip(costs).for_each(|(most, cost)| *most = most.max(cost / energy(&values)));
        }
    }
    largest
}

/// Rounding to bf16 changes each value by at most `2^-8` of itself. The error that rounding `Q` adds is orthogonal to
/// the other errors. Rounding `P` changes the space that its columns span, which sometimes reduces the error.
#[test]
fn factors_in_bf16_cost_what_the_search_says() {
    let [of_q, of_both] = costs(nearest);
    assert!(of_q <= 1e-7, "{of_q:e}");
    assert!((1e-5..1.0 / 256.0).contains(&of_both), "{of_both:e}");
    let [of_q, of_both] = costs(truncated);
    assert!(of_q > 1e-6 && of_both > 1e-5, "{of_q:e} {of_both:e}");
}
