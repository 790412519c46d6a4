//! The steps of PowerSGD around its all-reduces: project, sum over workers, orthonormalise, back-project, average.
//!
//! Factors are f32, column after column, with r = `min(rank, rows, cols)` columns. Workspaces have
//! [`steps_workspace_len`] words.

use super::effective_rank;
use super::encode::{Work, finite, scale_columns, scan, workspace_len};
use crate::error::{expect_len, expect_room};
use crate::gradient::{Element, Gradient, Shape, with_elements};
use crate::linalg::{self, Columns, Matrix, Row};
use crate::{Error, Result};
use core::ops::Range;

/// Words of workspace that [`project`], [`orthonormalise`] and [`back_project`] need.
pub fn steps_workspace_len(shape: Shape, rank: u32) -> usize {
    workspace_len(shape, effective_rank(shape, rank))
}

fn prepare<'a>(
    shape: Shape,
    rank: u32,
    p: usize,
    q: Option<usize>,
    workspace: &'a mut [u64],
) -> Result<(usize, Work<'a>)> {
    let r = effective_rank(shape, rank);
    expect_len("factor P", shape.rows() * r, p)?;
    if let Some(q) = q {
        expect_len("factor Q", shape.cols() * r, q)?;
    }
    expect_room("workspace words", workspace_len(shape, r), workspace.len())?;
    Ok((r, Work::split(shape, r, workspace)))
}

/// Computes `p = M Q D` (rows × r) from `q` (cols × r). D scales each column of `q` by the power of two that brings its
/// largest magnitude into [1, 2). Scaling does not change the columns' directions. Workers that share `q` have the same
/// D, so their `p` may be summed.
///
/// # Errors
/// [`Error::NonFinite`] with the first NaN or infinity in the gradient. [`Error::Length`] on a slice of the wrong
/// length. [`Error::Parameter`] when `q` is not finite. [`Error::Overflow`] when `p` is not finite.
///
/// # Complexity
/// O(rows · cols · r).
///
/// # Source
/// Vogels et al. 2019, Algorithm 1, line 3.
///
/// ```
/// use lgreco_compress::powersgd::{back_project, orthonormalise, project, reconstruct, steps_workspace_len};
/// use lgreco_core::gradient::{Gradient, Shape, Values};
///
/// let shape = Shape::new(2, 3)?;
/// let values = [1.0f32, 2.0, 3.0, -2.0, -4.0, -6.0]; // rank 1
/// let gradient = Gradient::new(Values::F32(&values), shape)?;
/// let mut workspace = vec![0; steps_workspace_len(shape, 1)];
/// let (mut p, mut q, mut decoded) = ([0.0; 2], [1.0; 3], [0.0; 6]);
/// project(&gradient, 1, &q, &mut workspace, &mut p)?; // then sum p over the workers
/// orthonormalise(shape, 1, &mut workspace, &mut p)?;
/// back_project(&gradient, 1, &p, &mut workspace, &mut q)?; // then average q over the workers
/// reconstruct(shape, 1, &p, &q, &mut decoded)?;
/// assert!(values.iter().zip(decoded).all(|(x, y)| (x - y).abs() < 1e-5));
/// # Ok::<(), lgreco_core::Error>(())
/// ```
pub fn project(gradient: &Gradient<'_>, rank: u32, q: &[f32], workspace: &mut [u64], p: &mut [f32]) -> Result<()> {
    let shape = gradient.shape();
    let (rank, work) = prepare(shape, rank, p.len(), Some(q.len()), workspace)?;
    check_finite("factor Q", q)?;
    with_elements!(gradient.values(), values => {
        linalg::pack(q, shape.cols(), work.q);
        scale_columns(work.q, shape.cols(), 1.0);
        let m = Matrix { values, rows: shape.rows(), cols: shape.cols() };
        linalg::project(m, work.q, work.p, rank, work.scratch);
        check_product("PowerSGD factor P", work.p, values)?;
    });
    linalg::unpack(work.p, shape.rows(), rank, |i, x| p[i] = x);
    Ok(())
}

/// Replaces the columns of `p` (rows × r) by orthonormal ones. Column `i` depends only on columns `..=i`. A zero column
/// stays exactly zero. A column also becomes exactly zero if at most 1e-6 of its norm is orthogonal to the earlier
/// columns.
///
/// ```
/// use lgreco_compress::powersgd::{orthonormalise, steps_workspace_len};
/// use lgreco_core::gradient::Shape;
/// let shape = Shape::new(2, 2)?;
/// let mut workspace = vec![0; steps_workspace_len(shape, 2)];
/// let mut p = [3.0, 4.0, 6.0, 8.0]; // the second column is twice the first
/// orthonormalise(shape, 2, &mut workspace, &mut p)?;
/// assert!((p[0] - 0.6).abs() < 1e-6 && (p[1] - 0.8).abs() < 1e-6);
/// assert_eq!(p[2..], [0.0, 0.0]);
/// # Ok::<(), lgreco_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Length`] on a slice of the wrong length. [`Error::Parameter`] when `p` is not finite.
///
/// # Complexity
/// O(rows · r²).
///
/// # Source
/// Vogels et al. 2019, Algorithm 1, line 5. Deviation: Gram–Schmidt runs twice, on blocks of 16 columns.
pub fn orthonormalise(shape: Shape, rank: u32, workspace: &mut [u64], p: &mut [f32]) -> Result<()> {
    let (rank, work) = prepare(shape, rank, p.len(), None, workspace)?;
    check_finite("factor P", p)?;
    linalg::pack(p, shape.rows(), work.p);
    linalg::orthonormalise(work.p, shape.rows(), rank);
    linalg::unpack(work.p, shape.rows(), rank, |i, x| p[i] = x);
    Ok(())
}

/// Computes `q = Mᵀ P` (cols × r) from `p` (rows × r).
///
/// ```
/// use lgreco_compress::powersgd::{back_project, steps_workspace_len};
/// use lgreco_core::gradient::{Gradient, Shape, Values};
/// let gradient = Gradient::new(Values::F32(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), Shape::new(2, 3)?)?;
/// let mut workspace = vec![0; steps_workspace_len(gradient.shape(), 1)];
/// let mut q = [0.0; 3];
/// back_project(&gradient, 1, &[0.0, 1.0], &mut workspace, &mut q)?;
/// assert_eq!(q, [4.0, 5.0, 6.0]); // the part of M in the direction of p: its second row
/// # Ok::<(), lgreco_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::NonFinite`] with the first NaN or infinity in the gradient. [`Error::Length`] on a slice of the wrong
/// length. [`Error::Parameter`] when `p` is not finite. [`Error::Overflow`] when `q` is not finite.
///
/// # Complexity
/// O(rows · cols · r).
///
/// # Source
/// Vogels et al. 2019, Algorithm 1, line 6.
pub fn back_project(gradient: &Gradient<'_>, rank: u32, p: &[f32], workspace: &mut [u64], q: &mut [f32]) -> Result<()> {
    let shape = gradient.shape();
    let (rank, work) = prepare(shape, rank, p.len(), Some(q.len()), workspace)?;
    check_finite("factor P", p)?;
    with_elements!(gradient.values(), values => {
        linalg::pack(p, shape.rows(), work.p);
        let m = Matrix { values, rows: shape.rows(), cols: shape.cols() };
        linalg::back_project(m, work.p, work.q, rank, work.scratch);
        check_product("PowerSGD factor Q", work.q, values)?;
    });
    linalg::unpack(work.q, shape.cols(), rank, |i, x| q[i] = x);
    Ok(())
}

/// Computes `values = P Qᵀ`, row-major. Each element is summed over the columns in order. Decoding a payload with these
/// factors gives the same values.
///
/// ```
/// use lgreco_compress::powersgd::reconstruct;
/// use lgreco_core::gradient::Shape;
/// let mut values = [0.0; 6];
/// reconstruct(Shape::new(2, 3)?, 1, &[1.0, 2.0], &[1.0, 10.0, 100.0], &mut values)?;
/// assert_eq!(values, [1.0, 10.0, 100.0, 2.0, 20.0, 200.0]);
/// # Ok::<(), lgreco_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Length`] on a slice of the wrong length. [`Error::Overflow`] when a value is not finite.
///
/// # Complexity
/// O(rows · cols · r). Needs no workspace and 32 KiB of stack.
///
/// # Source
/// Vogels et al. 2019, Algorithm 1, line 8.
pub fn reconstruct(shape: Shape, rank: u32, p: &[f32], q: &[f32], values: &mut [f32]) -> Result<()> {
    reconstruct_rows(shape, rank, p, q, 0..shape.rows(), values)
}

/// Computes some rows of the result of [`reconstruct`], with the same bits.
///
/// ```
/// use lgreco_compress::powersgd::reconstruct_rows;
/// use lgreco_core::gradient::Shape;
/// let mut row = [0.0; 3];
/// reconstruct_rows(Shape::new(2, 3)?, 1, &[1.0, 2.0], &[1.0, 10.0, 100.0], 1..2, &mut row)?;
/// assert_eq!(row, [2.0, 20.0, 200.0]);
/// # Ok::<(), lgreco_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Length`] on a slice of the wrong length, or when `rows` exceeds the shape. [`Error::Overflow`] when a value
/// is not finite.
pub fn reconstruct_rows(
    shape: Shape,
    rank: u32,
    p: &[f32],
    q: &[f32],
    rows: Range<usize>,
    values: &mut [f32],
) -> Result<()> {
    let ([p, q], rank) = factors(shape, rank, [p, q])?;
    expect_room("rows", rows.end, shape.rows())?;
    expect_len("values", rows.len() * shape.cols(), values.len())?;
    // Starts each column at the first wanted row; columns stay `p.len` apart.
    let p = Columns { values: &p.values[rows.start.min(p.values.len())..], len: p.len };
    Error::require_finite(linalg::reconstruct(p, q, rank, shape.cols(), values), "the product of the factors")
}

/// Computes `values −= P Qᵀ`: the compression error of a worker that has sent the factors. Lengths, complexity and
/// source are the same as for [`reconstruct`].
///
/// ```
/// use lgreco_compress::powersgd::take_off;
/// use lgreco_core::gradient::Shape;
/// let mut values = [1.0, 10.0, 100.0, 2.0, 20.0, 201.0];
/// take_off(Shape::new(2, 3)?, 1, &[1.0, 2.0], &[1.0, 10.0, 100.0], &mut values)?;
/// assert_eq!(values, [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
/// # Ok::<(), lgreco_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Length`] on a slice of the wrong length. [`Error::Overflow`] when a result is not finite.
pub fn take_off(shape: Shape, rank: u32, p: &[f32], q: &[f32], values: &mut [f32]) -> Result<()> {
    let ([p, q], rank) = factors(shape, rank, [p, q])?;
    expect_len("values", shape.elements(), values.len())?;
    Error::require_finite(linalg::subtract_product(p, q, rank, shape.cols(), values), "the residual")
}

/// Checks the factors' lengths, and returns them as columns with the effective rank.
fn factors<'a>(shape: Shape, rank: u32, [p, q]: [&'a [f32]; 2]) -> Result<([Columns<'a, f32>; 2], usize)> {
    let rank = effective_rank(shape, rank);
    expect_len("factor P", shape.rows() * rank, p.len())?;
    expect_len("factor Q", shape.cols() * rank, q.len())?;
    Ok(([Columns { values: p, len: shape.rows() }, Columns { values: q, len: shape.cols() }], rank))
}

/// Returns an error unless the product is finite. NaN and infinity in a gradient always reach the product: infinity · 0
/// is NaN.
fn check_product<T: Element>(what: &'static str, product: &[Row], values: &[T]) -> Result<()> {
    if finite(product) {
        return Ok(());
    }
    scan(values)?;
    Err(Error::Overflow { what })
}

fn check_finite(what: &'static str, factor: &[f32]) -> Result<()> {
    match factor.iter().find(|x| !x.is_finite()) {
        Some(&value) => Err(Error::Parameter { what, value: value as f64, expected: "finite" }),
        None => Ok(()),
    }
}
