//! Measures rows of PowerSGD: for each rank, the squared distance of a matrix from the product of the first columns of
//! its factors.

use crate::Error;
use crate::batch::{Batch, Task};
use crate::error::{BufferJobError, first_failure, of_job};
use crate::factor::SIDE;
use crate::memory::Scratch;
use crate::packing::packs;
use crate::powersgd::{Compressed, Matrix, Params, Room, Run, iterate, kernel};
use crate::rectangles::Rectangle;
use crate::sums::{self, RECORD, Segment};
use crate::tensor::Row;
use lgreco::compress::powersgd::distinct_ranks;
use lgreco::compress::powersgd::effective_rank;
use lgreco::gradient::Shape;
use lgreco::rng::Stream;
use wgpu::Buffer;

/// Number of ranks that are measured together.
const RANKS: usize = 8;

/// Number of result words of [`measure`]: a record with the largest magnitude, and a record for every eight ranks.
pub(crate) const fn result_words(ranks: usize) -> usize {
    RECORD * (1 + ranks.div_ceil(RANKS))
}

/// Ranks to measure for a matrix.
#[derive(Clone, Copy)]
pub(crate) struct LowRank<'a> {
    pub(crate) shape: Shape,
    pub(crate) iterations: u32,
    pub(crate) ranks: &'a [u32],
    pub(crate) stream: Stream,
}

/// A row with its distinct ranks in ascending order. There is at least one rank.
struct Distinct<'a> {
    job: usize,
    compressed: Compressed<'a>,
    ranks: Vec<u32>,
    /// The first record of results.
    record: usize,
}

/// Records the commands that measure the ranks of each row. The results of each row begin at a multiple of [`RECORD`].
pub(crate) fn measure(
    batch: &mut Batch<'_>,
    rows: &[Row<'_, LowRank<'_>>],
    results: &Buffer,
) -> Result<(), BufferJobError> {
    let distinct = rows.iter().map(|row| {
        let LowRank { shape, iterations, ranks, stream } = row.sought;
        let ranks = distinct_ranks(shape, ranks);
        let rank = ranks.last().map_or(0, |&rank| rank as usize);
        let compressed = Compressed { tensor: row.tensor, shape, rank, iterations, stream, largest: row.result };
        Distinct { job: row.job, compressed, ranks, record: row.result / RECORD + 1 }
    });
    let mut distinct: Vec<Distinct<'_>> = distinct.collect();
    distinct.sort_by_key(|row| row.compressed.iterations);
    let fits = |rows: &[Distinct<'_>]| {
        let room = rows.iter().fold(Room::default(), |room, row| room.plus(row.compressed.room()));
        let are_whole = rows.iter().all(|row| row.compressed.is_whole(batch));
        are_whole && room.fits(batch) && rows[0].compressed.iterations == rows[rows.len() - 1].compressed.iterations
    };
    let mut recorded = Vec::new();
    for pack in packs(&distinct, fits) {
        recorded.push(record(batch, pack, results).map_err(of_job(pack[0].job)));
    }
    first_failure(recorded)
}

fn record(batch: &mut Batch<'_>, rows: &[Distinct<'_>], results: &Buffer) -> Result<(), Error> {
    let all: Vec<Compressed<'_>> = rows.iter().map(|row| row.compressed).collect();
    let run = iterate(batch, &all, results)?;
    let most = rows.iter().map(|row| row.ranks.len().div_ceil(RANKS)).max().unwrap_or(0);
    for round in 0..most {
        residuals(batch, &run, rows, round)?;
    }
    Ok(())
}

/// A rectangle of a matrix, and the number of workgroups that compare the rectangle with the product of the factors.
struct Compared<'r, 't> {
    row: usize,
    matrix: &'r Matrix<'t>,
    rectangle: Rectangle,
    tiles: usize,
    groups: [usize; 3],
}

impl Compared<'_, '_> {
    fn records(&self) -> usize {
        self.groups[0] * self.groups[1]
    }
}

/// Records the commands that measure up to eight ranks of each matrix, from index `8 * round` on.
fn residuals(batch: &mut Batch<'_>, run: &Run<'_>, rows: &[Distinct<'_>], round: usize) -> Result<(), Error> {
    let ranks_of = |row: &Distinct<'_>| row.ranks.iter().copied().skip(RANKS * round).take(RANKS).collect();
    let ranks: Vec<Vec<u32>> = rows.iter().map(ranks_of).collect();
    let most = SIDE * batch.gpu.most_groups();
    let compared =
        run.matrices.iter().enumerate().filter(|(row, _)| !ranks[*row].is_empty()).flat_map(|(row, matrix)| {
            let most_tiles = (16384 / matrix.compressed.rank).clamp(1, 32);
            matrix.rectangles(batch, [most, most]).into_iter().map(move |rectangle| {
                let tiles = rectangle.cols.div_ceil(SIDE).min(most_tiles);
                let groups = [rectangle.rows.div_ceil(SIDE), rectangle.cols.div_ceil(SIDE * tiles), 1];
                Compared { row, matrix, rectangle, tiles, groups }
            })
        });
    let compared: Vec<Compared<'_, '_>> = compared.collect();
    let padded = |ranks: &Vec<u32>| [&ranks[..], &[0; RANKS][ranks.len()..]].concat();
    let sought: Vec<u32> = ranks.iter().flat_map(padded).collect();
    let sought = batch.upload(bytemuck::cast_slice(&sought))?;
    let totals: usize = compared.iter().map(|compared| sums::left_of(compared.records())).sum();
    let totals = batch.scratch(Scratch::Totals, sums::bytes(totals))?;
    let mut target = 0;
    let mut of_rows = vec![Segment { first: 0, count: 0, target: 0 }; rows.len()];
    let window = batch.gpu.window;
    let fits = |compared: &[Compared<'_, '_>]| sums::bytes(compared.iter().map(Compared::records).sum()) <= window;
    for pack in packs(&compared, fits) {
        let output = batch.scratch(Scratch::Output, sums::bytes(pack.iter().map(Compared::records).sum()))?;
        let (mut tasks, mut segments, mut record) = (Vec::new(), Vec::new(), 0);
        for compared in pack {
            let (p, q, params) = compared.matrix.of(&compared.rectangle);
            let params = Params {
                tiles: compared.tiles as u32,
                ranks: ranks[compared.row].len() as u32,
                sought: (RANKS * compared.row) as u32,
                record: record as u32,
                ..params
            };
            let bindings = vec![
                (1, compared.rectangle.part.clone()),
                (2, (&p.buffer).into()),
                (3, (&q.buffer).into()),
                (5, (&output).into()),
                (6, (&run.results).into()),
                (7, sought.clone()),
            ];
            tasks.push(Task { params, bindings, groups: compared.groups });
            segments.push(Segment { first: record, count: compared.records(), target });
            record += compared.records();
            let of_row = &mut of_rows[compared.row];
            if of_row.count == 0 {
                *of_row = Segment { first: target, count: 0, target: rows[compared.row].record + round };
            }
            of_row.count += sums::left_of(compared.records());
            target += sums::left_of(compared.records());
        }
        batch.run(kernel("residuals"), tasks);
        sums::add(batch, &output, &segments, &totals);
    }
    of_rows.retain(|segment| segment.count > 0);
    sums::finish(batch, totals, &of_rows, &run.results)
}

/// Reads the squared errors from the words that [`measure`] wrote.
pub(crate) fn errors(shape: Shape, ranks: &[u32], words: &[u32], row: &mut [f64]) {
    let distinct = distinct_ranks(shape, ranks);
    for (place, &rank) in row.iter_mut().zip(ranks) {
        let index = distinct.partition_point(|&other| (other as usize) < effective_rank(shape, rank));
        let at = RECORD * (1 + index / RANKS) + index % RANKS;
        *place = sums::value(words[at], words[at + RECORD / 2]);
    }
}
