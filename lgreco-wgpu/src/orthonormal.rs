//! Orthonormal columns: how `orthonormal.wgsl` is divided into chunks of rows, one per workgroup, and into dispatches.
//!
//! Gram–Schmidt is a list of steps, of which a workgroup runs many per dispatch, up to 40,000 iterations of its loops. A factor of
//! many values has several chunks; their triangles are made orthonormal next, by one workgroup, and then a product brings the
//! chunks together: TSQR (Demmel, Grigori, Hoemmen and Langou, "Communication-optimal parallel and sequential QR and LU
//! factorizations", SIAM J. Sci. Comput. 2012, section 4.1) with a tree of two levels. That is three dispatches, and more where rank
//! and length are such that the steps of a chunk are more than one dispatch may run.

use crate::Error;
use crate::batch::{Batch, Part, Task};
use crate::memory::Scratch;
use crate::powersgd::{Matrix, Params, Run, kernel};
use std::ops::Range;

/// Iterations of loops in a dispatch; drivers may end loops after 65,535.
const MOST_ITERATIONS: usize = 40_000;
/// Values of a factor that one workgroup makes orthonormal in little time.
const LITTLE: usize = 1 << 17;

/// A factor of `rank` columns that is made orthonormal, or the triangles of one, one below the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tall {
    pub(crate) rank: usize,
    pub(crate) chunks: usize,
    /// Rows of a chunk, but of the last in a band.
    pub(crate) chunk_rows: usize,
}

impl Tall {
    /// A factor in bands of `height`: of one chunk while there is little to do, or where triangles would not be much shorter; else
    /// of chunks that have about as many rows as all triangles.
    pub(crate) fn new(rows: usize, height: usize, rank: usize) -> Tall {
        let height = rows.min(height).max(1);
        let is_short = rows * rank <= LITTLE || rows <= 4 * rank;
        let of_band = if is_short { 1 } else { height.div_ceil((rows * rank).isqrt()) };
        let chunk_rows = height.div_ceil(of_band);
        let chunks = rows / height * height.div_ceil(chunk_rows) + (rows % height).div_ceil(chunk_rows);
        Tall { rank, chunks, chunk_rows }
    }

    /// The triangles, where there are several.
    pub(crate) fn triangles(self) -> Option<Tall> {
        (self.chunks > 1).then_some(Tall { rank: self.rank, chunks: 1, chunk_rows: self.chunks * self.rank })
    }

    /// Values in front of the triangles: what lies between the steps of each chunk.
    pub(crate) fn states(self) -> usize {
        self.chunks * (self.rank + 2)
    }

    /// Values beside the factor: those, and triangles.
    pub(crate) fn inner(self) -> usize {
        self.states() + self.triangles().map_or(0, |triangles| triangles.chunk_rows * self.rank)
    }

    fn steps(self) -> usize {
        3 * self.rank + 1
    }
}

/// The steps that run in one dispatch each, of all factors together: as many as loops are allowed.
pub(crate) fn dispatches(factors: &[Tall]) -> Vec<Range<usize>> {
    let steps = factors.iter().map(|factor| factor.steps()).max().unwrap_or(0);
    let mut dispatches: Vec<Range<usize>> = Vec::new();
    let mut left = 0;
    for step in 0..steps {
        let having = factors.iter().filter(|factor| step < factor.steps());
        let cost = having.map(|factor| iterations(factor.chunk_rows, step)).max().unwrap_or(0);
        match dispatches.last_mut() {
            Some(last) if cost <= left => last.end = step + 1,
            _ => {
                dispatches.push(step..step + 1);
                left = MOST_ITERATIONS;
            }
        }
        left = left.saturating_sub(cost);
    }
    dispatches
}

/// Iterations of loops that a step takes.
pub(crate) fn iterations(chunk_rows: usize, step: usize) -> usize {
    let (rows, column) = (chunk_rows.div_ceil(256), step / 3);
    // A lane's part of the triangle's column, and of what lies between dispatches.
    let kept = 4 + 8;
    let subtracted = 1 + column / 8 + column % 8 / 4 + column % 4;
    let of_row = if step.is_multiple_of(3) { 1 } else { subtracted };
    let eights = (column + 1).div_ceil(8);
    1 + kept + rows * of_row + eights * (1 + rows + 8)
}

/// A band of a factor, or triangles, as kernels see them.
struct Piece {
    tall: Tall,
    rows: usize,
    params: Params,
    bindings: [(u32, Part); 2],
}

impl Run<'_> {
    /// Makes the columns of all `P` orthonormal.
    ///
    /// # Errors
    /// [`Error::TooLarge`] when the triangles of a factor do not fit a binding.
    pub(crate) fn orthonormalise(&self, batch: &mut Batch<'_>) -> Result<(), Error> {
        let all: Vec<(&Matrix<'_>, Tall)> = self.matrices.iter().map(|matrix| (matrix, matrix.tall())).collect();
        let inner = all.iter().map(|(matrix, tall)| matrix.at.inner + tall.inner()).max().unwrap_or(0);
        let inner = batch.scratch(Scratch::Inner, 4 * inner as u64)?;
        let long = all.iter().filter(|(_, tall)| tall.chunks > 1);
        let state = long.map(|(matrix, tall)| matrix.at.partial + tall.rank + 2).max().unwrap_or(0);
        // Products in chunks have been added up.
        let state = batch.scratch(Scratch::Partial, 4 * state as u64)?;
        let (mut bands, mut triangles) = (Vec::new(), Vec::new());
        for &(matrix, tall) in &all {
            let base = Params { chunks: tall.chunks as u32, chunk_rows: tall.chunk_rows as u32, ..matrix.base };
            let mut first_chunk = 0;
            for band in matrix.p.bands() {
                let params = Params {
                    all_rows: band.rows as u32,
                    product: band.at as u32,
                    first_chunk: first_chunk as u32,
                    ..base
                };
                let bindings = [(3, (&band.buffer).into()), (8, (&inner).into())];
                bands.push(Piece { tall, rows: band.rows, params, bindings });
                first_chunk += band.rows.div_ceil(tall.chunk_rows);
            }
            triangles.extend(tall.triangles().map(|tall_of| {
                let rows = tall_of.chunk_rows;
                let params = Params {
                    all_rows: rows as u32,
                    product: (matrix.at.inner + tall.states()) as u32,
                    inner: matrix.at.partial as u32,
                    chunks: 1,
                    chunk_rows: rows as u32,
                    ..base
                };
                Piece { tall: tall_of, rows, params, bindings: [(3, (&inner).into()), (8, (&state).into())] }
            }));
        }
        take_steps(batch, &bands);
        take_steps(batch, &triangles);
        let long = bands.iter().filter(|band| band.tall.chunks > 1);
        let tasks = long.map(|band| Task::new(band.params, &band.bindings, band.rows.div_ceil(256)));
        batch.run(kernel("multiply_by_triangles"), tasks.collect());
        Ok(())
    }
}

/// Submits what has been recorded, before steps that are not the first: where they take several dispatches each may keep a
/// workgroup busy for milliseconds, and has a submission of its own, for the watchdogs of desktops.
pub(crate) fn submit_long(batch: &mut Batch<'_>, steps: &Range<usize>) {
    if steps.start > 0 {
        batch.submit();
    }
}

/// Records all steps of the chunks of these pieces.
fn take_steps(batch: &mut Batch<'_>, pieces: &[Piece]) {
    for steps in dispatches(&pieces.iter().map(|piece| piece.tall).collect::<Vec<_>>()) {
        submit_long(batch, &steps);
        let tasks = pieces.iter().filter(|piece| steps.start < piece.tall.steps()).map(|piece| {
            let params = Params { first_step: steps.start as u32, last_step: steps.end as u32, ..piece.params };
            Task::new(params, &piece.bindings, piece.rows.div_ceil(piece.tall.chunk_rows))
        });
        batch.run(kernel("orthonormalise"), tasks.collect());
    }
}
