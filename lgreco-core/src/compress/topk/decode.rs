//! Decoding: scatter the kept values into zeros.

use super::positions::{self, Layout};
use super::value::{WireValue, with_wire_type};
use super::{TopK, body_len, check_keep};
use crate::Error;
use crate::compress::wire::{Method, Payload};
use crate::error::expect_len;
use crate::gradient::Dtype;

/// Writes what a TopK payload holds to `values`, zeros elsewhere. On an error `values` holds nothing of use.
///
/// ```
/// use lgreco_core::compress::{Compressor, topk::{self, TopK}, wire::Payload};
/// use lgreco_core::gradient::{Dtype, Gradient, Shape, Values};
/// use lgreco_core::rng::Stream;
/// let gradient = Gradient::new(Values::F32(&[1.0, -1.0, 1.0]), Shape::new(3, 1)?)?;
/// let mut payload = [0; 16 + 2 * 4 + 1];
/// TopK { keep: 2, values: Dtype::F32 }.encode(&gradient, Stream::default(), &mut [0; 2], &mut payload)?;
/// let mut values = [f32::NAN; 3];
/// topk::decode(&Payload::parse(&payload)?, &mut values)?;
/// assert_eq!(values, [1.0, -1.0, 0.0]); // of equal magnitudes the first are kept
/// # Ok::<(), lgreco_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Length`] when `values` has not the tensor's length or the body not the header's;
/// [`Error::PayloadHeader`] when the payload is not TopK's or its variant is not the one its numbers imply;
/// [`Error::Parameter`] when it keeps more elements than there are, or none; [`Error::PayloadBody`] when positions do
/// not ascend, leave the tensor or are not as many as the values, a value is not finite, or padding is not zero.
///
/// # Complexity
/// O(n) time, no workspace.
pub fn decode(payload: &Payload<'_>, values: &mut [f32]) -> Result<(), Error> {
    let header = payload.header;
    let expect = |what, expected: u8, found: u8| {
        let (expected, found) = (expected as u64, found as u64);
        if expected == found { Ok(()) } else { Err(Error::PayloadHeader { what, expected, found }) }
    };
    expect("method", Method::TopK as u8, header.method as u8)?;
    let elements = header.shape.elements();
    expect_len("values", elements, values.len())?;
    check_keep(header.parameter, elements)?;
    let layout = Layout::new(elements as u32, header.parameter);
    let dtype = [Dtype::F32, Dtype::F16, Dtype::Bf16].into_iter().find(|&d| d as u8 == header.variant & 3);
    let dtype = dtype.unwrap_or(Dtype::F32);
    expect("variant", dtype as u8 | layout.code() << 2, header.variant)?;
    let body = usize::try_from(body_len(header.parameter, elements, dtype)).unwrap_or(usize::MAX);
    decode_body(&TopK { keep: header.parameter, values: dtype }, payload.body_of_len(body)?, values)
}

/// The inverse of [`encode_body`](super::encode_body); `body` has exactly the length it has for these values.
pub(crate) fn decode_body(top: &TopK, body: &[u8], values: &mut [f32]) -> Result<(), Error> {
    let layout = Layout::new(values.len() as u32, top.keep);
    let (kept, positions) = body.split_at(top.keep as usize * top.values.bytes());
    with_wire_type!(top.values, V => scatter::<V>(kept, layout, positions, values))
}

fn scatter<V: WireValue>(kept: &[u8], layout: Layout, bytes: &[u8], values: &mut [f32]) -> Result<(), Error> {
    values.fill(0.0);
    let mut kept = kept.chunks_exact(size_of::<V>());
    positions::for_each(layout, values.len() as u32, bytes, |position| {
        let value = kept.next().ok_or(Error::PayloadBody { what: "more positions than kept values" })?;
        let value = V::get(value);
        if !value.is_finite() {
            return Err(Error::PayloadBody { what: "a kept value is not finite" });
        }
        values[position as usize] = value;
        Ok(())
    })?;
    if kept.next().is_some() {
        return Err(Error::PayloadBody { what: "fewer positions than kept values" });
    }
    Ok(())
}
