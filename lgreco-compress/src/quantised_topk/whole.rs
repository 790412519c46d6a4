//! Sizes and headers of both kinds of TopK payloads, for backends that encode on a device.

use super::QuantisedTopK;
pub use super::decode::Body;
use crate::Error;
use crate::gradient::{Dtype, Shape};
use crate::sparse::Sparse;
use crate::topk::TopK;
use crate::wire::{Header, Payload};

/// The elements that TopK keeps and how it sends values: in full, or in `bits` bits.
#[derive(Clone, Copy, Debug)]
pub struct Keep {
    /// The TopK setting that selects the same elements. If `bits` is not 0, the value type of this setting is f32.
    pub top: TopK,
    /// Bits per value; 0 if values are sent in full.
    pub bits: u8,
}

impl Keep {
    /// Bytes of the two parts of a payload before the positions: the means, and the values or codes.
    pub fn bytes(self) -> [u64; 2] {
        let means = if self.bits == 0 { 0 } else { 4 << (self.bits - 1) };
        [means, (u64::from(self.top.keep) * self.width() as u64).div_ceil(8)]
    }

    /// Bits of a value or of its code.
    pub fn width(self) -> usize {
        if self.bits == 0 { 8 * self.top.values.bytes() } else { self.bits.into() }
    }
}

impl From<TopK> for Keep {
    fn from(top: TopK) -> Keep {
        Keep { top, bits: 0 }
    }
}

impl From<QuantisedTopK> for Keep {
    fn from(few: QuantisedTopK) -> Keep {
        Keep { top: TopK { keep: few.keep, values: Dtype::F32 }, bits: few.bits }
    }
}

/// The header of a payload.
///
/// # Errors
/// [`Error::Parameter`] unless the bits are 1 to 8 and the shape allows this number of kept elements.
pub fn header(top: &QuantisedTopK, shape: Shape) -> Result<Header, Error> {
    Ok(top.header(shape, top.parts(shape.elements())?.layout))
}

/// Splits a payload's body into its parts. Makes all checks of [`decode`](super::decode) except those that read every
/// position.
///
/// # Errors
/// The errors of [`decode`](super::decode). Positions are not checked.
pub fn of_payload<'a>(payload: &Payload<'a>) -> Result<Body<'a>, Error> {
    Sparse::of(payload)
}
