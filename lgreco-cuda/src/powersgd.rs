//! PowerSGD: launches of `powersgd.cu`, for many matrices at once.
//!
//! CholeskyQR, run twice, makes the columns of a factor orthonormal. CholeskyQR takes four launches for any PowerSGD
//! rank. The core orthonormalises panels of columns, and lgreco-wgpu one column after another, which would take six
//! launches per column here. CholeskyQR needs f64, which WGSL lacks. CholeskyQR squares the condition number, which
//! does no harm in f64 if the factors are f32. If the linear dependence of columns grew exponentially, Gram–Schmidt
//! would find more independent columns. In products of a matrix with random columns, dependence does not grow in this
//! way. In tests, rows of rank-deficient, Hilbert, Vandermonde and other ill-conditioned matrices agree with the
//! core's.
//!
//! An encoder with one iteration reads the matrix twice: once for `P` and the largest magnitude, and once for `Q`. The
//! encoder makes `P` from the unscaled matrix, because the scale does not change the orthonormal columns. If the
//! largest magnitude is outside 2^-64 to 2^64, the next launch makes `P` again from the scaled matrix. Otherwise that
//! launch does nothing.
//!
//! A warp computes four columns of a product, so the number of instructions grows with the rank in steps of four. A
//! block computes up to 16 columns. The warps of a block fetch the same values from the cache of their multiprocessor.

use crate::device::Part;
use crate::factors::{Table, Totals, tiles};
use crate::gpu::{Gpu, Scratch, looping_blocks, looping_pieces};
use crate::kernels::{Kernel, Module};
use crate::tensor::Tensor;
use crate::{Error, Result};
use bytemuck::{Pod, Zeroable};
use lgreco::compress::powersgd::effective_rank;
use lgreco::compress::powersgd::{NEAR_OVERFLOW, distinct_ranks};
use lgreco::compress::wire::HEADER_LEN;
use lgreco::gradient::Shape;
use lgreco::rng::Stream;

/// The struct `Params` in `powersgd.cu`, with the same layout.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    rows: u32,
    cols: u32,
    rank: u32,
    near_overflow: u32,
    matrices: u32,
    columns: u32,
    products: u32,
    backs: u32,
    grams: u32,
    solves: u32,
    tiles: u32,
    runs: u32,
    second: u32,
    fresh: u32,
    known: u32,
    again: u32,
    first_rank: u32,
    words: u32,
    seed_low: u32,
    seed_high: u32,
}

#[cfg(test)]
impl Params {
    pub(crate) const FIELDS: &[&'static str] = &[
        "rows",
        "cols",
        "rank",
        "near_overflow",
        "matrices",
        "columns",
        "products",
        "backs",
        "grams",
        "solves",
        "tiles",
        "runs",
        "second",
        "fresh",
        "known",
        "again",
        "first_rank",
        "words",
        "seed_low",
        "seed_high",
    ];
}

/// The struct `Row` in `powersgd.cu`, with the same layout.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Row {
    dtype: u32,
    first_run: u32,
    sought: u32,
    ranks: u32,
}

#[cfg(test)]
impl Row {
    pub(crate) const FIELDS: &[(&'static str, usize)] = &[
        ("dtype", std::mem::offset_of!(Row, dtype)),
        ("first_run", std::mem::offset_of!(Row, first_run)),
        ("sought", std::mem::offset_of!(Row, sought)),
        ("ranks", std::mem::offset_of!(Row, ranks)),
    ];
}

/// Number of PowerSGD ranks whose errors a launch measures together.
const RANKS: usize = 8;
/// Number of tiles whose squared errors are added up in one sum.
const RUN: u64 = 8;
/// The largest rank. The limit exists because one block factors the whole Gram matrix.
const LARGEST_RANK: usize = 1024;
/// The largest side. The limit exists because threads step from row to row in 32-bit numbers, which must not overflow.
const LARGEST_SIDE: u64 = 1 << 31;
/// If a set of launches needs this many bytes of workspace or more, no further matrix is added to the set.
pub(crate) const TOGETHER: u64 = 512 << 20;

const fn kernel(entry: &'static str) -> Kernel {
    Kernel { module: Module::PowerSgd, entry }
}

/// `Err` if the rank or a side is beyond the limits of the kernels.
pub(crate) fn check(shape: Shape, rank: u32) -> Result<()> {
    check_sides(shape)?;
    if effective_rank(shape, rank) <= LARGEST_RANK {
        return Ok(());
    }
    Err(Error::Method("PowerSGD with a rank above 1024"))
}

/// `Err` if a side is beyond the limit of the kernels.
pub(crate) fn check_sides(shape: Shape) -> Result<()> {
    if shape.rows().max(shape.cols()) as u64 <= LARGEST_SIDE {
        return Ok(());
    }
    Err(Error::Method("PowerSGD with a side above 2,147,483,648"))
}

/// A matrix to compress, and the stream of its random words.
pub(crate) struct Layer<'t> {
    pub(crate) tensor: &'t Tensor,
    pub(crate) shape: Shape,
    pub(crate) stream: Stream,
}

/// Matrices that are compressed together, with the memory for their factors.
struct Run {
    totals: Totals,
    table: Part,
    rows: Part,
    sought: Part,
    p: Part,
    q: Part,
    counters: Part,
    /// The memory for the largest magnitudes and the results.
    results: Part,
    /// The parameters that all launches have in common.
    base: Params,
}

/// The tables for launches over several matrices.
#[derive(Default)]
struct Tables {
    factors: Table,
    rows: Vec<Row>,
    sought: Vec<u32>,
    runs: u64,
}

impl Tables {
    /// Adds a matrix. `ranks` must ascend. The largest of these ranks determines the size of the matrix's factors.
    fn add(&mut self, layer: &Layer<'_>, ranks: &[u32]) -> Result<()> {
        let (shape, number) = (layer.shape, self.rows.len() as u32);
        let too_many = |_| Error::from(lgreco::Error::TooManyElements { rows: shape.rows(), cols: shape.cols() });
        self.rows.push(Row {
            dtype: layer.tensor.dtype as u32,
            first_run: u32::try_from(self.runs).map_err(too_many)?,
            sought: self.sought.len() as u32,
            ranks: ranks.len() as u32,
        });
        self.sought.extend(ranks);
        self.runs += tiles(shape).div_ceil(RUN);
        let columns = ranks.last().copied().unwrap_or(0);
        self.factors.add(shape, columns, layer.tensor.part.address, number, layer.stream.layer)
    }

    /// Bytes of the `P` of all matrices.
    fn p_bytes(&self) -> u64 {
        4 * self.factors.totals.p
    }

    /// Bytes of workspace.
    fn bytes(&self) -> u64 {
        let Totals { p, q, partial, gram, triangle, .. } = self.factors.totals;
        // The chunks of products and the parts of Gram matrices use the same memory, one after the other.
        4 * (p + q) + (4 * partial).max(8 * gram) + 8 * (triangle + RANKS as u64 * self.runs)
    }
}

impl Run {
    /// Enqueued: uploads the tables. The memory `p` is for the factors `P` and has [`p_bytes`](Tables::p_bytes). The
    /// results of each matrix begin `words` words of 8 bytes after those of the previous matrix. All results must be
    /// zeros before the call.
    fn new(gpu: &mut Gpu, tables: &Tables, seed: u64, p: Part, (results, words): (Part, usize)) -> Result<Self> {
        let totals = tables.factors.totals;
        let factors = bytemuck::cast_slice::<_, u8>(&tables.factors.matrices);
        let all = [factors, bytemuck::cast_slice(&tables.rows), bytemuck::cast_slice(&tables.sought)];
        let uploaded = gpu.upload(Scratch::Matrices, &all.concat())?;
        let [table, rows, sought] = {
            let rest = uploaded.from(all[0].len() as u64);
            [uploaded, rest, rest.from(all[1].len() as u64)]
        };
        let counters = gpu.scratch(Scratch::Counters, 4 * u64::from(totals.counters))?;
        gpu.clear(counters)?;
        let Totals { columns, products, backs, grams, solves, tiles, .. } = totals;
        let base = Params {
            matrices: tables.rows.len() as u32,
            columns,
            products,
            backs,
            grams,
            solves,
            tiles,
            runs: tables.runs as u32,
            words: words as u32,
            seed_low: seed as u32,
            seed_high: (seed >> 32) as u32,
            ..Params::default()
        };
        let q = gpu.scratch(Scratch::Q, 4 * totals.q)?;
        Ok(Run { totals, table, rows, sought, p, q, counters, results, base })
    }

    /// Enqueued: launches a kernel for `pieces` pieces of work.
    fn launch(&self, gpu: &mut Gpu, entry: &'static str, parts: &[Part], pieces: u32) -> Result<()> {
        gpu.launch(kernel(entry), self.base, parts, looping_pieces(pieces.into()))
    }

    /// Enqueued: runs power iterations from the start matrices. The first product also finds the largest magnitudes.
    fn iterate(&self, gpu: &mut Gpu, iterations: u32) -> Result<()> {
        for iteration in 0..iterations {
            let fresh = u32::from(iteration == 0);
            let params = Params { fresh, ..self.base };
            gpu.launch(kernel("scale_columns"), params, &[self.table, self.q], looping_pieces(params.columns.into()))?;
            self.multiply(gpu, "project", Params { known: 1 - fresh, ..self.base })?;
            if fresh == 1 {
                self.multiply(gpu, "project", Params { known: 1, again: 1, ..self.base })?;
            }
            self.orthonormalise(gpu)?;
            self.multiply(gpu, "back_project", self.base)?;
        }
        Ok(())
    }

    /// Enqueued: launches the kernel `entry`, which multiplies the matrices by `q`, or the transposed matrices by `p`.
    fn multiply(&self, gpu: &mut Gpu, entry: &'static str, params: Params) -> Result<()> {
        let transposed = entry == "back_project";
        let (right, product) = if transposed { (self.p, self.q) } else { (self.q, self.p) };
        let partial = gpu.scratch(Scratch::Chunks, 4 * self.totals.partial)?;
        let parts = [self.table, self.rows, self.results, right, partial, self.counters, product];
        let pieces = if transposed { params.backs } else { params.products };
        gpu.launch(kernel(entry), params, &parts, looping_pieces(pieces.into()))
    }

    /// Enqueued: makes the columns of `p` orthonormal. Columns that are linearly dependent on earlier columns become
    /// zeros.
    fn orthonormalise(&self, gpu: &mut Gpu) -> Result<()> {
        let partial = gpu.scratch(Scratch::Chunks, 8 * self.totals.gram)?;
        let triangle = gpu.scratch(Scratch::Triangle, 8 * self.totals.triangle)?;
        for second in [0, 1] {
            let params = Params { second, ..self.base };
            let parts = [self.table, self.p, partial, triangle, self.counters];
            gpu.launch(kernel("gram"), params, &parts, looping_pieces(params.grams.into()))?;
            self.launch(gpu, "solve", &[self.table, self.p, triangle], params.solves)?;
        }
        Ok(())
    }

    /// Enqueued: measures the squared errors at up to `ranks` ranks.
    fn measure(&self, gpu: &mut Gpu, ranks: usize) -> Result<()> {
        for first_rank in (0..ranks as u32).step_by(RANKS) {
            let params = Params { first_rank, ..self.base };
            let partials = gpu.scratch(Scratch::Partials, 8 * RANKS as u64 * u64::from(params.runs))?;
            let parts = [self.table, self.rows, self.results, self.p, self.q, self.sought, partials];
            gpu.launch(kernel("residuals"), params, &parts, looping_pieces(params.runs.into()))?;
            let parts = [self.rows, partials, self.results];
            gpu.launch(kernel("add_runs"), params, &parts, looping_pieces(params.matrices.into()))?;
        }
        Ok(())
    }
}

/// Number of result words of [`measure`]: one word for the largest magnitude, and a record of eight words for every
/// eight ranks.
pub(crate) const fn result_words(ranks: usize) -> usize {
    1 + RANKS * ranks.div_ceil(RANKS)
}

/// Enqueued: measures the squared errors of all layers at `ranks`, which is not empty. All layers must have the same
/// seed. Layers share launches until the launches need `together` bytes of workspace or more. The results of the layers
/// lie one after another. All results must be zeros before the call.
pub(crate) fn measure(
    gpu: &mut Gpu,
    layers: &[Layer<'_>],
    (iterations, ranks): (u32, &[u32]),
    together: u64,
    results: Part,
) -> Result<()> {
    let words = result_words(ranks.len());
    let (mut rest, mut results) = (layers, results);
    while let Some(first) = rest.first() {
        let (mut tables, mut most) = (Tables::default(), 0);
        for layer in rest {
            let distinct = distinct_ranks(layer.shape, ranks);
            tables.add(layer, &distinct)?;
            most = most.max(distinct.len());
            if tables.bytes() >= together {
                break;
            }
        }
        let p = gpu.scratch(Scratch::P, tables.p_bytes())?;
        let run = Run::new(gpu, &tables, first.stream.seed, p, (results, words))?;
        run.iterate(gpu, iterations)?;
        run.measure(gpu, most)?;
        rest = &rest[tables.rows.len()..];
        results = results.from(8 * (words * tables.rows.len()) as u64);
    }
    Ok(())
}

/// Writes the squared errors to `row`, from the words that [`measure`] wrote.
pub(crate) fn errors(shape: Shape, ranks: &[u32], words: &[u64], row: &mut [f64]) {
    let distinct = distinct_ranks(shape, ranks);
    for (place, &rank) in row.iter_mut().zip(ranks) {
        let index = distinct.partition_point(|&other| (other as usize) < effective_rank(shape, rank));
        *place = f64::from_bits(words[1 + index]);
    }
}

/// Enqueued: writes all of `payload` except the header. The first word of `status` becomes the largest magnitude;
/// [`fault`] interprets the second word.
pub(crate) fn encode(
    gpu: &mut Gpu,
    layer: &Layer<'_>,
    (rank, iterations): (u32, u32),
    payload: Part,
    status: Part,
) -> Result<()> {
    let shape = layer.shape;
    check(shape, rank)?;
    let (mut tables, rank) = (Tables::default(), effective_rank(shape, rank) as u32);
    tables.add(layer, &[rank])?;
    // The kernels make `P` in place, in the payload.
    let body = payload.from(HEADER_LEN as u64);
    let p = body.cut(0, tables.p_bytes());
    let run = Run::new(gpu, &tables, layer.stream.seed, p, (status, 0))?;
    run.iterate(gpu, iterations)?;
    let (q, faults) = (body.from(p.bytes), status.from(4));
    let params = Params { near_overflow: NEAR_OVERFLOW, ..of_one(shape, rank) };
    gpu.launch(kernel("unscale"), params, &[status, run.q, q, faults], looping_blocks(run.q.bytes / 4))?;
    gpu.launch(kernel("check_product"), params, &[status, body, q, faults], looping_pieces(params.tiles.into()))
}

/// Returns the error of a payload, from the second word of its status.
pub(crate) fn fault(faults: u32) -> Result<()> {
    let what = match faults {
        0 => return Ok(()),
        2 => "the product of the factors",
        _ => "PowerSGD factor Q",
    };
    Err(lgreco::Error::Overflow { what }.into())
}

/// Parameters of launches for one matrix.
fn of_one(shape: Shape, rank: u32) -> Params {
    let (rows, cols) = (shape.rows() as u32, shape.cols() as u32);
    Params { rows, cols, rank, tiles: tiles(shape) as u32, ..Params::default() }
}

/// Enqueued: decodes a payload with a checked header into `target`. The two words of `status` must be zeros before the
/// call. `status` stays zero if both factors and their product are finite.
pub(crate) fn decode(gpu: &mut Gpu, rank: u32, payload: Part, shape: Shape, target: Part, status: Part) -> Result<()> {
    let params = of_one(shape, rank);
    let body = payload.from(HEADER_LEN as u64);
    let factors = [body, body.from(4 * u64::from(rank) * u64::from(params.rows))];
    gpu.launch(kernel("reconstruct"), params, &[factors[0], factors[1], target, status], u64::from(params.tiles))
}

/// Enqueued: makes the columns of a factor orthonormal, as an encoder does for `P`.
#[cfg(test)]
pub(crate) fn orthonormalise(gpu: &mut Gpu, factor: Part, rows: u32, columns: u32) -> Result<()> {
    let shape = Shape::new(rows as usize, columns as usize)?;
    let tensor = Tensor::of_part(factor);
    let mut tables = Tables::default();
    tables.add(&Layer { tensor: &tensor, shape, stream: Stream::default() }, &[columns])?;
    Run::new(gpu, &tables, 0, factor, (factor, 0))?.orthonormalise(gpu)
}
