//! How `orthonormal.wgsl` is divided into workgroups and dispatches.
//!
//! Gram–Schmidt is a list of steps that begin with the inner products of the step before. A workgroup that has all
//! rows runs many steps per dispatch, up to 40,000 iterations of its loops; several workgroups take a dispatch per
//! step. So there is one code path, and at most three dispatches per column.

use std::ops::Range;

/// Iterations of loops in a dispatch; drivers may end loops after 65,535.
const MOST_ITERATIONS: usize = 40_000;

/// Rows of a factor, in bands of `height`, that one workgroup makes orthonormal: all while there is little to do, else
/// few.
pub(crate) fn chunk_rows(rows: usize, height: usize, rank: usize, most_groups: usize) -> usize {
    const LITTLE: usize = 1 << 17;
    let rows = if rows * rank <= LITTLE { rows } else { 512.max(rows.div_ceil(most_groups.min(256))) };
    rows.min(height)
}

/// A factor that is made orthonormal, and how many of its rows a workgroup has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tall {
    pub(crate) rows: usize,
    pub(crate) rank: usize,
    pub(crate) chunk_rows: usize,
}

/// The steps of orthonormalisation that run in one dispatch each, of all factors together: one where several workgroups of a
/// factor have to wait for each other, else as many as loops are allowed.
pub(crate) fn dispatches(factors: &[Tall]) -> Vec<Range<usize>> {
    let takes = |factor: &&Tall, step: usize| step <= 3 * factor.rank;
    let steps = factors.iter().map(|factor| 3 * factor.rank + 1).max().unwrap_or(0);
    let mut dispatches: Vec<Range<usize>> = Vec::new();
    let mut left = 0;
    for step in 0..steps {
        let having = || factors.iter().filter(|factor| takes(factor, step));
        let waits = having().any(|factor| factor.chunk_rows < factor.rows);
        let cost = having().map(|factor| iterations(factor.chunk_rows, 1, step / 3)).max().unwrap_or(0);
        match dispatches.last_mut() {
            Some(last) if !waits && cost <= left => last.end = step + 1,
            _ => {
                dispatches.push(step..step + 1);
                left = MOST_ITERATIONS;
            }
        }
        left = left.saturating_sub(cost);
    }
    dispatches
}

/// Iterations of loops that one step for `column` takes at most, with `chunks` of rows.
pub(crate) fn iterations(chunk_rows: usize, chunks: usize, column: usize) -> usize {
    let rows = chunk_rows.div_ceil(256);
    let gather = (column + 1).div_ceil(256) * (1 + chunks);
    1 + gather + rows * (4 + column / 4) + (column + 1).div_ceil(4) * (1 + rows + 8)
}
