//! Random words for one block of elements, many Philox counters at a time.

use super::BLOCK;
use crate::rng::Stream;

/// Philox counters worked on together.
const COUNTERS: usize = 16;
const LOW: u64 = 0xffff_ffff;

/// Words `first .. first + BLOCK` of the stream, shifted right by 9 to 23 bits. `first` is a multiple of 4.
///
/// Each 32-bit word of the state lies in the low half of a 64-bit lane, whose upper half is never read: so one
/// widening multiplication per word is all a round needs, without shuffles.
#[inline(always)]
pub(super) fn fill(stream: &Stream, first: usize, words: &mut [u32; BLOCK]) {
    for (step, words) in words.as_chunks_mut::<{ 4 * COUNTERS }>().0.iter_mut().enumerate() {
        let counter = (first / 4 + step * COUNTERS) as u32;
        let mut state = [[0u64; COUNTERS]; 4];
        for lane in 0..COUNTERS {
            state[0][lane] = counter.wrapping_add(lane as u32) as u64;
            state[1][lane] = stream.step as u64;
            state[2][lane] = stream.layer as u64;
            state[3][lane] = stream.rank as u64;
        }
        let mut key = [stream.seed as u32, (stream.seed >> 32) as u32];
        for _ in 0..10 {
            for lane in 0..COUNTERS {
                let p0 = (state[0][lane] & LOW) * 0xD251_1F53;
                let p1 = (state[2][lane] & LOW) * 0xCD9E_8D57;
                state[0][lane] = (p1 >> 32) ^ state[1][lane] ^ key[0] as u64;
                state[1][lane] = p1;
                state[2][lane] = (p0 >> 32) ^ state[3][lane] ^ key[1] as u64;
                state[3][lane] = p0;
            }
            key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
        }
        for lane in 0..COUNTERS {
            for word in 0..4 {
                words[4 * lane + word] = state[word][lane] as u32 >> 9;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_holds_the_streams_words_also_where_the_counter_wraps() {
        let stream = Stream { seed: 0x0123_4567_89ab_cdef, step: 5, layer: 7, rank: 11 };
        for first in [0, 512, (1 << 32) - 512, (1 << 34) - 256] {
            let mut words = [0; BLOCK];
            fill(&stream, first, &mut words);
            for (i, &word) in words.iter().enumerate() {
                assert_eq!(word, stream.word((first + i) as u64) >> 9, "word {}", first + i);
            }
        }
    }
}
