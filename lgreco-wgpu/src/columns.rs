//! Makes the columns of PowerSGD's factors orthonormal, by launches of `orthonormal.wgsl` for several factors together.

use crate::Error;
use crate::batch::{Batch, Part, Task};
use crate::memory::Scratch;
use crate::orthonormal::{Tall, dispatches, submit_long};
use crate::powersgd::{Matrix, Params, Run, kernel};

/// A band of a factor, or the stacked triangles of a factor, with the kernels' parameters.
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
    /// [`Error::TooLarge`] if the triangles of a factor do not fit a binding.
    pub(crate) fn orthonormalise(&self, batch: &mut Batch<'_>) -> Result<(), Error> {
        let all: Vec<(&Matrix<'_>, Tall)> = self.matrices.iter().map(|matrix| (matrix, matrix.tall())).collect();
        let inner = all.iter().map(|(matrix, tall)| matrix.at.inner + tall.inner()).max().unwrap_or(0);
        let inner = batch.scratch(Scratch::Inner, 4 * inner as u64)?;
        let long = all.iter().filter(|(_, tall)| tall.chunks > 1);
        let state = long.map(|(matrix, tall)| matrix.at.partial + tall.rank + 2).max().unwrap_or(0);
        // `Partial` held the partial sums of products, which have been added up and are no longer needed.
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

/// Records all steps of Gram–Schmidt for the chunks of these pieces.
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
