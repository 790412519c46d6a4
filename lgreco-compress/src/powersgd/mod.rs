//! PowerSGD: approximates a gradient matrix by the product of two thin matrices.
//!
//! A gradient `M` (rows × cols) is sent as `P̂` (rows × r, orthonormal columns) and `Q = Mᵀ P̂` (cols × r). The
//! receiver computes `P̂ Qᵀ`, the projection of `M` on the columns of `P̂`. `P̂` comes from power iteration, `P = M Q`,
//! and starts from a random matrix that is equal on all workers. Ranks above `min(rows, cols)` are reduced to
//! `min(rows, cols)`.
//!
//! In the header, `variant` is 0 and `parameter` is the effective rank. The body has the columns of `P̂`, then the
//! columns of `Q`. All numbers are f32 little-endian for every element type of the gradient.
//!
//! Columns never depend on later columns. So the factors of rank r are the first r columns of any larger rank's
//! factors, bit for bit. A dependent or zero column is sent as zeros, which reduces the rank and is no error.
//!
//! Without the feature `gemm`, the factors have the same bits on every processor. With the feature, `matrixmultiply`
//! computes the products `M Q` and `Mᵀ P̂`. With `gemm`, the last bits of factors, payloads and measured errors change,
//! and depend on the processor's instructions. Results on one processor stay reproducible. Measured errors are still
//! the errors of that processor's payloads, and decoding always gives the same bits. With the feature, products also
//! allocate packing buffers of about 1 KiB per column, and workspaces are larger.
//!
//! # Source
//! Vogels, Karimireddy, Jaggi, "PowerSGD: Practical low-rank gradient compression for distributed optimization",
//! NeurIPS 2019, Algorithm 1. Deviations: (1) Orthonormalisation runs twice, without an epsilon in the norm. (2) The
//! start matrix is uniform on (−1, 1), not normal. The uniform distribution gives the same bits on every machine, and
//! suffices for a sketch. (3) A call makes `iterations` power iterations instead of always one.

mod decode;
mod encode;
mod measure;
mod setting;
mod start;
mod steps;

pub use decode::{Factors, decode, of_payload};
pub(super) use decode::{combine, stated};
pub use measure::{measure, measure_workspace_len};
pub(crate) use setting::{KNOWN, PLANNED, READER};
pub use start::start_matrix;
pub use steps::{back_project, orthonormalise, project, reconstruct, reconstruct_rows, steps_workspace_len, take_off};

/// Bits of 2^90 as f32. If a gradient has a magnitude of at least 2^90, the product of its factors may leave the range
/// of f32.
pub const NEAR_OVERFLOW: u32 = (127 + 90) << 23;

/// The distinct effective ranks, ascending.
#[cfg(feature = "alloc")]
pub fn distinct_ranks(shape: Shape, ranks: &[u32]) -> alloc::vec::Vec<u32> {
    let effective = |&rank: &u32| effective_rank(shape, rank) as u32;
    let mut distinct: alloc::vec::Vec<u32> = ranks.iter().map(effective).collect();
    distinct.sort_unstable();
    distinct.dedup();
    distinct
}

use crate::error::expect_room;
use crate::gradient::{Dtype, Gradient, Shape, with_elements};
use crate::linalg::{self, Matrix};
use crate::rng::Stream;
use crate::wire::{HEADER_LEN, Header, Method};
use crate::{Aggregation, Compressor, Cost, Traits};
use crate::{Error, Result};
use encode::Work;

/// Maximum number of power iterations. This many iterations separate all singular values that f32 can distinguish. The
/// limit also bounds the time of a call.
///
/// ```
/// use lgreco_compress::powersgd::{MOST_ITERATIONS, PowerSgd};
/// use lgreco_core::gradient::Shape;
/// let header = |iterations| PowerSgd { rank: 4, iterations }.header(Shape::new(8, 8)?);
/// assert!(header(MOST_ITERATIONS).is_ok() && header(MOST_ITERATIONS + 1).is_err());
/// # Ok::<(), lgreco_core::Error>(())
/// ```
pub const MOST_ITERATIONS: u32 = 1000;

/// PowerSGD at one rank. Every call starts from the start matrix.
///
/// ```
/// use lgreco_compress::{Compressor, powersgd::{PowerSgd, decode}, wire::Payload};
/// use lgreco_core::gradient::{Dtype, Gradient, Shape, Values};
/// use lgreco_core::rng::Stream;
///
/// let values = [1.0f32, 2.0, 3.0, -2.0, -4.0, -6.0]; // rank 1
/// let gradient = Gradient::new(Values::F32(&values), Shape::new(2, 3)?)?;
/// let compressor = PowerSgd { rank: 1, iterations: 1 };
/// let mut workspace = vec![0; compressor.encode_workspace_len(gradient.shape(), Dtype::F32)];
/// let mut payload = vec![0; compressor.payload_len(gradient.shape(), Dtype::F32)?];
/// let length = compressor.encode(&gradient, Stream::default(), &mut workspace, &mut payload)?;
/// assert_eq!(length, 16 + 4 * (2 + 3));
///
/// let mut decoded = [0.0; 6];
/// decode(&Payload::parse(&payload)?, &mut decoded)?;
/// assert!(values.iter().zip(decoded).all(|(x, y)| (x - y).abs() < 1e-5));
/// # Ok::<(), lgreco_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PowerSgd {
    /// Rank, at least 1. A rank above `min(rows, cols)` is reduced to `min(rows, cols)`.
    pub rank: u32,
    /// Power iterations, 1 to [`MOST_ITERATIONS`]. More iterations bring the error closer to the error of the best
    /// matrix of this rank. The published method makes one iteration per step, from the last step's `Q`; [`project`]
    /// allows this warm start.
    pub iterations: u32,
}

impl Compressor for PowerSgd {
    fn traits(&self) -> Traits {
        let cost = Cost::of_elements(4, 2.0 + f64::from(self.rank), 0.0);
        Traits { aggregation: Aggregation::FactorAllReduce, ..Traits::payloads(cost) }
    }

    /// The length is `16 + 4 r (rows + cols)` with `r = min(rank, rows, cols)`.
    fn payload_len(&self, shape: Shape, _dtype: Dtype) -> Result<usize> {
        self.check()?;
        Ok(HEADER_LEN + body_len(shape, effective_rank(shape, self.rank))?)
    }

    fn encode_workspace_len(&self, shape: Shape, _dtype: Dtype) -> usize {
        encode::workspace_len(shape, effective_rank(shape, self.rank))
    }

    /// Encodes from the start matrix [`start_matrix`] of `stream`, which is equal for all steps and ranks of a run.
    ///
    /// # Errors
    /// The errors of [`Compressor::encode`], and [`Error::Overflow`] when `Mᵀ P̂` or the decoded product leaves the
    /// range of f32.
    fn encode(
        &self,
        gradient: &Gradient<'_>,
        stream: Stream,
        workspace: &mut [u64],
        payload: &mut [u8],
    ) -> Result<usize> {
        let (shape, rank) = (gradient.shape(), effective_rank(gradient.shape(), self.rank));
        let len = self.payload_len(shape, Dtype::F32)?;
        expect_room("payload bytes", len, payload.len())?;
        expect_room("workspace words", encode::workspace_len(shape, rank), workspace.len())?;
        let mut work = Work::split(shape, rank, workspace);
        with_elements!(gradient.values(), values => {
        let scan = encode::scan(values)?;
        encode::cold_start(stream, shape.cols(), rank, work.q);
        let m = Matrix { values, rows: shape.rows(), cols: shape.cols() };
        encode::iterate(m, scan.largest, rank, self.iterations, &mut work)?;
        encode::check_product(m, scan, rank, &mut work)?;
        });
        header(shape, rank).write(payload)?;
        let (p, q) = payload[HEADER_LEN..].as_chunks_mut::<4>().0.split_at_mut(rank * shape.rows());
        linalg::unpack(work.p, shape.rows(), rank, |i, x| p[i] = x.to_le_bytes());
        linalg::unpack(work.q, shape.cols(), rank, |i, x| q[i] = x.to_le_bytes());
        Ok(len)
    }
}

impl PowerSgd {
    /// The header of a payload, with the effective rank.
    ///
    /// # Errors
    /// [`Error::Parameter`] when the rank is 0 or the number of iterations is out of range.
    pub fn header(&self, shape: Shape) -> Result<Header> {
        self.check()?;
        Ok(header(shape, effective_rank(shape, self.rank)))
    }

    pub(super) fn check(&self) -> Result<()> {
        Error::require(self.rank > 0, "rank", 0.0, "at least 1")?;
        let sound = (1..=MOST_ITERATIONS).contains(&self.iterations);
        Error::require(sound, "power iterations", self.iterations.into(), "1 to 1000")
    }
}

/// The effective rank, which is at most the smaller side of the matrix.
///
/// ```
/// use lgreco_compress::powersgd::effective_rank;
/// use lgreco_core::gradient::Shape;
/// assert_eq!(effective_rank(Shape::new(64, 3)?, 4), 3);
/// # Ok::<(), lgreco_core::Error>(())
/// ```
pub fn effective_rank(shape: Shape, rank: u32) -> usize {
    (rank as usize).min(shape.rows()).min(shape.cols())
}

fn header(shape: Shape, rank: usize) -> Header {
    Header { method: Method::PowerSgd, variant: 0, parameter: rank as u32, shape }
}

/// Bytes of both factors.
fn body_len(shape: Shape, rank: usize) -> Result<usize> {
    let bytes = 4 * rank as u64 * (shape.rows() as u64 + shape.cols() as u64);
    // The factors alone must fit in `isize::MAX` bytes, like any payload in memory.
    let fits = usize::try_from(bytes).ok().filter(|&bytes| bytes <= isize::MAX as usize);
    fits.ok_or(Error::TooManyElements { rows: shape.rows(), cols: shape.cols() })
}
