//! Random words for one block of elements, computed from many Philox counters together.

use super::Stream;

/// Elements per block. A block fits the first-level cache. The size is a multiple of 8, so that blocks of packed codes
/// start on byte boundaries. The size is also a multiple of 4, the number of words of one counter.
pub const BLOCK: usize = 512;

/// Writes words `first .. first + BLOCK` of the stream, each shifted right by 9, which leaves 23 bits. `first` is a multiple
/// of 4.
#[inline(always)]
pub fn fill_block(stream: &Stream, first: usize, words: &mut [u32; BLOCK]) {
    let first_counter = (first / 4) as u32;
    for (lane, words) in words.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        *words = lanes(stream, first_counter.wrapping_add(lane as u32)).map(|word| word as u32 >> 9);
    }
}

/// Writes words `first .. first + N` of the stream. `first` and `N` are multiples of 4.
#[inline(always)]
pub fn fill_words<const N: usize>(stream: &Stream, first: usize, words: &mut [u32; N]) {
    let first_counter = (first / 4) as u32;
    for (lane, words) in words.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        *words = lanes(stream, first_counter.wrapping_add(lane as u32)).map(|word| word as u32);
    }
}

/// The four words of one counter, each in the low half of a 64-bit lane. Callers ignore the upper halves. With 64-bit
/// lanes, each product of a round takes one widening multiplication and no shuffles.
#[inline(always)]
fn lanes(stream: &Stream, counter: u32) -> [u64; 4] {
    const LOW: u64 = 0xffff_ffff;
    let mut c0 = counter as u64;
    let (mut c1, mut c2, mut c3) = (stream.step as u64, stream.layer as u64, stream.rank as u64);
    let (mut k0, mut k1) = (stream.seed as u32, (stream.seed >> 32) as u32);
    for _ in 0..10 {
        let p0 = (c0 & LOW) * 0xD251_1F53;
        let p1 = (c2 & LOW) * 0xCD9E_8D57;
        c0 = (p1 >> 32) ^ c1 ^ k0 as u64;
        c1 = p1;
        c2 = (p0 >> 32) ^ c3 ^ k1 as u64;
        c3 = p0;
        (k0, k1) = (k0.wrapping_add(0x9E37_79B9), k1.wrapping_add(0xBB67_AE85));
    }
    [c0, c1, c2, c3]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_holds_the_streams_words_also_where_the_counter_wraps() {
        let stream = Stream { seed: 0x0123_4567_89ab_cdef, step: 5, layer: 7, rank: 11 };
        let firsts = [0u64, 512, (1 << 32) - 512, (1 << 34) - 256];
        // The last value does not fit `usize` on processors with 32 bits.
        for first in firsts.into_iter().filter_map(|first| usize::try_from(first).ok()) {
            let mut words = [0; BLOCK];
            fill_block(&stream, first, &mut words);
            for (i, &word) in words.iter().enumerate() {
                assert_eq!(word, stream.word((first + i) as u64) >> 9, "word {}", first + i);
            }
            let mut words = [0; 128];
            fill_words(&stream, first, &mut words);
            assert!(words.iter().zip(first as u64..).all(|(&word, i)| word == stream.word(i)), "words from {first}");
        }
    }
}
