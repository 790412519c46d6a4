//! Compares rows of up to 2^24 values with the core's f64 rows, for kinds of values whose plain f32 sums would be
//! wrong.

use super::backend;
use super::is_full;
use crate::WgpuBackend;
use lgreco::backend::{Backend, Job, JobError, Portable};
use lgreco::compress::{Candidates, eden::Eden, qsgd::Qsgd};
use lgreco::gradient::{Dtype, Gradient, Shape, Values};
use lgreco::rng::Stream;

/// Number of values for all kinds of values in full runs, and for one kind in other runs.
const MOST: usize = 1 << 24;
/// Number of values for most kinds of values in runs that are not full.
const FEWER: usize = 1 << 21;

/// Bound on the relative error of an addition of nonnegative numbers.
const ADDITION: f64 = 1.0 / (1 << 23) as f64;
/// Error bound of QSGD's sums: the number of additions through which a value passes, times the error of one addition.
/// An invocation adds 32 values and at most 32 buckets, and the sum over 64 invocations has 6 levels. Records are added
/// twice: each time a lane adds 64 records, and the sum over 64 lanes has 6 levels. The summand 10 allows for the
/// rounding of the terms.
const QSGD: f64 = (32 + 32 + 6 + 2 * (64 + 6) + 10) as f64 * ADDITION;
/// Error bound of TopK's sums. The first three summands count additions over the bins of a share, over 16 groups of 16
/// shares, and over the bins of a share again. The next two count additions over 16 groups of 32 bins of level 2, and
/// over 16 groups of 16 bins of level 3. The summand 10 allows for the rounding of the terms. The differences of the
/// values inside a bin add 2^-15.
const TOPK: f64 = (70 + 32 + 70 + 48 + 32 + 10) as f64 * ADDITION + 1.0 / (1 << 15) as f64;

/// Error bound of TopK in few bits. To TopK's bound, the sum over the bins adds seven levels, and the rounding of its
/// terms adds 10. The statistics of the bins are exact.
const FEW_BITS: f64 = TOPK + (7 + 10) as f64 * ADDITION;

/// Error bound of EDEN's sums. An invocation adds 16 coordinates, and the sum over 256 invocations has 8 levels.
/// Records are added as for QSGD. The summand 20 allows for the rounding of the terms.
const EDEN: f64 = (16 + 8 + 2 * (64 + 6) + 20) as f64 * ADDITION;

/// Returns element `i` of a permutation of the 32-bit numbers that looks random.
fn mixed(i: usize) -> u32 {
    let x = (i as u32 ^ 0x5bd1_e995).wrapping_mul(0x9e37_79b1);
    (x ^ x >> 15).wrapping_mul(0x85eb_ca77)
}

/// Returns value `i` of pseudo-random values in [-1, 1).
fn draw(i: usize) -> f32 {
    mixed(i) as i32 as f32 / 2_147_483_648.0
}

/// Returns values of k: multiples of a thousandth of the elements, up to a tenth.
fn keeps(elements: usize) -> Vec<u32> {
    (1..=100).map(|i| i * (elements as u32 / 1000)).collect()
}

fn matrix(gradient: &[f32]) -> Gradient<'_> {
    Gradient::new(Values::F32(gradient), Shape::new(gradient.len() / 4096, 4096).unwrap()).unwrap()
}

/// Measures the gradient with the values `value(i)` on the device and with the core. Asserts that their rows agree
/// within the error bounds, or that both give the same error. Full runs use [`MOST`] values, and other runs [`FEWER`].
fn check(value: impl Fn(usize) -> f32) {
    let Some(mut backend) = backend() else { return };
    let gradient: Vec<f32> = (0..if is_full() { MOST } else { FEWER }).map(value).collect();
    let (gradient, keeps) = (matrix(&gradient), keeps(gradient.len()));
    for (candidates, bound) in [
        (Candidates::Qsgd { base: Qsgd::default(), bits: &[2, 3, 4, 5, 6, 7, 8] }, QSGD),
        (Candidates::TopK { values: Dtype::F32, keeps: &keeps }, TOPK),
        (Candidates::QuantisedTopK { keeps: &[keeps[0], keeps[9], keeps[99]], bits: &[1, 4, 8] }, FEW_BITS),
        (Candidates::Eden { base: Eden::default(), bits: &[1, 4] }, EDEN),
    ] {
        check_row(&mut backend, gradient, candidates, bound);
    }
}

/// Like [`check`], for one row of a gradient; `bound` is the allowed relative difference from the core's row.
fn check_row(backend: &mut WgpuBackend, gradient: Gradient<'_>, candidates: Candidates<'_>, bound: f64) {
    assert!(bound < super::ROWS);
    let jobs = [Job { gradient, candidates, stream: Stream::default() }];
    let run = |backend: &mut dyn Backend| -> Result<Vec<f64>, JobError> {
        let mut row = vec![f64::NAN; candidates.len()];
        let mut workspace = vec![0; backend.workspace_len(&jobs)];
        backend.measure(&jobs, &mut workspace, &mut row).map(|()| row)
    };
    match (run(backend), run(&mut Portable)) {
        (Ok(found), Ok(expected)) => {
            let close = found.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= bound * b);
            assert!(close, "{candidates:?}: {found:?}, not {expected:?}");
        }
        (found, expected) => assert_eq!(found, expected),
    }
}

#[test]
fn bell_shaped() {
    check(|i| draw(i) * draw(i + 1) * draw(i + 2));
}

#[test]
fn magnitudes_from_1e_30_to_1e30() {
    check(|i| draw(i) * 10f32.powi((mixed(i + 7) % 61) as i32 - 30));
}

#[test]
fn magnitudes_that_grow_from_1e_30_to_1e30() {
    check(|i| (1.0 + draw(i).abs()) * 10f32.powi((i >> if is_full() { 18 } else { 15 }) as i32 - 30));
}

#[test]
fn all_equal() {
    check(|_| 0.3);
}

/// Rounding to f16 turns the kept values into zeros. A square has nearly 2^48 units, and on both levels of bins, a bin
/// has 500,000 values.
#[test]
fn kept_values_too_small_for_f16() {
    let Some(mut backend) = backend() else { return };
    let gradient: Vec<f32> = (0..MOST).map(|i| [1.8e-9, 1.795e-9, 1.5e-9][(i % 32).min(2)]).collect();
    let (gradient, keeps) = (matrix(&gradient), keeps(MOST));
    check_row(&mut backend, gradient, Candidates::TopK { values: Dtype::F16, keeps: &keeps }, TOPK);
}

#[test]
fn all_zero() {
    check(|i| if i % 3 == 0 { -0.0 } else { 0.0 });
}

#[test]
fn one_spike() {
    check(|i| if i == 1_234_567 { -7.25 } else { 0.0 });
}

#[test]
fn a_spike_over_noise() {
    check(|i| if i == 1_234_567 { 1e30 } else { 1e-30 * draw(i) });
}

#[test]
fn infinity_at_the_end() {
    check(|i| if i + 2 >= FEWER { f32::INFINITY } else { draw(i) });
}
