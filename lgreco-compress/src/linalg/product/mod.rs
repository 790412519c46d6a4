//! The two products of PowerSGD, `M Q` and `Mᵀ P`, without transposing `M`.
//!
//! The modules `portable` and `gemm` (with the feature `gemm`) implement the same functions, with the same guarantees
//! and tests. `M` is read once per product. An element of the result is the same sum in the same order for every rank
//! and element type.
//!
//! Plain loops without fused multiply-add reach half the speed of `matrixmultiply` at rank 64. So the feature `gemm`
//! uses `matrixmultiply` through `ndarray`; the command-line tool turns it on. With the feature, this crate still needs
//! no unsafe code, and a column of the result still does not depend on the rank. But with the feature, the last bits
//! differ between processors, and products allocate packing buffers. Code outside this module does not depend on the
//! implementation.

#[cfg(feature = "gemm")]
mod gemm;
#[cfg(any(test, not(feature = "gemm")))]
mod portable;
#[cfg(test)]
mod tests;

#[cfg(feature = "gemm")]
pub(crate) use gemm::{back_project, project, scratch_words};
#[cfg(not(feature = "gemm"))]
pub(crate) use portable::{back_project, project, scratch_words};

use super::{LANES, Row, add_scaled};

/// Number of rows of a result whose sums are held in registers.
const BLOCK: usize = 8;

/// A row-major matrix of any element type.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a, T> {
    pub(crate) values: &'a [T],
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

/// Σ over k of `a[b][k] · x[k]`, for each b. The sums are separate variables, because arrays do not stay in registers.
#[inline(always)]
pub(super) fn inner_sums(a: [&[f32]; BLOCK], x: &[Row]) -> [Row; BLOCK] {
    let a = a.map(|row| &row[..x.len()]);
    let [mut s0, mut s1, mut s2, mut s3, mut s4, mut s5, mut s6, mut s7] = [[0.0; LANES]; BLOCK];
    for (k, &x) in x.iter().enumerate() {
        s0 = add_scaled(s0, a[0][k], x);
        s1 = add_scaled(s1, a[1][k], x);
        s2 = add_scaled(s2, a[2][k], x);
        s3 = add_scaled(s3, a[3][k], x);
        s4 = add_scaled(s4, a[4][k], x);
        s5 = add_scaled(s5, a[5][k], x);
        s6 = add_scaled(s6, a[6][k], x);
        s7 = add_scaled(s7, a[7][k], x);
    }
    [s0, s1, s2, s3, s4, s5, s6, s7]
}

/// Σ over i of `a[i][b] · x[i]`, for each b. Rows of `a` are `stride` numbers apart; only their first `BLOCK` numbers
/// are used.
#[inline(always)]
pub(super) fn outer_sums(a: &[f32], stride: usize, x: &[Row]) -> [Row; BLOCK] {
    let [mut s0, mut s1, mut s2, mut s3, mut s4, mut s5, mut s6, mut s7] = [[0.0; LANES]; BLOCK];
    for (a, &x) in a.chunks(stride).zip(x) {
        let Some(&a) = a.first_chunk::<BLOCK>() else { break };
        s0 = add_scaled(s0, a[0], x);
        s1 = add_scaled(s1, a[1], x);
        s2 = add_scaled(s2, a[2], x);
        s3 = add_scaled(s3, a[3], x);
        s4 = add_scaled(s4, a[4], x);
        s5 = add_scaled(s5, a[5], x);
        s6 = add_scaled(s6, a[6], x);
        s7 = add_scaled(s7, a[7], x);
    }
    [s0, s1, s2, s3, s4, s5, s6, s7]
}
