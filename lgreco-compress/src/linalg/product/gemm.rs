//! The products by `matrixmultiply`, through the safe interface of `ndarray`. `matrixmultiply` uses fused multiply-add
//! where the processor has it, so the last bits differ between processors.
//!
//! `M` is read in tiles of at most [`EDGE`] × [`EDGE`]. Each tile is multiplied with all columns of a factor at once.
//! An element of the result is summed in f32 over at most 256 terms (the block depth of `matrixmultiply`). The blocks
//! of a tile are summed in f32, and the tiles in f64. The order of these sums does not depend on the rank, so the rank
//! does not change the bits.

use super::Matrix;
use crate::gradient::{Dtype, Element};
use crate::linalg::{LANES, Row, panels};
use crate::simd::dispatch_with;
use core::ops::Range;
use ndarray::linalg::general_mat_mul;
use ndarray::{ArrayView2, ArrayViewMut2, ShapeBuilder};

const EDGE: usize = 512;

/// Scratch words of a product: a widened tile, [`EDGE`] rows of both factors, and the sums of [`EDGE`] rows.
pub(crate) const fn scratch_words(rank: usize) -> usize {
    (EDGE + 4 * panels(rank) * LANES) * EDGE / 2
}

/// Computes `P = M Q` from `q` (cols × rank) into `p` (rows × rank), both in panels. `scratch` has [`scratch_words`].
pub(crate) fn project<T: Element>(m: Matrix<'_, T>, q: &[Row], p: &mut [Row], rank: usize, scratch: &mut [u64]) {
    debug_assert!(q.len() == panels(rank) * m.cols && p.len() == panels(rank) * m.rows);
    let mut scratch = Scratch::split(scratch, rank);
    for rows in ranges(m.rows) {
        scratch.clear();
        for cols in ranges(m.cols) {
            scratch.add_product(q, m.cols, cols.clone(), |wide| m.view(rows.clone(), cols, wide));
        }
        scratch.store(p, m.rows, rows);
    }
}

/// Computes `Q = Mᵀ P` from `p` (rows × rank) into `q` (cols × rank), both in panels. `scratch` has [`scratch_words`].
pub(crate) fn back_project<T: Element>(m: Matrix<'_, T>, p: &[Row], q: &mut [Row], rank: usize, scratch: &mut [u64]) {
    debug_assert!(q.len() == panels(rank) * m.cols && p.len() == panels(rank) * m.rows);
    let mut scratch = Scratch::split(scratch, rank);
    for cols in ranges(m.cols) {
        scratch.clear();
        for rows in ranges(m.rows) {
            scratch.add_product(p, m.rows, rows.clone(), |wide| m.view(rows, cols.clone(), wide).reversed_axes());
        }
        scratch.store(q, m.cols, cols);
    }
}

/// Splits `0 .. len` at the multiples of [`EDGE`].
fn ranges(len: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(EDGE).map(move |start| start..len.min(start + EDGE))
}

impl<T: Element> Matrix<'_, T> {
    /// A tile as f32: a view into `M`, or a copy widened into `wide`.
    fn view<'a>(&'a self, rows: Range<usize>, cols: Range<usize>, wide: &'a mut [f32]) -> ArrayView2<'a, f32> {
        let place = rows.start * self.cols + cols.start;
        if T::DTYPE == Dtype::F32 {
            return matrix(&bytemuck::cast_slice(self.values)[place..], rows.len(), cols.len(), self.cols);
        }
        let values = self.values[place..].chunks(self.cols).take(rows.len());
        dispatch_with!(values.zip(wide.chunks_exact_mut(cols.len())), widen);
        matrix(wide, rows.len(), cols.len(), cols.len())
    }
}

#[inline(always)]
fn widen<'a, T: Element>(rows: impl Iterator<Item = (&'a [T], &'a mut [f32])>) {
    rows.for_each(|(values, out)| out.iter_mut().zip(values).for_each(|(out, x)| *out = x.to_f32()));
}

/// Scratch memory of one product. Rows of both factors are contiguous, as `matrixmultiply` requires.
struct Scratch<'a> {
    wide: &'a mut [f32],
    factor: &'a mut [Row],
    product: &'a mut [Row],
    sums: &'a mut [[f64; LANES]],
    rank: usize,
}

impl<'a> Scratch<'a> {
    fn split(words: &'a mut [u64], rank: usize) -> Self {
        let (wide, rest) = bytemuck::cast_slice_mut(words).split_at_mut(EDGE * EDGE);
        let rows = EDGE * panels(rank);
        let (factors, sums) = rest.split_at_mut(2 * rows * LANES);
        let (factor, product) = factors.as_chunks_mut().0.split_at_mut(rows);
        product.fill([0.0; LANES]);
        let sums = bytemuck::cast_slice_mut::<f32, f64>(sums).as_chunks_mut().0;
        Scratch { wide, factor, product, sums: &mut sums[..rows], rank }
    }

    fn clear(&mut self) {
        self.sums.fill([0.0; LANES]);
    }

    /// Adds the product of a tile and the rows `range` of `factor`, which has `len` rows.
    fn add_product<'b>(
        &'b mut self,
        factor: &[Row],
        len: usize,
        range: Range<usize>,
        tile: impl FnOnce(&'b mut [f32]) -> ArrayView2<'b, f32>,
    ) {
        let tile = tile(self.wide);
        let width = panels(self.rank);
        for (panel, rows) in factor.chunks_exact(len).enumerate() {
            let out = self.factor[panel..].iter_mut().step_by(width);
            out.zip(&rows[range.clone()]).for_each(|(out, row)| *out = *row);
        }
        let factor = matrix(self.factor.as_flattened(), range.len(), self.rank, width * LANES);
        let shape = (tile.nrows(), self.rank).strides((width * LANES, 1));
        let mut product =
            ArrayViewMut2::from_shape(shape, self.product.as_flattened_mut()).expect("a tile has EDGE rows");
        general_mat_mul(1.0, &tile, &factor, 0.0, &mut product);
        let rows = tile.nrows() * width;
        for (sums, product) in self.sums[..rows].iter_mut().zip(&self.product[..rows]) {
            sums.iter_mut().zip(product).for_each(|(sum, &x)| *sum += x as f64);
        }
    }

    /// Rounds the sums to f32 in the rows `range` of `factor`, which has `len` rows.
    fn store(&self, factor: &mut [Row], len: usize, range: Range<usize>) {
        let width = panels(self.rank);
        for (panel, rows) in factor.chunks_exact_mut(len).enumerate() {
            let sums = self.sums[panel..].iter().step_by(width);
            rows[range.clone()].iter_mut().zip(sums).for_each(|(row, sums)| *row = sums.map(|sum| sum as f32));
        }
    }
}

/// A view of `rows` rows of `cols` numbers, where rows are `stride` numbers apart.
fn matrix(values: &[f32], rows: usize, cols: usize, stride: usize) -> ArrayView2<'_, f32> {
    ArrayView2::from_shape((rows, cols).strides((stride, 1)), values).expect("the tile lies within the matrix")
}
