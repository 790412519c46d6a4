//! The products in plain loops: the same bits on every processor, without an allocator.
//!
//! `M` is read in tiles that are widened to f32 and copied next to each other, so that no stride of the tensor makes
//! cache lines collide. An element of the result is summed in f32 over one tile edge (at most [`TILE_COLS`] or
//! [`TILE_ROWS`] terms), then tile after tile: short chains keep rounding errors near 1e-7.

use super::{BLOCK, Matrix, inner_sums, outer_sums};
use crate::gradient::Element;
use crate::linalg::{LANES, Row, panels};
use crate::simd::{Kernel, dispatch};

const TILE_ROWS: usize = 64;
const TILE_COLS: usize = 256;
/// Padded, so that rows of a tile fall into different cache sets.
const STRIDE: usize = TILE_COLS + 16;
/// Scratch words of a product.
pub(crate) const fn scratch_words(_rank: usize) -> usize {
    TILE_ROWS * STRIDE / 2
}

/// `P = M Q`: `p` (rows × rank) from `q` (cols × rank), both in panels; `scratch` of [`scratch_words`].
pub(crate) fn project<T: Element>(m: Matrix<'_, T>, q: &[Row], p: &mut [Row], rank: usize, scratch: &mut [u64]) {
    debug_assert!(q.len() == panels(rank) * m.cols && p.len() == panels(rank) * m.rows);
    dispatch(Project { m, q, p, rank, tile: bytemuck::cast_slice_mut(scratch) });
}

/// `Q = Mᵀ P`: `q` (cols × rank) from `p` (rows × rank), both in panels; `scratch` of [`scratch_words`].
pub(crate) fn back_project<T: Element>(m: Matrix<'_, T>, p: &[Row], q: &mut [Row], rank: usize, scratch: &mut [u64]) {
    debug_assert!(q.len() == panels(rank) * m.cols && p.len() == panels(rank) * m.rows);
    dispatch(BackProject { m, p, q, rank, tile: bytemuck::cast_slice_mut(scratch) });
}

struct Project<'a, T> {
    m: Matrix<'a, T>,
    q: &'a [Row],
    p: &'a mut [Row],
    rank: usize,
    tile: &'a mut [f32],
}

struct BackProject<'a, T> {
    m: Matrix<'a, T>,
    p: &'a [Row],
    q: &'a mut [Row],
    rank: usize,
    tile: &'a mut [f32],
}

/// A tile's place in the matrix.
#[derive(Clone, Copy)]
struct Place {
    row: usize,
    rows: usize,
    col: usize,
    cols: usize,
}

impl<T: Element> Matrix<'_, T> {
    #[inline(always)]
    fn place(&self, row: usize, col: usize) -> Place {
        Place { row, rows: TILE_ROWS.min(self.rows - row), col, cols: TILE_COLS.min(self.cols - col) }
    }

    #[inline(always)]
    fn copy_tile(&self, at: Place, tile: &mut [f32]) {
        for (i, out) in tile.chunks_exact_mut(STRIDE).take(at.rows).enumerate() {
            let values = &self.values[(at.row + i) * self.cols + at.col..][..at.cols];
            for (out, x) in out.iter_mut().zip(values) {
                *out = x.to_f32();
            }
        }
    }
}

#[inline(always)]
fn add_to(rows: &mut [Row], sums: &[Row; BLOCK]) {
    for (row, sum) in rows.iter_mut().zip(sums) {
        for l in 0..LANES {
            row[l] += sum[l];
        }
    }
}

impl<T: Element> Kernel for Project<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        let Project { m, q, p, rank, tile } = self;
        p.fill([0.0; LANES]);
        for row in (0..m.rows).step_by(TILE_ROWS) {
            for col in (0..m.cols).step_by(TILE_COLS) {
                let at = m.place(row, col);
                m.copy_tile(at, tile);
                for panel in 0..panels(rank) {
                    let q = &q[panel * m.cols + at.col..][..at.cols];
                    let p = &mut p[panel * m.rows + at.row..][..at.rows];
                    for (out, block) in p.chunks_mut(BLOCK).zip(tile.chunks_exact(BLOCK * STRIDE)) {
                        let a: [&[f32]; BLOCK] = core::array::from_fn(|b| &block[b * STRIDE..][..STRIDE]);
                        add_to(out, &inner_sums(a, q));
                    }
                }
            }
        }
    }
}

impl<T: Element> Kernel for BackProject<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        let BackProject { m, p, q, rank, tile } = self;
        q.fill([0.0; LANES]);
        for row in (0..m.rows).step_by(TILE_ROWS) {
            for col in (0..m.cols).step_by(TILE_COLS) {
                let at = m.place(row, col);
                m.copy_tile(at, tile);
                for panel in 0..panels(rank) {
                    let p = &p[panel * m.rows + at.row..][..at.rows];
                    let q = &mut q[panel * m.cols + at.col..][..at.cols];
                    for (block, out) in q.chunks_mut(BLOCK).enumerate() {
                        add_to(out, &outer_sums(&tile[block * BLOCK..], STRIDE, p));
                    }
                }
            }
        }
    }
}
