//! Decoding: scatter the kept values into zeros.

use super::{STRETCH, TopK, body_len, header};
use crate::Error;
use crate::compress::combine::Combine;
use crate::compress::positions::{self, Coding, Expand, Fetched, Layout};
use crate::compress::value::{WireValue, with_wire_type};
use crate::compress::wire::{Header, Method, Payload};
use crate::error::{expect_len, expect_room};
use crate::gradient::Dtype;
use crate::simd::{Kernel, dispatch_lanes};
use crate::spread::{Divide, spread};

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
    let body = body(payload, values.len())?;
    values.fill(0.0);
    body.scatter_all(values, 0.0, |place, value| *place = value)
}

/// Combines what a TopK payload holds with `values`, in time that grows with what it holds. Same errors as [`decode`].
pub(in crate::compress) fn combine(payload: &Payload<'_>, how: Combine, values: &mut [f32]) -> Result<(), Error> {
    body(payload, values.len())?.scatter_all(values, how.unkept(), move |place, value| how.put(place, value))
}

/// Where [`combine_stretch`] begins at `start`, a multiple of [`STRETCH`](super::STRETCH), without having read what comes
/// before, of which it then finds no errors; `None` where it has to be read.
pub(in crate::compress) fn place_of(payload: &Payload<'_>, start: usize) -> Result<Option<[u64; 2]>, Error> {
    let body = of_payload(payload)?;
    Ok(positions::find(body.layout, body.positions, start as u64))
}

/// The same of the elements from `start` on, a multiple of 64; `place` is where the last stretch has ended.
pub(in crate::compress) fn combine_stretch(
    payload: &Payload<'_>,
    replace: bool,
    start: usize,
    place: &mut [u64; 2],
    values: &mut [f32],
) -> Result<(), Error> {
    let body = of_payload(payload)?;
    let elements = payload.header.shape.elements();
    expect_room("elements", start.saturating_add(values.len()), elements)?;
    if replace {
        values.fill(0.0);
    }
    body.scatter(start, place, values, -0.0, |place, value| *place += value)?;
    if start + values.len() == elements { body.check_end(place) } else { Ok(()) }
}

/// The inverse of [`encode_body`](super::encode::encode_body); `body` has exactly the length it has for these values.
pub fn decode_body(top: &TopK, body: &[u8], values: &mut [f32]) -> Result<(), Error> {
    let body = Body::new(*top, Layout::new(values.len() as u32, top.keep), body);
    values.fill(0.0);
    body.scatter_all(values, 0.0, |place, value| *place = value)
}

/// The parts of a TopK payload's body, by its header, whose length has been checked; for decoders elsewhere, on a GPU for
/// instance. Neither values nor positions are looked at, which [`decode`] may still refuse.
///
/// ```
/// use lgreco_core::compress::{topk::{self, Coding}, wire::Payload};
/// let bytes = [b'L', 1, 2, 4, 1, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0x80, 0x3f, 0b010];
/// let body = topk::of_payload(&Payload::parse(&bytes)?)?;
/// assert_eq!((body.top.keep, body.layout.coding), (1, Coding::Bitmap));
/// assert_eq!((body.values, body.positions), (1f32.to_le_bytes().as_slice(), [0b010].as_slice()));
/// assert!(topk::of_payload(&Payload::parse(&bytes[..20])?).is_err());
/// # Ok::<(), lgreco_core::Error>(())
/// ```
///
/// # Errors
/// As [`decode`], but for values and positions.
///
/// # Complexity
/// O(1).
pub fn of_payload<'a>(payload: &Payload<'a>) -> Result<Body<'a>, Error> {
    let (len, layout, values) = stated(&payload.header)?;
    let top = TopK { keep: payload.header.parameter, values };
    let body = Body::new(top, layout, payload.body_of_len(len)?);
    body.layout.check_padding(body.positions)?;
    Ok(body)
}

/// The body of the payload of a tensor with as many values.
fn body<'a>(payload: &Payload<'a>, values: usize) -> Result<Body<'a>, Error> {
    let body = of_payload(payload)?;
    expect_len("values", payload.header.shape.elements(), values)?;
    Ok(body)
}

/// Bytes of the body that a header implies, its layout of positions and the type of its values.
pub(in crate::compress) fn stated(found: &Header) -> Result<(usize, Layout, Dtype), Error> {
    found.expect_method(Method::TopK)?;
    let (keep, elements) = (found.parameter, found.shape.elements());
    if keep as usize > elements {
        let expected = "at most the number of elements";
        return Err(Error::Parameter { what: "kept elements", value: keep as f64, expected });
    }
    let layout = Layout::new(elements as u32, keep);
    let dtype = [Dtype::F32, Dtype::F16, Dtype::Bf16].into_iter().find(|&d| d as u8 == found.variant & 3);
    let dtype = dtype.unwrap_or(Dtype::F32);
    found.expect_variant(header(keep, dtype, found.shape, layout).variant)?;
    Ok((usize::try_from(body_len(keep, elements, dtype)).unwrap_or(usize::MAX), layout, dtype))
}

/// Kept values that are worth the while of several cores.
const WORTHWHILE: u32 = 1 << 13;

/// What is kept of the elements from `start` on goes to its places.
struct Scatter<'a, F> {
    body: Body<'a>,
    start: usize,
    /// As in [`Body::scatter`].
    place: [u64; 2],
    values: &'a mut [f32],
    unkept: f32,
    put: F,
}

impl<F: Fn(&mut f32, f32)> Kernel for Scatter<'_, F> {
    type Output = Result<[u64; 2], Error>;

    #[inline(always)]
    fn run(self) -> Result<[u64; 2], Error> {
        let Scatter { body, start, mut place, values, unkept, put } = self;
        body.scatter(start, &mut place, values, unkept, put).map(|()| place)
    }
}

impl<F: Fn(&mut f32, f32) + Copy + Send> Divide for Scatter<'_, F> {
    fn elements(&self) -> usize {
        self.values.len()
    }

    fn divide(self, at: usize) -> Result<(Self, Self), Self> {
        let at = at / STRETCH * STRETCH;
        let start = self.start + at;
        let Some(place) = positions::find(self.body.layout, self.body.positions, start as u64) else {
            return Err(self);
        };
        let Scatter { body, start: first, place: first_place, values, unkept, put } = self;
        let (values, others) = values.split_at_mut(at);
        let second = Scatter { body, start, place, values: others, unkept, put };
        Ok((Scatter { body, start: first, place: first_place, values, unkept, put }, second))
    }

    fn start(self) -> Self::Output {
        self.run() // reading positions, it chooses instructions itself
    }
}

/// The parts of a payload's body, made by [`of_payload`].
#[derive(Clone, Copy, Debug)]
pub struct Body<'a> {
    /// How many elements are kept, which may be none, and the type of their values.
    pub top: TopK,
    /// How their positions are written.
    pub layout: Layout,
    /// The kept values in order of position, little-endian.
    pub values: &'a [u8],
    /// The positions: [`low_bytes`](Layout::low_bytes), then [`high_bytes`](Layout::high_bytes).
    pub positions: &'a [u8],
}

impl<'a> Body<'a> {
    fn new(top: TopK, layout: Layout, body: &'a [u8]) -> Self {
        let (values, positions) = body.split_at(top.keep as usize * top.values.bytes());
        Body { top, layout, values, positions }
    }

    fn scatter_all(
        &self,
        values: &mut [f32],
        unkept: f32,
        put: impl Fn(&mut f32, f32) + Copy + Send,
    ) -> Result<(), Error> {
        let all = Scatter { body: *self, start: 0, place: [0; 2], values, unkept, put };
        let place = if self.top.keep < WORTHWHILE { all.run() } else { spread(all) };
        self.check_end(&place?)
    }

    /// Puts what is kept of the elements from `start` on into `values`; `place` is how many are kept before, and what
    /// [`positions::for_each_block`] says. What is not kept may be put too, as `unkept`, a zero with which nothing changes.
    fn scatter(
        &self,
        start: usize,
        place: &mut [u64; 2],
        values: &mut [f32],
        unkept: f32,
        put: impl Fn(&mut f32, f32),
    ) -> Result<(), Error> {
        if self.layout.coding == Coding::Bitmap {
            let index = place[0];
            place[0] = with_wire_type!(self.top.values, V => self.expand_as::<V>(start, index, values, unkept, put)?);
            return Ok(());
        }
        with_wire_type!(self.top.values, V => self.scatter_as::<V>(start, place, values, put))
    }

    /// The same from a bitmap; how many are kept up to the end of `values`.
    fn expand_as<V: WireValue>(
        &self,
        start: usize,
        index: u64,
        values: &mut [f32],
        unkept: f32,
        put: impl Fn(&mut f32, f32),
    ) -> Result<u64, Error> {
        let is_last = start + values.len() == self.layout.elements();
        let fetch = |first: u64, count: usize, fetched: &mut Fetched| {
            let kept = self.values.get(first as usize * size_of::<V>()..).unwrap_or_default();
            let mut largest = 0;
            for (place, value) in fetched[..count].iter_mut().zip(kept.chunks_exact(size_of::<V>())) {
                *place = V::get(value).to_bits();
                largest = (*place & 0x7fff_ffff).max(largest);
            }
            if f32::from_bits(largest).is_finite() {
                return Ok(());
            }
            Err(Error::PayloadBody { what: "a kept value is not finite" })
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
    ) -> Result<(), Error> {
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
                if !value.is_finite() {
                    return Err(Error::PayloadBody { what: "a kept value is not finite" });
                }
                put(&mut values[position as usize - start], value);
            }
            if beyond { Err(too_many) } else { Ok(()) }
        })
    }

    /// `Err` unless all that is kept has found its place.
    fn check_end(&self, place: &[u64; 2]) -> Result<(), Error> {
        if place[0] < self.top.keep as u64 {
            return Err(Error::PayloadBody { what: "fewer positions than kept values" });
        }
        Ok(())
    }
}
