//! Measures EDEN's rows of the error table, by launches of `eden_rows.wgsl`.
//!
//! A block is rotated once, in f32, and its errors for all widths are computed from sums. Like the core, the kernels
//! measure some blocks by decoding them, with the same bits as the core. These are blocks of fewer than 256 values,
//! blocks with extreme norms, and blocks whose errors are close to the rounding errors of f32. The kernels rotate a
//! decoded block again for each width.

use crate::batch::{Batch, Part, Task};
use crate::eden::{Params, blocks, grids, kernel, params};
use crate::error::{BufferJobError, of_job};
use crate::sums::{self, RECORD, Segment};
use crate::tensor::Row;
use lgreco::compress::eden::Scale;
use lgreco::rng::Stream;
use wgpu::Buffer;

/// Number of result words of [`measure`]. The first record has two words that [`check`](crate::eden::check) reads. The
/// second record has the sums of all widths.
pub(crate) const RESULT_WORDS: usize = 2 * RECORD;

/// The widths to measure for a tensor.
#[derive(Clone, Copy)]
pub(crate) struct Rotated<'a> {
    pub(crate) scale: Scale,
    pub(crate) bits: &'a [u8],
    pub(crate) stream: Stream,
}

/// Records the commands that measure the widths of each row.
pub(crate) fn measure(
    batch: &mut Batch<'_>,
    rows: &[Row<'_, Rotated<'_>>],
    results: &Buffer,
) -> Result<(), BufferJobError> {
    let Some(first) = rows.first() else { return Ok(()) };
    let failed = of_job(first.job);
    let grids = grids(batch).map_err(&failed)?;
    let (mut tasks, mut left) = (Vec::new(), Vec::new());
    for row in rows {
        let Rotated { scale, bits, stream } = row.sought;
        let widths = bits.iter().fold(0, |mask, &bits| mask | 1u32 << (bits - 1));
        let base = Params { widths, result: row.result as u32, ..params(scale, stream) };
        let pieces = row.tensor.all(batch);
        let records = pieces.iter().map(|piece| sums::left_of(blocks(piece.count)));
        left.push((records.sum(), row.result / RECORD + 1));
        tasks.extend(pieces.iter().map(|piece| {
            let bindings = [(1, piece.part.clone()), (2, grids.clone()), (6, Part::from(results))];
            Task::new(base.of(row.tensor, piece), &bindings, blocks(piece.count))
        }));
    }
    let of_rows = Segment::in_turn(left);
    let totals = sums::totals(batch, &of_rows).map_err(&failed)?;
    let place = |params: &mut Params, record| params.record = record;
    sums::run(batch, kernel("rotated_row"), &tasks, place, (&totals, &mut 0)).map_err(&failed)?;
    sums::finish(batch, totals, &of_rows, results).map_err(&failed)
}

/// Returns the squared errors at the widths `bits`, from the words that [`measure`] wrote.
pub(crate) fn errors<'a>(bits: &'a [u8], words: &'a [u32]) -> impl Iterator<Item = f64> + 'a {
    let sum = |&bits: &u8| sums::value(words[RECORD + bits as usize - 1], words[RECORD + 8 + bits as usize - 1]);
    bits.iter().map(sum)
}
