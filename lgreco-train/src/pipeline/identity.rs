//! Ids for samples that have none.

/// A 64-bit id of a sequence of tokens, for [`LinkMemory::Samples`](super::LinkMemory::Samples): equal tokens at equal
/// positions have the same id, however they are padded. `None` stands for padding, which does not count, wherever it is.
/// Two different sequences have the same id with probability about 2^-64.
///
/// ```
/// use lgreco_train::pipeline::token_id;
/// let padded = [Some(17), Some(4), None, None];
/// assert_eq!(token_id(padded), token_id([None, Some(17), Some(4)]));
/// assert_ne!(token_id([Some(17), Some(4)]), token_id([Some(4), Some(17)]));
/// ```
pub fn token_id(tokens: impl IntoIterator<Item = Option<u32>>) -> u64 {
    tokens.into_iter().flatten().fold(0xcbf2_9ce4_8422_2325, |hash, token| mix(hash ^ token as u64))
}

/// The finaliser of SplitMix64: invertible, and every bit of the input moves about half of the output's.
const fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}
