//! Decodes TopK in few bits: moves signed means to their positions among zeros.

use super::{Parts, QuantisedTopK};
use crate::bits;
use crate::lanes::dispatch_lanes;
use crate::positions::{self, BLOCK, Coding, Expand, Fetched, Layout};
use crate::sparse::{self, Sparse};
use crate::wire::{Header, Method, Payload};
use crate::{Error, Result};

/// Writes the values of a payload of [`QuantisedTopK`] to `values`, and zeros elsewhere. After an error, `values` must
/// not be used.
///
/// ```
/// use lgreco_compress::{quantised_topk, wire::Payload};
/// let bytes = [&[b'L', 1, 6, 2 | 1 << 4, 1, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0][..], // 2 bits, a bitmap, 1 of 3 kept
///     &1f32.to_le_bytes(), &4f32.to_le_bytes(), &[0b11, 0b010]].concat(); // upper bin and negative; second element
/// let mut values = [f32::NAN; 3];
/// quantised_topk::decode(&Payload::parse(&bytes)?, &mut values)?;
/// assert_eq!(values, [0.0, -4.0, 0.0]);
/// # Ok::<(), lgreco_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Length`] when `values` or the body does not have the length that the header implies.
/// [`Error::PayloadHeader`] when the payload is of another method, or when its variant contradicts its other fields.
/// [`Error::Parameter`] when the bits are not 1 to 8, or when the number of kept elements is 0 or more than the tensor
/// has. [`Error::PayloadBody`] when positions do not ascend, are outside the tensor or differ in number from the codes.
/// [`Error::PayloadBody`] also when a mean is negative or not finite, or when padding is not zero.
///
/// # Complexity
/// O(n) for n elements. Needs no workspace.
pub fn decode(payload: &Payload<'_>, values: &mut [f32]) -> Result<()> {
    sparse::decode::<Body<'_>>(payload, values)
}

/// Bytes of the body that a header implies.
pub(crate) fn stated(header: &Header) -> Result<usize> {
    Ok(body_len(&read(header)?.1))
}

fn body_len(parts: &Parts) -> usize {
    usize::try_from(parts.body_len()).unwrap_or(usize::MAX)
}

/// Reads the setting and the lengths of the body's parts from a header.
fn read(header: &Header) -> Result<(QuantisedTopK, Parts)> {
    header.expect_method(Method::QuantisedTopK)?;
    let top = QuantisedTopK { keep: header.parameter, bits: header.variant & 15 };
    let parts = top.parts(header.shape.elements())?;
    header.expect_variant(top.header(header.shape, parts.layout).variant)?;
    Ok((top, parts))
}

/// The parts of a payload's body.
#[derive(Clone, Copy)]
pub struct Body<'a> {
    /// Number of kept elements and bits per value.
    pub top: QuantisedTopK,
    /// Layout of the positions.
    pub layout: Layout,
    /// The bins' means, f32 little-endian, all finite and at least 0.
    pub means: &'a [[u8; 4]],
    /// Codes in order of their positions.
    pub codes: &'a [u8],
    /// The positions.
    pub positions: &'a [u8],
}

impl<'a> Sparse<'a> for Body<'a> {
    fn of(payload: &Payload<'a>) -> Result<Self> {
        let (top, parts) = read(&payload.header)?;
        let body = payload.body_of_len(body_len(&parts))?;
        let (means, rest) = body.split_at(parts.means);
        let (codes, positions) = rest.split_at(parts.codes);
        let means = means.as_chunks::<4>().0;
        // Larger bit patterns than that of the largest finite number are infinite, NaN or negative.
        let sound = means.iter().all(|&mean| u32::from_le_bytes(mean) <= f32::MAX.to_bits());
        Error::require_body(sound, "a mean is not finite and positive")?;
        let padding = 8 * codes.len() as u64 - top.keep as u64 * top.bits as u64;
        let padded = codes.last().is_some_and(|&last| last as u32 >> (8 - padding) != 0);
        Error::require_body(!padded, "padding is not zero")?;
        parts.layout.check_padding(positions)?;
        Ok(Body { top, layout: parts.layout, means, codes, positions })
    }

    fn positions(&self) -> (Layout, &'a [u8]) {
        (self.layout, self.positions)
    }

    #[inline(always)]
    fn scatter(
        &self,
        start: usize,
        place: &mut [u64; 2],
        values: &mut [f32],
        unkept: f32,
        put: impl Fn(&mut f32, f32),
    ) -> Result<()> {
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
            Error::require_body(beyond.is_empty(), "more positions than kept values")
        })
    }
}

impl Body<'_> {
    /// The decoded value of each code.
    fn meanings(&self) -> [f32; 256] {
        let mut meanings = [0.0; 256];
        for (sign, meanings) in meanings.chunks_mut(self.means.len()).take(2).enumerate() {
            for (meaning, &mean) in meanings.iter_mut().zip(self.means) {
                *meaning = f32::from_bits(u32::from_le_bytes(mean) | (sign as u32) << 31);
            }
        }
        meanings
    }

    /// Unpacks the `count` codes from code `first` on.
    #[inline(always)]
    fn codes<'c>(&self, first: u64, count: usize, codes: &'c mut [u8]) -> &'c [u8] {
        bits::unpack_some(self.top.bits, self.codes, first, count, codes)
    }

    /// Does the work of [`Sparse::scatter`] for a bitmap. Returns the number of values kept up to the end of `values`.
    fn expand(
        &self,
        start: usize,
        index: u64,
        values: &mut [f32],
        unkept: f32,
        put: impl Fn(&mut f32, f32),
    ) -> Result<u64> {
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
}
