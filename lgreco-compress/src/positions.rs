//! Codes sorted positions compactly, as a bitmap or by Elias–Fano.
//!
//! TopK, CLT-k, hard thresholds and SIDCo select different elements, but share TopK's payload format, this coder and
//! one parser. AdaComp has another payload format, but codes positions in the same way. Decoded elements are added
//! directly to the mean.

mod expand;
mod read;
#[cfg(test)]
mod tests;
mod write;

pub(super) use expand::{Expand, Fetched};
pub(super) use read::{BLOCK, for_each, for_each_block};
pub(super) use write::Writer;

use crate::{Error, Result};

/// How sorted positions are coded. The number is in bits 2–3 of the `variant` in a TopK header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Coding {
    /// No bytes, because every position is kept.
    All = 0,
    /// One bit for each element.
    Bitmap = 1,
    /// Elias–Fano: low bits packed, high bits in unary.
    EliasFano = 2,
}

/// Layout of k sorted positions below n, in the bytes at the end of a TopK payload. The layout depends only on k and n.
/// [`topk`](crate::topk) describes the format. Encoders and decoders on other devices, such as GPUs, read these fields.
/// [`TopK::layout`](crate::topk::TopK::layout) and [`of_payload`](crate::topk::of_payload) return layouts.
///
/// ```
/// use lgreco_compress::topk::{Coding, TopK};
/// use lgreco_core::gradient::Dtype;
/// let layout = TopK { keep: 3, values: Dtype::Bf16 }.layout(100)?;
/// assert_eq!((layout.coding, layout.low_bits), (Coding::EliasFano, 5));
/// assert_eq!((layout.low_bytes, layout.high_bytes), (2, 1)); // 3 · 5 bits, and 3 + (99 >> 5)
/// # Ok::<(), lgreco_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// How the positions are coded.
    pub coding: Coding,
    /// Number of packed low bits per position: 0 to 31, and 0 except for Elias–Fano.
    pub low_bits: u32,
    /// Bytes of the packed low bits, which come first.
    pub low_bytes: u64,
    /// Bytes of the bitmap, or of the high bits in unary.
    pub high_bytes: u64,
    elements: u32,
    keep: u32,
}

impl Layout {
    /// The layout of `keep` positions below `elements`; `keep` must not exceed `elements`.
    pub(super) fn new(elements: u32, keep: u32) -> Layout {
        let all = Layout { coding: Coding::All, low_bits: 0, low_bytes: 0, high_bytes: 0, elements, keep };
        if keep == elements {
            return all;
        }
        // Takes the smallest layout. Of equally small layouts, the bitmap comes first, then Elias–Fano with fewer low
        // bits.
        let mut best = Layout { coding: Coding::Bitmap, high_bytes: (elements as u64).div_ceil(8), ..all };
        for low_bits in 0..32 {
            let low_bytes = (keep as u64 * low_bits as u64).div_ceil(8);
            if low_bytes >= best.bytes() {
                break;
            }
            let high_bytes = (keep as u64 + ((elements - 1) >> low_bits) as u64).div_ceil(8);
            let elias_fano = Layout { coding: Coding::EliasFano, low_bits, low_bytes, high_bytes, ..all };
            if elias_fano.bytes() < best.bytes() {
                best = elias_fano;
            }
        }
        best
    }

    /// Total bytes.
    pub const fn bytes(self) -> u64 {
        self.low_bytes + self.high_bytes
    }

    /// The largest number of positions.
    pub(super) fn keep(self) -> u32 {
        self.keep
    }

    pub(super) fn elements(self) -> usize {
        self.elements as usize
    }

    /// Returns an error when a bit after the last position's low bits is set.
    pub(super) fn check_padding(self, bytes: &[u8]) -> Result<()> {
        let low = &bytes[..self.low_bytes as usize];
        let padding = self.low_bytes * 8 - self.keep as u64 * self.low_bits as u64;
        Error::require_body(low.last().is_none_or(|&last| last as u32 >> (8 - padding) == 0), "padding is not zero")
    }
}

/// Finds where [`for_each_block`] continues at `start`, a multiple of 64. Returns the number of positions before
/// `start` and the bit where the next position begins. Counts the earlier positions without checking them. Returns
/// `None` if positions are coded by Elias–Fano and `start` is not a multiple of `2^low_bits`, because counting then
/// does not suffice.
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
            // In the high bits, each zero ends the run of positions that share a value of the high part.
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

/// Reads up to eight bytes as a little-endian number.
#[inline(always)]
fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    match bytes.first_chunk::<8>() {
        Some(whole) => word = *whole,
        None => word[..bytes.len()].copy_from_slice(bytes),
    }
    u64::from_le_bytes(word)
}
