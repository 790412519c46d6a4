//! PowerSGD: what `powersgd.cu` is asked to do.
//!
//! Columns are made orthonormal by CholeskyQR, twice, where the core works by panels and lgreco-wgpu column by
//! column: that is six launches for any rank instead of six per column. It needs the f64 that WGSL has not, and
//! squares the condition, which f64 bears as long as factors are f32. On columns of exponentially growing dependence
//! Gram–Schmidt would keep more, but products with random columns have none: rows of fading, rank-deficient,
//! Hilbert's and Vandermonde's matrices are the core's.

use crate::device::{BLOCK, Gemm, Part};
use crate::gpu::{Gpu, Scratch, looping_blocks};
use crate::kernels::{Kernel, Module};
use crate::tensor::Tensor;
use crate::{Error, magnitude, sums};
use bytemuck::{Pod, Zeroable};
use lgreco_core::compress::powersgd::effective_rank;
use lgreco_core::compress::wire::HEADER_LEN;
use lgreco_core::gradient::Shape;
use lgreco_core::internal::powersgd::{NEAR_OVERFLOW, distinct_ranks};
use lgreco_core::rng::Stream;

/// `Params` of `powersgd.cu`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    dtype: u32,
    rows: u32,
    cols: u32,
    columns: u32,
    transposed: u32,
    chunk: u32,
    chunks: u32,
    len: u32,
    second: u32,
    stretch: u32,
    stretches: u32,
    ranks: u32,
    near_overflow: u32,
    layer: u32,
    seed_low: u32,
    seed_high: u32,
}

#[cfg(test)]
impl Params {
    pub(crate) const FIELDS: &[&'static str] = &[
        "dtype",
        "rows",
        "cols",
        "columns",
        "transposed",
        "chunk",
        "chunks",
        "len",
        "second",
        "stretch",
        "stretches",
        "ranks",
        "near_overflow",
        "layer",
        "seed_low",
        "seed_high",
    ];
}

/// A block's part of a product, and of the matrix that factors make.
const OUTER: u32 = 64;
const WIDE: u32 = 32;
const DEPTH: u32 = 32;
const SIDE: u32 = 32;
/// Most terms of a product that are added in f32, and the blocks that a product is divided among if it has enough terms.
const CHUNK: u32 = 4096;
const SPREAD: u32 = 1024;
/// Least rows of an inner product that a thread adds up, and most parts an inner product has.
const STRETCH: u32 = 128;
const STRETCHES: u32 = 64;
/// A block's part of the Gram matrix; the most columns for which all of it lies in shared memory.
const EDGE: u32 = 16;
const MOST_SHARED: u32 = 64;
/// Threads of a block that substitutes.
const SOLVERS: u32 = 64;
/// Ranks measured together.
const RANKS: usize = 8;
/// The largest rank, whose Gram matrix one block factors.
const LARGEST_RANK: usize = 1024;
/// The largest side: threads go on from row to row in 32 bits.
const LARGEST_SIDE: u64 = 1 << 31;

const fn kernel(entry: &'static str) -> Kernel {
    Kernel { module: Module::PowerSgd, entry }
}

/// `Err` when a rank or a side is beyond what the kernels are made for.
pub(crate) fn check(shape: Shape, rank: u32) -> Result<(), Error> {
    check_sides(shape)?;
    if effective_rank(shape, rank) <= LARGEST_RANK {
        return Ok(());
    }
    Err(Error::Method("PowerSGD with a rank above 1024"))
}

/// `Err` when a side is beyond what the kernels are made for.
pub(crate) fn check_sides(shape: Shape) -> Result<(), Error> {
    if shape.rows().max(shape.cols()) as u64 <= LARGEST_SIDE {
        return Ok(());
    }
    Err(Error::Method("PowerSGD with a side above 2,147,483,648"))
}

/// A matrix and the factors of its compression.
struct Run<'t> {
    tensor: &'t Tensor,
    p: Part,
    q: Part,
    largest: Part,
    /// The matrix as cuBLAS reads it, where it makes the products.
    matrix: Option<Part>,
    /// What every launch is told.
    base: Params,
}

impl<'t> Run<'t> {
    /// Enqueued: the start matrix of `stream`, in `q`. The first word of `largest` becomes the largest magnitude.
    fn start(
        gpu: &mut Gpu,
        tensor: &'t Tensor,
        shape: Shape,
        rank: u32,
        stream: Stream,
        largest: Part,
    ) -> Result<Self, Error> {
        magnitude::largest(gpu, tensor, largest)?;
        let base = Params {
            dtype: tensor.dtype as u32,
            rows: shape.rows() as u32,
            cols: shape.cols() as u32,
            columns: rank,
            layer: stream.layer,
            seed_low: stream.seed as u32,
            seed_high: (stream.seed >> 32) as u32,
            ..Params::default()
        };
        let factor = |len: u32| 4 * u64::from(len) * u64::from(rank);
        let (p, q) = (gpu.scratch(Scratch::P, factor(base.rows))?, gpu.scratch(Scratch::Q, factor(base.cols))?);
        gpu.launch(kernel("start"), base, &[q], looping_blocks((q.bytes / 4).div_ceil(4)))?;
        Ok(Run { tensor, p, q, largest, matrix: None, base })
    }

    /// Enqueued: power iterations.
    fn iterate(&self, gpu: &mut Gpu, iterations: u32) -> Result<(), Error> {
        for _ in 0..iterations {
            self.scale(gpu, self.q, self.base.cols)?;
            self.multiply(gpu, false)?;
            self.scale(gpu, self.p, self.base.rows)?;
            orthonormalise(gpu, self.p, self.base.rows, self.base.columns)?;
            self.multiply(gpu, true)?;
        }
        Ok(())
    }

    /// Enqueued: has the products made by cuBLAS, if the backend has it and the sizes fit its integers.
    fn by_cublas(mut self, gpu: &mut Gpu) -> Result<Self, Error> {
        let Params { rows, cols, .. } = self.base;
        if gpu.has_cublas() && rows.max(cols) <= i32::MAX as u32 {
            let elements = u64::from(self.tensor.elements);
            let matrix = gpu.scratch(Scratch::Matrix, 4 * elements)?;
            let parts = [self.tensor.part, self.largest, matrix];
            gpu.launch(kernel("scale_matrix"), self.base, &parts, looping_blocks(elements))?;
            self.matrix = Some(matrix);
        }
        Ok(self)
    }

    /// Enqueued: `product = M' factor`, or `M'ᵀ factor`.
    fn multiply(&self, gpu: &mut Gpu, transposed: bool) -> Result<(), Error> {
        let Params { rows, cols, columns, .. } = self.base;
        let (factor, product) = if transposed { (self.p, self.q) } else { (self.q, self.p) };
        let (outer, inner) = if transposed { (cols, rows) } else { (rows, cols) };
        if let Some(left) = self.matrix {
            // Rows that lie one after the other are the columns of the transposed matrix.
            let transposed = !transposed;
            return gpu.multiply(&Gemm {
                transposed,
                rows: outer,
                cols: columns,
                terms: inner,
                left,
                right: factor,
                product,
            });
        }
        let tiles = outer.div_ceil(OUTER);
        // Columns must not depend on how many there are, so neither does the division.
        let chunk = inner.div_ceil((SPREAD / tiles).max(1)).next_multiple_of(DEPTH).clamp(8 * DEPTH, CHUNK);
        let chunks = inner.div_ceil(chunk);
        let params = Params { transposed: transposed.into(), chunk, chunks, ..self.base };
        let count = u64::from(columns) * u64::from(outer);
        let partial = gpu.scratch(Scratch::Chunks, 4 * u64::from(chunks) * count)?;
        let grid = [u64::from(tiles) * u64::from(chunks), columns.div_ceil(WIDE).into(), 1];
        gpu.launch_3d(kernel("multiply"), params, &[self.tensor.part, self.largest, factor, partial], grid, 0)?;
        gpu.launch(kernel("add_chunks"), params, &[partial, product], looping_blocks(count))
    }

    /// Enqueued: scales the columns of a factor, of `len` rows, by powers of two to magnitudes near 1.
    fn scale(&self, gpu: &mut Gpu, factor: Part, len: u32) -> Result<(), Error> {
        let params = Params { len, ..self.base };
        gpu.launch(kernel("scale_columns"), params, &[factor], self.base.columns.into())
    }
}

/// Enqueued: makes the columns of a factor orthonormal; those that depend on columns before them become zeros.
pub(crate) fn orthonormalise(gpu: &mut Gpu, factor: Part, rows: u32, columns: u32) -> Result<(), Error> {
    let stretch = rows.div_ceil(STRETCHES).next_multiple_of(DEPTH).max(STRETCH);
    let stretches = rows.div_ceil(stretch);
    let side = u64::from(columns.div_ceil(EDGE));
    let parts = side * (side + 1) / 2;
    let partial = gpu.scratch(Scratch::InnerProducts, 8 * u64::from(BLOCK) * parts * u64::from(stretches))?;
    let triangle = gpu.scratch(Scratch::Triangle, 8 * u64::from(columns) * u64::from(columns))?;
    let shared = 8 * columns * (1 + if columns <= MOST_SHARED { columns } else { 0 });
    for second in [0, 1] {
        let params = Params { rows, columns, second, stretch, stretches, ..Params::default() };
        gpu.launch_3d(kernel("gram"), params, &[factor, partial], [stretches.into(), parts, 1], 0)?;
        gpu.launch_3d(kernel("cholesky"), params, &[partial, triangle], [1, 1, 1], shared)?;
        gpu.launch_of(kernel("solve"), params, &[factor, triangle], rows.div_ceil(SOLVERS).into(), SOLVERS)?;
    }
    Ok(())
}

/// Words of results that [`measure`] writes: the largest magnitude, and a record for every eight ranks.
pub(crate) const fn result_words(ranks: usize) -> usize {
    1 + RANKS * ranks.div_ceil(RANKS)
}

/// Enqueued: the measurement of `ranks`, of which there are some.
pub(crate) fn measure(
    gpu: &mut Gpu,
    tensor: &Tensor,
    shape: Shape,
    (iterations, ranks): (u32, &[u32]),
    stream: Stream,
    results: Part,
) -> Result<(), Error> {
    let distinct = distinct_ranks(shape, ranks);
    let rank = distinct.last().copied().unwrap_or(0);
    let run = Run::start(gpu, tensor, shape, rank, stream, results)?;
    run.iterate(gpu, iterations)?;
    let sought = gpu.upload(Scratch::Ranks, bytemuck::cast_slice(&distinct))?;
    let blocks = looping_blocks(u64::from(BLOCK) * tiles(&run.base));
    for (index, ranks) in distinct.chunks(RANKS).enumerate() {
        let params = Params { ranks: ranks.len() as u32, ..run.base };
        let record = 8 * RANKS as u64;
        let partials = gpu.scratch(Scratch::Partials, record * blocks)?;
        let own = sought.cut(4 * (RANKS * index) as u64, 4 * ranks.len() as u64);
        let parts = [tensor.part, results, run.p, run.q, own, partials];
        gpu.launch(kernel("residuals"), params, &parts, blocks)?;
        sums::add(gpu, partials, blocks, RANKS as u32, results.cut(8 + record * index as u64, record))?;
    }
    Ok(())
}

/// The squared errors in the words that [`measure`] wrote.
pub(crate) fn errors(shape: Shape, ranks: &[u32], words: &[u64], row: &mut [f64]) {
    let distinct = distinct_ranks(shape, ranks);
    for (place, &rank) in row.iter_mut().zip(ranks) {
        let index = distinct.partition_point(|&other| (other as usize) < effective_rank(shape, rank));
        *place = f64::from_bits(words[1 + index]);
    }
}

/// Enqueued: all of `payload` but the header. The first word of `status` becomes the largest magnitude, the second what
/// [`fault`] is told.
pub(crate) fn encode(
    gpu: &mut Gpu,
    tensor: &Tensor,
    shape: Shape,
    (rank, iterations): (u32, u32),
    stream: Stream,
    payload: Part,
    status: Part,
) -> Result<(), Error> {
    check(shape, rank)?;
    let run = Run::start(gpu, tensor, shape, effective_rank(shape, rank) as u32, stream, status)?.by_cublas(gpu)?;
    run.iterate(gpu, iterations)?;
    let body = payload.from(HEADER_LEN as u64);
    gpu.copy(run.p, body)?;
    let (q, faults) = (body.from(run.p.bytes), status.from(4));
    gpu.launch(kernel("unscale"), run.base, &[status, run.q, q, faults], looping_blocks(run.q.bytes / 4))?;
    let params = Params { near_overflow: NEAR_OVERFLOW, ..run.base };
    let blocks = looping_blocks(u64::from(BLOCK) * tiles(&params));
    gpu.launch(kernel("check_product"), params, &[status, body, q, faults], blocks)
}

/// What is wrong with a payload, by the second word of its status.
pub(crate) fn fault(faults: u32) -> Result<(), Error> {
    let what = match faults {
        0 => return Ok(()),
        2 => "the product of the factors",
        _ => "PowerSGD factor Q",
    };
    Err(lgreco_core::Error::Overflow { what }.into())
}

/// Tiles of the matrix that factors make.
fn tiles(params: &Params) -> u64 {
    u64::from(params.rows.div_ceil(SIDE)) * u64::from(params.cols.div_ceil(SIDE))
}

/// Enqueued: decodes a payload whose header has been checked into `target`. Afterwards the two words of `status` must be 0:
/// else a factor or the product is not finite.
pub(crate) fn decode(
    gpu: &mut Gpu,
    rank: u32,
    payload: Part,
    shape: Shape,
    target: Part,
    status: Part,
) -> Result<(), Error> {
    let (rows, cols) = (shape.rows() as u32, shape.cols() as u32);
    let params = Params { rows, cols, columns: rank, ..Params::default() };
    let body = payload.from(HEADER_LEN as u64);
    let factors = [body, body.from(4 * u64::from(rank) * u64::from(rows))];
    gpu.clear(status)?;
    gpu.launch(kernel("reconstruct"), params, &[factors[0], factors[1], target, status], tiles(&params))
}
