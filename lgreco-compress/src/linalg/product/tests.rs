use super::*;
use crate::gradient::{Bf16, Element, F16};
use crate::linalg::{pack, panels, unpack};
use crate::powersgd::start_matrix;
use crate::rng::Stream;
use alloc::{vec, vec::Vec};

fn uniform(n: usize, seed: u64) -> Vec<f32> {
    let mut values = vec![0.0; n];
    start_matrix(Stream { seed, ..Stream::default() }, n, 1, &mut values).expect("n values");
    values
}

type Product<T> = fn(Matrix<'_, T>, &[Row], &mut [Row], usize, &mut [u64]);

/// The functions `scratch_words`, `project` and `back_project` of one implementation.
struct Products<T> {
    scratch_words: fn(usize) -> usize,
    project: Product<T>,
    back_project: Product<T>,
}

/// All implementations that are compiled.
fn all<T: Element>() -> impl Iterator<Item = Products<T>> {
    let portable = Products {
        scratch_words: portable::scratch_words,
        project: portable::project,
        back_project: portable::back_project,
    };
    #[cfg(feature = "gemm")]
    let gemm =
        Products { scratch_words: gemm::scratch_words, project: gemm::project, back_project: gemm::back_project };
    [
        portable,
        #[cfg(feature = "gemm")]
        gemm,
    ]
    .into_iter()
}

/// Computes `P = M Q` and `Q' = Mᵀ P'` for factors given column after column. All buffers start with stale content.
fn products<T: Element>(by: &Products<T>, m: Matrix<'_, T>, q: &[f32], p: &[f32], rank: usize) -> [Vec<f32>; 2] {
    let mut scratch = vec![!0; (by.scratch_words)(rank)];
    let [mut q_in, mut q_out] = [0; 2].map(|_| vec![[f32::NAN; LANES]; panels(rank) * m.cols]);
    let [mut p_in, mut p_out] = [0; 2].map(|_| vec![[f32::NAN; LANES]; panels(rank) * m.rows]);
    pack(q, m.cols, &mut q_in);
    pack(p, m.rows, &mut p_in);
    (by.project)(m, &q_in, &mut p_out, rank, &mut scratch);
    scratch.fill(!0);
    (by.back_project)(m, &p_in, &mut q_out, rank, &mut scratch);
    [(p_out, m.rows), (q_out, m.cols)].map(|(factor, len)| {
        for row in &factor[factor.len() - len..] {
            assert!(row[(rank - 1) % LANES + 1..].iter().all(|&x| x == 0.0), "lanes beyond the rank are zero");
        }
        let mut columns = vec![f32::NAN; len * rank];
        unpack(&factor, len, rank, |i, x| columns[i] = x);
        columns
    })
}

/// Asserts that `out[c][i]` is `Σ_k a(i, k) b[c][k]`, up to 1e-6 of the sum of magnitudes.
fn assert_product(a: impl Fn(usize, usize) -> f32, b: &[f32], out: &[f32], len: usize, rank: usize) {
    let depth = b.len() / rank;
    for (at, &x) in out.iter().enumerate() {
        let (c, i) = (at / len, at % len);
        let terms = (0..depth).map(|k| a(i, k) as f64 * b[c * depth + k] as f64);
        let (sum, magnitude) = terms.fold((0.0, 0.0), |(sum, magnitude), x| (sum + x, magnitude + x.abs()));
        assert!((x as f64 - sum).abs() <= 1e-6 * magnitude, "row {i}, column {c}: {x}, not {sum}");
    }
}

const SHAPES: [(usize, usize); 7] = [(1, 1), (1, 530), (530, 1), (7, 5), (66, 259), (513, 40), (33, 1030)];

#[test]
fn products_are_sums_of_products() {
    for ((rows, cols), by) in SHAPES.into_iter().flat_map(|shape| all().map(move |by| (shape, by))) {
        let values = uniform(rows * cols, 1);
        let m = Matrix { values: &values[..], rows, cols };
        for rank in [1, 16, 19] {
            let (q, p) = (uniform(cols * rank, 2), uniform(rows * rank, 3));
            let [p_out, q_out] = products(&by, m, &q, &p, rank);
            assert_product(|i, k| values[i * cols + k], &q, &p_out, rows, rank);
            assert_product(|k, i| values[i * cols + k], &p, &q_out, cols, rank);
        }
    }
}

#[test]
fn a_column_is_the_same_whatever_stands_beside_it() {
    for ((rows, cols), by) in SHAPES.into_iter().flat_map(|shape| all().map(move |by| (shape, by))) {
        let values = uniform(rows * cols, 1);
        let m = Matrix { values: &values[..], rows, cols };
        let (q, p) = (uniform(cols * 37, 2), uniform(rows * 37, 3));
        let [p_all, q_all] = products(&by, m, &q, &p, 37);
        for rank in [1, 3, 16, 17, 36] {
            let [p_out, q_out] = products(&by, m, &q[..cols * rank], &p[..rows * rank], rank);
            assert_eq!(p_out, p_all[..rows * rank]);
            assert_eq!(q_out, q_all[..cols * rank]);
        }
    }
}

#[test]
fn sixteen_bit_elements_are_their_f32_values() {
    fn check<T: Element>() {
        for (rows, cols) in SHAPES {
            let narrow: Vec<T> = uniform(rows * cols, 1).into_iter().map(T::from_f32).collect();
            let wide: Vec<f32> = narrow.iter().map(|x| x.to_f32()).collect();
            let (q, p) = (uniform(cols * 5, 2), uniform(rows * 5, 3));
            for (of_narrow, of_wide) in all().zip(all()) {
                let of_narrow = products(&of_narrow, Matrix { values: &narrow, rows, cols }, &q, &p, 5);
                let of_wide = products(&of_wide, Matrix { values: &wide, rows, cols }, &q, &p, 5);
                assert_eq!(of_narrow, of_wide);
            }
        }
    }
    check::<F16>();
    check::<Bf16>();
}

#[cfg(feature = "rayon")]
#[test]
fn any_number_of_threads_makes_the_same_bits() {
    for (rows, cols) in [(1000, 700), (100, 7000), (7000, 100)] {
        let values = uniform(rows * cols, 1);
        let m = Matrix { values: &values[..], rows, cols };
        let ranks: &[usize] = if std::env::var_os("LGRECO_FULL").is_some() { &[4, 20] } else { &[4] };
        for &rank in ranks {
            let (q, p) = (uniform(cols * rank, 2), uniform(rows * rank, 3));
            for which in 0..all::<f32>().count() {
                let in_pool = |threads| {
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
                    pool.install(|| all().nth(which).map(|by| products(&by, m, &q, &p, rank)))
                };
                assert!([2, 3].map(in_pool).iter().all(|made| *made == in_pool(1)), "{rows} x {cols}, rank {rank}");
            }
        }
    }
}
