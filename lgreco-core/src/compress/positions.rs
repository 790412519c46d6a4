//! Sorted positions in few bits: a bitmap or Elias–Fano.
//!
//! TopK, CLT-k, hard thresholds and SIDCo differ in what they select, not in what they send, so they share TopK's
//! payload, and with it this coder of positions and one parser; AdaComp adds only signs. Decoded elements are added
//! straight into the mean.

use crate::Error;
use core::ops::Range;

/// How sorted positions are coded; the number stands in bits 2–3 of a TopK header's variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Coding {
    /// Not at all: every position is taken.
    All = 0,
    /// One bit for each element.
    Bitmap = 1,
    /// Elias–Fano: low bits packed, high bits in unary.
    EliasFano = 2,
}

/// Where k sorted positions below n lie among the bytes that end a TopK payload, as a function of k and n: what
/// [`topk`](crate::compress::topk) says of the format, in numbers, for encoders and decoders elsewhere, on a GPU for
/// instance. Made by [`TopK::layout`](crate::compress::topk::TopK::layout) and
/// [`of_payload`](crate::compress::topk::of_payload).
///
/// ```
/// use lgreco_core::compress::topk::{Coding, TopK};
/// use lgreco_core::gradient::Dtype;
/// let layout = TopK { keep: 3, values: Dtype::Bf16 }.layout(100)?;
/// assert_eq!((layout.coding, layout.low_bits), (Coding::EliasFano, 5));
/// assert_eq!((layout.low_bytes, layout.high_bytes), (2, 1)); // 3 · 5 bits, and 3 + (99 >> 5)
/// # Ok::<(), lgreco_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// How they are coded.
    pub coding: Coding,
    /// Of each position, the bits that are packed: 0 to 31, 0 but for Elias–Fano.
    pub low_bits: u32,
    /// Bytes of the packed bits, which come first.
    pub low_bytes: u64,
    /// Bytes of the bitmap or of the high bits in unary.
    pub high_bytes: u64,
    elements: u32,
    keep: u32,
}

impl Layout {
    /// The layout of `keep` positions below `elements`, of which there are no fewer.
    pub(super) fn new(elements: u32, keep: u32) -> Layout {
        let all = Layout { coding: Coding::All, low_bits: 0, low_bytes: 0, high_bytes: 0, elements, keep };
        if keep == elements {
            return all;
        }
        let elias_fano = (0..32)
            .map(|low_bits| {
                let low_bytes = (keep as u64 * low_bits as u64).div_ceil(8);
                let high_bytes = (keep as u64 + ((elements - 1) >> low_bits) as u64).div_ceil(8);
                Layout { coding: Coding::EliasFano, low_bits, low_bytes, high_bytes, ..all }
            })
            .min_by_key(|layout| layout.bytes());
        let bitmap = Layout { coding: Coding::Bitmap, high_bytes: (elements as u64).div_ceil(8), ..all };
        elias_fano.filter(|fano| fano.bytes() < bitmap.bytes()).unwrap_or(bitmap)
    }

    /// Bytes it takes.
    pub const fn bytes(self) -> u64 {
        self.low_bytes + self.high_bytes
    }

    /// `Err` when a bit of the low bits' last byte is set that belongs to no position.
    pub(super) fn check_padding(self, bytes: &[u8]) -> Result<(), Error> {
        let low = &bytes[..self.low_bytes as usize];
        let padding = self.low_bytes * 8 - self.keep as u64 * self.low_bits as u64;
        if low.last().is_some_and(|&last| last as u32 >> (8 - padding) != 0) {
            return Err(Error::PayloadBody { what: "padding is not zero" });
        }
        Ok(())
    }
}

/// Writes positions, which come in ascending order.
pub(super) enum Writer<'a> {
    All,
    Bitmap(&'a mut [u8]),
    EliasFano { low: PackedBits<'a>, high: &'a mut [u8], low_bits: u32, count: u64 },
}

impl<'a> Writer<'a> {
    /// A writer into `bytes`, whose length is that of `layout`.
    pub(super) fn new(layout: Layout, bytes: &'a mut [u8]) -> Self {
        bytes.fill(0);
        match layout.coding {
            Coding::All => Writer::All,
            Coding::Bitmap => Writer::Bitmap(bytes),
            Coding::EliasFano => {
                let (low, high) = bytes.split_at_mut(layout.low_bytes as usize);
                Writer::EliasFano {
                    low: PackedBits { bytes: low, at: 0, pending: 0, held: 0 },
                    high,
                    low_bits: layout.low_bits,
                    count: 0,
                }
            }
        }
    }

    /// Appends positions.
    pub(super) fn extend(&mut self, positions: &[u32]) {
        match self {
            Writer::All => {}
            Writer::Bitmap(bytes) => {
                for &p in positions {
                    bytes[p as usize / 8] |= 1 << (p % 8);
                }
            }
            Writer::EliasFano { low, high, low_bits, count } => {
                let mask = (1u32 << *low_bits) - 1;
                for &p in positions {
                    low.push(p & mask, *low_bits);
                    let bit = (p >> *low_bits) as u64 + *count;
                    high[(bit / 8) as usize] |= 1 << (bit % 8);
                    *count += 1;
                }
            }
        }
    }

    /// Completes the last bytes.
    pub(super) fn finish(self) {
        if let Writer::EliasFano { low, .. } = self {
            low.finish();
        }
    }
}

/// Appends numbers of a few bits, least significant bit first.
pub(super) struct PackedBits<'a> {
    bytes: &'a mut [u8],
    at: usize,
    pending: u64,
    held: u32,
}

impl PackedBits<'_> {
    #[inline(always)]
    fn push(&mut self, value: u32, bits: u32) {
        self.pending |= (value as u64) << self.held;
        self.held += bits;
        if self.held >= 32 {
            self.bytes[self.at..self.at + 4].copy_from_slice(&(self.pending as u32).to_le_bytes());
            self.at += 4;
            self.pending >>= 32;
            self.held -= 32;
        }
    }

    fn finish(self) {
        let last = self.pending.to_le_bytes();
        let rest = &mut self.bytes[self.at..];
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// Calls `visit` with each position in `bytes` (as long as `layout`'s), checking that they ascend below the number of
/// elements, that Elias–Fano has no more than its layout says, and that the padding is 0.
pub(super) fn for_each(layout: Layout, bytes: &[u8], visit: impl FnMut(u32) -> Result<(), Error>) -> Result<(), Error> {
    for_each_in(layout, bytes, 0, &mut 0, 0..layout.elements as u64, visit)
}

/// The same of the positions in `range`, which begins at a multiple of 64 and where the last one ended; `before` is how
/// many positions come before, `bit` 0 before the first range, and then tells where the next begins.
pub(super) fn for_each_in(
    layout: Layout,
    bytes: &[u8],
    before: u64,
    bit: &mut u64,
    range: Range<u64>,
    mut visit: impl FnMut(u32) -> Result<(), Error>,
) -> Result<(), Error> {
    let Layout { coding, low_bits, low_bytes, elements, keep, .. } = layout;
    let last = range.end == elements as u64;
    match coding {
        Coding::All => range.into_iter().try_for_each(|position| visit(position as u32)),
        Coding::Bitmap => {
            // Behind the last element there is padding, whose ones are positions outside.
            let end = if last { bytes.len() } else { (range.end / 8) as usize };
            let first = (range.start / 8) as usize;
            ones(&bytes[first.min(end)..end], 0).try_for_each(|bit| visit(below(range.start + bit, elements)?))
        }
        Coding::EliasFano => {
            layout.check_padding(bytes)?;
            let (low, high) = bytes.split_at(low_bytes as usize);
            let mut least = range.start;
            let from = *bit;
            for (i, one) in (before..).zip(ones(high, from)) {
                if i >= keep as u64 {
                    return Err(Error::PayloadBody { what: "more positions than kept values" });
                }
                let position = (one - i) << low_bits | packed(low, i * low_bits as u64, low_bits);
                if position < least {
                    return Err(Error::PayloadBody { what: "positions do not ascend" });
                }
                if position >= range.end && !last {
                    *bit = one;
                    return Ok(());
                }
                least = position + 1;
                visit(below(position, elements)?)?;
            }
            *bit = 8 * high.len() as u64;
            Ok(())
        }
    }
}

/// Where [`for_each_in`] is when it comes to `start`, a multiple of 64: how many positions are before, and where the
/// next begins. They are counted, not looked at. `None` where that is not enough.
pub(super) fn find(layout: Layout, bytes: &[u8], start: u64) -> Option<[u64; 2]> {
    let Layout { coding, low_bits, low_bytes, .. } = layout;
    match coding {
        Coding::All => Some([start, 0]),
        Coding::Bitmap => {
            let before = bytes.get(..(start / 8) as usize)?.chunks(8);
            Some([before.map(|chunk| word(chunk).count_ones() as u64).sum(), 0])
        }
        Coding::EliasFano => {
            if !start.is_multiple_of(1 << low_bits) {
                return None;
            }
            // High bits count up by zeros, each of which ends those of one number.
            let (wanted, high) = (start >> low_bits, bytes.get(low_bytes as usize..)?);
            let (mut before, mut zeros) = (0, 0);
            for (i, chunk) in (0..).zip(high.chunks(8)) {
                let mut word = word(chunk);
                let more = word.count_zeros() as u64;
                if zeros + more < wanted {
                    (before, zeros) = (before + 64 - more, zeros + more);
                    continue;
                }
                let mut bit = 0;
                while zeros < wanted {
                    let ones = word.trailing_ones();
                    (before, zeros) = (before + ones as u64, zeros + 1);
                    (word, bit) = (word.checked_shr(ones + 1).unwrap_or(0), bit + ones + 1);
                }
                return Some([before, 64 * i + bit as u64]);
            }
            Some([before, 8 * high.len() as u64])
        }
    }
}

fn below(position: u64, elements: u32) -> Result<u32, Error> {
    if position < elements as u64 {
        Ok(position as u32)
    } else {
        Err(Error::PayloadBody { what: "a position outside the tensor" })
    }
}

/// The positions of the one bits, from bit `from` on.
#[inline(always)]
fn ones(bytes: &[u8], from: u64) -> impl Iterator<Item = u64> {
    let (first, mut mask) = ((from / 64) as usize, !0 << (from % 64));
    let words = bytes.get(8 * first..).unwrap_or_default().chunks(8);
    (first as u64..).zip(words).flat_map(move |(i, chunk)| {
        let mut word = word(chunk) & core::mem::replace(&mut mask, !0);
        core::iter::from_fn(move || {
            let bit = (word != 0).then(|| i * 64 + word.trailing_zeros() as u64);
            word &= word.wrapping_sub(1);
            bit
        })
    })
}

/// Up to eight bytes as a number.
#[inline(always)]
fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    match bytes.first_chunk::<8>() {
        Some(whole) => word = *whole,
        None => word[..bytes.len()].copy_from_slice(bytes),
    }
    u64::from_le_bytes(word)
}

/// The `bits` bits from bit `at` on.
#[inline(always)]
fn packed(bytes: &[u8], at: u64, bits: u32) -> u64 {
    (word(&bytes[(at / 8) as usize..]) >> (at % 8)) & ((1 << bits) - 1)
}
