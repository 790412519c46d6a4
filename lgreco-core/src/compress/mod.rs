//! Compressors: each file holds one method's encode, decode, exact payload size and its row of the error table.
//!
//! Every payload starts with the header of [`wire`], so it can be decoded without knowing what made it.
//! Gradients must be finite: encode and measure answer [`Error::NonFinite`] with the first offender.

mod bits;
pub mod dense;
pub mod powersgd;
pub mod qsgd;
mod setting;
pub mod topk;
pub mod wire;

pub use setting::{Candidates, Setting, decode};

use crate::Error;
use crate::gradient::{Dtype, Gradient, Shape};
use crate::rng::Stream;

/// A lossy compressor with all its parameters fixed.
pub trait Compressor {
    /// Exact number of bytes [`encode`](Compressor::encode) writes for any gradient of this shape and element type,
    /// header included.
    ///
    /// # Errors
    /// [`Error::Parameter`] when the compressor's parameters do not fit the shape.
    fn payload_len(&self, shape: Shape, dtype: Dtype) -> Result<usize, Error>;

    /// Words of workspace that [`encode`](Compressor::encode) needs for this shape and element type.
    fn encode_workspace_len(&self, shape: Shape, dtype: Dtype) -> usize;

    /// Compresses `gradient` into `payload[..payload_len]` and returns that length. Random bits, where the method uses
    /// any, are those of `stream`. Nothing of `payload` may be used when an error is returned.
    ///
    /// # Errors
    /// [`Error::NonFinite`] on NaN or infinity; [`Error::Length`] when `payload` or `workspace` is too short;
    /// [`Error::Parameter`] as for [`payload_len`](Compressor::payload_len).
    fn encode(
        &self,
        gradient: &Gradient<'_>,
        stream: Stream,
        workspace: &mut [u64],
        payload: &mut [u8],
    ) -> Result<usize, Error>;
}
