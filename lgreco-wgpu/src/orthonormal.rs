//! Divides the work of `orthonormal.wgsl`, which makes columns orthonormal, into chunks of rows (one per workgroup) and
//! into dispatches.
//!
//! Gram–Schmidt is a list of steps. In a dispatch, a workgroup runs many steps, with up to 40,000 loop iterations in
//! all. A large factor has several chunks of rows, and the steps of each chunk also give a triangular matrix. One
//! workgroup then makes the columns of the stacked triangles orthonormal, and a product combines the chunks. The method
//! is TSQR with a tree of two levels (Demmel, Grigori, Hoemmen and Langou, "Communication-optimal parallel and
//! sequential QR and LU factorizations", SIAM Journal on Scientific Computing 2012, section 4.1). TSQR takes three
//! dispatches, or more if a chunk has more steps than one dispatch may run.

use crate::batch::Batch;
use std::ops::Range;

/// Largest number of loop iterations in a dispatch. Drivers may end loops after 65,535 iterations.
const MOST_ITERATIONS: usize = 40_000;
/// Largest number of values of a factor that one workgroup makes orthonormal quickly.
const LITTLE: usize = 1 << 17;

/// A factor of `rank` columns to make orthonormal, or the stacked triangles of a factor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tall {
    pub(crate) rank: usize,
    pub(crate) chunks: usize,
    /// Number of rows of a chunk. The last chunk of a band may have fewer rows.
    pub(crate) chunk_rows: usize,
}

impl Tall {
    /// Divides a factor, which has bands of `height` rows, into chunks. The factor has one chunk if it is small, or if
    /// the stacked triangles would not have far fewer rows than the factor. In all other cases, a chunk has about as
    /// many rows as all triangles together.
    pub(crate) fn new(rows: usize, height: usize, rank: usize) -> Tall {
        let height = rows.min(height).max(1);
        let is_short = rows * rank <= LITTLE || rows <= 4 * rank;
        let of_band = if is_short { 1 } else { height.div_ceil((rows * rank).isqrt()) };
        let chunk_rows = height.div_ceil(of_band);
        let chunks = rows / height * height.div_ceil(chunk_rows) + (rows % height).div_ceil(chunk_rows);
        Tall { rank, chunks, chunk_rows }
    }

    /// Returns the stacked triangles, if there are several chunks.
    pub(crate) fn triangles(self) -> Option<Tall> {
        (self.chunks > 1).then_some(Tall { rank: self.rank, chunks: 1, chunk_rows: self.chunks * self.rank })
    }

    /// Number of values of the states of all chunks, which are stored before the triangles.
    pub(crate) fn states(self) -> usize {
        self.chunks * (self.rank + 2)
    }

    /// Number of values that are needed in addition to the factor: the states and the triangles.
    pub(crate) fn inner(self) -> usize {
        self.states() + self.triangles().map_or(0, |triangles| triangles.chunk_rows * self.rank)
    }

    pub(crate) fn steps(self) -> usize {
        3 * self.rank + 1
    }
}

/// Divides the steps into ranges, one per dispatch. A dispatch runs its range of steps on all factors. Each range is as
/// long as the limit on loop iterations allows.
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

/// Returns the number of loop iterations of a step.
pub(crate) fn iterations(chunk_rows: usize, step: usize) -> usize {
    let (rows, column) = (chunk_rows.div_ceil(256), step / 3);
    // A lane takes 4 iterations for the triangle's column, and 8 to load and store the state between dispatches.
    let kept = 4 + 8;
    let subtracted = 1 + column / 8 + column % 8 / 4 + column % 4;
    let of_row = if step.is_multiple_of(3) { 1 } else { subtracted };
    let eights = (column + 1).div_ceil(8);
    1 + kept + rows * of_row + eights * (1 + rows)
}

/// Submits the recorded work, except before the first dispatch. If the steps take several dispatches, each dispatch may
/// take milliseconds. Separate submissions prevent timeouts by the watchdogs of desktops.
pub(crate) fn submit_long(batch: &mut Batch<'_>, steps: &Range<usize>) {
    if steps.start > 0 {
        batch.submit();
    }
}
