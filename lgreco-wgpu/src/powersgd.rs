//! PowerSGD: launches of `powersgd.wgsl`, each for several matrices.

use crate::Error;
use crate::batch::{Batch, Part, Task};
use crate::factor::{Band, Factor, SIDE, height};
use crate::kernels::{Kernel, Shader};
use crate::magnitude;
use crate::memory::Scratch;
use crate::orthonormal::Tall;
use crate::params::params;
use crate::rectangles::{Rectangle, rectangles};
use crate::tensor::Tensor;
use lgreco::gradient::Shape;
use lgreco::rng::Stream;
use wgpu::{Buffer, BufferUsages};

params! {
    /// The struct `Params` in `powersgd.wgsl`, with the same layout.
    offset, dtype, row, col, rows, cols, stride, transposed, factor, product, partial, inner,
    output, sought, all_rows, all_cols, columns, first_step, last_step, chunks, first_chunk,
    chunk_rows, largest_only, largest, tiles, ranks, record, exponent, layer, seed_low, seed_high,
    step, rank,
}

/// Number of terms of a product that one workgroup adds up.
const CHUNK: usize = 4096;
/// Largest side. The limits on side, rank and size of `P` keep every loop below the drivers' limit on iterations.
const LARGEST_SIDE: usize = 1 << 22;
/// Largest rank.
const LARGEST_RANK: usize = 1024;
/// Largest number of values of a `P`.
const LARGEST_P: usize = 1 << 31;

pub(crate) const fn kernel(entry: &'static str) -> Kernel {
    Kernel { shader: Shader::PowerSgd, entry }
}

/// `Err` if a matrix or a rank exceeds the kernels' limits.
pub(crate) fn check(shape: Shape, rank: usize) -> Result<(), Error> {
    let is_small = shape.rows().max(shape.cols()) <= LARGEST_SIDE && rank <= LARGEST_RANK;
    if is_small && shape.rows() * rank <= LARGEST_P {
        return Ok(());
    }
    Err(Error::Method("PowerSGD with a side above 4,194,304, a rank above 1024, or a P of more than 2^31 values"))
}

/// A matrix to compress, the rank of its factors, and the stream of its random words.
#[derive(Clone, Copy)]
pub(crate) struct Compressed<'t> {
    pub(crate) tensor: &'t Tensor,
    pub(crate) shape: Shape,
    pub(crate) rank: usize,
    pub(crate) iterations: u32,
    pub(crate) stream: Stream,
    /// Index of the result word that a kernel raises to at least the largest magnitude.
    pub(crate) largest: usize,
}

/// The number of values in each buffer that matrices share.
#[derive(Clone, Copy, Default)]
pub(crate) struct Room {
    p: usize,
    q: usize,
    /// Number of values of the partial sums of products.
    pub(crate) partial: usize,
    /// Number of values that orthonormalisation needs.
    pub(crate) inner: usize,
    columns: usize,
}

impl Compressed<'_> {
    /// Returns the numbers of values for a matrix whose factors are not cut into bands.
    pub(crate) fn room(&self) -> Room {
        let (rows, cols, rank) = (self.shape.rows(), self.shape.cols(), self.rank);
        Room {
            p: rows * rank,
            q: cols * rank,
            partial: rank * (cols.div_ceil(CHUNK) * rows).max(rows.div_ceil(CHUNK) * cols),
            inner: Tall::new(rows, rows, rank).inner(),
            columns: rank,
        }
    }

    /// Whether neither factor is cut into bands.
    pub(crate) fn is_whole(&self, batch: &Batch<'_>) -> bool {
        self.shape.rows().max(self.shape.cols()) <= height(batch.gpu.window, self.rank)
    }
}

impl Room {
    pub(crate) fn plus(self, other: Room) -> Room {
        Room {
            p: self.p + other.p,
            q: self.q + other.q,
            partial: self.partial + other.partial,
            inner: self.inner + other.inner,
            columns: self.columns + other.columns,
        }
    }

    /// Whether each buffer with these numbers of values fits a binding.
    pub(crate) fn fits(self, batch: &Batch<'_>) -> bool {
        let most = [self.p, self.q, self.partial, self.inner, self.columns].into_iter().max().unwrap_or(0);
        4 * most as u64 <= batch.gpu.window
    }
}

/// A matrix, and the factors of its compression.
pub(crate) struct Matrix<'t> {
    pub(crate) compressed: Compressed<'t>,
    pub(crate) p: Factor,
    q: Factor,
    /// The positions at which this matrix's data begin in the shared buffers.
    pub(crate) at: Room,
    /// The common parameters of all kernels.
    pub(crate) base: Params,
}

/// Direction of a product with the matrix: from `Q` to `P`, or from `P` to `Q`.
#[derive(Clone, Copy, PartialEq)]
enum Direction {
    QToP,
    PToQ,
}

impl Matrix<'_> {
    /// Returns the division of `P` into chunks, for making its columns orthonormal.
    pub(crate) fn tall(&self) -> Tall {
        Tall::new(self.compressed.shape.rows(), self.p.height(), self.compressed.rank)
    }

    pub(crate) fn rectangles(&self, batch: &Batch<'_>, most: [usize; 2]) -> Vec<Rectangle> {
        let cuts = [self.p.cuts(most[0]), self.q.cuts(most[1])];
        rectangles(batch, self.compressed.tensor, self.compressed.shape, cuts)
    }

    /// Returns the bands of `P` and `Q` that belong to a rectangle of the matrix, and the kernels' parameters for the
    /// rectangle.
    pub(crate) fn of(&self, rectangle: &Rectangle) -> (&Band, &Band, Params) {
        let (p, q) = (self.p.band_of(rectangle.row), self.q.band_of(rectangle.col));
        let params = Params {
            offset: rectangle.offset as u32,
            row: (rectangle.row - p.first) as u32,
            col: (rectangle.col - q.first) as u32,
            rows: rectangle.rows as u32,
            cols: rectangle.cols as u32,
            factor: p.at as u32,
            product: q.at as u32,
            all_rows: p.rows as u32,
            all_cols: q.rows as u32,
            ..self.base
        };
        (p, q, params)
    }

    /// Returns the rectangles of a product. Each rectangle is so small that the partial sums of all its chunks fit a
    /// binding.
    fn of_product(&self, batch: &Batch<'_>, direction: Direction) -> Vec<Rectangle> {
        let (rank, shape) = (self.compressed.rank, self.compressed.shape);
        let most = SIDE * batch.gpu.most_groups();
        let (inner, height) = match direction {
            Direction::QToP => (shape.cols(), self.q.height()),
            Direction::PToQ => (shape.rows(), self.p.height()),
        };
        let chunks = inner.min(most).min(height).div_ceil(CHUNK);
        let fits = batch.gpu.window as usize / (4 * rank * chunks) / SIDE * SIDE;
        let outer = most.min(fits.max(SIDE));
        self.rectangles(batch, if direction == Direction::PToQ { [most, outer] } else { [outer, most] })
    }
}

/// Matrices that are compressed together, with their factors in shared buffers.
pub(crate) struct Run<'t> {
    pub(crate) matrices: Vec<Matrix<'t>>,
    pub(crate) results: Buffer,
    /// The numbers of values of all matrices together.
    room: Room,
}

impl<'t> Run<'t> {
    /// Makes the factors of all matrices. Factors may be cut into several bands only if there is a single matrix.
    fn new(batch: &mut Batch<'_>, all: &[Compressed<'t>], results: &Buffer) -> Result<Run<'t>, Error> {
        let room = all.iter().fold(Room::default(), |room, one| room.plus(one.room()));
        let together = match all {
            [_] => None,
            _ => Some((
                batch.scratch(Scratch::P(0), 4 * room.p as u64)?,
                batch.scratch(Scratch::Q(0), 4 * room.q as u64)?,
            )),
        };
        let (mut matrices, mut at) = (Vec::new(), Room::default());
        for &compressed in all {
            let Compressed { tensor, shape, rank, stream, largest, .. } = compressed;
            let (p, q) = match &together {
                Some((p, q)) => {
                    (Factor::within(p, at.p, shape.rows(), rank), Factor::within(q, at.q, shape.cols(), rank))
                }
                None => (
                    Factor::new(batch, shape.rows(), rank, |batch, n, _, bytes| batch.scratch(Scratch::P(n), bytes))?,
                    Factor::new(batch, shape.cols(), rank, |batch, n, _, bytes| batch.scratch(Scratch::Q(n), bytes))?,
                ),
            };
            let base = Params {
                dtype: tensor.dtype as u32,
                stride: shape.cols() as u32,
                columns: rank as u32,
                partial: at.partial as u32,
                inner: at.inner as u32,
                output: at.columns as u32,
                largest: largest as u32,
                layer: stream.layer,
                seed_low: stream.seed as u32,
                seed_high: (stream.seed >> 32) as u32,
                step: 0,
                rank: u32::MAX,
                ..Params::default()
            };
            matrices.push(Matrix { compressed, p, q, at, base });
            at = at.plus(compressed.room());
        }
        Ok(Run { matrices, results: results.clone(), room })
    }

    /// Sets each `Q` to its start matrix.
    fn start(&self, batch: &mut Batch<'_>) {
        let mut tasks = Vec::new();
        for matrix in &self.matrices {
            for band in matrix.q.bands() {
                let groups = (band.rows * matrix.compressed.rank).div_ceil(4 * 256).min(batch.gpu.most_groups());
                let params = Params {
                    row: band.first as u32,
                    rows: band.rows as u32,
                    all_cols: matrix.compressed.shape.cols() as u32,
                    factor: band.at as u32,
                    ..matrix.base
                };
                tasks.push(Task::new(params, &[(2, (&band.buffer).into())], groups));
            }
        }
        batch.run(kernel("start"), tasks);
    }

    /// Records `P = M' Q`, or `Q = M'ᵀ P`, where `M'` is the matrix scaled by a power of two.
    fn multiply(&self, batch: &mut Batch<'_>, direction: Direction) -> Result<(), Error> {
        let transposed = direction == Direction::PToQ;
        match &self.matrices[..] {
            [matrix] => {
                for band in if transposed { &matrix.q } else { &matrix.p }.bands() {
                    batch.clear(&band.buffer, (4 * band.rows * matrix.compressed.rank) as u64);
                }
            }
            [matrix, ..] if transposed => batch.clear(&matrix.q.bands()[0].buffer, 4 * self.room.q as u64),
            [matrix, ..] => batch.clear(&matrix.p.bands()[0].buffer, 4 * self.room.p as u64),
            [] => {}
        }
        let rectangles: Vec<Vec<Rectangle>> =
            self.matrices.iter().map(|matrix| matrix.of_product(batch, direction)).collect();
        // All rectangles of a matrix add to the same sums, so they run one after another.
        for round in 0..rectangles.iter().map(Vec::len).max().unwrap_or(0) {
            let of_round =
                self.matrices.iter().zip(&rectangles).filter_map(|(matrix, of)| Some((matrix, of.get(round)?)));
            let (mut multiplied, mut added, mut size) = (Vec::new(), Vec::new(), 0);
            for (matrix, rectangle) in of_round {
                let rank = matrix.compressed.rank;
                let (p, q, params) = matrix.of(rectangle);
                let (factor, product) = if transposed { (p, q) } else { (q, p) };
                let (outer, inner) =
                    if transposed { (rectangle.cols, rectangle.rows) } else { (rectangle.rows, rectangle.cols) };
                let chunks = inner.div_ceil(CHUNK);
                size = size.max(matrix.at.partial + chunks * rank * outer);
                let params = Params {
                    transposed: transposed as u32,
                    factor: factor.at as u32,
                    product: product.at as u32,
                    chunks: chunks as u32,
                    ..params
                };
                let bindings =
                    vec![(1, rectangle.part.clone()), (2, (&factor.buffer).into()), (6, (&self.results).into())];
                multiplied.push(Task { params, bindings, groups: [outer.div_ceil(SIDE), rank.div_ceil(SIDE), chunks] });
                let groups = (rank * outer).div_ceil(256).min(batch.gpu.most_groups());
                added.push(Task::new(params, &[(3, (&product.buffer).into())], groups));
            }
            let partial = batch.scratch(Scratch::Partial, 4 * size as u64)?;
            for task in multiplied.iter_mut().chain(&mut added) {
                task.bindings.push((4, (&partial).into()));
            }
            batch.run(kernel("multiply_chunk"), multiplied);
            batch.run(kernel("add_chunks"), added);
        }
        Ok(())
    }

    /// Scales the columns of all `P`, or of all `Q`, by powers of two to magnitudes near 1.
    fn scale(&self, batch: &mut Batch<'_>, factor: impl for<'m> Fn(&'m Matrix<'t>) -> &'m Factor) -> Result<(), Error> {
        let columns = batch.scratch(Scratch::Columns, 4 * self.room.columns as u64)?;
        batch.clear(&columns, 4 * self.room.columns as u64);
        for largest_only in [true, false] {
            let mut tasks = Vec::new();
            for matrix in &self.matrices {
                let bands = factor(matrix).bands();
                // If a factor has several bands, a column's largest magnitude must be known before any band is scaled.
                if largest_only && bands.len() == 1 {
                    continue;
                }
                for band in bands {
                    let params = Params {
                        all_rows: band.rows as u32,
                        product: band.at as u32,
                        largest_only: largest_only as u32,
                        ..matrix.base
                    };
                    let bindings = [(3, (&band.buffer).into()), (5, (&columns).into())];
                    tasks.push(Task::new(params, &bindings, matrix.compressed.rank.min(batch.gpu.most_groups())));
                }
            }
            batch.run(kernel("scale_columns"), tasks);
        }
        Ok(())
    }
}

/// Records power iterations from the start matrices. All matrices have the same number of iterations.
pub(crate) fn iterate<'t>(batch: &mut Batch<'_>, all: &[Compressed<'t>], results: &Buffer) -> Result<Run<'t>, Error> {
    let tensors: Vec<(&Tensor, usize)> = all.iter().map(|one| (one.tensor, one.largest)).collect();
    magnitude::largest(batch, &tensors, results);
    let run = Run::new(batch, all, results)?;
    run.start(batch);
    for _ in 0..all[0].iterations {
        run.scale(batch, |matrix| &matrix.q)?;
        run.multiply(batch, Direction::QToP)?;
        run.scale(batch, |matrix| &matrix.p)?;
        run.orthonormalise(batch)?;
        run.multiply(batch, Direction::PToQ)?;
    }
    Ok(run)
}

/// Records the computation of both factors, and returns the parts of buffers to which they are written. Word 0 of
/// `results` becomes the largest magnitude.
pub(crate) fn encode(
    batch: &mut Batch<'_>,
    tensor: &Tensor,
    shape: Shape,
    (rank, iterations): (usize, u32),
    stream: Stream,
    results: &Buffer,
) -> Result<Vec<Part>, Error> {
    check(shape, rank)?;
    let run = iterate(batch, &[Compressed { tensor, shape, rank, iterations, stream, largest: 0 }], results)?;
    let Matrix { p, q, base, .. } = &run.matrices[0];
    let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC;
    let sent = Factor::new(batch, shape.cols(), rank, |batch, _, _, bytes| batch.buffer(bytes, usage))?;
    for (band, sent) in q.bands().iter().zip(sent.bands()) {
        let groups = (band.rows * rank).div_ceil(256).min(batch.gpu.most_groups());
        let params = Params { all_cols: band.rows as u32, ..*base };
        let bindings = [(3, (&band.buffer).into()), (5, (&sent.buffer).into()), (6, results.into())];
        batch.run(kernel("unscale"), vec![Task::new(params, &bindings, groups)]);
    }
    Ok([p.parts(), sent.parts()].concat())
}
