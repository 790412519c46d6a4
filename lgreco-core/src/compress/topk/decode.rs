//! Decoding: scatter the kept values into zeros.

use super::body_len;
use crate::Error;
use crate::compress::positions::{self, Layout};
use crate::compress::value::{WireValue, with_wire_type};
use crate::compress::wire::{Header, Method, Payload};
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
/// [`Error::Parameter`] when it keeps more elements than there are; [`Error::PayloadBody`] when positions do
/// not ascend, leave the tensor or are not as many as the values, a value is not finite, or padding is not zero.
///
/// # Complexity
/// O(n) time, no workspace.
pub fn decode(payload: &Payload<'_>, values: &mut [f32]) -> Result<(), Error> {
    let body = Body::of(payload, values.len())?;
    values.fill(0.0);
    body.scatter(values, |place, value| *place = value)
}

/// Adds what a TopK payload holds to `values`, in time that grows with what it holds. Same errors as [`decode`].
pub(crate) fn add(payload: &Payload<'_>, values: &mut [f32]) -> Result<(), Error> {
    Body::of(payload, values.len())?.scatter(values, |place, value| *place += value)
}

/// Bytes of the body that a header implies, its layout of positions and the type of its values.
pub(in crate::compress) fn stated(header: &Header) -> Result<(usize, Layout, Dtype), Error> {
    let expect = |what, expected: u8, found: u8| {
        let (expected, found) = (expected as u64, found as u64);
        if expected == found { Ok(()) } else { Err(Error::PayloadHeader { what, expected, found }) }
    };
    expect("method", Method::TopK as u8, header.method as u8)?;
    let (keep, elements) = (header.parameter, header.shape.elements());
    if keep as usize > elements {
        let expected = "at most the number of elements";
        return Err(Error::Parameter { what: "kept elements", value: keep as f64, expected });
    }
    let layout = Layout::new(elements as u32, keep);
    let dtype = [Dtype::F32, Dtype::F16, Dtype::Bf16].into_iter().find(|&d| d as u8 == header.variant & 3);
    let dtype = dtype.unwrap_or(Dtype::F32);
    expect("variant", dtype as u8 | layout.code() << 2, header.variant)?;
    Ok((usize::try_from(body_len(keep, elements, dtype)).unwrap_or(usize::MAX), layout, dtype))
}

/// A payload's body, cut into its parts.
struct Body<'a> {
    kept: &'a [u8],
    positions: &'a [u8],
    layout: Layout,
    dtype: Dtype,
}

impl<'a> Body<'a> {
    fn of(payload: &Payload<'a>, values: usize) -> Result<Self, Error> {
        let header = payload.header;
        let (len, layout, dtype) = stated(&header)?;
        expect_len("values", header.shape.elements(), values)?;
        let (kept, positions) = payload.body_of_len(len)?.split_at(header.parameter as usize * dtype.bytes());
        Ok(Body { kept, positions, layout, dtype })
    }

    fn scatter(&self, values: &mut [f32], put: impl Fn(&mut f32, f32)) -> Result<(), Error> {
        with_wire_type!(self.dtype, V => self.scatter_as::<V>(values, put))
    }

    #[inline(always)]
    fn scatter_as<V: WireValue>(&self, values: &mut [f32], put: impl Fn(&mut f32, f32)) -> Result<(), Error> {
        let mut kept = self.kept.chunks_exact(size_of::<V>());
        positions::for_each(self.layout, values.len() as u32, self.positions, |position| {
            let value = kept.next().ok_or(Error::PayloadBody { what: "more positions than kept values" })?;
            let value = V::get(value);
            if !value.is_finite() {
                return Err(Error::PayloadBody { what: "a kept value is not finite" });
            }
            put(&mut values[position as usize], value);
            Ok(())
        })?;
        if kept.next().is_some() {
            return Err(Error::PayloadBody { what: "fewer positions than kept values" });
        }
        Ok(())
    }
}
