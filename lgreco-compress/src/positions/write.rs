//! Writes positions as bytes.

use super::read::BLOCK;
use super::{Coding, Layout};
use crate::select::ones;
use crate::simd::dispatch_with;

/// Writes positions that arrive in ascending order.
pub(crate) enum Writer<'a> {
    All,
    Bitmap(Ones<'a>),
    EliasFano { low: PackedBits<'a>, high: Ones<'a>, low_bits: u32, count: u64 },
}

impl<'a> Writer<'a> {
    /// Makes a writer into `bytes`, which must have the length of `layout`.
    pub(crate) fn new(layout: Layout, bytes: &'a mut [u8]) -> Self {
        bytes.fill(0);
        match layout.coding {
            Coding::All => Writer::All,
            Coding::Bitmap => Writer::Bitmap(Ones { bytes, at: 0, word: 0 }),
            Coding::EliasFano => {
                let (low, high) = bytes.split_at_mut(layout.low_bytes as usize);
                Writer::EliasFano {
                    low: PackedBits { bytes: low, at: 0, pending: 0, held: 0 },
                    high: Ones { bytes: high, at: 0, word: 0 },
                    low_bits: layout.low_bits,
                    count: 0,
                }
            }
        }
    }

    /// Appends positions.
    #[inline(always)]
    pub(crate) fn extend(&mut self, positions: &[u32]) {
        match self {
            Writer::All => {}
            Writer::Bitmap(ones) => ones.set(positions.iter().map(|&p| p as u64)),
            Writer::EliasFano { low, high, low_bits, count } => {
                let mask = (1u32 << *low_bits) - 1;
                low.push(positions.iter().map(|p| p & mask), *low_bits);
                high.set(positions.iter().zip(*count..).map(|(&p, count)| (p >> *low_bits) as u64 + count));
                *count += positions.len() as u64;
            }
        }
    }

    /// Appends the positions of the set bits in `marks`. Bit 0 is position `first`, a multiple of 64.
    pub(crate) fn extend_marked(&mut self, first: usize, marks: &[u64]) {
        match self {
            Writer::All => {}
            Writer::Bitmap(ones) => {
                for (at, &word) in (first as u64 / 64..).zip(marks) {
                    ones.write(at, word);
                    (ones.at, ones.word) = (at, word);
                }
            }
            Writer::EliasFano { .. } => dispatch_with!((self, first, marks), extend_by_blocks),
        }
    }

    /// Writes the last, incomplete bytes.
    pub(crate) fn finish(self) {
        match self {
            Writer::All => {}
            Writer::Bitmap(ones) => ones.finish(),
            Writer::EliasFano { low, high, .. } => {
                low.finish();
                high.finish();
            }
        }
    }
}

/// Appends the positions of set bits, a block at a time.
#[inline(always)]
fn extend_by_blocks((writer, first, marks): (&mut Writer<'_>, usize, &[u64])) {
    let (mut block, mut count) = ([0; BLOCK], 0);
    for (first, &word) in (first..).step_by(64).zip(marks) {
        if let Some(places) = block[count..].first_chunk_mut() {
            count += ones(word, first as u32, places);
        }
        if count > BLOCK - 64 {
            writer.extend(&block[..count]);
            count = 0;
        }
    }
    writer.extend(&block[..count]);
}

/// Sets bits in ascending order.
pub(crate) struct Ones<'a> {
    bytes: &'a mut [u8],
    /// Index of the word that is being filled.
    at: u64,
    word: u64,
}

impl Ones<'_> {
    #[inline(always)]
    fn set(&mut self, bits: impl Iterator<Item = u64>) {
        let (mut at, mut word) = (self.at, self.word);
        for bit in bits {
            if bit / 64 != at {
                self.write(at, word);
                (at, word) = (bit / 64, 0);
            }
            word |= 1 << (bit % 64);
        }
        (self.at, self.word) = (at, word);
    }

    #[inline(always)]
    fn write(&mut self, at: u64, word: u64) {
        let (rest, word) = (&mut self.bytes[8 * at as usize..], word.to_le_bytes());
        match rest.first_chunk_mut() {
            Some(whole) => *whole = word,
            None => rest.copy_from_slice(&word[..rest.len()]),
        }
    }

    fn finish(mut self) {
        self.write(self.at, self.word);
    }
}

/// Appends numbers of a few bits each, least significant bit first.
pub(crate) struct PackedBits<'a> {
    bytes: &'a mut [u8],
    at: usize,
    pending: u64,
    held: u32,
}

impl PackedBits<'_> {
    #[inline(always)]
    fn push(&mut self, values: impl Iterator<Item = u32>, bits: u32) {
        let PackedBits { bytes, at, pending, held } = self;
        let (mut next, mut word, mut full) = (*at, *pending, *held);
        for value in values {
            word |= (value as u64) << full;
            full += bits;
            if full >= 32 {
                bytes[next..next + 4].copy_from_slice(&(word as u32).to_le_bytes());
                (next, word, full) = (next + 4, word >> 32, full - 32);
            }
        }
        (*at, *pending, *held) = (next, word, full);
    }

    fn finish(self) {
        let last = self.pending.to_le_bytes();
        let rest = &mut self.bytes[self.at..];
        rest.copy_from_slice(&last[..rest.len()]);
    }
}
