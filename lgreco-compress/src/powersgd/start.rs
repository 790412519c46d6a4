//! The start matrix, which is equal on all workers.

use crate::Error;
use crate::error::expect_len;
use crate::rng::Stream;

/// Fills `q` (cols × rank, column after column) with the start matrix of the power iteration. The elements are uniform
/// on (−1, 1). Element `k` of column `c` comes from word `c · cols + k` of the sequence (seed, layer). The step and
/// rank of `stream` have no effect, so all workers agree, and measured rows stay valid for later steps. The first `r`
/// columns do not depend on the number of columns.
///
/// # Errors
/// [`Error::Length`] when `q` is not cols · rank long.
///
/// # Complexity
/// O(cols · rank).
///
/// # Source
/// Vogels et al. 2019, §3: all workers draw the start matrix from the same seed. Deviation: in the paper, the matrix is
/// normally distributed.
///
/// ```
/// use lgreco_compress::powersgd::start_matrix;
/// use lgreco_core::rng::Stream;
/// let (mut two, mut three) = ([0.0; 10], [0.0; 15]);
/// start_matrix(Stream { seed: 7, ..Default::default() }, 5, 2, &mut two)?;
/// start_matrix(Stream { seed: 7, step: 9, layer: 0, rank: 3 }, 5, 3, &mut three)?;
/// assert_eq!(two, three[..10]);
/// # Ok::<(), lgreco_core::Error>(())
/// ```
pub fn start_matrix(stream: Stream, cols: usize, rank: u32, q: &mut [f32]) -> Result<(), Error> {
    expect_len("start matrix", cols.saturating_mul(rank as usize), q.len())?;
    start(stream, q.len(), |i, x| q[i] = x);
    Ok(())
}

/// Calls `put` with each position below `count` and the element at that position.
pub(super) fn start(stream: Stream, count: usize, mut put: impl FnMut(usize, f32)) {
    // No worker has the rank `u32::MAX`, so these words differ from all words that workers use for rounding.
    let stream = Stream { step: 0, rank: u32::MAX, ..stream };
    for block in 0..count.div_ceil(4) {
        for (j, word) in stream.block(block as u32).into_iter().enumerate().take(count - 4 * block) {
            // An odd multiple of 2^-24, which is exact in f32.
            let odd = (2 * (word >> 8) + 1) as i32 - (1 << 24);
            put(4 * block + j, odd as f32 / (1 << 24) as f32);
        }
    }
}
