//! Encodes TopK in few bits: selects as TopK does, then codes the sign and the bin of each kept value.

use super::bins::{BLOCK, Bins};
use super::sums::Sums;
use crate::bits;
use crate::simd::dispatch_with;

/// The magnitudes of a block, filled up with zeros.
#[inline(always)]
fn magnitudes(kept: &[u32]) -> [u32; BLOCK] {
    let mut magnitudes = [0; BLOCK];
    for (magnitude, bits) in magnitudes.iter_mut().zip(kept) {
        *magnitude = bits & 0x7fff_ffff;
    }
    magnitudes
}

/// Writes the means of the bins and the codes of `kept`, which holds the bits of f32 values.
pub(super) fn quantise_kept(bits: u8, kept: &[u32], means: &mut [u8], codes: &mut [u8]) {
    dispatch_with!((bits, kept, means, codes), quantise);
}

#[inline(always)]
fn quantise((bits, kept, means, codes): (u8, &[u32], &mut [u8], &mut [u8])) {
    let (mut low, mut high) = (u32::MAX, 0);
    for bits in kept {
        let magnitude = bits & 0x7fff_ffff;
        high = magnitude.max(high);
        low = if magnitude > 0 { magnitude } else { u32::MAX }.min(low);
    }
    let mut sums = Sums::new(Bins::new(bits, low.min(high), high));
    for kept in kept.chunks(BLOCK) {
        sums.look(&magnitudes(kept));
    }
    for (kept, packed) in kept.chunks(BLOCK).zip(codes.chunks_mut(BLOCK / 8 * bits as usize)) {
        let bins = sums.add(&magnitudes(kept), kept.len());
        let mut block = [0; BLOCK];
        for ((code, &bin), value) in block.iter_mut().zip(&bins).zip(kept) {
            *code = bin as u8 | ((value >> 31) as u8) << (bits - 1);
        }
        bits::pack(bits, &block, packed);
    }
    for (place, mean) in means.chunks_exact_mut(4).zip(sums.means()) {
        place.copy_from_slice(&mean.to_le_bytes());
    }
}
