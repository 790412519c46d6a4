//! The two products of PowerSGD, `M Q` and `Mᵀ P`, without transposing `M`.
//!
//! `M` is read once per product, in tiles that are widened to f32 and copied next to each other, so that no stride of
//! the tensor makes cache lines collide. An element of the result is summed in f32 over one tile edge (at most
//! [`TILE_COLS`] or [`TILE_ROWS`] terms), then tile after tile: short chains keep rounding errors near 1e-7.

use super::{LANES, Row, add_scaled, panels};
use crate::gradient::Element;
use crate::simd::{Kernel, dispatch};

const TILE_ROWS: usize = 64;
const TILE_COLS: usize = 256;
/// Padded, so that rows of a tile fall into different cache sets.
const STRIDE: usize = TILE_COLS + 16;
/// Rows (of the result) whose sums are held in registers.
const BLOCK: usize = 8;

/// Workspace words for one tile.
pub(crate) const TILE_WORDS: usize = TILE_ROWS * STRIDE / 2;

/// A row-major matrix of any element type.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a, T> {
    pub(crate) values: &'a [T],
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

/// `P = M Q`: `p` (rows × rank) from `q` (cols × rank), both in panels; `tile` is scratch of [`TILE_WORDS`].
pub(crate) fn project<T: Element>(m: Matrix<'_, T>, q: &[Row], p: &mut [Row], rank: usize, tile: &mut [u64]) {
    debug_assert!(q.len() == panels(rank) * m.cols && p.len() == panels(rank) * m.rows);
    dispatch(Project { m, q, p, rank, tile: bytemuck::cast_slice_mut(tile) });
}

/// `Q = Mᵀ P`: `q` (cols × rank) from `p` (rows × rank), both in panels; `tile` is scratch of [`TILE_WORDS`].
pub(crate) fn back_project<T: Element>(m: Matrix<'_, T>, p: &[Row], q: &mut [Row], rank: usize, tile: &mut [u64]) {
    debug_assert!(q.len() == panels(rank) * m.cols && p.len() == panels(rank) * m.rows);
    dispatch(BackProject { m, p, q, rank, tile: bytemuck::cast_slice_mut(tile) });
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

/// Σ over k of `a[b][k] · x[k]`, for each b. The sums have names because arrays of them do not stay in registers.
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

/// Σ over i of `a[i][b] · x[i]`, for each b; `a` has one row every `stride` numbers, the first `BLOCK` of which count.
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
