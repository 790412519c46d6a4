//! Small dense linear algebra: tall-skinny products and orthonormal columns.
//!
//! A factor (`len` × `rank`) is stored in *panels* of [`LANES`] columns. Panel `p` holds columns `LANES * p ..`, row
//! after row, and zeros beyond the rank. Every loop runs over the lanes of a panel. The result in a lane depends only
//! on its column and earlier columns. So the first `r` columns of any result equal the result for rank `r`, bit for
//! bit, on every instruction set. With the feature `gemm`, the first `r` columns still equal the result for rank `r`,
//! but different instruction sets give different bits.

mod low_rank;
mod orthonormal;
mod product;

pub(crate) use low_rank::{Columns, Panels, add_product, reconstruct, residuals, subtract_product};
pub(crate) use orthonormal::{orthonormalise, squared_norms};
pub(crate) use product::{Matrix, back_project, project, scratch_words};

/// Number of columns in a panel.
pub(crate) const LANES: usize = 16;

/// One row of a panel.
pub(crate) type Row = [f32; LANES];

/// Number of panels that hold `rank` columns.
pub(crate) const fn panels(rank: usize) -> usize {
    rank.div_ceil(LANES)
}

/// Workspace words of a factor with `len` rows and `rank` columns. Saturates at `usize::MAX`, which no workspace has.
pub(crate) const fn factor_words(len: usize, rank: usize) -> usize {
    panels(rank).saturating_mul(len).saturating_mul(LANES / 2)
}

/// Views workspace words as the rows of panels.
pub(crate) fn rows_mut(words: &mut [u64]) -> &mut [Row] {
    bytemuck::cast_slice_mut::<u64, f32>(words).as_chunks_mut().0
}

/// Copies consecutive columns into panels.
pub(crate) fn pack(columns: &[f32], len: usize, factor: &mut [Row]) {
    factor.fill([0.0; LANES]);
    for (c, column) in columns.chunks_exact(len.max(1)).enumerate() {
        let panel = &mut factor[c / LANES * len..][..len];
        panel.iter_mut().zip(column).for_each(|(row, &x)| row[c % LANES] = x);
    }
}

/// Copies columns out of panels; `put` is called with each position and value.
pub(crate) fn unpack(factor: &[Row], len: usize, rank: usize, mut put: impl FnMut(usize, f32)) {
    for c in 0..rank {
        let panel = &factor[c / LANES * len..][..len];
        panel.iter().enumerate().for_each(|(k, row)| put(c * len + k, row[c % LANES]));
    }
}

/// Power of two that scales the magnitude `largest` into [1, 2). The result is 1 for zero, and limited to the range of
/// f32.
#[inline(always)]
pub(crate) fn to_unit(largest: f32) -> f32 {
    let exponent = largest.to_bits() >> 23;
    if largest == 0.0 { 1.0 } else { f32::from_bits((254 - exponent.min(253)) << 23) }
}

/// Computes `sum + a · x`, lane by lane.
#[inline(always)]
fn add_scaled(sum: Row, a: f32, x: Row) -> Row {
    core::array::from_fn(|l| sum[l] + a * x[l])
}

/// Largest magnitude in each lane.
#[inline(always)]
pub(crate) fn largest(panel: &[Row]) -> Row {
    let mut largest = [0.0f32; LANES];
    for row in panel {
        for l in 0..LANES {
            let x = row[l].abs();
            largest[l] = if x > largest[l] { x } else { largest[l] };
        }
    }
    largest
}

/// Multiplies each lane by its factor.
#[inline(always)]
pub(crate) fn scale(panel: &mut [Row], factor: &Row) {
    for row in panel {
        for l in 0..LANES {
            row[l] *= factor[l];
        }
    }
}
