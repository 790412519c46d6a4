//! Decodes TopK: moves the kept values to their positions among zeros.

use super::{TopK, body_len, header};
use crate::gradient::Dtype;
use crate::lanes::dispatch_lanes;
use crate::positions::{self, Coding, Expand, Fetched, Layout};
use crate::sparse::{self, Sparse};
use crate::value::{WireValue, with_wire_type};
use crate::wire::{Header, Method, Payload};
use crate::{Error, Result};

/// Writes the values of a TopK payload to `values`, and zeros elsewhere. After an error, `values` must not be used.
///
/// ```
/// use lgreco_compress::{Compressor, topk::{self, TopK}, wire::Payload};
/// use lgreco_core::gradient::{Dtype, Gradient, Shape, Values};
/// use lgreco_core::rng::Stream;
/// let gradient = Gradient::new(Values::F32(&[1.0, -1.0, 1.0]), Shape::new(3, 1)?)?;
/// let mut payload = [0; 16 + 2 * 4 + 1];
/// TopK { keep: 2, values: Dtype::F32 }.encode(&gradient, Stream::default(), &mut [0; 2], &mut payload)?;
/// let mut values = [f32::NAN; 3];
/// topk::decode(&Payload::parse(&payload)?, &mut values)?;
/// assert_eq!(values, [1.0, -1.0, 0.0]); // ties go to the first
/// # Ok::<(), lgreco_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Length`] when `values` or the body does not have the length that the header implies.
/// [`Error::PayloadHeader`] when the payload is not TopK's, or when its variant contradicts its other fields.
/// [`Error::Parameter`] when the payload keeps more elements than the tensor has. [`Error::PayloadBody`] when positions
/// do not ascend, are outside the tensor or differ in number from the values. [`Error::PayloadBody`] also when a value
/// is not finite or padding is not zero.
///
/// # Complexity
/// O(n) for n elements. Needs no workspace.
pub fn decode(payload: &Payload<'_>, values: &mut [f32]) -> Result<()> {
    sparse::decode::<Body<'_>>(payload, values)
}

/// The inverse of [`encode_body`](super::encode::encode_body). `body` must have exactly the length that `values`
/// implies.
pub fn decode_body(top: &TopK, body: &[u8], values: &mut [f32]) -> Result<()> {
    sparse::decode_body(Body::new(*top, Layout::new(values.len() as u32, top.keep), body), values)
}

/// Splits a TopK payload's body into its parts and checks its length. Decoders on other devices, such as GPUs, use this
/// function. Does not check values and positions, which [`decode`] may still refuse.
///
/// ```
/// use lgreco_compress::{topk::{self, Coding}, wire::Payload};
/// let bytes = [b'L', 1, 2, 4, 1, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0x80, 0x3f, 0b010];
/// let body = topk::of_payload(&Payload::parse(&bytes)?)?;
/// assert_eq!((body.top.keep, body.layout.coding), (1, Coding::Bitmap));
/// assert_eq!((body.values, body.positions), (1f32.to_le_bytes().as_slice(), [0b010].as_slice()));
/// assert!(topk::of_payload(&Payload::parse(&bytes[..20])?).is_err());
/// # Ok::<(), lgreco_core::Error>(())
/// ```
///
/// # Errors
/// The errors of [`decode`], except those for values and positions.
///
/// # Complexity
/// O(1).
pub fn of_payload<'a>(payload: &Payload<'a>) -> Result<Body<'a>> {
    let (len, layout, values) = stated(&payload.header)?;
    let top = TopK { keep: payload.header.parameter, values };
    let body = Body::new(top, layout, payload.body_of_len(len)?);
    body.layout.check_padding(body.positions)?;
    Ok(body)
}

/// Checks a header, and returns what it implies: bytes of the body, layout of the positions, and type of the values.
pub(crate) fn stated(found: &Header) -> Result<(usize, Layout, Dtype)> {
    found.expect_method(Method::TopK)?;
    let (keep, elements) = (found.parameter, found.shape.elements());
    Error::require(keep as usize <= elements, "kept elements", keep.into(), "at most the number of elements")?;
    let layout = Layout::new(elements as u32, keep);
    let dtype = [Dtype::F32, Dtype::F16, Dtype::Bf16].into_iter().find(|&d| d as u8 == found.variant & 3);
    let dtype = dtype.unwrap_or(Dtype::F32);
    found.expect_variant(header(keep, dtype, found.shape, layout).variant)?;
    Ok((usize::try_from(body_len(keep, elements, dtype)).unwrap_or(usize::MAX), layout, dtype))
}

/// The parts of a payload's body, made by [`of_payload`].
#[derive(Clone, Copy, Debug)]
pub struct Body<'a> {
    /// Number of kept elements, which may be 0, and the type of their values.
    pub top: TopK,
    /// Layout of their positions.
    pub layout: Layout,
    /// The kept values in order of their positions, little-endian.
    pub values: &'a [u8],
    /// The positions: [`low_bytes`](Layout::low_bytes), then [`high_bytes`](Layout::high_bytes).
    pub positions: &'a [u8],
}

impl<'a> Sparse<'a> for Body<'a> {
    fn of(payload: &Payload<'a>) -> Result<Self> {
        of_payload(payload)
    }

    fn positions(&self) -> (Layout, &'a [u8]) {
        (self.layout, self.positions)
    }

    fn scatter(
        &self,
        start: usize,
        place: &mut [u64; 2],
        values: &mut [f32],
        unkept: f32,
        put: impl Fn(&mut f32, f32),
    ) -> Result<()> {
        if self.layout.coding == Coding::Bitmap {
            let index = place[0];
            place[0] = with_wire_type!(self.top.values, V => self.expand_as::<V>(start, index, values, unkept, put)?);
            return Ok(());
        }
        with_wire_type!(self.top.values, V => self.scatter_as::<V>(start, place, values, put))
    }
}

impl<'a> Body<'a> {
    fn new(top: TopK, layout: Layout, body: &'a [u8]) -> Self {
        let (values, positions) = body.split_at(top.keep as usize * top.values.bytes());
        Body { top, layout, values, positions }
    }

    /// Does the work of [`Sparse::scatter`] for a bitmap. Returns the number of values kept up to the end of `values`.
    fn expand_as<V: WireValue>(
        &self,
        start: usize,
        index: u64,
        values: &mut [f32],
        unkept: f32,
        put: impl Fn(&mut f32, f32),
    ) -> Result<u64> {
        let is_last = start + values.len() == self.layout.elements();
        let fetch = |first: u64, count: usize, fetched: &mut Fetched| {
            let kept = self.values.get(first as usize * size_of::<V>()..).unwrap_or_default();
            let mut largest = 0;
            for (place, value) in fetched[..count].iter_mut().zip(kept.chunks_exact(size_of::<V>())) {
                *place = V::get(value).to_bits();
                largest = (*place & 0x7fff_ffff).max(largest);
            }
            Error::require_body(f32::from_bits(largest).is_finite(), "a kept value is not finite")
        };
        let (bitmap, keep) = (self.positions, self.top.keep as u64);
        dispatch_lanes(Expand { bitmap, is_last, start, values, index, keep, fetch, put, unkept })
    }

    #[inline(always)]
    fn scatter_as<V: WireValue>(
        &self,
        start: usize,
        place: &mut [u64; 2],
        values: &mut [f32],
        put: impl Fn(&mut f32, f32),
    ) -> Result<()> {
        let too_many = Error::PayloadBody { what: "more positions than kept values" };
        let mut kept = self.values.get(place[0] as usize * size_of::<V>()..).ok_or(too_many)?;
        let range = start as u64..(start + values.len()) as u64;
        positions::for_each_block(self.layout, self.positions, place, range, |block| {
            let (there, rest) = kept.split_at(kept.len().min(block.len() * size_of::<V>()));
            kept = rest;
            let there = there.chunks_exact(size_of::<V>());
            let beyond = block.len() > there.len();
            for (&position, value) in block.iter().zip(there) {
                let value = V::get(value);
                Error::require_body(value.is_finite(), "a kept value is not finite")?;
                put(&mut values[position as usize - start], value);
            }
            if beyond { Err(too_many) } else { Ok(()) }
        })
    }
}
