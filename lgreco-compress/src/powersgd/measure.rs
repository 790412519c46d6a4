//! Measures PowerSGD's row of the error table: the error of every rank from one run.

use super::encode::{Work, cold_start, iterate, scan, workspace_len};
use super::{PowerSgd, effective_rank};
use crate::error::{expect_len, expect_room};
use crate::gradient::{Dtype, Gradient, Shape, with_elements};
use crate::linalg::{self, LANES, Matrix, Panels, Row};
use crate::rng::Stream;
use crate::{Error, Result};

/// Errors above this fraction of `‖M‖²` may be computed from the columns of `Q`. Rounding changes `‖qᵢ‖²` by about
/// `1e-7 ‖M‖ ‖qᵢ‖`, and `‖qᵢ‖` is at most the error that the columns before i leave. So at an error of `‖M‖/32`, the
/// squared error has a relative deviation of 3e-6.
const SUMMED: f64 = 1.0 / 1024.0;
/// Below this magnitude, numbers of `Q` may be subnormal and lose their relative precision.
const SMALL: f32 = 1e-30;

/// Words of workspace that [`measure`] needs for ranks up to `max_rank`.
pub fn measure_workspace_len(shape: Shape, _dtype: Dtype, max_rank: u32) -> usize {
    let rank = effective_rank(shape, max_rank);
    workspace_len(shape, rank).saturating_add(rank)
}

/// Writes the squared error of encoding and decoding at each rank, with `iterations` power iterations and the same
/// `stream`. All errors come from one run at the largest rank.
///
/// The first r columns of that run are the factors of rank r. The error of the largest rank R is summed over all
/// elements, from the values that decoding yields. Smaller ranks lack some columns, and their errors are larger by
/// those columns' squared norms: `e²(r) = e²(R) + Σ_{r<i≤R} ‖qᵢ‖²`, because the columns of `P̂` are orthonormal.
/// (`‖M‖² − Σ_{i≤r} ‖qᵢ‖²` is equal, but suffers from cancellation.) Errors below 1/1024 of `‖M‖²` are always summed
/// element by element.
///
/// # Errors
/// [`Error::NonFinite`] with the first NaN or infinity. [`Error::Parameter`] when a rank is 0 or `iterations` is out of
/// range. [`Error::Length`] when `squared_errors` is not as long as `ranks`, or the workspace is too short.
/// [`Error::Overflow`] when encoding at the largest rank returns this error.
///
/// # Complexity
/// The time of one encoding and decoding at the largest rank R. If some ranks have errors below 1/1024 of `‖M‖²`, the
/// time is that of one encoding and up to three decodings. Workspace: [`measure_workspace_len`].
///
/// # Source
/// The simulation in L-GreCo (Alimohammadi et al., MLSys 2024, §4). L-GreCo encodes and decodes once per rank.
///
/// ```
/// use lgreco_compress::powersgd::{measure, measure_workspace_len};
/// use lgreco_core::gradient::{Dtype, Gradient, Shape, Values};
/// use lgreco_core::rng::Stream;
///
/// let values = [3.0f32, 0.0, 0.0, 4.0]; // singular values 4 and 3
/// let gradient = Gradient::new(Values::F32(&values), Shape::new(2, 2)?)?;
/// let mut workspace = vec![0; measure_workspace_len(gradient.shape(), Dtype::F32, 2)];
/// let mut errors = [0.0; 2];
/// measure(&gradient, &[1, 2], 30, Stream::default(), &mut workspace, &mut errors)?;
/// assert!((errors[0] - 9.0).abs() < 1e-4 && errors[1] < 1e-9);
/// # Ok::<(), lgreco_core::Error>(())
/// ```
pub fn measure(
    gradient: &Gradient<'_>,
    ranks: &[u32],
    iterations: u32,
    stream: Stream,
    workspace: &mut [u64],
    squared_errors: &mut [f64],
) -> Result<()> {
    let shape = gradient.shape();
    for &rank in ranks {
        PowerSgd { rank, iterations }.check()?;
    }
    expect_len("squared errors", ranks.len(), squared_errors.len())?;
    let max_rank = ranks.iter().copied().max().unwrap_or(0);
    expect_room("workspace words", measure_workspace_len(shape, gradient.values().dtype(), max_rank), workspace.len())?;
    let rank = effective_rank(shape, max_rank);
    let mut work = Work::split(shape, rank, workspace);
    with_elements!(gradient.values(), values => {
            let scan = scan(values)?;
            if rank == 0 {
                squared_errors.fill(0.0);
                return Ok(());
            }
            let m = Matrix { values, rows: shape.rows(), cols: shape.cols() };
            cold_start(stream, m.cols, rank, work.q);
            iterate(m, scan.largest, rank, iterations, &mut work)?;

            let errors = &mut bytemuck::cast_slice_mut::<u64, f64>(work.rest)[..rank];
            let summed = if scan.largest < SMALL { f64::INFINITY } else { SUMMED * scan.squared_norm };
            what_is_left(scan.squared_norm, work.q, m.cols, errors);
            let first = ranks.iter().map(|&r| effective_rank(shape, r)).filter(|&r| errors[r - 1] <= summed).min();
            let first = first.unwrap_or(rank);
            let (p, q) = (Panels { rows: work.p, len: m.rows }, Panels { rows: work.q, len: m.cols });
            linalg::residuals(m, p, q, first - 1, errors);
            // An element of the product that is not finite at one rank is not finite at any larger rank either. So
            // checking the largest rank is enough.
    Error::require_finite(errors[rank - 1].is_finite(), "the product of the factors")?;
            add_what_lacks(work.q, m.cols, &mut errors[..first]);
            for (error, &r) in squared_errors.iter_mut().zip(ranks) {
                *error = errors[effective_rank(shape, r) - 1];
            }
        });
    Ok(())
}

/// Computes `left[r - 1] = total − Σ_{i ≤ r} ‖qᵢ‖²`.
fn what_is_left(total: f64, q: &[Row], len: usize, left: &mut [f64]) {
    let mut rest = total;
    for (left, panel) in left.chunks_mut(LANES).zip(q.chunks_exact(len)) {
        for (left, square) in left.iter_mut().zip(linalg::squared_norms(panel)) {
            rest -= square;
            *left = rest;
        }
    }
}

/// Computes `errors[r - 1] = errors.last() + Σ_{r < i ≤ errors.len()} ‖qᵢ‖²`.
fn add_what_lacks(q: &[Row], len: usize, errors: &mut [f64]) {
    let mut error = errors[errors.len() - 1];
    let panels = q.chunks_exact(len).take(linalg::panels(errors.len()));
    for (errors, panel) in errors.chunks_mut(LANES).zip(panels).rev() {
        for (at, square) in errors.iter_mut().zip(linalg::squared_norms(panel)).rev() {
            *at = error;
            error += square;
        }
    }
}
