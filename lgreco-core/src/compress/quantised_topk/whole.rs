//! For backends that make payloads on a device: what of a payload goes before its values.

use super::QuantisedTopK;
pub use super::decode::Body;
use crate::Error;
use crate::compress::topk::TopK;
use crate::compress::wire::{Header, Payload};
use crate::gradient::{Dtype, Shape};

/// What selects the same elements.
pub fn in_full(top: &QuantisedTopK) -> TopK {
    TopK { keep: top.keep, values: Dtype::F32 }
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
    Body::of(payload)
}
