//! Promises of PowerSGD, checked against a textbook form in f64.

use lgreco::Error;
use lgreco::compress::powersgd::{
    self, PowerSgd, decode, effective_rank, measure, measure_workspace_len, start_matrix, steps_workspace_len,
};
use lgreco::compress::wire::{HEADER_LEN, Payload};
use lgreco::compress::{Compressor, powersgd::orthonormalise};
use lgreco::gradient::{Gradient, Shape, Values, with_elements};
use lgreco::rng::Stream;

/// A payload and the values it decodes to.
///
/// ```
/// use lgreco::{compress::powersgd::PowerSgd, gradient::Shape, rng::Stream};
/// use lgreco_testing::powersgd::{gradient, round_trip};
/// let gradient = gradient(&[3.0, 0.0, 0.0, 4.0], Shape::new(2, 2)?);
/// let trip = round_trip(&gradient, PowerSgd { rank: 1, iterations: 1 }, Stream::default())?;
/// assert_eq!((trip.payload.len(), trip.decoded.len()), (16 + 4 * 4, 4));
/// # Ok::<(), lgreco::Error>(())
/// ```
pub struct RoundTrip {
    /// The payload.
    pub payload: Vec<u8>,
    /// The values that the payload decodes to.
    pub decoded: Vec<f32>,
}

/// Encodes and decodes with stale buffers.
///
/// # Errors
/// Returns the errors of encode and decode.
pub fn round_trip(gradient: &Gradient<'_>, compressor: PowerSgd, stream: Stream) -> Result<RoundTrip, Error> {
    let (shape, dtype) = (gradient.shape(), gradient.values().dtype());
    let mut workspace = vec![!0; compressor.encode_workspace_len(shape, dtype)];
    let mut payload = vec![0xff; compressor.payload_len(shape, dtype)?];
    let len = compressor.encode(gradient, stream, &mut workspace, &mut payload)?;
    assert_eq!(len, payload.len(), "the size predicted is the size written");
    let mut decoded = vec![f32::NAN; shape.elements()];
    decode(&Payload::parse(&payload)?, &mut decoded)?;
    Ok(RoundTrip { payload, decoded })
}

/// ‖gradient − decoded‖², summed in f64.
///
/// ```
/// # use lgreco::gradient::Shape;
/// # use lgreco_testing::powersgd::{gradient, squared_error};
/// assert_eq!(squared_error(&gradient(&[3.0, 4.0], Shape::new(2, 1)?), &[0.0, 0.0]), 25.0);
/// # Ok::<(), lgreco::Error>(())
/// ```
pub fn squared_error(gradient: &Gradient<'_>, decoded: &[f32]) -> f64 {
    let square = |x: f32, y: &f32| (x as f64 - *y as f64) * (x as f64 - *y as f64);
    with_elements!(gradient.values(), v => v.iter().zip(decoded).map(|(x, y)| square(widen(*x), y)).sum())
}

fn widen(x: impl lgreco::gradient::Element) -> f32 {
    x.to_f32()
}

/// Asserts that the measured row has, for each rank, the squared error of encoding and decoding, within a relative
/// 1e-5.
pub fn check_row(gradient: &Gradient<'_>, ranks: &[u32], iterations: u32, stream: Stream) {
    let shape = gradient.shape();
    let max_rank = ranks.iter().copied().max().unwrap_or(0);
    let mut workspace = vec![!0; measure_workspace_len(shape, gradient.values().dtype(), max_rank)];
    let mut row = vec![f64::NAN; ranks.len()];
    measure(gradient, ranks, iterations, stream, &mut workspace, &mut row).expect("a finite gradient");
    for (&rank, &measured) in ranks.iter().zip(&row) {
        let trip = round_trip(gradient, PowerSgd { rank, iterations }, stream).expect("a finite gradient");
        let real = squared_error(gradient, &trip.decoded);
        assert!((measured - real).abs() <= 1e-5 * real, "rank {rank}: measured {measured:e}, really {real:e}");
    }
}

/// The columns of a payload's factors: those of `P̂`, then those of `Q`.
///
/// ```
/// use lgreco::{compress::powersgd::PowerSgd, gradient::Shape, rng::Stream};
/// use lgreco_testing::powersgd::{check_orthonormal, factors, gradient, round_trip, uniform};
/// let (values, shape) = (uniform(12 * 8, 1), Shape::new(12, 8)?);
/// let trip = round_trip(&gradient(&values, shape), PowerSgd { rank: 3, iterations: 1 }, Stream::default())?;
/// let (p, q) = factors(&trip.payload, shape);
/// check_orthonormal(&p, 3);
/// assert_eq!((q.len(), q[0].len()), (3, 8));
/// # Ok::<(), lgreco::Error>(())
/// ```
pub fn factors(payload: &[u8], shape: Shape) -> (Vec<Vec<f32>>, Vec<Vec<f32>>) {
    let numbers: Vec<f32> =
        payload[HEADER_LEN..].chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("4 bytes"))).collect();
    let rank = numbers.len() / (shape.rows() + shape.cols()).max(1);
    let (p, q) = numbers.split_at(rank * shape.rows());
    let columns = |v: &[f32], len: usize| v.chunks_exact(len.max(1)).map(<[f32]>::to_vec).collect();
    (columns(p, shape.rows()), columns(q, shape.cols()))
}

/// Asserts that a smaller rank's factors are the first columns of a larger rank's, bit for bit.
pub fn check_nested(gradient: &Gradient<'_>, small: u32, large: u32, iterations: u32, stream: Stream) {
    let trip = |rank| round_trip(gradient, PowerSgd { rank, iterations }, stream).expect("a finite gradient");
    let (p, q) = factors(&trip(small.min(large)).payload, gradient.shape());
    let (p_all, q_all) = factors(&trip(small.max(large)).payload, gradient.shape());
    let bits = |v: &[Vec<f32>]| v.iter().flatten().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&p), bits(&p_all[..p.len()]));
    assert_eq!(bits(&q), bits(&q_all[..q.len()]));
}

/// Asserts that nonzero columns are orthonormal to 2e-6, and that there are `rank` of them.
pub fn check_orthonormal(columns: &[Vec<f32>], rank: usize) {
    let nonzero: Vec<_> = columns.iter().filter(|c| c.iter().any(|&x| x != 0.0)).collect();
    assert_eq!(nonzero.len(), rank, "columns that are not zero");
    for (i, a) in nonzero.iter().enumerate() {
        for (j, b) in nonzero.iter().enumerate().take(i + 1) {
            let product: f64 = a.iter().zip(*b).map(|(&x, &y)| x as f64 * y as f64).sum();
            let expected = if i == j { 1.0 } else { 0.0 };
            assert!((product - expected).abs() <= 2e-6, "columns {i} and {j}: {product}");
        }
    }
}

/// Orthonormalises columns and returns them.
///
/// ```
/// use lgreco_testing::powersgd::{check_orthonormal, orthonormal_columns};
/// check_orthonormal(&orthonormal_columns(&[vec![3.0, 4.0], vec![1.0, 0.0]]), 2);
/// ```
pub fn orthonormal_columns(columns: &[Vec<f32>]) -> Vec<Vec<f32>> {
    let (len, rank) = (columns.first().map_or(0, Vec::len), columns.len());
    let shape = Shape::new(len, len.max(rank)).expect("a small matrix");
    let mut p = columns.concat();
    let mut workspace = vec![!0; steps_workspace_len(shape, rank as u32)];
    orthonormalise(shape, rank as u32, &mut workspace, &mut p).expect("finite columns");
    p.chunks_exact(len.max(1)).map(<[f32]>::to_vec).collect()
}

/// Asserts that no payload bytes make decode panic or return a number that is not finite.
pub fn check_hostile(bytes: &[u8]) {
    let Ok(payload) = Payload::parse(bytes) else { return };
    let elements = payload.header.shape.elements();
    if elements > 1 << 16 {
        return;
    }
    let mut values = vec![0.0; elements];
    if decode(&payload, &mut values).is_ok() {
        assert!(values.iter().all(|x| x.is_finite()));
    }
}

/// Squared errors of warm-started steps on the same gradient.
///
/// ```
/// use lgreco::{gradient::Shape, rng::Stream};
/// use lgreco_testing::powersgd::{gradient, uniform, warm_errors};
/// let values = uniform(12 * 8, 1);
/// let errors = warm_errors(&gradient(&values, Shape::new(12, 8)?), 2, 20, Stream::default());
/// assert!(errors[19] < errors[0]);
/// # Ok::<(), lgreco::Error>(())
/// ```
pub fn warm_errors(gradient: &Gradient<'_>, rank: u32, steps: usize, stream: Stream) -> Vec<f64> {
    let (mut q, mut decoded) = (Vec::new(), vec![0.0; gradient.shape().elements()]);
    let mut step = || {
        step(gradient, rank, stream, &mut q, &mut decoded);
        squared_error(gradient, &decoded)
    };
    (0..steps).map(|_| step()).collect()
}

/// Takes one worker's step. `q` is the last step's factor; if it is empty, the step begins with a start matrix. The
/// decoded result is written to `values`.
fn step(gradient: &Gradient<'_>, rank: u32, stream: Stream, q: &mut Vec<f32>, values: &mut [f32]) {
    let shape = gradient.shape();
    let r = effective_rank(shape, rank);
    let mut workspace = vec![!0; steps_workspace_len(shape, rank)];
    let mut p = vec![0.0; shape.rows() * r];
    if q.is_empty() {
        q.resize(shape.cols() * r, 0.0);
        start_matrix(stream, shape.cols(), r as u32, q).expect("cols x r");
    }
    powersgd::project(gradient, rank, q, &mut workspace, &mut p).expect("a finite gradient");
    powersgd::orthonormalise(shape, rank, &mut workspace, &mut p).expect("finite columns");
    powersgd::back_project(gradient, rank, &p, &mut workspace, q).expect("a finite gradient");
    powersgd::reconstruct(shape, rank, &p, q, values).expect("finite factors");
}

/// A gradient's values from the start-matrix generator: uniform on (−1, 1).
pub fn uniform(n: usize, seed: u64) -> Vec<f32> {
    let mut values = vec![0.0; n];
    start_matrix(Stream { seed, ..Default::default() }, n, 1, &mut values).expect("n values");
    values
}

/// `Σ_c scales[c] · a_c b_cᵀ` with uniform random columns.
///
/// ```
/// use lgreco::gradient::Shape;
/// use lgreco_testing::powersgd::{low_rank, squared_singular_values};
/// let shape = Shape::new(12, 8)?;
/// let spectrum = squared_singular_values(&low_rank(shape, &[1.0, 0.5], 1), shape);
/// assert!(spectrum[1] > 1e-3 && spectrum[2] < 1e-9);
/// # Ok::<(), lgreco::Error>(())
/// ```
pub fn low_rank(shape: Shape, scales: &[f64], seed: u64) -> Vec<f32> {
    let (n, m) = (shape.rows(), shape.cols());
    let (a, b) = (uniform(n * scales.len(), seed), uniform(m * scales.len(), seed + 1));
    let term = |i: usize, k: usize, c: usize, s: f64| s * a[c * n + i] as f64 * b[c * m + k] as f64;
    let element = |i, k| scales.iter().enumerate().map(|(c, &s)| term(i, k, c, s)).sum::<f64>() as f32;
    (0..n * m).map(|at| element(at / m, at % m)).collect()
}

/// The textbook form: naive products and modified Gram–Schmidt in f64. Returns the squared error of rank `rank`.
///
/// ```
/// use lgreco::{gradient::Shape, rng::Stream};
/// use lgreco_testing::powersgd::textbook_squared_error;
/// let error = textbook_squared_error(&[3.0, 0.0, 0.0, 4.0], Shape::new(2, 2)?, 1, 50, Stream::default());
/// assert!((error - 9.0).abs() < 1e-6); // all but the largest singular value
/// # Ok::<(), lgreco::Error>(())
/// ```
pub fn textbook_squared_error(values: &[f32], shape: Shape, rank: usize, iterations: u32, stream: Stream) -> f64 {
    let (n, m) = (shape.rows(), shape.cols());
    let rank = rank.min(n).min(m);
    let at = |i: usize, k: usize| values[i * m + k] as f64;
    let mut start = vec![0.0; m * rank];
    start_matrix(stream, m, rank as u32, &mut start).expect("cols x rank");
    let mut q: Vec<Vec<f64>> = start.chunks(m).map(|c| c.iter().map(|&x| x as f64).collect()).collect();
    let mut p: Vec<Vec<f64>> = Vec::new();
    for _ in 0..iterations {
        p = q.iter().map(|q| (0..n).map(|i| (0..m).map(|k| at(i, k) * q[k]).sum()).collect()).collect();
        for c in 0..rank {
            let norm = f64::sqrt(p[c].iter().map(|x| x * x).sum());
            let unit: Vec<f64> = p[c].iter().map(|x| if norm > 0.0 { x / norm } else { 0.0 }).collect();
            for later in &mut p[c + 1..] {
                let product: f64 = unit.iter().zip(&*later).map(|(x, y)| x * y).sum();
                later.iter_mut().zip(&unit).for_each(|(y, x)| *y -= product * x);
            }
            p[c] = unit;
        }
        q = p.iter().map(|p| (0..m).map(|k| (0..n).map(|i| at(i, k) * p[i]).sum()).collect()).collect();
    }
    let mut error = 0.0;
    for i in 0..n {
        for k in 0..m {
            let product: f64 = p.iter().zip(&q).map(|(p, q)| p[i] * q[k]).sum();
            error += (at(i, k) - product) * (at(i, k) - product);
        }
    }
    error
}

/// Squared singular values, largest first: Jacobi's eigenvalue method on `MᵀM` in f64.
///
/// ```
/// use lgreco::gradient::Shape;
/// use lgreco_testing::powersgd::squared_singular_values;
/// assert_eq!(squared_singular_values(&[3.0, 0.0, 0.0, -4.0], Shape::new(2, 2)?), [16.0, 9.0]);
/// # Ok::<(), lgreco::Error>(())
/// ```
pub fn squared_singular_values(values: &[f32], shape: Shape) -> Vec<f64> {
    let (n, m) = (shape.rows(), shape.cols());
    let at = |i: usize, k: usize| values[i * m + k] as f64;
    let mut a: Vec<Vec<f64>> =
        (0..m).map(|j| (0..m).map(|k| (0..n).map(|i| at(i, j) * at(i, k)).sum()).collect()).collect();
    for _sweep in 0..30 {
        for i in 0..m {
            for j in i + 1..m {
                if a[i][j] == 0.0 {
                    continue;
                }
                let ratio = (a[j][j] - a[i][i]) / (2.0 * a[i][j]);
                let tangent = ratio.signum() / (ratio.abs() + f64::sqrt(1.0 + ratio * ratio));
                let cosine = 1.0 / f64::sqrt(1.0 + tangent * tangent);
                let sine = cosine * tangent;
                for row in &mut a {
                    (row[i], row[j]) = (cosine * row[i] - sine * row[j], sine * row[i] + cosine * row[j]);
                }
                let (upper, lower) = a.split_at_mut(j);
                for (x, y) in upper[i].iter_mut().zip(&mut lower[0]) {
                    (*x, *y) = (cosine * *x - sine * *y, sine * *x + cosine * *y);
                }
            }
        }
    }
    let mut eigenvalues: Vec<f64> = (0..m).map(|i| a[i][i].max(0.0)).collect();
    eigenvalues.sort_by(|x, y| y.total_cmp(x));
    eigenvalues
}

/// Asserts that the public steps, on one worker, give the same values as encode and decode.
pub fn check_steps(gradient: &Gradient<'_>, rank: u32, stream: Stream) {
    let mut values = vec![f32::NAN; gradient.shape().elements()];
    step(gradient, rank, stream, &mut Vec::new(), &mut values);
    let trip = round_trip(gradient, PowerSgd { rank, iterations: 1 }, stream).expect("a finite gradient");
    assert_eq!(values, trip.decoded);
}

/// Wraps f32 values.
///
/// # Panics
/// Panics if the number of values is not that of the shape.
pub fn gradient(values: &[f32], shape: Shape) -> Gradient<'_> {
    Gradient::new(Values::F32(values), shape).expect("as many values as the shape has")
}
