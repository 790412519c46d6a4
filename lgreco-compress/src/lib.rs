//! Compressors. Each method's folder or file holds its encoder, decoder, payload size and measurement of the error
//! table.
//!
//! Every payload starts with the header of [`wire`]. A decoder needs no other information about the payload. Gradients
//! must be finite. Encoding and measuring return [`Error::NonFinite`] with the index of the first NaN or infinity.
//!
//! | method | sends | payload format | payload length depends on |
//! |---|---|---|---|
//! | [`dense`] | every element | dense | shape and element type |
//! | [`qsgd`] (also CGX) | 1 to 8 bits per element | QSGD | shape |
//! | [`loco`] | 4 bits per element | LoCo | shape |
//! | [`eden`] | 1 to 8 bits per element, after a rotation | EDEN | shape |
//! | [`powersgd`] | two thin matrices | PowerSGD | shape |
//! | [`topk`] | the k largest magnitudes | TopK | shape |
//! | [`quantised_topk`] | the k largest magnitudes, each in 1 to 8 bits | quantised TopK | shape |
//! | [`clt`] | the values at the positions of one worker's k largest | TopK | shape |
//! | [`hard_threshold`] | magnitudes that reach λ | TopK | the values |
//! | [`sidco`] | magnitudes that reach an estimate of the k-th largest | TopK | the values |
//! | [`adacomp`] | elements that stand out in their bin, as signs and one magnitude | AdaComp | the values |
//!
//! # Features
//! Without features the crate is `no_std` and needs no allocator. Every compressor and measurement works on caller
//! buffers.
//! * `std` (default): chooses vector instructions at run time. Without `std`, loops use the instructions of the
//!   compilation target. Results have the same bits with and without `std`. Implies `alloc`.
//! * `avx512` (default): also chooses AVX-512 instructions. Compiling takes a third longer. Implies `std`.
//! * `gemm`: a faster matrix product for [PowerSGD](powersgd) at high ranks. With this feature, results may differ in
//!   bits between processors. Implies `std`.
//! * `rayon`: compresses and decodes long layers on all cores of rayon's current thread pool. Results have the same
//!   bits as on one core. A pool thread that waits for a long layer may run another task of the pool. So tasks of this
//!   pool must not block in collectives. Implies `std`.
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

/// A lossy compressor with all its parameters fixed. A compressor from outside lgreco implements
/// [`Method`](method::Method) instead, and becomes a [`Setting`].
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
    /// Number of bytes that [`encode`](Compressor::encode) writes for a gradient of this shape and element type, header
    /// included. The number is exact if [`has_fixed_len`](Compressor::has_fixed_len), else an upper bound.
    ///
    /// # Errors
    /// [`Error::Parameter`] when the compressor's parameters do not fit the shape.
    fn payload_len(&self, shape: Shape, dtype: Dtype) -> Result<usize, Error>;

    /// Whether the length of a payload depends only on the shape and the element type. If the length also depends on
    /// the values, error tables hold measured lengths ([`Setting::measure`]). Ranks exchange payloads of varying length
    /// by a variable-length all-gather.
    fn has_fixed_len(&self) -> bool {
        true
    }

    /// How ranks aggregate payloads of this setting, which properties the error has, and what the setting costs.
    ///
    /// # Complexity
    /// O(1).
    fn traits(&self) -> Traits;

    /// Relative squared error on heavy-tailed values: the quantiles of Student's t with two degrees of freedom. The
    /// error may be 1 or more. Returns 0 for a method whose error always has a smaller norm than the gradient.
    ///
    /// # Errors
    /// [`Error::Parameter`] on parameters out of range.
    fn heavy_tailed_error(&self, _elements: usize) -> Result<f64, Error> {
        Ok(0.0)
    }

    /// Words (of 64 bits) of workspace that [`encode`](Compressor::encode) needs for this shape and element type.
    fn encode_workspace_len(&self, _shape: Shape, _dtype: Dtype) -> usize {
        0
    }

    /// Compresses `gradient` into the front of `payload` and returns the number of bytes written. `payload` must have
    /// at least [`payload_len`](Compressor::payload_len) bytes. Methods that use random bits take them from `stream`.
    /// After an error, the content of `payload` must not be used.
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
    /// assert_eq!(payloads[0][..20], payloads[1][..20]); // equal header and scale; the random bits differ
    /// # Ok::<(), lgreco_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NonFinite`] on NaN or infinity. [`Error::Length`] when `payload` or `workspace` is too short.
    /// [`Error::Parameter`] as for [`payload_len`](Compressor::payload_len). [`Error::ElementOverflow`] (sparsifiers)
    /// and [`Error::Overflow`] (PowerSGD, EDEN) when a number is too large for the type in which it is sent.
    fn encode(
        &self,
        gradient: &Gradient<'_>,
        stream: Stream,
        workspace: &mut [u64],
        payload: &mut [u8],
    ) -> Result<usize, Error>;

    /// Encodes `compensated`, a gradient plus its residual. Some compressors read the gradient without residual as well
    /// ([`Traits::sees_gradient`]). All other compressors ignore `gradient`.
    ///
    /// # Errors
    /// The errors of [`encode`](Compressor::encode), and [`Error::Length`] when the two tensors differ in shape.
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

/// Returns an error with the first NaN or infinity of a gradient. Every compressor refuses gradients with NaN or
/// infinity.
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
/// [`Error::NonFinite`] with the index and the value.
///
/// # Complexity
/// O(elements), one pass.
pub fn check_finite(gradient: &Gradient<'_>) -> Result<(), Error> {
    with_elements!(gradient.values(), values => crate::select::check_finite(values))
}
