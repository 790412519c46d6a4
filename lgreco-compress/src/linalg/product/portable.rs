//! The products by plain loops: the same bits on every processor, without an allocator.
//!
//! `M` is read in tiles. Each tile is widened to f32 and copied to contiguous memory, so that no stride of the tensor
//! makes cache lines collide. An element of the result is summed in f32 over one tile edge (at most [`TILE_COLS`] or
//! [`TILE_ROWS`] terms). These sums are added in f64 over the tiles, and rounded once. So rounding errors do not grow
//! with the length of the matrix.

use super::{BLOCK, Matrix, inner_sums, outer_sums};
use crate::gradient::Element;
use crate::linalg::{LANES, Row, panels};
use crate::simd::{Kernel, dispatch};
use crate::spread::{Divide, spread};

const TILE_ROWS: usize = 64;
const TILE_COLS: usize = 256;
/// Distance between rows of a tile, padded so that rows fall into different cache sets.
const STRIDE: usize = TILE_COLS + 16;

/// Scratch words of a product: a tile, and sums for each of its columns or rows.
pub(crate) const fn scratch_words(rank: usize) -> usize {
    TILE_ROWS * STRIDE / 2 + panels(rank) * TILE_COLS * LANES
}

/// Computes `P = M Q` from `q` (cols × rank) into `p` (rows × rank), both in panels. `scratch` has [`scratch_words`].
pub(crate) fn project<T: Element>(m: Matrix<'_, T>, q: &[Row], p: &mut [Row], rank: usize, scratch: &mut [u64]) {
    debug_assert!(q.len() == panels(rank) * m.cols && p.len() == panels(rank) * m.rows);
    spread(Project { m, q, p, scratch: Scratch::split(scratch, rank) });
}

/// Computes `Q = Mᵀ P` from `p` (rows × rank) into `q` (cols × rank), both in panels. `scratch` has [`scratch_words`].
pub(crate) fn back_project<T: Element>(m: Matrix<'_, T>, p: &[Row], q: &mut [Row], rank: usize, scratch: &mut [u64]) {
    debug_assert!(q.len() == panels(rank) * m.cols && p.len() == panels(rank) * m.rows);
    spread(BackProject { m, first: 0, cols: m.cols, p, q, scratch: Scratch::split(scratch, rank) });
}

struct Project<'a, T> {
    m: Matrix<'a, T>,
    q: &'a [Row],
    p: &'a mut [Row],
    scratch: Scratch<'a>,
}

struct BackProject<'a, T> {
    m: Matrix<'a, T>,
    /// First column of this part; `q` holds the rows of the result for columns `first .. first + cols`.
    first: usize,
    cols: usize,
    p: &'a [Row],
    q: &'a mut [Row],
    scratch: Scratch<'a>,
}

/// Position and size of a tile in the matrix.
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

/// Scratch memory of one product: a tile of `M`, and the sums of `TILE_COLS` rows of a result, panel after panel.
struct Scratch<'a> {
    tile: &'a mut [f32],
    sums: &'a mut [[f64; LANES]],
}

impl<'a> Scratch<'a> {
    /// An empty placeholder for a part that runs on another core. On that core, `with` provides the memory.
    fn none() -> Self {
        Scratch { tile: &mut [], sums: &mut [] }
    }

    /// Runs `work` with this memory. An empty placeholder is replaced by memory on the stack, enough for factors of one
    /// panel.
    fn with<R>(self, work: impl FnOnce(Scratch<'_>) -> R) -> R {
        if self.tile.is_empty() {
            let (mut tile, mut sums) = ([0.0; TILE_ROWS * STRIDE], [[0.0; LANES]; TILE_COLS]);
            return work(Scratch { tile: &mut tile, sums: &mut sums });
        }
        work(self)
    }

    fn split(words: &'a mut [u64], rank: usize) -> Self {
        let (tile, sums) = words.split_at_mut(TILE_ROWS * STRIDE / 2);
        let sums = bytemuck::cast_slice_mut::<u64, f64>(sums).as_chunks_mut().0;
        Scratch { tile: bytemuck::cast_slice_mut(tile), sums: &mut sums[..panels(rank) * TILE_COLS] }
    }

    /// Sets the sums of `rows` rows to zero.
    #[inline(always)]
    fn clear(&mut self, rows: usize) {
        self.sums.chunks_exact_mut(TILE_COLS).for_each(|sums| sums[..rows].fill([0.0; LANES]));
    }

    /// Rounds the sums to f32 in the rows `start .. start + rows` of `factor`, which has `len` rows.
    #[inline(always)]
    fn store(&self, factor: &mut [Row], len: usize, start: usize, rows: usize) {
        for (panel, sums) in self.sums.chunks_exact(TILE_COLS).enumerate() {
            for (row, sums) in factor[panel * len + start..][..rows].iter_mut().zip(sums) {
                for l in 0..LANES {
                    row[l] = sums[l] as f32;
                }
            }
        }
    }
}

#[inline(always)]
fn add_to(rows: &mut [[f64; LANES]], sums: &[Row; BLOCK]) {
    for (row, sum) in rows.iter_mut().zip(sums) {
        for l in 0..LANES {
            row[l] += sum[l] as f64;
        }
    }
}

impl<T: Element> Kernel for Project<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        let Project { m, q, p, mut scratch } = self;
        for row in (0..m.rows).step_by(TILE_ROWS) {
            let rows = TILE_ROWS.min(m.rows - row);
            scratch.clear(rows);
            for col in (0..m.cols).step_by(TILE_COLS) {
                let at = m.place(row, col);
                m.copy_tile(at, scratch.tile);
                for (panel, sums) in scratch.sums.chunks_exact_mut(TILE_COLS).enumerate() {
                    let q = &q[panel * m.cols + at.col..][..at.cols];
                    for (out, block) in sums[..rows].chunks_mut(BLOCK).zip(scratch.tile.chunks_exact(BLOCK * STRIDE)) {
                        let a: [&[f32]; BLOCK] = core::array::from_fn(|b| &block[b * STRIDE..][..STRIDE]);
                        add_to(out, &inner_sums(a, q));
                    }
                }
            }
            scratch.store(p, m.rows, row, rows);
        }
    }
}

impl<T: Element> Divide for Project<'_, T> {
    fn elements(&self) -> usize {
        self.m.values.len()
    }

    /// Divides the loop between two rows of tiles. Returns `Err` if the factors have several panels.
    fn divide(self, at: usize) -> Result<(Self, Self), Self> {
        let Matrix { values, rows, cols } = self.m;
        let above = at / cols.max(1) / TILE_ROWS * TILE_ROWS;
        if self.p.len() != rows || above == 0 {
            return Err(self);
        }
        let Project { q, p, scratch, .. } = self;
        let ((values, others), (p, other_p)) = (values.split_at(above * cols), p.split_at_mut(above));
        let below = Matrix { values: others, rows: rows - above, cols };
        let second = Project { m: below, q, p: other_p, scratch: Scratch::none() };
        Ok((Project { m: Matrix { values, rows: above, cols }, q, p, scratch }, second))
    }

    #[inline(never)] // its scratch memory is on the stack
    fn start(self) {
        let Project { m, q, p, scratch } = self;
        scratch.with(|scratch| dispatch(Project { m, q, p, scratch }));
    }
}

impl<T: Element> Divide for BackProject<'_, T> {
    fn elements(&self) -> usize {
        self.m.rows * self.cols
    }

    /// Divides the loop between two columns of tiles. Returns `Err` if the factors have several panels.
    fn divide(self, at: usize) -> Result<(Self, Self), Self> {
        let left = at / self.m.rows.max(1) / TILE_COLS * TILE_COLS;
        if self.p.len() != self.m.rows || left == 0 {
            return Err(self);
        }
        let BackProject { m, first, cols, p, q, scratch } = self;
        let (q, other_q) = q.split_at_mut(left);
        let second = BackProject { m, first: first + left, cols: cols - left, p, q: other_q, scratch: Scratch::none() };
        Ok((BackProject { m, first, cols: left, p, q, scratch }, second))
    }

    #[inline(never)] // its scratch memory is on the stack
    fn start(self) {
        let BackProject { m, first, cols, p, q, scratch } = self;
        scratch.with(|scratch| dispatch(BackProject { m, first, cols, p, q, scratch }));
    }
}

impl<T: Element> Kernel for BackProject<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        let BackProject { m, first, cols: all_cols, p, q, mut scratch } = self;
        for col in (0..all_cols).step_by(TILE_COLS) {
            let cols = TILE_COLS.min(all_cols - col);
            scratch.clear(cols);
            for row in (0..m.rows).step_by(TILE_ROWS) {
                let mut at = m.place(row, first + col);
                at.cols = cols;
                m.copy_tile(at, scratch.tile);
                for (panel, sums) in scratch.sums.chunks_exact_mut(TILE_COLS).enumerate() {
                    let p = &p[panel * m.rows + at.row..][..at.rows];
                    for (block, out) in sums[..cols].chunks_mut(BLOCK).enumerate() {
                        add_to(out, &outer_sums(&scratch.tile[block * BLOCK..], STRIDE, p));
                    }
                }
            }
            scratch.store(q, all_cols, col, cols);
        }
    }
}
