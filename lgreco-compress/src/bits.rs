//! Codes of a fixed width, packed little-endian: code `i` fills `width` bits of the stream, from bit `i * width` on.
//!
//! Eight codes take exactly `width` bytes, so each group of eight is packed separately. Three rounds of masked shifts
//! close the gaps inside one 64-bit word.

/// Bytes that `count` codes of `width` bits occupy.
pub const fn packed_len(count: u64, width: u8) -> u64 {
    (count * width as u64).div_ceil(8)
}

/// Masks of the three rounds of shifts. Each mask selects the lower field of every pair of fields. A field holds 1, 2
/// or 4 codes.
const fn lower_of_pairs<const WIDTH: usize>() -> [u64; 3] {
    let code = (1u64 << WIDTH) - 1;
    let two = code | code << WIDTH;
    let four = two | two << (2 * WIDTH);
    [code * 0x0001_0001_0001_0001, two * 0x0000_0001_0000_0001, four]
}

/// Packs eight codes, one per byte, into the low `8 * WIDTH` bits.
#[inline(always)]
fn squeeze<const WIDTH: usize>(spread: u64) -> u64 {
    let [m1, m2, m4] = const { lower_of_pairs::<WIDTH>() };
    let gap = 8 - WIDTH;
    let w = (spread & m1) | ((spread >> gap) & (m1 << WIDTH));
    let w = (w & m2) | ((w >> (2 * gap)) & (m2 << (2 * WIDTH)));
    (w & m4) | ((w >> (4 * gap)) & (m4 << (4 * WIDTH)))
}

/// The inverse of [`squeeze`]. Ignores bits above the eight codes.
#[inline(always)]
fn spread<const WIDTH: usize>(squeezed: u64) -> u64 {
    let [m1, m2, m4] = const { lower_of_pairs::<WIDTH>() };
    let gap = 8 - WIDTH;
    let w = (squeezed & m4) | ((squeezed & (m4 << (4 * WIDTH))) << (4 * gap));
    let w = (w & m2) | ((w & (m2 << (2 * WIDTH))) << (2 * gap));
    (w & m1) | ((w & (m1 << WIDTH)) << gap)
}

#[inline(always)]
fn pack_as<const WIDTH: usize>(codes: &[u8], packed: &mut [u8]) {
    let (groups, _) = codes.as_chunks::<8>();
    let (whole, rest) = packed.as_chunks_mut::<WIDTH>();
    for (group, bytes) in groups.iter().zip(whole.iter_mut()) {
        let word = squeeze::<WIDTH>(u64::from_le_bytes(*group)).to_le_bytes();
        bytes.copy_from_slice(&word[..WIDTH]);
    }
    if !rest.is_empty() {
        let word = squeeze::<WIDTH>(u64::from_le_bytes(groups[whole.len()])).to_le_bytes();
        rest.copy_from_slice(&word[..rest.len()]);
    }
}

#[inline(always)]
fn unpack_as<const WIDTH: usize>(packed: &[u8], codes: &mut [u8]) {
    let (groups, _) = codes.as_chunks_mut::<8>();
    let (whole, rest) = packed.as_chunks::<WIDTH>();
    for (bytes, group) in whole.iter().zip(groups.iter_mut()) {
        let mut word = [0; 8];
        word[..WIDTH].copy_from_slice(bytes);
        *group = spread::<WIDTH>(u64::from_le_bytes(word)).to_le_bytes();
    }
    if !rest.is_empty() {
        let mut word = [0; 8];
        word[..rest.len()].copy_from_slice(rest);
        groups[whole.len()] = spread::<WIDTH>(u64::from_le_bytes(word)).to_le_bytes();
    }
}

/// Calls `$function::<WIDTH>` for a width from 1 to 8.
macro_rules! with_width {
    ($width:expr, $function:ident($($argument:expr),*)) => {
        match $width {
            1 => $function::<1>($($argument),*),
            2 => $function::<2>($($argument),*),
            3 => $function::<3>($($argument),*),
            4 => $function::<4>($($argument),*),
            5 => $function::<5>($($argument),*),
            6 => $function::<6>($($argument),*),
            7 => $function::<7>($($argument),*),
            8 => $function::<8>($($argument),*),
            _ => unreachable!("code widths are 1 to 8 bits"),
        }
    };
}
pub(super) use with_width;

/// Packs codes into `packed`. `codes` holds one code per byte, each below `2^width` (`width` 1 to 8). The length of
/// `codes` is a multiple of 8. `codes` has at least one entry per code in `packed`.
#[inline(always)]
pub fn pack(width: u8, codes: &[u8], packed: &mut [u8]) {
    with_width!(width, pack_as(codes, packed))
}

/// The inverse of [`pack`]: writes one code per byte of `codes`. The length of `codes` is a multiple of 8. `codes` has
/// at least one entry per code in `packed`, including a partial last code.
#[inline(always)]
pub fn unpack(width: u8, packed: &[u8], codes: &mut [u8]) {
    with_width!(width, unpack_as(packed, codes))
}

/// Entries that [`unpack_some`] needs in its buffer for `count` codes.
pub const fn some_room(count: usize) -> usize {
    count.next_multiple_of(8) + 8
}

/// Unpacks the `count` codes from code `first` on, and returns them. `packed` must contain all these codes. The buffer
/// `codes` has [`some_room`] entries, because whole groups of eight are unpacked.
#[inline(always)]
pub fn unpack_some<'c>(width: u8, packed: &[u8], first: u64, count: usize, codes: &'c mut [u8]) -> &'c [u8] {
    let groups = first / 8..(first + count as u64).div_ceil(8);
    let byte = |group: u64| packed.len().min(group as usize * width as usize);
    unpack(width, &packed[byte(groups.start)..byte(groups.end)], codes);
    &codes[(first % 8) as usize..][..count]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Stream;

    /// Compares each bit of the stream with the definition: code `i` begins at bit `i * width`.
    #[test]
    fn bit_i_of_code_j_is_bit_i_plus_width_j_of_the_stream() {
        for width in 1..=8u8 {
            for count in 0..=40usize {
                let mut codes = [0u8; 40];
                for (i, code) in codes[..count].iter_mut().enumerate() {
                    *code = (Stream::default().word((40 * count + i) as u64) & ((1 << width) - 1)) as u8;
                }
                let mut packed = [0xff; 40];
                let packed = &mut packed[..packed_len(count as u64, width) as usize];
                pack(width, &codes, packed);
                for (i, code) in codes.iter().enumerate() {
                    for bit in 0..width as usize {
                        let at = i * width as usize + bit;
                        if at < packed.len() * 8 {
                            assert_eq!(packed[at / 8] >> (at % 8) & 1, code >> bit & 1, "width {width}, code {i}");
                        }
                    }
                }
                let mut back = [0xff; 40];
                unpack(width, packed, &mut back);
                assert_eq!(codes[..count], back[..count]);
                for first in 0..=count {
                    let mut room = [0xff; some_room(40)];
                    let some = unpack_some(width, packed, first as u64, count - first, &mut room);
                    assert_eq!(codes[first..count], *some);
                }
            }
        }
    }
}
