//! The 32-bit checksum of the sender's memory, which messages across a cut carry.

const LANES: usize = 8;
const PRIME: u32 = 0x9e37_79b1;

fn mix(hash: u32, word: u32) -> u32 {
    (hash ^ word).wrapping_mul(PRIME).rotate_left(13)
}

/// Splits the words into eight interleaved sequences, and hashes each by a chain of invertible steps. A last chain
/// hashes the eight results.
fn checksum<T: Copy>(words: &[T], bits: impl Fn(T) -> u32) -> u32 {
    let mut lanes = [PRIME; LANES];
    let (blocks, rest) = words.as_chunks::<LANES>();
    for block in blocks {
        for l in 0..LANES {
            lanes[l] = mix(lanes[l], bits(block[l]));
        }
    }
    lanes.iter_mut().zip(rest).for_each(|(lane, &word)| *lane = mix(*lane, bits(word)));
    lanes.into_iter().fold(words.len() as u32, mix)
}

/// Checksum of numbers, by their bits.
pub(super) fn of_values(values: &[f32]) -> u32 {
    checksum(values, f32::to_bits)
}

/// Checksum of bytes; their number is a multiple of four.
pub(super) fn of_bytes(bytes: &[u8]) -> u32 {
    checksum(bytes.as_chunks::<4>().0, u32::from_le_bytes)
}
