//! Layers under PowerSGD: what `exchange_factors.wgsl` is told of all of them, and how the work on each is divided, by its shape
//! alone.

use crate::Error;
use crate::factor::SIDE;
use crate::orthonormal::{self, Tall};
use crate::params::params;
use crate::powersgd;
use lgreco_core::gradient::Shape;
use std::ops::Range;

params! {
    /// `Params` of `exchange_factors.wgsl`.
    number, start, p, q, partial, inner, all_rows, all_cols, columns, chunks, chunk_rows, layer,
    seed_low, seed_high, step, rank,
}

/// Terms of a product that one workgroup adds up.
const CHUNK: usize = 1024;

/// What a workgroup works on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Piece {
    /// Of either factor.
    Column,
    /// Of the matrix' product with `Q`: some rows and columns of it, some terms.
    Product,
    /// Elements of that product.
    Sum,
    /// Of the transposed matrix' product with `P`.
    Back,
    BackSum,
    /// Rows of `P` that one workgroup makes orthonormal.
    Chunk,
    /// Triangles of all chunks, where these are several.
    Triangles,
    /// Rows of such a `P`.
    Rows,
    /// Of the factors' product.
    Tile,
}

const PIECES: usize = 9;

/// The matrices of a bucket.
#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) matrices: Vec<Params>,
    /// The triangles of those of them whose `P` has several chunks, as matrices.
    pub(crate) triangles: Vec<Params>,
    /// How each of `matrices` is made orthonormal.
    tall: Vec<Tall>,
    /// Of each kind and workgroup the matrix, and the number of the piece of it.
    pieces: [Vec<[u32; 2]>; PIECES],
    /// Values of all `Q`.
    pub(crate) q: usize,
    /// Values of the larger of both products, in chunks.
    pub(crate) partial: usize,
    /// Values of what orthonormalisation needs.
    pub(crate) inner: usize,
}

impl Table {
    /// Adds the layer with this number in the bucket and this index in the model, whose values begin at `start` in flat memory,
    /// with factors of `rank` columns, at most its sides; `p` is where its `P` begins among what is summed.
    ///
    /// # Errors
    /// [`Error::Method`] when a side or the rank is beyond what the kernels are made for.
    pub(crate) fn add(
        &mut self,
        shape: Shape,
        rank: usize,
        (number, index): (u32, u32),
        (start, p): (usize, usize),
    ) -> Result<(), Error> {
        powersgd::check(shape, rank)?;
        if rank == 0 {
            return Ok(());
        }
        let (rows, cols) = (shape.rows(), shape.cols());
        let tall = Tall::new(rows, rows, rank);
        let [product, back] = [cols, rows].map(|terms| terms.div_ceil(CHUNK));
        let (tiles, panels) = ([rows, cols].map(|side| side.div_ceil(SIDE)), rank.div_ceil(SIDE));
        let (matrix, of_triangles) = (self.matrices.len() as u32, self.triangles.len() as u32);
        let params = Params {
            number,
            start: start as u32,
            p: p as u32,
            q: self.q as u32,
            partial: self.partial as u32,
            inner: self.inner as u32,
            all_rows: rows as u32,
            all_cols: cols as u32,
            columns: rank as u32,
            chunks: tall.chunks as u32,
            chunk_rows: tall.chunk_rows as u32,
            layer: index,
            ..Params::default()
        };
        self.matrices.push(params);
        let is_long = tall.triangles().is_some();
        self.triangles.extend(tall.triangles().map(|triangles| Params {
            p: (self.inner + tall.states()) as u32,
            inner: params.partial,
            all_rows: triangles.chunk_rows as u32,
            chunks: 1,
            chunk_rows: triangles.chunk_rows as u32,
            ..params
        }));
        self.tall.push(tall);
        for (piece, count) in [
            (Piece::Column, rank),
            (Piece::Product, tiles[0] * panels * product),
            (Piece::Sum, (rows * rank).div_ceil(256)),
            (Piece::Back, tiles[1] * panels * back),
            (Piece::BackSum, (cols * rank).div_ceil(256)),
            (Piece::Chunk, tall.chunks),
            (Piece::Rows, if is_long { rows.div_ceil(256) } else { 0 }),
            (Piece::Tile, tiles[0] * tiles[1]),
        ] {
            self.pieces[piece as usize].extend((0..count as u32).map(|own| [matrix, own]));
        }
        self.pieces[Piece::Triangles as usize].extend(is_long.then_some([of_triangles, 0]));
        self.q += cols * rank;
        self.partial += rank * (product * rows).max(back * cols);
        self.inner += tall.inner();
        Ok(())
    }

    /// All pieces, kind after kind.
    pub(crate) fn all_pieces(&self) -> Vec<[u32; 2]> {
        self.pieces.concat()
    }

    /// Where pieces of a kind begin among all, and how many there are.
    pub(crate) fn range(&self, piece: Piece) -> (usize, usize) {
        let before = self.pieces[..piece as usize].iter().map(Vec::len).sum();
        (before, self.pieces[piece as usize].len())
    }

    /// The steps that make all chunks of `P` orthonormal, and those for the triangles of several, by dispatch.
    pub(crate) fn steps(&self) -> [Vec<Range<usize>>; 2] {
        let triangles: Vec<Tall> = self.tall.iter().filter_map(|tall| tall.triangles()).collect();
        [&self.tall, &triangles].map(|tall| orthonormal::dispatches(tall))
    }
}
