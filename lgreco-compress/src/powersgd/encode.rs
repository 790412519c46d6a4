//! Encodes PowerSGD: power iteration, and the resulting payload.

use super::start::start;
use crate::gradient::{Element, Shape};
use crate::linalg::{self, LANES, Matrix, Panels, Row};
use crate::rng::Stream;
use crate::simd::dispatch_with;
use crate::{Error, Result};

/// The workspace, split into its parts.
pub(super) struct Work<'a> {
    /// Factor `P`, rows × rank, in panels.
    pub(super) p: &'a mut [Row],
    /// Factor `Q`, cols × rank, in panels.
    pub(super) q: &'a mut [Row],
    /// Scratch memory of a product.
    pub(super) scratch: &'a mut [u64],
    /// Workspace beyond [`workspace_len`].
    pub(super) rest: &'a mut [u64],
}

/// Largest number of words that are skipped so that rows of panels do not straddle cache lines.
const ALIGN: usize = 7;

pub(super) fn workspace_len(shape: Shape, rank: usize) -> usize {
    let factors = [shape.rows(), shape.cols()].map(|len| linalg::factor_words(len, rank));
    factors.into_iter().fold(ALIGN + linalg::scratch_words(rank), usize::saturating_add)
}

impl<'a> Work<'a> {
    /// Splits a workspace of at least [`workspace_len`] words.
    pub(super) fn split(shape: Shape, rank: usize, workspace: &'a mut [u64]) -> Self {
        let aligned = workspace.as_ptr().align_offset(8 * (ALIGN + 1)).min(ALIGN);
        let (scratch, rest) = workspace[aligned..].split_at_mut(linalg::scratch_words(rank));
        let (p, rest) = rest.split_at_mut(linalg::factor_words(shape.rows(), rank));
        let (q, rest) = rest.split_at_mut(linalg::factor_words(shape.cols(), rank));
        Work { p: linalg::rows_mut(p), q: linalg::rows_mut(q), scratch, rest }
    }
}

/// Result of one pass over a gradient.
#[derive(Clone, Copy)]
pub(super) struct Scan {
    /// Squared norm ‖M‖².
    pub(super) squared_norm: f64,
    /// Largest magnitude.
    pub(super) largest: f32,
}

/// Scans the values. Returns [`Error::NonFinite`] with the first NaN or infinity.
pub(super) fn scan<T: Element>(values: &[T]) -> Result<Scan> {
    let scan = dispatch_with!(values, scan_all);
    if scan.largest.is_finite() {
        return Ok(scan);
    }
    let found = values.iter().map(|x| x.to_f32()).enumerate().find(|(_, x)| !x.is_finite());
    found.map_or(Ok(scan), |(index, value)| Err(Error::NonFinite { index, value }))
}

#[inline(always)]
fn scan_all<T: Element>(values: &[T]) -> Scan {
    let mut squares = [0.0f64; 2 * LANES];
    let mut largest = [0u32; 2 * LANES];
    let (chunks, last) = values.as_chunks::<{ 2 * LANES }>();
    for chunk in chunks {
        for l in 0..2 * LANES {
            let x = chunk[l].to_f32();
            largest[l] = largest[l].max(x.to_bits() & 0x7fff_ffff);
            squares[l] += x as f64 * x as f64;
        }
    }
    for (l, x) in last.iter().enumerate() {
        let x = x.to_f32();
        largest[l] = largest[l].max(x.to_bits() & 0x7fff_ffff);
        squares[l] += x as f64 * x as f64;
    }
    Scan { squared_norm: squares.iter().sum(), largest: f32::from_bits(largest.into_iter().fold(0, u32::max)) }
}

#[inline(always)]
fn scale_panels((factor, len, largest): (&mut [Row], usize, f32)) {
    /// Largest magnitudes in [2^-40, 2^40] need no scaling.
    const SAFE: f32 = (1u64 << 40) as f32;
    let against = linalg::to_unit(largest);
    let against = if against < 1.0 / SAFE {
        against * SAFE
    } else if against > SAFE {
        against / SAFE
    } else {
        1.0
    };
    for panel in factor.chunks_exact_mut(len) {
        linalg::scale(panel, &linalg::largest(panel).map(linalg::to_unit));
        linalg::scale(panel, &[against; LANES]);
    }
}

/// Scales every column by a power of two, so that products with numbers up to `largest` stay in the middle of the range
/// of f32. Scaling does not change the columns' directions. Values must be finite.
pub(super) fn scale_columns(factor: &mut [Row], len: usize, largest: f32) {
    if len > 0 {
        dispatch_with!((factor, len, largest), scale_panels);
    }
}

/// Fills `q` with the start matrix.
pub(super) fn cold_start(stream: Stream, cols: usize, rank: usize, q: &mut [Row]) {
    q.fill([0.0; LANES]);
    let (mut c, mut k) = (0, 0);
    start(stream, cols * rank, |_, x| {
        q[c / LANES * cols + k][c % LANES] = x;
        (c, k) = if k + 1 == cols { (c + 1, 0) } else { (c, k + 1) };
    });
}

/// Runs `iterations` power iterations from `work.q`. Leaves `P̂` and `Q = Mᵀ P̂` in `work`.
pub(super) fn iterate<T: Element>(
    m: Matrix<'_, T>,
    largest: f32,
    rank: usize,
    iterations: u32,
    work: &mut Work<'_>,
) -> Result<()> {
    for _ in 0..iterations {
        scale_columns(work.q, m.cols, largest);
        linalg::project(m, work.q, work.p, rank, work.scratch);
        linalg::orthonormalise(work.p, m.rows, rank);
        linalg::back_project(m, work.p, work.q, rank, work.scratch);
        Error::require_finite(finite(work.q), "PowerSGD factor Q")?;
    }
    Ok(())
}

/// Returns an error if decoding would refuse the factors, because their product or a partial sum is not finite.
pub(super) fn check_product<T: Element>(m: Matrix<'_, T>, scan: Scan, rank: usize, work: &mut Work<'_>) -> Result<()> {
    /// For a `‖M‖` below this limit, no sum overflows: `P̂` is orthonormal, so sums exceed `‖M‖` only by rounding.
    const SAFE: f64 = f32::MAX as f64 / 2.0;
    if rank == 0 || scan.squared_norm < SAFE * SAFE {
        return Ok(());
    }
    let squares = &mut bytemuck::cast_slice_mut::<u64, f64>(work.scratch)[..rank];
    let (p, q) = (Panels { rows: work.p, len: m.rows }, Panels { rows: work.q, len: m.cols });
    linalg::residuals(m, p, q, rank - 1, squares);
    Error::require_finite(squares[rank - 1].is_finite(), "the product of the factors")
}

pub(super) fn finite(factor: &[Row]) -> bool {
    let bits = |x: &f32| x.to_bits() & 0x7fff_ffff;
    factor.as_flattened().iter().map(bits).fold(0, u32::max) < f32::INFINITY.to_bits()
}
