//! The 32-bit checksum that messages across a cut carry of what their sender remembers.

const LANES: usize = 8;
const PRIME: u32 = 0x9e37_79b1;

fn mix(hash: u32, word: u32) -> u32 {
    (hash ^ word).wrapping_mul(PRIME).rotate_left(13)
}

/// Eight interleaved sequences, each a chain of invertible steps, and a chain over their results.
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

/// Of numbers, by their bits.
pub(super) fn of_values(values: &[f32]) -> u32 {
    checksum(values, f32::to_bits)
}

/// Of a multiple of four bytes.
pub(super) fn of_bytes(bytes: &[u8]) -> u32 {
    checksum(bytes.as_chunks::<4>().0, u32::from_le_bytes)
}
