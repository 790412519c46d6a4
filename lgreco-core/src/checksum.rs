//! Checksums of saved states, messages and agreements between ranks.
//!
//! A checksum is a chain of invertible steps, one per word. So a change of any single word always changes the checksum.
//! A change of several words goes unnoticed with a probability of 2^-64, or 2^-32 if the checksum has 32 bits.
//!
//! A saved state ends with the [`struct@Hash`] of all bytes before it. Readers check this hash right after the magic
//! number and the version. Without the checksum, most states with a flipped bit would load, for example with a wrong
//! step number for the next decision.
//!
//! A state inside another state has no separate checksum, for example the error-feedback memory in a controller's
//! state. There is one exception: if a controller is saved layer by layer, each layer's part has a checksum. After a
//! test has changed a state, `lgreco_testing::reseal` writes the matching checksum into the last eight bytes.

use crate::{Error, Result};

/// A variant of 64-bit FNV-1a. Each step hashes one word, and a shift mixes high bits into low bits.
#[derive(Clone, Copy, Debug)]
pub struct Hash(pub u64);

impl Hash {
    /// The hash of no words.
    pub const START: Hash = Hash(0xcbf2_9ce4_8422_2325);

    /// Adds a word to the hash.
    #[allow(clippy::should_implement_trait, reason = "a hash is no number")]
    #[inline]
    pub fn add(mut self, word: u64) -> Self {
        self.0 = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        self.0 ^= self.0 >> 29;
        self
    }

    /// The hash of the length in bytes, followed by all bytes as little-endian words. Zeros pad the last word.
    fn of_bytes(bytes: &[u8]) -> Self {
        let (words, rest) = bytes.as_chunks::<8>();
        let hash =
            words.iter().fold(Hash::START.add(bytes.len() as u64), |hash, &word| hash.add(u64::from_le_bytes(word)));
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        if rest.is_empty() { hash } else { hash.add(u64::from_le_bytes(last)) }
    }
}

/// Length in bytes of the checksum at the end of a saved state.
pub const LEN: usize = 8;

/// Overwrites the last [`LEN`] bytes with the checksum of the bytes before them. Does nothing to an array
/// of fewer than [`LEN`] bytes.
pub fn seal(bytes: &mut [u8]) {
    if let Some((bytes, sum)) = bytes.split_last_chunk_mut::<LEN>() {
        *sum = Hash::of_bytes(bytes).0.to_le_bytes();
    }
}

/// Checks the checksum at the end, and returns the bytes before it.
///
/// # Errors
/// [`Error::Length`] when `bytes` is shorter than a checksum; [`Error::Checksum`] when the checksum does not match.
pub fn open(bytes: &[u8]) -> Result<&[u8]> {
    let short = Error::Length { what: "saved state bytes", expected: LEN, found: bytes.len() };
    let (bytes, sum) = bytes.split_last_chunk::<LEN>().ok_or(short)?;
    let (expected, found) = (Hash::of_bytes(bytes).0, u64::from_le_bytes(*sum));
    if expected == found { Ok(bytes) } else { Err(Error::Checksum { expected, found }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    #[test]
    fn every_change_of_one_word_is_seen() {
        for len in [8, 9, 15, 16, 17, 40] {
            let mut sealed: Vec<u8> = (0..len).map(|i| (i * 37) as u8).collect();
            seal(&mut sealed);
            assert_eq!(open(&sealed), Ok(&sealed[..len - LEN]));
            for bit in 0..8 * len {
                let mut changed = sealed.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                assert!(matches!(open(&changed), Err(Error::Checksum { .. })), "bit {bit} of {len} bytes");
            }
            for shorter in 0..len {
                assert!(open(&sealed[..shorter]).is_err(), "{shorter} of {len} bytes");
            }
        }
    }

    /// Zero bytes at the end change the hash although zeros also pad the last word, because the hash includes the
    /// length.
    #[test]
    fn the_length_counts() {
        let sums: Vec<_> = (0..20).map(|len| Hash::of_bytes(&vec![0; len]).0).collect();
        assert!((0..20).all(|i| (0..i).all(|j| sums[i] != sums[j])));
    }

    /// Compares the hash of nine bytes with its definition, written out in full.
    #[test]
    fn the_bits_are_fixed() {
        let step = |hash: u64, word: u64| {
            let product = (hash ^ word).wrapping_mul((1 << 40) + 0x1b3);
            product ^ product >> 29
        };
        let expected = step(step(step(0xcbf2_9ce4_8422_2325, 9), 0x0807_0605_0403_0201), 9);
        assert_eq!(Hash::of_bytes(&[1, 2, 3, 4, 5, 6, 7, 8, 9]).0, expected);
    }
}
