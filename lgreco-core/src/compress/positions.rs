//! Sorted positions in few bits: a bitmap or Elias–Fano.

use crate::Error;

/// How k positions below n are written; a function of (n, k).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// Every position is taken.
    All,
    /// One bit for each of n elements.
    Bitmap { elements: u32 },
    /// Low bits packed, high bits in unary.
    EliasFano { keep: u32, low_bits: u32, low_bytes: u64, high_bytes: u64 },
}

impl Layout {
    /// The layout of `keep` positions below `elements`.
    pub(super) fn new(elements: u32, keep: u32) -> Layout {
        if keep == elements {
            return Layout::All;
        }
        let elias_fano = (0..32)
            .map(|low_bits| {
                let low_bytes = (keep as u64 * low_bits as u64).div_ceil(8);
                let high_bytes = (keep as u64 + ((elements - 1) >> low_bits) as u64).div_ceil(8);
                Layout::EliasFano { keep, low_bits, low_bytes, high_bytes }
            })
            .min_by_key(|layout| layout.bytes());
        let bitmap = Layout::Bitmap { elements };
        elias_fano.filter(|fano| fano.bytes() < bitmap.bytes()).unwrap_or(bitmap)
    }

    /// Bytes it takes.
    pub(super) fn bytes(self) -> u64 {
        match self {
            Layout::All => 0,
            Layout::Bitmap { elements } => (elements as u64).div_ceil(8),
            Layout::EliasFano { low_bytes, high_bytes, .. } => low_bytes + high_bytes,
        }
    }

    /// Its number in the payload.
    pub(super) fn code(self) -> u8 {
        match self {
            Layout::All => 0,
            Layout::Bitmap { .. } => 1,
            Layout::EliasFano { .. } => 2,
        }
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
        match layout {
            Layout::All => Writer::All,
            Layout::Bitmap { .. } => Writer::Bitmap(bytes),
            Layout::EliasFano { low_bits, low_bytes, .. } => {
                let (low, high) = bytes.split_at_mut(low_bytes as usize);
                Writer::EliasFano {
                    low: PackedBits { bytes: low, at: 0, pending: 0, held: 0 },
                    high,
                    low_bits,
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

/// Calls `visit` with each position in `bytes` (as long as `layout`'s), checking that they are `keep` ascending
/// positions below `elements` and that the padding is 0.
pub(super) fn for_each(
    layout: Layout,
    elements: u32,
    bytes: &[u8],
    mut visit: impl FnMut(u32) -> Result<(), Error>,
) -> Result<(), Error> {
    match layout {
        Layout::All => (0..elements).try_for_each(visit),
        Layout::Bitmap { .. } => ones(bytes).try_for_each(|bit| visit(below(bit, elements)?)),
        Layout::EliasFano { low_bits, low_bytes, keep, .. } => {
            let (low, high) = bytes.split_at(low_bytes as usize);
            let mut least = 0u64;
            for (i, bit) in ones(high).enumerate() {
                if i >= keep as usize {
                    return Err(Error::PayloadBody { what: "more positions than kept values" });
                }
                let position = (bit - i as u64) << low_bits | packed(low, i as u64 * low_bits as u64, low_bits);
                if position < least {
                    return Err(Error::PayloadBody { what: "positions do not ascend" });
                }
                least = position + 1;
                visit(below(position, elements)?)?;
            }
            let padding = low_bytes * 8 - keep as u64 * low_bits as u64;
            if low.last().is_some_and(|&last| last as u32 >> (8 - padding) != 0) {
                return Err(Error::PayloadBody { what: "padding is not zero" });
            }
            Ok(())
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

/// The positions of the one bits.
fn ones(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks(8).enumerate().flat_map(|(i, chunk)| {
        let mut word = word(chunk);
        core::iter::from_fn(move || {
            let bit = (word != 0).then(|| i as u64 * 64 + word.trailing_zeros() as u64);
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
