//! Tables of matrices and their factors. The kernels in `factors.cu` and `orthonormal.cu` read such a table to process
//! many matrices per launch. How the work on a matrix is divided depends only on the shape of the matrix.

use crate::device::BLOCK;
use crate::{Error, Result};
use bytemuck::{Pod, Zeroable};
use lgreco::gradient::Shape;

/// The struct `Factors` in `factors.cu`, with the same layout.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Factors {
    pub(crate) values: u64,
    p: u64,
    sum: u64,
    q: u64,
    partial: u64,
    gram: u64,
    triangle: u64,
    rows: u32,
    cols: u32,
    columns: u32,
    chunk: u32,
    chunks: u32,
    back_chunk: u32,
    back_chunks: u32,
    stretch: u32,
    stretches: u32,
    counter: u32,
    first_column: u32,
    first_product: u32,
    first_back: u32,
    first_gram: u32,
    first_solve: u32,
    first_tile: u32,
    pub(crate) layer: u32,
    pub(crate) id: u32,
}

#[cfg(test)]
impl Factors {
    pub(crate) const FIELDS: &[(&'static str, usize)] = &[
        ("values", std::mem::offset_of!(Factors, values)),
        ("p", std::mem::offset_of!(Factors, p)),
        ("sum", std::mem::offset_of!(Factors, sum)),
        ("q", std::mem::offset_of!(Factors, q)),
        ("partial", std::mem::offset_of!(Factors, partial)),
        ("gram", std::mem::offset_of!(Factors, gram)),
        ("triangle", std::mem::offset_of!(Factors, triangle)),
        ("rows", std::mem::offset_of!(Factors, rows)),
        ("cols", std::mem::offset_of!(Factors, cols)),
        ("columns", std::mem::offset_of!(Factors, columns)),
        ("chunk", std::mem::offset_of!(Factors, chunk)),
        ("chunks", std::mem::offset_of!(Factors, chunks)),
        ("back_chunk", std::mem::offset_of!(Factors, back_chunk)),
        ("back_chunks", std::mem::offset_of!(Factors, back_chunks)),
        ("stretch", std::mem::offset_of!(Factors, stretch)),
        ("stretches", std::mem::offset_of!(Factors, stretches)),
        ("counter", std::mem::offset_of!(Factors, counter)),
        ("first_column", std::mem::offset_of!(Factors, first_column)),
        ("first_product", std::mem::offset_of!(Factors, first_product)),
        ("first_back", std::mem::offset_of!(Factors, first_back)),
        ("first_gram", std::mem::offset_of!(Factors, first_gram)),
        ("first_solve", std::mem::offset_of!(Factors, first_solve)),
        ("first_tile", std::mem::offset_of!(Factors, first_tile)),
        ("layer", std::mem::offset_of!(Factors, layer)),
        ("id", std::mem::offset_of!(Factors, id)),
    ];
}

/// Rows of a product's tile. A block computes one tile.
const OUTER: u32 = 64;
/// Largest number of columns of a product's tile.
const WIDEST: u32 = 16;
/// Number of terms of an inner product that the warps of a block fetch together.
const DEPTH: u32 = 32;
/// Largest number of terms of an inner product that are added in f32.
const CHUNK: u32 = 4096;
/// Target for the number of blocks that share a product, if the product has enough terms.
const SPREAD: u32 = 1024;
/// Least number of rows that a thread adds up for an inner product.
const STRETCH: u32 = 128;
/// Largest number of parts of an inner product.
const STRETCHES: u32 = 64;
/// Number of rows, and of columns, of the part of a Gram matrix that a block computes.
const EDGE: u32 = 16;
/// Number of rows of a tile of `P Qᵀ`. A block computes one tile.
const HIGH: usize = 64;
/// Number of columns of a tile of `P Qᵀ`.
const SIDE: usize = 32;

/// Number of tiles of `P Qᵀ`, the product of the factors.
pub(crate) fn tiles(shape: Shape) -> u64 {
    shape.rows().div_ceil(HIGH) as u64 * shape.cols().div_ceil(SIDE) as u64
}

/// The size of each buffer, and the number of pieces of work for each kernel, over all matrices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Number of f32 values in all `P`.
    pub(crate) p: u64,
    /// Number of f32 values in all `Q`.
    pub(crate) q: u64,
    /// Number of f32 values in the chunks of all products. The two products of a matrix use the same memory in turn, so
    /// each matrix counts only its larger product.
    pub(crate) partial: u64,
    /// Number of f64 values in all parts of Gram matrices.
    pub(crate) gram: u64,
    /// Number of f64 values in the triangular factors of all Gram matrices.
    pub(crate) triangle: u64,
    pub(crate) counters: u32,
    /// Number of columns of all `P`.
    pub(crate) columns: u32,
    /// Number of pieces of work of the first product, over all matrices. The next four fields have the numbers for the
    /// other kernels.
    pub(crate) products: u32,
    pub(crate) backs: u32,
    pub(crate) grams: u32,
    pub(crate) solves: u32,
    pub(crate) tiles: u32,
}

/// How the work of a matrix product is divided into chunks and blocks.
struct Division {
    chunk: u32,
    chunks: u32,
    /// Blocks per chunk.
    across: u64,
}

impl Division {
    fn new(outer: u32, inner: u32, columns: u32) -> Division {
        let tiles = outer.div_ceil(OUTER);
        // The chunk size does not depend on the number of columns, so the bits of a column do not depend on it either.
        let chunk = inner.div_ceil((SPREAD / tiles.max(1)).max(1)).next_multiple_of(DEPTH).clamp(8 * DEPTH, CHUNK);
        let across = u64::from(tiles) * u64::from(columns.div_ceil(WIDEST));
        Division { chunk, chunks: inner.div_ceil(chunk), across }
    }

    fn pieces(&self) -> u64 {
        self.across * u64::from(self.chunks)
    }

    /// Number of f32 values in all chunks of a product. The number is 0 for a single chunk, which needs no partial
    /// sums.
    fn partial(&self, outer: u32, columns: u32) -> u64 {
        if self.chunks > 1 { u64::from(self.chunks) * u64::from(outer) * u64::from(columns) } else { 0 }
    }
}

/// A table of matrices, and the total sizes and amounts of work of these matrices.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    pub(crate) matrices: Vec<Factors>,
    pub(crate) totals: Totals,
}

impl Table {
    /// Sets the index at which the `P` of the last matrix begins in the buffer of the first sum.
    pub(crate) fn place_sum(&mut self, at: u64) {
        if let Some(last) = self.matrices.last_mut() {
            last.sum = at;
        }
    }

    /// Adds a matrix of this shape with factors of `columns` columns, at most its smaller side. The values of the
    /// matrix begin at index `values`.
    ///
    /// # Errors
    /// [`TooManyElements`](lgreco::Error::TooManyElements) if the number of pieces of work of a kernel exceeds u32.
    pub(crate) fn add(&mut self, shape: Shape, columns: u32, values: u64, layer: u32, id: u32) -> Result<()> {
        let (rows, cols) = (shape.rows() as u32, shape.cols() as u32);
        let (product, back) = (Division::new(rows, cols, columns), Division::new(cols, rows, columns));
        let stretch = rows.div_ceil(STRETCHES).next_multiple_of(DEPTH).max(STRETCH);
        let stretches = rows.div_ceil(stretch);
        let side = u64::from(columns.div_ceil(EDGE));
        let grams = side * (side + 1) / 2 * u64::from(stretches);
        let all = &mut self.totals;
        self.matrices.push(Factors {
            values,
            p: all.p,
            sum: 0,
            q: all.q,
            partial: all.partial,
            gram: all.gram,
            triangle: all.triangle,
            rows,
            cols,
            columns,
            chunk: product.chunk,
            chunks: product.chunks,
            back_chunk: back.chunk,
            back_chunks: back.chunks,
            stretch,
            stretches,
            counter: all.counters,
            first_column: all.columns,
            first_product: all.products,
            first_back: all.backs,
            first_gram: all.grams,
            first_solve: all.solves,
            first_tile: all.tiles,
            layer,
            id,
        });
        let count = |total: &mut u32, more: u64| {
            let sum = u32::try_from(u64::from(*total) + more);
            *total = sum.map_err(|_| lgreco::Error::TooManyElements { rows: shape.rows(), cols: shape.cols() })?;
            Ok::<(), Error>(())
        };
        let of = |len: u32| u64::from(len) * u64::from(columns);
        all.p += of(rows);
        all.q += of(cols);
        all.partial += product.partial(rows, columns).max(back.partial(cols, columns));
        all.gram += grams * u64::from(BLOCK);
        all.triangle += of(columns);
        count(&mut all.counters, 1 + product.across.max(back.across))?;
        count(&mut all.columns, columns.into())?;
        count(&mut all.products, product.pieces())?;
        count(&mut all.backs, back.pieces())?;
        count(&mut all.grams, grams)?;
        count(&mut all.solves, if columns > 0 { rows.div_ceil(BLOCK).into() } else { 0 })?;
        count(&mut all.tiles, tiles(shape))
    }
}
