//! Computes `P Qᵀ` and its distance from a matrix.
//!
//! Every element is summed in f32 over the columns in order. So the sum after `r` columns equals the element of the
//! rank-`r` reconstruction, bit for bit.

use super::product::Matrix;
use super::{LANES, Row, add_scaled};
use crate::gradient::Element;
use crate::simd::dispatch_with;
use crate::spread::{Start, spread_parts};

/// A stored f32.
pub(crate) trait Scalar: Copy + Sync {
    fn value(self) -> f32;
}

impl Scalar for f32 {
    #[inline(always)]
    fn value(self) -> f32 {
        self
    }
}

/// A little-endian f32 without alignment.
impl Scalar for [u8; 4] {
    #[inline(always)]
    fn value(self) -> f32 {
        f32::from_le_bytes(self)
    }
}

/// A factor, `P` or `Q`, in any storage order.
pub(crate) trait Factor: Copy + Send {
    /// Loads rows `start .. start + out.len()` of column `c`.
    fn load(self, c: usize, start: usize, out: &mut [f32]);
}

/// Columns of `len` numbers, stored one after the other.
#[derive(Clone, Copy)]
pub(crate) struct Columns<'a, S> {
    pub(crate) values: &'a [S],
    pub(crate) len: usize,
}

impl<S: Scalar> Factor for Columns<'_, S> {
    #[inline(always)]
    fn load(self, c: usize, start: usize, out: &mut [f32]) {
        let column = &self.values[c * self.len + start..][..out.len()];
        out.iter_mut().zip(column).for_each(|(out, x)| *out = x.value());
    }
}

/// A factor in panels with `len` rows.
#[derive(Clone, Copy)]
pub(crate) struct Panels<'a> {
    pub(crate) rows: &'a [Row],
    pub(crate) len: usize,
}

impl Factor for Panels<'_> {
    #[inline(always)]
    fn load(self, c: usize, start: usize, out: &mut [f32]) {
        let panel = &self.rows[c / LANES * self.len + start..][..out.len()];
        out.iter_mut().zip(panel).for_each(|(out, row)| *out = row[c % LANES]);
    }
}

/// The product is computed in tiles of `TILE_ROWS` × `TILE_COLS` elements. `DEPTH` factor columns are loaded at a time.
/// The tile and the loaded entries take 32 KiB of stack.
const TILE_ROWS: usize = 32;
const TILE_COLS: usize = 64;
const DEPTH: usize = 64;
/// Number of rows whose sums are held in registers.
const BLOCK: usize = 4;

/// Computes `values = P Qᵀ` (row-major, `cols` columns), summed over the first `rank` columns of both factors. Returns
/// whether all values are finite.
pub(crate) fn reconstruct<F: Factor>(p: F, q: F, rank: usize, cols: usize, values: &mut [f32]) -> bool {
    put_product(p, q, rank, cols, values, |place, sum| *place = sum)
}

/// Computes `values += P Qᵀ` with the sums of [`reconstruct`]. Returns whether all results are finite.
pub(crate) fn add_product<F: Factor>(p: F, q: F, rank: usize, cols: usize, values: &mut [f32]) -> bool {
    put_product(p, q, rank, cols, values, |place, sum| *place += sum)
}

/// Computes `values −= P Qᵀ` with the sums of [`reconstruct`]. Returns whether all results are finite.
pub(crate) fn subtract_product<F: Factor>(p: F, q: F, rank: usize, cols: usize, values: &mut [f32]) -> bool {
    put_product(p, q, rank, cols, values, |place, sum| *place -= sum)
}

fn put_product<F: Factor>(
    p: F,
    q: F,
    rank: usize,
    cols: usize,
    values: &mut [f32],
    put: impl Fn(&mut f32, f32) + Copy + Send,
) -> bool {
    cols == 0 || spread_parts!(values.len(), cols, (Start(0), values), (p, q, rank, cols, put), product,)
}

/// Computes `squares[c] = ‖M − P Qᵀ‖²` for each `c` in `from..squares.len()`. The product uses only columns `..=c` of
/// `P` and `Q`.
pub(crate) fn residuals<T: Element, F: Factor>(m: Matrix<'_, T>, p: F, q: F, from: usize, squares: &mut [f64]) {
    squares[from..].fill(0.0);
    dispatch_with!((m, p, q, from, squares), add_residuals);
}

/// The entries of `P` and `Q` from which a tile of the product is computed, for up to `DEPTH` factor columns.
struct Slab {
    p: [[f32; TILE_ROWS]; DEPTH],
    q: [[f32; TILE_COLS]; DEPTH],
}

impl Slab {
    const EMPTY: Slab = Slab { p: [[0.0; TILE_ROWS]; DEPTH], q: [[0.0; TILE_COLS]; DEPTH] };

    #[inline(always)]
    fn load<F: Factor>(&mut self, p: F, q: F, columns: core::ops::Range<usize>, row: usize, tile: Tile) {
        for (c, (p_out, q_out)) in columns.zip(self.p.iter_mut().zip(&mut self.q)) {
            p.load(c, row + tile.row, &mut p_out[..tile.rows]);
            q.load(c, tile.col, &mut q_out[..tile.cols]);
        }
    }

    /// The factor entries for block row `b` and block column `k`, column by column.
    #[inline(always)]
    fn terms(&self, depth: usize, b: usize, k: usize) -> impl Iterator<Item = (&[f32; BLOCK], &Row)> {
        self.p[..depth].iter().zip(&self.q).map(move |(p, q)| (&p.as_chunks().0[b], &q.as_chunks().0[k]))
    }
}

#[inline(always)]
fn add_outer([a, b, c, d]: [Row; BLOCK], p: &[f32; BLOCK], &q: &Row) -> [Row; BLOCK] {
    [add_scaled(a, p[0], q), add_scaled(b, p[1], q), add_scaled(c, p[2], q), add_scaled(d, p[3], q)]
}

#[derive(Clone, Copy)]
struct Tile {
    row: usize,
    rows: usize,
    col: usize,
    cols: usize,
}

impl Tile {
    #[inline(always)]
    fn new(row: usize, rows: usize, col: usize, cols: usize) -> Tile {
        Tile { row, rows: TILE_ROWS.min(rows - row), col, cols: TILE_COLS.min(cols - col) }
    }

    /// All tiles of a matrix, row after row. In another order, decoding took three times as long.
    #[inline(always)]
    fn all(rows: usize, cols: usize) -> impl Iterator<Item = Tile> {
        (0..rows)
            .step_by(TILE_ROWS)
            .flat_map(move |row| (0..cols).step_by(TILE_COLS).map(move |col| Tile::new(row, rows, col, cols)))
    }

    /// Numbers (b, k) of a tile's blocks: b counts downwards, k to the right. A block has up to [`BLOCK`] rows and
    /// [`LANES`] columns.
    #[inline(always)]
    fn blocks(self) -> impl Iterator<Item = (usize, usize)> {
        (0..self.cols.div_ceil(LANES)).flat_map(move |k| (0..self.rows.div_ceil(BLOCK)).map(move |b| (b, k)))
    }
}

/// The sums of a tile, block by block.
type Sums = [[[Row; BLOCK]; TILE_ROWS / BLOCK]; TILE_COLS / LANES];

/// Computes some rows of the product. `start` is the index of the first value in these rows.
#[inline(always)]
fn product<F: Factor>(
    (Start(start), values): (Start, &mut [f32]),
    (p, q, rank, cols, put): (F, F, usize, usize, impl Fn(&mut f32, f32)),
) -> bool {
    let row = start / cols;
    let mut slab = Slab::EMPTY;
    let mut largest = [0; LANES];
    for tile in Tile::all(values.len() / cols, cols) {
        let mut sums: Sums = [[[[0.0; LANES]; BLOCK]; TILE_ROWS / BLOCK]; TILE_COLS / LANES];
        for from in (0..rank).step_by(DEPTH) {
            let depth = DEPTH.min(rank - from);
            slab.load(p, q, from..from + depth, row, tile);
            for (b, k) in tile.blocks() {
                // A `fold` would not be inlined, and would be compiled for the baseline instructions.
                let mut block = sums[k][b];
                for (p, q) in slab.terms(depth, b, k) {
                    block = add_outer(block, p, q);
                }
                sums[k][b] = block;
            }
        }
        for i in 0..tile.rows {
            let out = &mut values[(tile.row + i) * cols + tile.col..][..tile.cols];
            let (rows, rest) = out.as_chunks_mut::<LANES>();
            let whole = rows.len();
            for (k, out) in rows.iter_mut().enumerate() {
                put_sums(out, &sums[k][i / BLOCK][i % BLOCK], &put, &mut largest);
            }
            if !rest.is_empty() {
                put_sums(rest, &sums[whole][i / BLOCK][i % BLOCK], &put, &mut largest);
            }
        }
    }
    largest.into_iter().all(|largest| largest < f32::INFINITY.to_bits())
}

/// Puts the sums of a row of a block, and keeps the bits of the largest magnitude of each lane.
#[inline(always)]
fn put_sums(out: &mut [f32], sums: &Row, put: &impl Fn(&mut f32, f32), largest: &mut [u32; LANES]) {
    for ((out, &sum), largest) in out.iter_mut().zip(sums).zip(largest) {
        put(out, sum);
        *largest = (*largest).max(out.to_bits() & 0x7fff_ffff);
    }
}

#[inline(always)]
fn add_residuals<T: Element, F: Factor>((m, p, q, from, squares): (Matrix<'_, T>, F, F, usize, &mut [f64])) {
    let mut slab = Slab::EMPTY;
    for tile in Tile::all(m.rows, m.cols) {
        let mut sums: Sums = [[[[0.0; LANES]; BLOCK]; TILE_ROWS / BLOCK]; TILE_COLS / LANES];
        let mut values = sums;
        for i in 0..tile.rows {
            let row = &m.values[(tile.row + i) * m.cols + tile.col..][..tile.cols];
            for (k, row) in row.chunks(LANES).enumerate() {
                let out = &mut values[k][i / BLOCK][i % BLOCK];
                out.iter_mut().zip(row).for_each(|(out, x)| *out = x.to_f32());
            }
        }
        for start in (0..squares.len()).step_by(DEPTH) {
            let squares = &mut squares[start..];
            let depth = DEPTH.min(squares.len());
            let plain = from.saturating_sub(start).min(depth);
            slab.load(p, q, start..start + depth, 0, tile);
            slab.clear_beyond(tile);
            let mut partial = [[0.0f64; LANES]; DEPTH];
            for (b, k) in tile.blocks() {
                let mut block = sums[k][b];
                let mut terms = slab.terms(depth, b, k);
                for (p, q) in terms.by_ref().take(plain) {
                    block = add_outer(block, p, q);
                }
                for ((p, q), partial) in terms.zip(&mut partial[plain..]) {
                    block = add_outer(block, p, q);
                    add_squared_difference(partial, &values[k][b], &block);
                }
                sums[k][b] = block;
            }
            for (square, lanes) in squares.iter_mut().zip(&partial).take(depth).skip(plain) {
                *square += lanes.iter().sum::<f64>();
            }
        }
    }
}

impl Slab {
    /// Sets entries outside the tile to zero, because blocks may extend beyond it.
    #[inline(always)]
    fn clear_beyond(&mut self, tile: Tile) {
        self.p.iter_mut().for_each(|p| p[tile.rows..].fill(0.0));
        self.q.iter_mut().for_each(|q| q[tile.cols..].fill(0.0));
    }
}

#[inline(always)]
fn add_squared_difference(sums: &mut [f64; LANES], values: &[Row; BLOCK], products: &[Row; BLOCK]) {
    for l in 0..LANES {
        let mut sum = 0.0;
        for b in 0..BLOCK {
            let difference = values[b][l] as f64 - products[b][l] as f64;
            sum += difference * difference;
        }
        sums[l] += sum;
    }
}
