//! PowerSGD: what `powersgd.wgsl` is asked to do.

use crate::Error;
use crate::batch::{Batch, Part};
use crate::kernels::{Kernel, Shader};
use crate::magnitude;
use crate::memory::Scratch;
use crate::orthonormal;
use crate::rectangles::{Rectangle, rectangles};
use crate::sums::{self, RECORD};
use crate::tensor::Tensor;
use bytemuck::{Pod, Zeroable};
use lgreco_core::compress::wire::Payload;
use lgreco_core::gradient::Shape;
use lgreco_core::rng::Stream;
use wgpu::Buffer;

/// `Params` of `powersgd.wgsl`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    offset: u32,
    dtype: u32,
    row: u32,
    col: u32,
    rows: u32,
    cols: u32,
    stride: u32,
    transposed: u32,
    all_rows: u32,
    all_cols: u32,
    columns: u32,
    first_step: u32,
    last_step: u32,
    chunks: u32,
    stretch: u32,
    groups: u32,
    largest: u32,
    tiles: u32,
    ranks: u32,
    record: u32,
    exponent: u32,
    layer: u32,
    seed_low: u32,
    seed_high: u32,
    step: u32,
    rank: u32,
}

#[cfg(test)]
impl Params {
    pub(crate) const FIELDS: [&'static str; 26] = [
        "offset",
        "dtype",
        "row",
        "col",
        "rows",
        "cols",
        "stride",
        "transposed",
        "all_rows",
        "all_cols",
        "columns",
        "first_step",
        "last_step",
        "chunks",
        "stretch",
        "groups",
        "largest",
        "tiles",
        "ranks",
        "record",
        "exponent",
        "layer",
        "seed_low",
        "seed_high",
        "step",
        "rank",
    ];
}

/// Rows and columns of a tile.
const SIDE: usize = 16;
/// Terms one workgroup adds up.
const CHUNK: usize = 4096;
/// Ranks measured together.
const RANKS: usize = 8;
/// Largest side and rank for which no loop becomes too long.
const LARGEST_SIDE: usize = 1 << 22;
const LARGEST_RANK: usize = 1024;

const fn kernel(entry: &'static str) -> Kernel {
    Kernel { shader: Shader::PowerSgd, entry }
}

/// The rank in effect.
pub(crate) fn effective(shape: Shape, rank: u32) -> usize {
    (rank as usize).min(shape.rows()).min(shape.cols())
}

/// `Err` when a matrix or a rank is beyond what the kernels are made for.
fn check(shape: Shape, rank: usize) -> Result<(), Error> {
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
    p: Buffer,
    q: Buffer,
    results: Buffer,
    /// What every dispatch is told.
    base: Params,
}

impl Run<'_> {
    fn most_groups(batch: &Batch<'_>) -> usize {
        batch.gpu.limits.max_compute_workgroups_per_dimension as usize
    }

    fn of(&self, rectangle: &Rectangle) -> Params {
        Params {
            offset: rectangle.offset as u32,
            row: rectangle.row as u32,
            col: rectangle.col as u32,
            rows: rectangle.rows as u32,
            cols: rectangle.cols as u32,
            ..self.base
        }
    }

    /// `product = M' factor`, or `M'ᵀ factor`.
    fn multiply(&self, batch: &mut Batch<'_>, transposed: bool) -> Result<(), Error> {
        let (factor, product, len) =
            if transposed { (&self.p, &self.q, self.shape.cols()) } else { (&self.q, &self.p, self.shape.rows()) };
        batch.clear(product, (4 * len * self.rank) as u64);
        let most = SIDE * Self::most_groups(batch);
        let inner = if transposed { self.shape.rows() } else { self.shape.cols() };
        let chunks = inner.min(most).div_ceil(CHUNK);
        let fits = batch.gpu.largest_binding() as usize / (4 * self.rank * chunks) / SIDE * SIDE;
        let outer = most.min(fits.max(SIDE));
        let (most_rows, most_cols) = if transposed { (most, outer) } else { (outer, most) };
        for rectangle in rectangles(batch, self.tensor, self.shape, most_rows, most_cols) {
            let (outer, inner) =
                if transposed { (rectangle.cols, rectangle.rows) } else { (rectangle.rows, rectangle.cols) };
            let chunks = inner.div_ceil(CHUNK);
            let partial = batch.scratch(Scratch::Partial, (4 * chunks * self.rank * outer) as u64)?;
            let groups = (self.rank * outer).div_ceil(256).min(Self::most_groups(batch));
            let params = Params {
                transposed: transposed as u32,
                chunks: chunks as u32,
                groups: groups as u32,
                ..self.of(&rectangle)
            };
            let size = [outer.div_ceil(SIDE), self.rank.div_ceil(SIDE), chunks];
            let bindings =
                [(1, rectangle.part.clone()), (2, factor.into()), (4, (&partial).into()), (6, (&self.results).into())];
            batch.dispatch_3d(kernel("multiply_chunk"), params, &bindings, size);
            let bindings = [(3, product.into()), (4, (&partial).into())];
            batch.dispatch(kernel("add_chunks"), params, &bindings, groups);
        }
        Ok(())
    }

    /// Scales the columns of a factor, which has `len` rows, by powers of two to magnitudes near 1.
    fn scale(&self, batch: &mut Batch<'_>, factor: &Buffer, len: usize) {
        let groups = self.rank.min(Self::most_groups(batch));
        let params = Params { all_rows: len as u32, groups: groups as u32, ..self.base };
        batch.dispatch(kernel("scale_columns"), params, &[(3, factor.into())], groups);
    }

    /// Makes the columns of `p` orthonormal.
    fn orthonormalise(&self, batch: &mut Batch<'_>) -> Result<(), Error> {
        let rows = self.shape.rows();
        let stretch = orthonormal::stretch(rows, self.rank, Self::most_groups(batch));
        let chunks = rows.div_ceil(stretch);
        let inner = batch.scratch(Scratch::Inner, 4 * (2 * chunks * self.rank + 2) as u64)?;
        let bindings = [(3, Part::from(&self.p)), (8, (&inner).into())];
        for steps in orthonormal::dispatches(rows, self.rank, stretch) {
            let params = Params {
                first_step: steps.start as u32,
                last_step: steps.end as u32,
                chunks: chunks as u32,
                stretch: stretch as u32,
                ..self.base
            };
            batch.dispatch(kernel("orthonormalise"), params, &bindings, chunks);
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
        all_rows: shape.rows() as u32,
        all_cols: shape.cols() as u32,
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
        p: batch.scratch(Scratch::P, (4 * shape.rows() * rank) as u64)?,
        q: batch.scratch(Scratch::Q, (4 * shape.cols() * rank) as u64)?,
        results: results.clone(),
        base,
    };
    let groups = (shape.cols() * rank).div_ceil(4 * 256).min(Run::most_groups(batch));
    let params = Params { groups: groups as u32, ..base };
    batch.dispatch(kernel("start"), params, &[(2, (&run.q).into())], groups);
    for _ in 0..iterations {
        run.scale(batch, &run.q, shape.cols());
        run.multiply(batch, false)?;
        run.scale(batch, &run.p, shape.rows());
        run.orthonormalise(batch)?;
        run.multiply(batch, true)?;
    }
    Ok(run)
}

/// The different ranks in effect, ascending.
fn distinct(shape: Shape, ranks: &[u32]) -> Vec<u32> {
    let mut distinct: Vec<u32> = ranks.iter().map(|&rank| effective(shape, rank) as u32).collect();
    distinct.sort_unstable();
    distinct.dedup();
    distinct
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
    let distinct = distinct(shape, ranks);
    let rank = distinct.last().map_or(0, |&rank| rank as usize);
    let run = iterate(batch, tensor, shape, rank, iterations, stream, (results, result))?;
    let tiles = (16384 / rank).clamp(1, 32);
    for (index, ranks) in distinct.chunks(RANKS).enumerate() {
        let sought = batch.upload(bytemuck::cast_slice(ranks))?;
        let most = SIDE * Run::most_groups(batch);
        let rectangles = rectangles(batch, tensor, shape, most, most);
        let size = |rectangle: &Rectangle| [rectangle.rows.div_ceil(SIDE), rectangle.cols.div_ceil(SIDE * tiles), 1];
        let records = rectangles.iter().map(|rectangle| size(rectangle)[0] * size(rectangle)[1]);
        let totals: usize = records.map(sums::left_of).sum();
        let totals = batch.scratch(Scratch::Totals, sums::bytes(totals))?;
        let mut count = 0;
        for rectangle in rectangles {
            let size = size(&rectangle);
            let output = batch.scratch(Scratch::Output, sums::bytes(size[0] * size[1]))?;
            let params =
                Params { groups: size[0] as u32, tiles: tiles as u32, ranks: ranks.len() as u32, ..run.of(&rectangle) };
            let bindings = [
                (1, rectangle.part.clone()),
                (2, (&run.p).into()),
                (3, (&run.q).into()),
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
    let distinct = distinct(shape, ranks);
    for (place, &rank) in row.iter_mut().zip(ranks) {
        let index = distinct.partition_point(|&other| (other as usize) < effective(shape, rank));
        let at = RECORD * (1 + index / RANKS) + index % RANKS;
        *place = sums::value(words[at], words[at + RECORD / 2]);
    }
}

/// Records the making of both factors, whose buffers it returns; word 0 of `results` becomes the largest magnitude.
pub(crate) fn encode(
    batch: &mut Batch<'_>,
    tensor: &Tensor,
    shape: Shape,
    (rank, iterations): (usize, u32),
    stream: Stream,
    results: &Buffer,
) -> Result<[Part; 2], Error> {
    let run = iterate(batch, tensor, shape, rank, iterations, stream, (results, 0))?;
    let bytes = [shape.rows(), shape.cols()].map(|len| (4 * len * rank) as u64);
    let output = batch.scratch(Scratch::Output, bytes[1])?;
    let groups = (shape.cols() * rank).div_ceil(256).min(Run::most_groups(batch));
    let params = Params { groups: groups as u32, ..run.base };
    let bindings = [(3, (&run.q).into()), (5, (&output).into()), (6, results.into())];
    batch.dispatch(kernel("unscale"), params, &bindings, groups);
    let part = |buffer: Buffer, size| Part { buffer, offset: 0, size };
    Ok([part(run.p, bytes[0]), part(output, bytes[1])])
}

/// Factors of a payload, scaled by powers of two to magnitudes below 2, and the exponent to be put back.
pub(crate) struct Factors {
    p: Vec<f32>,
    q: Vec<f32>,
    rank: usize,
    exponent: i32,
}

/// The factors, or `None` when the core has to decode: the payload is at fault, or values lie at the ends of the range.
pub(crate) fn of_payload(payload: &Payload<'_>) -> Option<Factors> {
    let (shape, rank) = (payload.header.shape, payload.header.parameter as usize);
    if payload.header.variant != 0 || rank == 0 || rank != effective(shape, payload.header.parameter) {
        return None;
    }
    check(shape, rank).ok()?;
    let words = payload.body.as_chunks::<4>().0;
    if payload.body.len() != 4 * rank * (shape.rows() + shape.cols()) {
        return None;
    }
    let values: Vec<f32> = words.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
    let (p, q) = values.split_at(rank * shape.rows());
    let exponent = |values: &[f32]| {
        let largest = values.iter().fold(0, |a, x| a.max(x.to_bits() & 0x7fff_ffff));
        // None for zeros, subnormal numbers and what is not finite.
        (0x0080_0000..magnitude::INFINITY).contains(&largest).then_some((largest >> 23) as i32 - 127)
    };
    let (of_p, of_q) = (exponent(p)?, exponent(q)?);
    let scaled = |values: &[f32], exponent: i32| {
        let power = 2f64.powi(-exponent);
        values.iter().map(|&x| (f64::from(x) * power) as f32).collect()
    };
    let exponent = of_p + of_q;
    let factors = Factors { p: scaled(p, of_p), q: scaled(q, of_q), rank, exponent };
    (-126..=100).contains(&exponent).then_some(factors)
}

/// Records the decoding of factors into `target`.
pub(crate) fn decode(batch: &mut Batch<'_>, factors: &Factors, shape: Shape, target: &Tensor) -> Result<(), Error> {
    let p = batch.upload(bytemuck::cast_slice(&factors.p))?;
    let q = batch.upload(bytemuck::cast_slice(&factors.q))?;
    let most = SIDE * Run::most_groups(batch);
    let (rows, cols) = (shape.rows(), shape.cols());
    let room = batch.gpu.piece_len();
    let at_a_time = if cols <= most.min(room) { (room / cols).min(most) } else { 1 };
    for row in (0..rows).step_by(at_a_time) {
        for col in (0..cols).step_by(most.min(room)) {
            let (rows, width) = (at_a_time.min(rows - row), cols.min(most.min(room)).min(cols - col));
            let output = batch.scratch(Scratch::Output, (4 * rows * width) as u64)?;
            let params = Params {
                row: row as u32,
                col: col as u32,
                rows: rows as u32,
                cols: width as u32,
                all_rows: shape.rows() as u32,
                all_cols: cols as u32,
                columns: factors.rank as u32,
                exponent: (factors.exponent + 127) as u32,
                ..Params::default()
            };
            let bindings = [(2, p.clone()), (3, q.clone()), (5, (&output).into())];
            batch.dispatch_3d(kernel("reconstruct"), params, &bindings, [rows.div_ceil(SIDE), width.div_ceil(SIDE), 1]);
            target.take(batch, &output, row * cols + col, rows * width);
        }
    }
    Ok(())
}
