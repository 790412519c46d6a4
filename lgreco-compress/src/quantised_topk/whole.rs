//! For backends that make payloads on a device: what of a payload goes before its values.

use super::QuantisedTopK;
pub use super::decode::Body;
use crate::Error;
use crate::gradient::{Dtype, Shape};
use crate::sparse::Sparse;
use crate::topk::TopK;
use crate::wire::{Header, Payload};

/// What TopK keeps: so many values, in full or in `bits`, which are then not 0.
#[derive(Clone, Copy, Debug)]
pub struct Keep {
    /// What selects the same elements; in few bits of f32 values.
    pub top: TopK,
    /// 0 where values are sent in full.
    pub bits: u8,
}

impl Keep {
    /// Bytes of a payload before its positions: of its bins' means, and of its values or their codes.
    pub fn bytes(self) -> [u64; 2] {
        let means = if self.bits == 0 { 0 } else { 4 << (self.bits - 1) };
        [means, (u64::from(self.top.keep) * self.width() as u64).div_ceil(8)]
    }

    /// Bits of a value, or of its code.
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
/// [`Error::Parameter`] unless bits and elements kept are such as the shape allows.
pub fn header(top: &QuantisedTopK, shape: Shape) -> Result<Header, Error> {
    Ok(top.header(shape, top.parts(shape.elements())?.layout))
}

/// The parts of a payload's body. Finds fault with it where [`decode`](super::decode) does without looking at each value.
///
/// # Errors
/// As there, but for the positions.
pub fn of_payload<'a>(payload: &Payload<'a>) -> Result<Body<'a>, Error> {
    Sparse::of(payload)
}
