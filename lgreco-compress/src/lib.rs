//! Compressors: each file holds one method's encode, decode, payload size and its row of the error table.
//!
//! Every payload starts with the header of [`wire`], so it can be decoded without knowing what made it.
//! Gradients must be finite: encode and measure answer [`Error::NonFinite`] with the first offender.
//!
//! | method | sends | payload | length decided by |
//! |---|---|---|---|
//! | [`dense`] | everything | its own | shape and element type |
//! | [`qsgd`] (also CGX) | 1 to 8 bits per element | its own | shape |
//! | [`loco`] | 4 bits per element | its own | shape |
//! | [`eden`] | 1 to 8 bits per element, after a rotation | its own | shape |
//! | [`powersgd`] | two thin matrices | its own | shape |
//! | [`topk`] | the k largest | its own | shape |
//! | [`quantised_topk`] | the k largest, each in 1 to 8 bits | its own | shape |
//! | [`clt`] | what stands where one worker's k largest do | TopK's | shape |
//! | [`hard_threshold`] | what reaches λ | TopK's | the values |
//! | [`sidco`] | what reaches an estimate of the k-th largest | TopK's | the values |
//! | [`adacomp`] | what stands out of its bin, as one magnitude | its own | the values |
//!
//! # Features
//! With none the crate is `no_std` without an allocator: every compressor and measurement works on caller buffers.
//! * `std` (default): run-time choice of vector instructions; without it, loops use those the target is compiled for.
//!   Results are the same bits. Implies `alloc`.
//! * `gemm`: a faster matrix product for [PowerSGD](powersgd) at high ranks, which gives up its equality of bits
//!   between processors. Implies `std`.
//! * `rayon`: long layers are compressed and decoded on all cores of rayon's current thread pool, with the same bits. A thread of
//!   that pool that waits for such a layer may do another task of the pool meanwhile, so tasks of the same pool must not block
//!   in collectives. Implies `std`.
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

#[cfg(any(test, feature = "alloc"))]
extern crate alloc;
#[cfg(any(test, feature = "std"))]
extern crate std;

pub mod adacomp;
pub mod bits;
mod candidates;
pub mod clt;
mod combine;
mod data;
pub mod dense;
mod describe;
pub mod eden;
pub mod hard_threshold;
mod lanes;
mod linalg;
pub mod loco;
mod own;
pub mod payload;
mod positions;
pub mod powersgd;
pub mod qsgd;
pub mod quantised_topk;
mod registry;
#[cfg(any(test, feature = "alloc"))]
mod rows;
mod sealed;
mod searched;
pub mod select;
mod setting;
pub mod sidco;
mod sparse;
pub mod spread;
mod stretch;
mod text;
pub mod topk;
mod traits;
mod value;
pub mod wire;
mod words;

pub use candidates::Candidates;
pub use describe::{Planned, Unit};
pub use lgreco_core::method;
pub use registry::Setting;
#[cfg(any(test, feature = "alloc"))]
pub use rows::Rows;
pub use sealed::{SEAL_LEN, seal, unseal};
pub use searched::Method as SearchMethod;
pub use setting::{decode, decode_with, stated_len};
pub use traits::{Aggregation, Cost, ResidualKind, Traits};

use gradient::{Dtype, Gradient, Shape, with_elements};
use lgreco_core::{Error, Result, checksum, error, gradient, num, rng, simd};
use rng::Stream;

/// A lossy compressor with all its parameters fixed.
///
/// ```
/// use lgreco_compress::{Compressor, powersgd::PowerSgd, qsgd::Qsgd};
/// use lgreco_core::gradient::{Dtype, Shape};
/// /// How many times smaller than f32 a compressor makes a tensor.
/// fn ratio(compressor: &dyn Compressor, shape: Shape) -> Result<f64, lgreco_core::Error> {
///     Ok(4.0 * shape.elements() as f64 / compressor.payload_len(shape, Dtype::F32)? as f64)
/// }
/// let shape = Shape::new(1024, 1024)?;
/// assert_eq!(ratio(&Qsgd::default(), shape)?.round(), 8.0);
/// assert_eq!(ratio(&PowerSgd { rank: 4, iterations: 1 }, shape)?.round(), 128.0);
/// # Ok::<(), lgreco_core::Error>(())
/// ```
pub trait Compressor {
    /// Number of bytes [`encode`](Compressor::encode) writes for any gradient of this shape and element type, header
    /// included: exactly, if [`has_fixed_len`](Compressor::has_fixed_len); else at most.
    ///
    /// # Errors
    /// [`Error::Parameter`] when the compressor's parameters do not fit the shape.
    fn payload_len(&self, shape: Shape, dtype: Dtype) -> Result<usize, Error>;

    /// Whether shape and element type alone decide the length of a payload. Where the values do too, tables hold measured
    /// lengths ([`Candidates::measure_with_lens`]), and payloads travel by all-gather with lengths of their own.
    fn has_fixed_len(&self) -> bool {
        true
    }

    /// How it is aggregated, what its error is like, what it costs.
    ///
    /// # Complexity
    /// O(1).
    fn traits(&self) -> Traits;

    /// The relative squared error on values with a heavy tail (the quantiles of Student's t with two degrees of freedom), where it
    /// may be 1 or more; 0 for compressors whose error is below the gradient whatever it is.
    ///
    /// # Errors
    /// [`Error::Parameter`] on parameters out of range.
    fn heavy_tailed_error(&self, _elements: usize) -> Result<f64, Error> {
        Ok(0.0)
    }

    /// Words of workspace that [`encode`](Compressor::encode) needs for this shape and element type.
    fn encode_workspace_len(&self, _shape: Shape, _dtype: Dtype) -> usize {
        0
    }

    /// Compresses `gradient` into the front of `payload`, which has room for [`payload_len`](Compressor::payload_len)
    /// bytes, and returns the number of bytes written. Random bits, where the method uses any, are those of `stream`.
    /// Nothing of `payload` may be used when an error is returned.
    ///
    /// ```
    /// # use lgreco_compress::{Compressor, qsgd::Qsgd};
    /// # use lgreco_core::gradient::{Gradient, Shape, Values};
    /// # use lgreco_core::rng::Stream;
    /// let gradient = Gradient::new(Values::F32(&[0.5, -1.0, 0.0, 0.25]), Shape::new(2, 2)?)?;
    /// let worker = |rank| Stream { seed: 1, step: 0, layer: 0, rank };
    /// let mut payloads = [[0; 22]; 2];
    /// for (rank, payload) in payloads.iter_mut().enumerate() {
    ///     assert_eq!(Qsgd::default().encode(&gradient, worker(rank as u32), &mut [], payload)?, 22);
    /// }
    /// assert_eq!(payloads[0][..20], payloads[1][..20]); // header and scale; the random bits are each worker's own
    /// # Ok::<(), lgreco_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NonFinite`] on NaN or infinity; [`Error::Length`] when `payload` or `workspace` is too short;
    /// [`Error::Parameter`] as for [`payload_len`](Compressor::payload_len); [`Error::ElementOverflow`] (sparsifiers)
    /// and [`Error::Overflow`] (PowerSGD, EDEN) when a number is too large for the type it is sent in.
    fn encode(
        &self,
        gradient: &Gradient<'_>,
        stream: Stream,
        workspace: &mut [u64],
        payload: &mut [u8],
    ) -> Result<usize, Error>;

    /// [`encode`](Compressor::encode) of a gradient to which a residual has been added, `compensated`, by compressors that look at
    /// the gradient alone, too ([`Traits::sees_gradient`]).
    ///
    /// # Errors
    /// As [`encode`](Compressor::encode), and [`Error::Length`] where the two differ in shape.
    fn encode_with_gradient(
        &self,
        compensated: &Gradient<'_>,
        _gradient: &Gradient<'_>,
        stream: Stream,
        workspace: &mut [u64],
        payload: &mut [u8],
    ) -> Result<usize, Error> {
        self.encode(compensated, stream, workspace, payload)
    }
}

/// `Err` with the first NaN or infinity of a gradient, which every compressor refuses.
///
/// ```
/// # use lgreco_compress::check_finite;
/// # use lgreco_core::{Error, gradient::{Gradient, Shape, Values}};
/// let gradient = Gradient::new(Values::F32(&[1.0, f32::INFINITY]), Shape::new(1, 2)?)?;
/// assert_eq!(check_finite(&gradient), Err(Error::NonFinite { index: 1, value: f32::INFINITY }));
/// # Ok::<(), lgreco_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::NonFinite`].
///
/// # Complexity
/// O(elements), a pass.
pub fn check_finite(gradient: &Gradient<'_>) -> Result<(), Error> {
    with_elements!(gradient.values(), values => crate::select::check_finite(values))
}
