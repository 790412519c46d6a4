//! Decoding: scatter signed means into zeros.

use super::{Parts, QuantisedTopK};
use crate::Error;
use crate::compress::bits;
use crate::compress::combine::Combine;
use crate::compress::positions::{self, BLOCK, Coding, Expand, Fetched, Layout};
use crate::compress::wire::{Header, Method, Payload};
use crate::error::{expect_len, expect_room};
use crate::simd::dispatch_lanes;

/// Writes what a payload of [`QuantisedTopK`] holds to `values`, zeros elsewhere. On an error `values` holds nothing of
/// use.
///
/// ```
/// use lgreco_core::compress::{quantised_topk, wire::Payload};
/// let bytes = [&[b'L', 1, 6, 2 | 1 << 4, 1, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0][..], // 2 bits, a bitmap; 1 of 3
///     &1f32.to_le_bytes(), &4f32.to_le_bytes(), &[0b11, 0b010]].concat(); // the upper bin, negative; the second
/// let mut values = [f32::NAN; 3];
/// quantised_topk::decode(&Payload::parse(&bytes)?, &mut values)?;
/// assert_eq!(values, [0.0, -4.0, 0.0]);
/// # Ok::<(), lgreco_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Length`] when `values` has not the tensor's length or the body not the header's;
/// [`Error::PayloadHeader`] when the payload is not of this method or its variant is not the one its numbers imply;
/// [`Error::Parameter`] when the bits are not 1 to 8 or it keeps none of the elements or more than there are;
/// [`Error::PayloadBody`] when a mean is not finite and ≥ 0, positions do not ascend, leave the tensor or are not as many
/// as the codes, or padding is not zero.
///
/// # Complexity
/// O(n) time, no workspace.
pub fn decode(payload: &Payload<'_>, values: &mut [f32]) -> Result<(), Error> {
    let body = body(payload, values.len())?;
    values.fill(0.0);
    body.scatter_all(values, 0.0, |place, value| *place = value)
}

/// Combines what a payload holds with `values`, in time that grows with what it holds. Same errors as [`decode`].
pub(in crate::compress) fn combine(payload: &Payload<'_>, how: Combine, values: &mut [f32]) -> Result<(), Error> {
    body(payload, values.len())?.scatter_all(values, how.unkept(), |place, value| how.put(place, value))
}

/// As TopK's of the same name.
pub(in crate::compress) fn place_of(payload: &Payload<'_>, start: usize) -> Result<Option<[u64; 2]>, Error> {
    let body = Body::of(payload)?;
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
    let body = Body::of(payload)?;
    let elements = payload.header.shape.elements();
    expect_room("elements", start.saturating_add(values.len()), elements)?;
    if replace {
        values.fill(0.0);
    }
    body.scatter(start, place, values, -0.0, |place, value| *place += value)?;
    if start + values.len() == elements { body.check_end(place) } else { Ok(()) }
}

/// Bytes of the body that a header implies.
pub(in crate::compress) fn stated(header: &Header) -> Result<usize, Error> {
    Ok(body_len(&read(header)?.1))
}

fn body_len(parts: &Parts) -> usize {
    usize::try_from(parts.body_len()).unwrap_or(usize::MAX)
}

/// What a header says.
fn read(header: &Header) -> Result<(QuantisedTopK, Parts), Error> {
    header.expect_method(Method::QuantisedTopK)?;
    let top = QuantisedTopK { keep: header.parameter, bits: header.variant & 15 };
    let parts = top.parts(header.shape.elements())?;
    header.expect_variant(top.header(header.shape, parts.layout).variant)?;
    Ok((top, parts))
}

/// The body of the payload of a tensor with as many values.
fn body<'a>(payload: &Payload<'a>, values: usize) -> Result<Body<'a>, Error> {
    let body = Body::of(payload)?;
    expect_len("values", payload.header.shape.elements(), values)?;
    Ok(body)
}

/// The parts of a payload's body.
pub struct Body<'a> {
    /// What it keeps.
    pub top: QuantisedTopK,
    /// How positions are coded.
    pub layout: Layout,
    /// The bins' means, f32 little-endian, all finite and ≥ 0.
    pub means: &'a [[u8; 4]],
    /// Codes in order of position.
    pub codes: &'a [u8],
    /// Their positions.
    pub positions: &'a [u8],
}

impl<'a> Body<'a> {
    pub(super) fn of(payload: &Payload<'a>) -> Result<Self, Error> {
        let (top, parts) = read(&payload.header)?;
        let body = payload.body_of_len(body_len(&parts))?;
        let (means, rest) = body.split_at(parts.means);
        let (codes, positions) = rest.split_at(parts.codes);
        let means = means.as_chunks::<4>().0;
        // Anything above the bits of the largest finite number is infinite, NaN or negative.
        if means.iter().any(|&mean| u32::from_le_bytes(mean) > f32::MAX.to_bits()) {
            return Err(Error::PayloadBody { what: "a mean is not finite and positive" });
        }
        let padding = 8 * codes.len() as u64 - top.keep as u64 * top.bits as u64;
        if codes.last().is_some_and(|&last| last as u32 >> (8 - padding) != 0) {
            return Err(Error::PayloadBody { what: "padding is not zero" });
        }
        parts.layout.check_padding(positions)?;
        Ok(Body { top, layout: parts.layout, means, codes, positions })
    }

    /// What each code stands for.
    fn meanings(&self) -> [f32; 256] {
        let mut meanings = [0.0; 256];
        for (sign, meanings) in meanings.chunks_mut(self.means.len()).take(2).enumerate() {
            for (meaning, &mean) in meanings.iter_mut().zip(self.means) {
                *meaning = f32::from_bits(u32::from_le_bytes(mean) | (sign as u32) << 31);
            }
        }
        meanings
    }

    /// The `count` codes from code `first` on.
    #[inline(always)]
    fn codes<'c>(&self, first: u64, count: usize, codes: &'c mut [u8]) -> &'c [u8] {
        bits::unpack_some(self.top.bits, self.codes, first, count, codes)
    }

    fn scatter_all(&self, values: &mut [f32], unkept: f32, put: impl Fn(&mut f32, f32)) -> Result<(), Error> {
        let mut place = [0; 2];
        self.scatter(0, &mut place, values, unkept, put)?;
        self.check_end(&place)
    }

    /// Puts what is kept of the elements from `start` on into `values`; `place` as in [`positions::for_each_block`]. What is
    /// not kept may be put too, as `unkept`, a zero with which nothing changes.
    #[inline(always)]
    fn scatter(
        &self,
        start: usize,
        place: &mut [u64; 2],
        values: &mut [f32],
        unkept: f32,
        put: impl Fn(&mut f32, f32),
    ) -> Result<(), Error> {
        if self.layout.coding == Coding::Bitmap {
            place[0] = self.expand(start, place[0], values, unkept, put)?;
            return Ok(());
        }
        let (meanings, mut room) = (self.meanings(), [0; bits::some_room(BLOCK)]);
        let range = start as u64..(start + values.len()) as u64;
        let mut index = place[0];
        positions::for_each_block(self.layout, self.positions, place, range, |block| {
            let there = block.len().min((self.top.keep as u64).saturating_sub(index) as usize);
            let (block, beyond) = block.split_at(there);
            if !block.is_empty() {
                for (&position, &code) in block.iter().zip(self.codes(index, there, &mut room)) {
                    put(&mut values[position as usize - start], meanings[code as usize]);
                }
            }
            index += there as u64;
            if beyond.is_empty() {
                return Ok(());
            }
            Err(Error::PayloadBody { what: "more positions than kept values" })
        })
    }

    /// The same from a bitmap; how many are kept up to the end of `values`.
    fn expand(
        &self,
        start: usize,
        index: u64,
        values: &mut [f32],
        unkept: f32,
        put: impl Fn(&mut f32, f32),
    ) -> Result<u64, Error> {
        let (meanings, mut room) = (self.meanings().map(f32::to_bits), [0; bits::some_room(size_of::<Fetched>() / 4)]);
        let is_last = start + values.len() == self.layout.elements();
        let fetch = |first, count: usize, fetched: &mut Fetched| {
            let codes = if count > 0 { self.codes(first, count, &mut room) } else { &[] };
            for (place, &code) in fetched.iter_mut().zip(codes) {
                *place = meanings[code as usize];
            }
            Ok(())
        };
        let (bitmap, keep) = (self.positions, self.top.keep as u64);
        dispatch_lanes(Expand { bitmap, is_last, start, values, index, keep, fetch, put, unkept })
    }

    /// `Err` unless all that is kept has found its place.
    fn check_end(&self, place: &[u64; 2]) -> Result<(), Error> {
        if place[0] < self.top.keep as u64 {
            return Err(Error::PayloadBody { what: "fewer positions than kept values" });
        }
        Ok(())
    }
}
