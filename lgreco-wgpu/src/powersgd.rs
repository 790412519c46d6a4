//! PowerSGD: what `powersgd.wgsl` is asked to do.

use crate::Error;
use crate::batch::{Batch, Part};
use crate::factor::{Band, Factor, SIDE};
use crate::kernels::{Kernel, Shader};
use crate::magnitude;
use crate::memory::Scratch;
use crate::orthonormal::{self, Tall};
use crate::params::params;
use crate::rectangles::{Rectangle, rectangles};
use crate::sums::{self, RECORD};
use crate::tensor::Tensor;
use lgreco_core::compress::powersgd::effective_rank;
use lgreco_core::gradient::Shape;
use lgreco_core::internal::powersgd::distinct_ranks;
use lgreco_core::rng::Stream;
use wgpu::{Buffer, BufferUsages};

params! {
    /// `Params` of `powersgd.wgsl`.
    offset, dtype, row, col, rows, cols, stride, transposed, all_rows, all_cols, columns,
    first_step, last_step, chunks, first_chunk, chunk_rows, groups, largest_only, largest, tiles,
    ranks, record, exponent, layer, seed_low, seed_high, step, rank,
}

/// Terms one workgroup adds up.
const CHUNK: usize = 4096;
/// Ranks measured together.
const RANKS: usize = 8;
/// Largest side and rank for which no loop becomes too long.
const LARGEST_SIDE: usize = 1 << 22;
const LARGEST_RANK: usize = 1024;

pub(crate) const fn kernel(entry: &'static str) -> Kernel {
    Kernel { shader: Shader::PowerSgd, entry }
}

/// `Err` when a matrix or a rank is beyond what the kernels are made for.
pub(crate) fn check(shape: Shape, rank: usize) -> Result<(), Error> {
    if shape.rows().max(shape.cols()) <= LARGEST_SIDE && rank <= LARGEST_RANK {
        return Ok(());
    }
    Err(Error::Method("PowerSGD with a side above 4,194,304 or a rank above 1024"))
}

/// A matrix and the factors of its compression.
struct Run<'t> {
    tensor: &'t Tensor,
    shape: Shape,
    rank: usize,
    p: Factor,
    q: Factor,
    results: Buffer,
    /// What every dispatch is told.
    base: Params,
}

impl Run<'_> {
    /// The bands that a rectangle needs, and what a dispatch is told of it and them.
    fn of(&self, rectangle: &Rectangle) -> (&Band, &Band, Params) {
        let (p, q) = (self.p.band_of(rectangle.row), self.q.band_of(rectangle.col));
        let params = Params {
            offset: rectangle.offset as u32,
            row: (rectangle.row - p.first) as u32,
            col: (rectangle.col - q.first) as u32,
            rows: rectangle.rows as u32,
            cols: rectangle.cols as u32,
            all_rows: p.rows as u32,
            all_cols: q.rows as u32,
            ..self.base
        };
        (p, q, params)
    }

    /// `product = M' factor`, or `M'ᵀ factor`.
    fn multiply(&self, batch: &mut Batch<'_>, transposed: bool) -> Result<(), Error> {
        let (factor, product) = if transposed { (&self.p, &self.q) } else { (&self.q, &self.p) };
        for band in product.bands() {
            batch.clear(&band.buffer, (4 * band.rows * self.rank) as u64);
        }
        let most = SIDE * batch.gpu.most_groups();
        let inner = if transposed { self.shape.rows() } else { self.shape.cols() };
        let chunks = inner.min(most).min(factor.height()).div_ceil(CHUNK);
        let fits = batch.gpu.window as usize / (4 * self.rank * chunks) / SIDE * SIDE;
        let outer = most.min(fits.max(SIDE));
        let (most_rows, most_cols) = if transposed { (most, outer) } else { (outer, most) };
        let cuts = [self.p.cuts(most_rows), self.q.cuts(most_cols)];
        for rectangle in rectangles(batch, self.tensor, self.shape, cuts) {
            let (p, q, params) = self.of(&rectangle);
            let (factor, product) = if transposed { (p, q) } else { (q, p) };
            let (outer, inner) =
                if transposed { (rectangle.cols, rectangle.rows) } else { (rectangle.rows, rectangle.cols) };
            let chunks = inner.div_ceil(CHUNK);
            let partial = batch.scratch(Scratch::Partial, (4 * chunks * self.rank * outer) as u64)?;
            let groups = (self.rank * outer).div_ceil(256).min(batch.gpu.most_groups());
            let params =
                Params { transposed: transposed as u32, chunks: chunks as u32, groups: groups as u32, ..params };
            let size = [outer.div_ceil(SIDE), self.rank.div_ceil(SIDE), chunks];
            let bindings = [
                (1, rectangle.part.clone()),
                (2, (&factor.buffer).into()),
                (4, (&partial).into()),
                (6, (&self.results).into()),
            ];
            batch.dispatch_3d(kernel("multiply_chunk"), params, &bindings, size);
            let bindings = [(3, (&product.buffer).into()), (4, (&partial).into())];
            batch.dispatch(kernel("add_chunks"), params, &bindings, groups);
        }
        Ok(())
    }

    /// Scales the columns of a factor by powers of two to magnitudes near 1.
    fn scale(&self, batch: &mut Batch<'_>, factor: &Factor) -> Result<(), Error> {
        let groups = self.rank.min(batch.gpu.most_groups());
        let columns = batch.scratch(Scratch::Columns, 4 * self.rank as u64)?;
        batch.clear(&columns, 4 * self.rank as u64);
        let bands = factor.bands();
        // What is largest in a column of several bands has to be known before any is scaled.
        let first = if bands.len() > 1 { bands } else { &[] };
        let passes = first.iter().map(|band| (band, true)).chain(bands.iter().map(|band| (band, false)));
        for (band, largest_only) in passes {
            let params = Params {
                all_rows: band.rows as u32,
                groups: groups as u32,
                largest_only: largest_only as u32,
                ..self.base
            };
            let bindings = [(3, (&band.buffer).into()), (5, (&columns).into())];
            batch.dispatch(kernel("scale_columns"), params, &bindings, groups);
        }
        Ok(())
    }

    /// Makes the columns of `p` orthonormal.
    fn orthonormalise(&self, batch: &mut Batch<'_>) -> Result<(), Error> {
        let rows = self.shape.rows();
        let chunk_rows = orthonormal::chunk_rows(rows, self.p.height(), self.rank, batch.gpu.most_groups());
        let chunks: usize = self.p.bands().iter().map(|band| band.rows.div_ceil(chunk_rows)).sum();
        let inner = batch.scratch(Scratch::Inner, 4 * (2 * chunks * self.rank + 2) as u64)?;
        for steps in orthonormal::dispatches(&[Tall { rows, rank: self.rank, chunk_rows }]) {
            let mut first_chunk = 0;
            for band in self.p.bands() {
                let params = Params {
                    all_rows: band.rows as u32,
                    first_step: steps.start as u32,
                    last_step: steps.end as u32,
                    chunks: chunks as u32,
                    first_chunk: first_chunk as u32,
                    chunk_rows: chunk_rows as u32,
                    ..self.base
                };
                let groups = band.rows.div_ceil(chunk_rows);
                let bindings = [(3, (&band.buffer).into()), (8, (&inner).into())];
                batch.dispatch(kernel("orthonormalise"), params, &bindings, groups);
                first_chunk += groups;
            }
        }
        Ok(())
    }
}

/// Records power iterations from the start matrix of `stream`; `results` has the largest magnitude in word `largest`.
fn iterate<'t>(
    batch: &mut Batch<'_>,
    tensor: &'t Tensor,
    shape: Shape,
    rank: usize,
    iterations: u32,
    stream: Stream,
    (results, largest): (&Buffer, usize),
) -> Result<Run<'t>, Error> {
    check(shape, rank)?;
    magnitude::largest(batch, tensor, results, largest);
    let base = Params {
        dtype: tensor.dtype as u32,
        stride: shape.cols() as u32,
        columns: rank as u32,
        largest: largest as u32,
        layer: stream.layer,
        seed_low: stream.seed as u32,
        seed_high: (stream.seed >> 32) as u32,
        step: 0,
        rank: u32::MAX,
        ..Params::default()
    };
    let run = Run {
        tensor,
        shape,
        rank,
        p: Factor::new(batch, shape.rows(), rank, |batch, n, _, bytes| batch.scratch(Scratch::P(n), bytes))?,
        q: Factor::new(batch, shape.cols(), rank, |batch, n, _, bytes| batch.scratch(Scratch::Q(n), bytes))?,
        results: results.clone(),
        base,
    };
    for band in run.q.bands() {
        let groups = (band.rows * rank).div_ceil(4 * 256).min(batch.gpu.most_groups());
        let (row, rows) = (band.first as u32, band.rows as u32);
        let params = Params { row, rows, all_cols: shape.cols() as u32, groups: groups as u32, ..base };
        batch.dispatch(kernel("start"), params, &[(2, (&band.buffer).into())], groups);
    }
    for _ in 0..iterations {
        run.scale(batch, &run.q)?;
        run.multiply(batch, false)?;
        run.scale(batch, &run.p)?;
        run.orthonormalise(batch)?;
        run.multiply(batch, true)?;
    }
    Ok(run)
}

/// Words of results that [`measure`] writes: the largest magnitude, and a record for every eight ranks.
pub(crate) const fn result_words(ranks: usize) -> usize {
    RECORD * (1 + ranks.div_ceil(RANKS))
}

/// Records the measurement of `ranks`, of which there are some; `result` is a multiple of [`RECORD`].
pub(crate) fn measure(
    batch: &mut Batch<'_>,
    tensor: &Tensor,
    shape: Shape,
    (iterations, ranks): (u32, &[u32]),
    stream: Stream,
    results: &Buffer,
    result: usize,
) -> Result<(), Error> {
    let distinct = distinct_ranks(shape, ranks);
    let rank = distinct.last().map_or(0, |&rank| rank as usize);
    let run = iterate(batch, tensor, shape, rank, iterations, stream, (results, result))?;
    let most_tiles = (16384 / rank).clamp(1, 32);
    for (index, ranks) in distinct.chunks(RANKS).enumerate() {
        let sought = batch.upload(bytemuck::cast_slice(ranks))?;
        let most = SIDE * batch.gpu.most_groups();
        let rectangles = rectangles(batch, tensor, shape, [run.p.cuts(most), run.q.cuts(most)]);
        let tiles = |rectangle: &Rectangle| rectangle.cols.div_ceil(SIDE).min(most_tiles);
        let size = |rectangle: &Rectangle| {
            [rectangle.rows.div_ceil(SIDE), rectangle.cols.div_ceil(SIDE * tiles(rectangle)), 1]
        };
        let records = rectangles.iter().map(|rectangle| size(rectangle)[0] * size(rectangle)[1]);
        let totals: usize = records.map(sums::left_of).sum();
        let totals = batch.scratch(Scratch::Totals, sums::bytes(totals))?;
        let mut count = 0;
        for rectangle in rectangles {
            let size = size(&rectangle);
            let output = batch.scratch(Scratch::Output, sums::bytes(size[0] * size[1]))?;
            let (p, q, params) = run.of(&rectangle);
            let params =
                Params { groups: size[0] as u32, tiles: tiles(&rectangle) as u32, ranks: ranks.len() as u32, ..params };
            let bindings = [
                (1, rectangle.part.clone()),
                (2, (&p.buffer).into()),
                (3, (&q.buffer).into()),
                (5, (&output).into()),
                (6, results.into()),
                (7, sought.clone()),
            ];
            batch.dispatch_3d(kernel("residuals"), params, &bindings, size);
            count += sums::add(batch, &output, size[0] * size[1], &totals, count);
        }
        sums::finish(batch, totals, count, results, result / RECORD + 1 + index)?;
    }
    Ok(())
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

/// Records the making of both factors, and returns where they are; word 0 of `results` becomes the largest magnitude.
pub(crate) fn encode(
    batch: &mut Batch<'_>,
    tensor: &Tensor,
    shape: Shape,
    (rank, iterations): (usize, u32),
    stream: Stream,
    results: &Buffer,
) -> Result<Vec<Part>, Error> {
    let run = iterate(batch, tensor, shape, rank, iterations, stream, (results, 0))?;
    let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC;
    let sent = Factor::new(batch, shape.cols(), rank, |batch, _, _, bytes| batch.buffer(bytes, usage))?;
    for (band, sent) in run.q.bands().iter().zip(sent.bands()) {
        let groups = (band.rows * rank).div_ceil(256).min(batch.gpu.most_groups());
        let params = Params { all_cols: band.rows as u32, groups: groups as u32, ..run.base };
        let bindings = [(3, (&band.buffer).into()), (5, (&sent.buffer).into()), (6, results.into())];
        batch.dispatch(kernel("unscale"), params, &bindings, groups);
    }
    Ok([run.p.parts(), sent.parts()].concat())
}
