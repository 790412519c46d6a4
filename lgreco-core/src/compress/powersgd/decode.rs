//! From a payload back to a matrix.

use super::{body_len, effective_rank};
use crate::Error;
use crate::compress::wire::{Header, Method, Payload};
use crate::error::expect_len;
use crate::linalg::{self, Columns};

/// Writes `P̂ Qᵀ` into `values`, row-major, each element summed over the columns in order.
///
/// Any bytes may be given: what is not the payload of a finite matrix is an error.
///
/// ```
/// use lgreco_core::compress::{Compressor, powersgd::{PowerSgd, decode}, wire::Payload};
/// use lgreco_core::gradient::{Gradient, Shape, Values};
/// use lgreco_core::rng::Stream;
/// let gradient = Gradient::new(Values::F32(&[0.0; 6]), Shape::new(2, 3)?)?;
/// let compressor = PowerSgd { rank: 1, iterations: 1 };
/// let mut workspace = vec![0; compressor.encode_workspace_len(gradient.shape(), gradient.values().dtype())];
/// let mut payload = [0; 16 + 4 * (2 + 3)];
/// compressor.encode(&gradient, Stream::default(), &mut workspace, &mut payload)?;
/// let mut values = [f32::NAN; 6];
/// decode(&Payload::parse(&payload)?, &mut values)?;
/// assert_eq!(values, [0.0; 6]); // a zero tensor stays exactly zero
/// # Ok::<(), lgreco_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::PayloadHeader`] when another method or variant made the payload, [`Error::PayloadBody`] when its rank does
/// not fit its shape or a factor is not finite, [`Error::Length`] when the body or `values` do not have the length the
/// header implies, [`Error::Overflow`] when the product leaves the range of f32 (`values` is then of no use).
///
/// # Complexity
/// O(rows · cols · r), no workspace, 32 KiB of stack.
pub fn decode(payload: &Payload<'_>, values: &mut [f32]) -> Result<(), Error> {
    let len = stated(&payload.header)?;
    let (shape, rank) = (payload.header.shape, payload.header.parameter as usize);
    expect_len("decoded values", shape.elements(), values.len())?;
    let words = payload.body_of_len(len)?.as_chunks::<4>().0;
    if !words.iter().all(|&x| f32::from_le_bytes(x).is_finite()) {
        return Err(Error::PayloadBody { what: "a factor is not finite" });
    }
    let (p, q) = words.split_at(rank * shape.rows());
    let p = Columns { values: p, len: shape.rows() };
    let q = Columns { values: q, len: shape.cols() };
    if linalg::reconstruct(p, q, rank, shape.cols(), values) {
        Ok(())
    } else {
        Err(Error::Overflow { what: "the product of the factors" })
    }
}

/// Bytes of the body that a header implies.
pub(in crate::compress) fn stated(header: &Header) -> Result<usize, Error> {
    let expect = |what, expected: u8, found: u8| {
        if expected == found {
            Ok(())
        } else {
            Err(Error::PayloadHeader { what, expected: expected as u64, found: found as u64 })
        }
    };
    expect("method", Method::PowerSgd as u8, header.method as u8)?;
    expect("variant", 0, header.variant)?;
    let (shape, rank) = (header.shape, header.parameter as usize);
    if rank != effective_rank(shape, header.parameter) || (rank == 0 && shape.elements() > 0) {
        return Err(Error::PayloadBody { what: "the rank does not fit the shape" });
    }
    body_len(shape, rank)
}
