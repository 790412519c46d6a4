//! Decodes PowerSGD: a payload to a matrix.

use super::{body_len, effective_rank};
use crate::combine::Combine;
use crate::error::expect_len;
use crate::linalg::{self, Columns};
use crate::wire::{Header, Method, Payload};
use crate::{Error, Result};

/// Writes `P̂ Qᵀ` into `values`, row-major. Each element is summed over the columns in order.
///
/// The payload may contain any bytes. Returns an error if the payload does not decode to a finite matrix.
///
/// ```
/// use lgreco_compress::{Compressor, powersgd::{PowerSgd, decode}, wire::Payload};
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
/// [`Error::PayloadHeader`] on another method or variant. [`Error::PayloadBody`] when the rank does not fit the shape
/// or a factor is not finite. [`Error::Length`] when `values` or the body does not have the length that the header
/// implies. [`Error::Overflow`] when the product leaves the range of f32. After an overflow, `values` must not be used.
///
/// # Complexity
/// O(rows · cols · r). Needs no workspace and 32 KiB of stack.
pub fn decode(payload: &Payload<'_>, values: &mut [f32]) -> Result<()> {
    with_factors(payload, values, linalg::reconstruct)
}

/// Adds or subtracts a payload's values. Returns the errors of [`decode`]. [`Error::Overflow`] means that a sum or
/// difference is not finite.
pub(crate) fn combine(payload: &Payload<'_>, how: Combine, values: &mut [f32]) -> Result<()> {
    match how {
        Combine::Add => with_factors(payload, values, linalg::add_product),
        Combine::Subtract => with_factors(payload, values, linalg::subtract_product),
    }
}

/// Calls `multiply` with the factors and `values`. `multiply` returns whether the new values are finite.
fn with_factors<'a>(
    payload: &Payload<'a>,
    values: &mut [f32],
    multiply: impl Fn(Columns<'a, [u8; 4]>, Columns<'a, [u8; 4]>, usize, usize, &mut [f32]) -> bool,
) -> Result<()> {
    let Factors { rank, p, q } = of_payload(payload)?;
    let shape = payload.header.shape;
    expect_len("decoded values", shape.elements(), values.len())?;
    let finite = p.iter().chain(q).all(|&x| f32::from_le_bytes(x).is_finite());
    Error::require_body(finite, "a factor is not finite")?;
    let p = Columns { values: p, len: shape.rows() };
    let q = Columns { values: q, len: shape.cols() };
    Error::require_finite(multiply(p, q, rank as usize, shape.cols(), values), "the product of the factors")
}

/// The factors in a payload, made by [`of_payload`]: f32 little-endian, column after column.
#[derive(Clone, Copy, Debug)]
pub struct Factors<'a> {
    /// Number of columns of each factor.
    pub rank: u32,
    /// `P̂`, with rank · rows values.
    pub p: &'a [[u8; 4]],
    /// `Q`, with rank · cols values.
    pub q: &'a [[u8; 4]],
}

/// Splits a payload into its factors and checks its length. Decoders on other devices, such as GPUs, use this function.
/// Does not check the values of the factors, which [`decode`] may still refuse.
///
/// ```
/// use lgreco_compress::{powersgd, wire::Payload};
/// let mut bytes = vec![b'L', 1, 3, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]; // rank 1 of 2 × 3
/// [1.0, 0.0, 4.0, 5.0, 6.0].map(|value: f32| bytes.extend(value.to_le_bytes()));
/// let factors = powersgd::of_payload(&Payload::parse(&bytes)?)?;
/// assert_eq!((factors.rank, factors.p.len(), factors.q[0]), (1, 2, 4f32.to_le_bytes()));
/// assert!(powersgd::of_payload(&Payload::parse(&bytes[..32])?).is_err());
/// # Ok::<(), lgreco_core::Error>(())
/// ```
///
/// # Errors
/// The errors of [`decode`], except those for values of the factors and of their product.
///
/// # Complexity
/// O(1).
pub fn of_payload<'a>(payload: &Payload<'a>) -> Result<Factors<'a>> {
    let len = stated(&payload.header)?;
    let rank = payload.header.parameter;
    let (p, q) = payload.body_of_len(len)?.as_chunks::<4>().0.split_at(rank as usize * payload.header.shape.rows());
    Ok(Factors { rank, p, q })
}

/// Bytes of the body that a header implies.
pub(crate) fn stated(header: &Header) -> Result<usize> {
    header.expect_method(Method::PowerSgd)?;
    header.expect_variant(0)?;
    let (shape, rank) = (header.shape, header.parameter as usize);
    let fits = rank == effective_rank(shape, header.parameter) && (rank > 0 || shape.elements() == 0);
    Error::require_body(fits, "the rank does not fit the shape")?;
    body_len(shape, rank)
}
