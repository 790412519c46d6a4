//! The error of every rank from one run.

use super::encode::{Work, cold_start, iterate, scan, workspace_len};
use super::{PowerSgd, effective_rank};
use crate::Error;
use crate::error::{expect_len, expect_room};
use crate::gradient::{Dtype, Gradient, Shape, with_elements};
use crate::linalg::{self, LANES, Matrix, Panels, Row};
use crate::rng::Stream;

/// `‖M‖² − Σ ‖qᵢ‖²` is trusted down to this part of `‖M‖²`. It is off by less than 3e-7 of `‖M‖²` (columns of `P̂`
/// orthonormal to 1e-7, `Q` good to 1e-7 in norm), hence by less than 1e-5 of what is left.
const TRUSTED: f64 = 1.0 / 32.0;
/// Below this magnitude numbers of `Q` may be subnormal, and their relative precision is lost.
const SMALL: f32 = 1e-30;

/// Words of workspace that [`measure`] needs when no rank exceeds `max_rank`.
pub fn measure_workspace_len(shape: Shape, _dtype: Dtype, max_rank: u32) -> usize {
    let rank = effective_rank(shape, max_rank);
    workspace_len(shape, rank) + rank
}

/// Writes the squared error of encode→decode at each rank, with `iterations` power iterations and the same `stream`,
/// all from one run at the largest rank.
///
/// The first r columns of that run are the factors of rank r, and `P̂` is orthonormal, so the error is
/// `‖M‖² − Σ_{i≤r} ‖qᵢ‖²`. Where less than 1/32 of `‖M‖²` is left the difference would cancel; those ranks' errors are
/// summed element by element, with the very numbers that decode yields.
///
/// # Errors
/// [`Error::NonFinite`]; [`Error::Parameter`] when a rank or `iterations` is 0; [`Error::Length`] when
/// `squared_errors` is not as long as `ranks` or the workspace is too short; [`Error::Overflow`] as for encode at the
/// largest rank.
///
/// # Complexity
/// Time of one encode at the largest rank R, and where ranks beyond the 1/32 are asked for, about two and a half decodes
/// at rank R on top. Workspace: [`measure_workspace_len`].
///
/// # Source
/// The simulation of L-GreCo (Alimohammadi et al., MLSys 2024, §4), which runs encode and decode for each rank.
///
/// ```
/// use lgreco_core::compress::powersgd::{measure, measure_workspace_len};
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
) -> Result<(), Error> {
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

        let left = &mut bytemuck::cast_slice_mut::<u64, f64>(work.rest)[..rank];
        what_is_left(scan.squared_norm, work.q, m.cols, left);
        let trusted = if scan.largest < SMALL { f64::INFINITY } else { TRUSTED * scan.squared_norm };
        let smallest = ranks.iter().map(|&r| effective_rank(shape, r)).filter(|&r| !(left[r - 1] >= trusted)).min();
        if let Some(smallest) = smallest {
            let (p, q) = (Panels { rows: work.p, len: m.rows }, Panels { rows: work.q, len: m.cols });
            linalg::residuals(m, p, q, smallest - 1, left);
        }
        for (error, &r) in squared_errors.iter_mut().zip(ranks) {
            *error = left[effective_rank(shape, r) - 1];
        }
    });
    Ok(())
}

/// `left[r - 1] = total − Σ_{i ≤ r} ‖qᵢ‖²`.
fn what_is_left(total: f64, q: &[Row], len: usize, left: &mut [f64]) {
    let mut rest = total;
    for (left, panel) in left.chunks_mut(LANES).zip(q.chunks_exact(len)) {
        for (left, square) in left.iter_mut().zip(linalg::squared_norms(panel)) {
            rest -= square;
            *left = rest;
        }
    }
}
