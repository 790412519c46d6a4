//! Reads positions from bytes, a block at a time.
//!
//! A block holds the positions of the set bits in a few words of a bitmap, or of Elias–Fano's high bits. The reader
//! checks a whole block at once. The reader checks positions one by one only where the block has an error or the range
//! ends.

use super::{Coding, Layout, word};
use crate::bits;
use crate::select::ones;
use crate::simd::dispatch_with;
use crate::{Error, Result};
use core::ops::Range;

/// Maximum number of positions in a block.
pub(crate) const BLOCK: usize = 128;

/// Calls `visit` with each position in `bytes`, which has the length of `layout`. Checks that positions ascend and are
/// below the number of elements. Also checks that Elias–Fano has at most `keep` positions, and that the padding is 0.
pub(crate) fn for_each(layout: Layout, bytes: &[u8], mut visit: impl FnMut(u32) -> Result<()>) -> Result<()> {
    for_each_block(layout, bytes, &mut [0; 2], 0..layout.elements as u64, |block| {
        block.iter().try_for_each(|&position| visit(position))
    })
}

/// Like [`for_each`], but only for the positions in `range`, and in blocks of up to [`BLOCK`]. The range begins at a
/// multiple of 64, where the last range ended. `place` holds the number of earlier positions and the bit where they
/// end. The caller passes two zeros for the first range, and each call updates `place` for the next range. On an error,
/// `visit` has been called with all positions before the error.
#[inline(always)]
pub(crate) fn for_each_block(
    layout: Layout,
    bytes: &[u8],
    place: &mut [u64; 2],
    range: Range<u64>,
    mut visit: impl FnMut(&[u32]) -> Result<()>,
) -> Result<()> {
    let mut reader = Reader::new(layout, bytes, *place, range)?;
    let mut block = [0; BLOCK];
    loop {
        let (count, end) = dispatch_with!((&mut reader, &mut block), next);
        visit(&block[..count])?;
        if let Some(end) = end {
            end?;
            *place = reader.place();
            return Ok(());
        }
    }
}

/// State of reading positions.
struct Reader<'a> {
    layout: Layout,
    low: &'a [u8],
    /// The bitmap up to the end of the range, or the high bits.
    high: &'a [u8],
    /// Index of the next bit in `high`. If every position is kept, this index is the next position.
    bit: u64,
    /// Number of positions before the next position.
    index: u64,
    /// Smallest valid next position.
    least: u64,
    end: u64,
}

impl<'a> Reader<'a> {
    fn new(layout: Layout, bytes: &'a [u8], [index, bit]: [u64; 2], range: Range<u64>) -> Result<Self> {
        let (low, high) = bytes.split_at(layout.low_bytes as usize);
        let reader = Reader { layout, low, high, bit: range.start, index, least: range.start, end: range.end };
        Ok(match layout.coding {
            Coding::All => reader,
            // Also reads the padding after the last element: a set bit in the padding is a position outside the tensor.
            Coding::Bitmap if reader.is_last() => reader,
            Coding::Bitmap => Reader { high: &high[..high.len().min((range.end / 8) as usize)], ..reader },
            Coding::EliasFano => {
                layout.check_padding(bytes)?;
                Reader { bit, ..reader }
            }
        })
    }

    /// Whether the range ends with the tensor.
    fn is_last(&self) -> bool {
        self.end == self.layout.elements as u64
    }

    fn place(&self) -> [u64; 2] {
        [self.index, if self.layout.coding == Coding::EliasFano { self.bit } else { 0 }]
    }

    /// Writes the indices of the next set bits and returns their number. Stops when `found` has fewer than 64 free
    /// elements, for the bits of another word, or when the range may be complete.
    #[inline(always)]
    fn next_ones(&mut self, found: &mut [u32; BLOCK]) -> usize {
        let mut count = 0;
        while let Some(places) = found[count..].first_chunk_mut::<64>() {
            let first = self.bit / 64;
            let bytes = self.high.get(8 * first as usize..).unwrap_or_default();
            if bytes.is_empty() {
                break;
            }
            let word = word(bytes) & (!0 << (self.bit % 64));
            count += ones(word, 64 * first as u32, places);
            self.bit = 64 * (first + 1);
            if count > 0 && self.high_part(found[count - 1], count - 1) << self.layout.low_bits >= self.end {
                break;
            }
        }
        count
    }

    /// The high part of a position. `one` is the index of the position's set bit, and `nth` the number of earlier
    /// positions in the block.
    #[inline(always)]
    fn high_part(&self, one: u32, nth: usize) -> u64 {
        match self.layout.coding {
            Coding::EliasFano => (one as u64).wrapping_sub(self.index + nth as u64),
            _ => one as u64,
        }
    }
}

/// Reads the next block. Returns the number of positions. If the range ends after these positions, also returns the
/// result for the whole range.
#[inline(always)]
fn next((reader, block): (&mut Reader<'_>, &mut [u32; BLOCK])) -> (usize, Option<Result<()>>) {
    if reader.layout.coding == Coding::All {
        let count = (reader.end - reader.bit).min(BLOCK as u64);
        for (place, position) in block.iter_mut().zip(reader.bit..) {
            *place = position as u32;
        }
        (reader.bit, reader.index) = (reader.bit + count, reader.index + count);
        return (count as usize, (reader.bit == reader.end).then_some(Ok(())));
    }
    let mut ones = [0; BLOCK];
    let found = reader.next_ones(&mut ones);
    if found == 0 {
        reader.bit = 8 * reader.high.len() as u64;
        return (0, Some(Ok(())));
    }
    let mut kept = found;
    match reader.layout.coding {
        Coding::EliasFano => {
            kept = found.min((reader.layout.keep as u64).saturating_sub(reader.index) as usize);
            reader.join(&ones, kept, block);
        }
        _ => *block = ones,
    }
    let mut ascend = true;
    for (a, b) in block.iter().zip(&block[1..kept.max(1)]) {
        ascend &= a < b;
    }
    let sound = kept > 0
        && reader.high_part(ones[kept - 1], kept - 1) <= (reader.layout.elements as u64 - 1) >> reader.layout.low_bits
        && ascend
        && block[0] as u64 >= reader.least
        && (block[kept - 1] as u64) < reader.end;
    let (count, mut end) = if sound { (kept, None) } else { reader.one_by_one(&ones, &block[..kept]) };
    if end.is_none() && kept < found {
        end = Some(Err(Error::PayloadBody { what: "more positions than kept values" }));
    }
    if let Some(last) = count.checked_sub(1) {
        reader.least = block[last] as u64 + 1;
    }
    reader.index += count as u64;
    (count, end)
}

impl Reader<'_> {
    /// Elias–Fano: joins the high and low parts of the next `count` positions, modulo 2^32.
    #[inline(always)]
    fn join(&self, ones: &[u32; BLOCK], count: usize, block: &mut [u32; BLOCK]) {
        let (low_bits, index) = (self.layout.low_bits, self.index);
        let mut low = [0; BLOCK];
        match low_bits {
            0 => {}
            1..=8 => {
                let mut codes = [0; bits::some_room(BLOCK)];
                let codes = bits::unpack_some(low_bits as u8, self.low, index, count, &mut codes);
                for (low, &code) in low.iter_mut().zip(codes) {
                    *low = code as u32;
                }
            }
            _ => {
                let mask = (1 << low_bits) - 1;
                for (low, i) in low[..count].iter_mut().zip(index..) {
                    let at = i * low_bits as u64;
                    *low = ((word(&self.low[(at / 8) as usize..]) >> (at % 8)) & mask) as u32;
                }
            }
        }
        for i in 0..BLOCK {
            block[i] = ones[i].wrapping_sub(index as u32).wrapping_sub(i as u32) << low_bits | low[i];
        }
    }

    /// Returns the number of valid positions of a block before an error or the end of the range. Also returns that
    /// error, or `Ok` for the end of the range, or `None` if the whole block is valid.
    #[inline(never)]
    fn one_by_one(&mut self, ones: &[u32; BLOCK], block: &[u32]) -> (usize, Option<Result<()>>) {
        let refused = |what| Some(Err(Error::PayloadBody { what }));
        let low_bits = self.layout.low_bits;
        let mut least = self.least;
        for (nth, (&one, &position)) in ones.iter().zip(block).enumerate() {
            let position = self.high_part(one, nth) << low_bits | (position & ((1 << low_bits) - 1)) as u64;
            if position < least {
                return (nth, refused("positions do not ascend"));
            }
            if position >= self.end {
                if self.is_last() {
                    return (nth, refused("a position outside the tensor"));
                }
                self.bit = one as u64;
                return (nth, Some(Ok(())));
            }
            least = position + 1;
        }
        (block.len(), None)
    }
}
