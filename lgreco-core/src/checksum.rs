//! Checksums of what is saved, sent and agreed upon. Each is a chain of invertible steps, a word at a time, so a change of
//! any one word always changes the result; several changes together escape with a probability of 2^-64 (or 2^-32).
//!
//! Saved states end with the [`struct@Hash`] of all their bytes before it. Parts saved inside another state have none of their own.
//!
//! One checksum closes a saved state, and is looked at before anything but magic and version: most flips of a single
//! bit would otherwise load, among them those in the step of the next decision. As parts (a memory in a controller, a
//! setting in an end of a cut) have none, but for the layers of a controller that is saved by layer, `lgreco_testing::reseal` repairs any state by its last eight bytes.

use crate::{Error, Result};

/// 64-bit FNV-1a, a word at a time, with a shift that brings high bits down.
#[derive(Clone, Copy, Debug)]
pub struct Hash(pub u64);

impl Hash {
    /// Of nothing.
    pub const START: Hash = Hash(0xcbf2_9ce4_8422_2325);

    /// Takes a word more.
    #[allow(clippy::should_implement_trait, reason = "a hash is no number")]
    #[inline]
    pub fn add(mut self, word: u64) -> Self {
        self.0 = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        self.0 ^= self.0 >> 29;
        self
    }

    /// Of the length and all words, little-endian, the last one filled up with zeros.
    fn of_bytes(bytes: &[u8]) -> Self {
        let (words, rest) = bytes.as_chunks::<8>();
        let hash =
            words.iter().fold(Hash::START.add(bytes.len() as u64), |hash, &word| hash.add(u64::from_le_bytes(word)));
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        if rest.is_empty() { hash } else { hash.add(u64::from_le_bytes(last)) }
    }
}

/// Bytes of the checksum at the end of a saved state.
pub const LEN: usize = 8;

/// Writes the checksum of what is before it to the last bytes. Of fewer bytes than a checksum has, none is changed.
pub fn seal(bytes: &mut [u8]) {
    if let Some((bytes, sum)) = bytes.split_last_chunk_mut::<LEN>() {
        *sum = Hash::of_bytes(bytes).0.to_le_bytes();
    }
}

/// The bytes before the checksum.
///
/// # Errors
/// [`Error::Length`] when there is no room for a checksum; [`Error::Checksum`] when it is another.
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

    /// Zeros at the end, which fill the last word up, are not the same as none.
    #[test]
    fn the_length_counts() {
        let sums: Vec<_> = (0..20).map(|len| Hash::of_bytes(&vec![0; len]).0).collect();
        assert!((0..20).all(|i| (0..i).all(|j| sums[i] != sums[j])));
    }

    /// By its definition, a step written out.
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
