//! Decodes AdaComp: sent elements become plus or minus one magnitude, all others 0.

use crate::combine::Combine;
use crate::error::expect_len;
use crate::positions::{self, Layout};
use crate::wire::{HEADER_LEN, Header, Method, Payload};
use crate::{Error, Result};

/// Writes the values of an AdaComp payload to `values`, and zeros elsewhere. After an error, `values` must not be used.
///
/// ```
/// use lgreco_compress::{adacomp, wire::Payload};
/// let bytes = [b'L', 1, 4, 0, 2, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0x3f, 0b101, 0b10];
/// let mut values = [f32::NAN; 3];
/// adacomp::decode(&Payload::parse(&bytes)?, &mut values)?;
/// assert_eq!(values, [0.5, 0.0, -0.5]);
/// # Ok::<(), lgreco_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Length`] when `values` or the body does not have the length that the header implies.
/// [`Error::PayloadHeader`] when the payload is not AdaComp's. [`Error::Parameter`] when the payload has more elements
/// than the tensor. [`Error::PayloadBody`] when positions do not ascend, are outside the tensor or differ in number
/// from the header; when padding is not zero; or when the magnitude is not positive and finite. In a payload without
/// elements, the magnitude must be 0.
///
/// # Complexity
/// O(n) for n elements. Needs no workspace.
pub fn decode(payload: &Payload<'_>, values: &mut [f32]) -> Result<()> {
    let (len, layout) = stated(&payload.header)?;
    expect_len("values", payload.header.shape.elements(), values.len())?;
    let body = payload.body_of_len(len)?;
    values.fill(0.0);
    scatter(payload.header.parameter, layout, body, Combine::Add, values)
}

/// Adds or subtracts a payload's values. Takes time in proportion to the number of sent elements. Returns the errors of
/// [`decode`].
pub(crate) fn combine(payload: &Payload<'_>, how: Combine, values: &mut [f32]) -> Result<()> {
    let (len, layout) = stated(&payload.header)?;
    expect_len("values", payload.header.shape.elements(), values.len())?;
    scatter(payload.header.parameter, layout, payload.body_of_len(len)?, how, values)
}

/// Bytes of the body that a header implies, and the layout of its positions.
pub(crate) fn stated(header: &Header) -> Result<(usize, Layout)> {
    header.expect_method(Method::AdaComp)?;
    header.expect_variant(0)?;
    let (count, elements) = (header.parameter, header.shape.elements());
    let expected = "at most the number of elements";
    Error::require(count as usize <= elements, "elements sent", count as f64, expected)?;
    Ok((super::payload_len(count, header.shape)? - HEADER_LEN, Layout::new(elements as u32, count)))
}

/// Adds or subtracts the elements of a body. The caller has checked the body's length.
fn scatter(count: u32, layout: Layout, body: &[u8], how: Combine, values: &mut [f32]) -> Result<()> {
    let (magnitude, rest) = body.split_at(4);
    let (positions, signs) = rest.split_at(layout.bytes() as usize);
    let bits = u32::from_le_bytes([magnitude[0], magnitude[1], magnitude[2], magnitude[3]]);
    let magnitude = f32::from_bits(bits);
    let sound = if count > 0 { magnitude > 0.0 && magnitude.is_finite() } else { bits == 0 };
    Error::require_body(sound, "the magnitude is not positive and finite")?;
    let padded = !count.is_multiple_of(8) && signs.last().is_some_and(|&last| last >> (count % 8) != 0);
    Error::require_body(!padded, "padding is not zero")?;
    let mut found = 0;
    positions::for_each(layout, positions, |position| {
        Error::require_body(found < count, "more positions than elements sent")?;
        let sign = (signs[found as usize / 8] >> (found % 8) & 1) as u32;
        how.put(&mut values[position as usize], f32::from_bits(bits | sign << 31));
        found += 1;
        Ok(())
    })?;
    Error::require_body(found == count, "fewer positions than elements sent")
}
