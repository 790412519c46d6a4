//! How a memory keeps its numbers: f32, bf16, or 8-bit codes that share an exponent in groups.

use crate::gradient::{Bf16, Element};
use crate::rng::Stream;
use lgreco::rng::block::{BLOCK, fill_block};

/// Number of consecutive elements that share an exponent under [`Storage::Int8`], which is also the block length of the
/// kernels.
///
/// ```
/// use lgreco_train::feedback::{GROUP, Storage};
/// assert_eq!(Storage::Int8.bytes(10 * GROUP), 10 * (GROUP as u64 + 1));
/// ```
pub const GROUP: usize = BLOCK;

pub(super) type Block = [f32; GROUP];

/// The format of a residual.
///
/// A number between two representable numbers is rounded to one of them at random. The expectation is the number
/// itself, up to 2^-15 of the distance between the two representable numbers. Rounding to nearest would fail: as soon
/// as a residual in bf16 is 512 times a gradient, adding the gradient changes nothing. A coordinate whose residual
/// stops growing before it is sent would never be sent. Representable numbers are stored exactly, so sent coordinates
/// (zeros) and unchanged coordinates do not drift.
///
/// ```
/// use lgreco_train::feedback::{Memory, Residual, Storage};
/// use lgreco_train::{gradient::Shape, rng::Stream};
/// let eight_bits = Residual { storage: Storage::Int8, ..Residual::CLASSIC };
/// let mut memory = Memory::owned(eight_bits, Shape::new(3, 1)?)?;
/// memory.set(&[127.0, 0.4, 0.0], Stream::default())?;
/// let mut kept = [0.0; 3];
/// memory.values(&mut kept)?;
/// assert!(kept == [127.0, 0.0, 0.0] || kept == [127.0, 1.0, 0.0]); // 1 with probability 0.4
/// # Ok::<(), lgreco_train::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Storage {
    /// Exact; 4 bytes per element.
    #[default]
    F32 = 0,
    /// bfloat16: relative spacing at most 2^-7; 2 bytes per element.
    Bf16 = 1,
    /// Multiples −127 … 127 of a power of two `s`, which a group of [`GROUP`] elements shares. `s` is the smallest
    /// power of two for which `127 s` is at least the group's largest magnitude, so the spacing is at most 1/63.5 of
    /// that magnitude. 1 byte per element and 1 byte per group.
    Int8 = 2,
}

impl Storage {
    /// All storages, in the order of their codes.
    pub const ALL: [Storage; 3] = [Storage::F32, Storage::Bf16, Storage::Int8];

    /// Bytes for `elements` elements.
    pub const fn bytes(self, elements: usize) -> u64 {
        let n = elements as u64;
        match self {
            Storage::F32 => 4 * n,
            Storage::Bf16 => 2 * n,
            Storage::Int8 => n + n.div_ceil(GROUP as u64),
        }
    }

    /// The largest magnitude that can be stored.
    pub const fn largest(self) -> f32 {
        match self {
            Storage::F32 => f32::MAX,
            Storage::Bf16 => f32::from_bits(0x7f7f_0000),
            Storage::Int8 => f32::from_bits(0x7f7e_0000),
        }
    }
}

/// Largest exponent field of a group's `s`, 2^121.
pub(super) const EXPONENT_MAX: u8 = 248;

/// Exponent field of a group's `s`, from the bits of the group's largest magnitude. `s` is at least 2^-126.
#[inline(always)]
fn exponent(largest: u32) -> u32 {
    ((largest + 0x01_ffff) >> 23).max(7) - 6
}

/// Reads at most a block of the `n` elements, from `start` on. The remaining values of the block become 0.
#[inline(always)]
pub(super) fn load(storage: Storage, words: &[u64], n: usize, start: usize, block: &mut Block) {
    let end = n.min(start + GROUP);
    match storage {
        Storage::F32 => widen(&bytemuck::cast_slice::<u64, f32>(words)[start..end], block),
        Storage::Bf16 => widen(&bytemuck::cast_slice::<u64, Bf16>(words)[start..end], block),
        Storage::Int8 => {
            let bytes = bytemuck::cast_slice::<u64, u8>(words);
            let scale = f32::from_bits((bytes[n + start / GROUP] as u32) << 23);
            let codes = &bytes[start..end];
            if let Ok(codes) = <&[u8; GROUP]>::try_from(codes) {
                for i in 0..GROUP {
                    block[i] = codes[i] as i8 as f32 * scale;
                }
            } else {
                block.fill(0.0);
                block.iter_mut().zip(codes).for_each(|(x, &code)| *x = code as i8 as f32 * scale);
            }
        }
    }
}

/// Writes the exact values of at most a block of elements to `block`, followed by zeros.
#[inline(always)]
pub(super) fn widen<T: Element>(values: &[T], block: &mut Block) {
    if let Ok(values) = <&[T; GROUP]>::try_from(values) {
        for i in 0..GROUP {
            block[i] = values[i].to_f32();
        }
    } else {
        block.fill(0.0);
        block.iter_mut().zip(values).for_each(|(x, v)| *x = v.to_f32());
    }
}

/// Writes at most a block of the `n` elements, from `start` on, and rounds them with the random words of these
/// elements. In `block`, no magnitude may exceed [`Storage::largest`], and values after the last element must be 0.
#[inline(always)]
pub(super) fn store(storage: Storage, words: &mut [u64], n: usize, start: usize, block: &Block, stream: &Stream) {
    let end = n.min(start + GROUP);
    let mut random = [0u32; GROUP];
    match storage {
        Storage::F32 => {
            let values = &mut bytemuck::cast_slice_mut::<u64, f32>(words)[start..end];
            values.copy_from_slice(&block[..values.len()]);
        }
        Storage::Bf16 => {
            fill_block(stream, start, &mut random);
            let mut rounded = [Bf16(0); GROUP];
            for i in 0..GROUP {
                rounded[i] = Bf16(((block[i].to_bits() + (random[i] >> 7)) >> 16) as u16);
            }
            let values = &mut bytemuck::cast_slice_mut::<u64, Bf16>(words)[start..end];
            values.copy_from_slice(&rounded[..values.len()]);
        }
        Storage::Int8 => {
            fill_block(stream, start, &mut random);
            let exponent = exponent(largest_bits(block));
            let inverse = f32::from_bits((254 - exponent) << 23);
            let mut codes = [0u8; GROUP];
            for i in 0..GROUP {
                // The dither is an odd multiple of 2^-16 in (−1/2, 1/2), so that whole numbers stay the same.
                let dither = (2 * (random[i] >> 8) + 1) as i32 as f32 * (1.0 / 65536.0) - 0.5;
                // Adding 1.5 · 2^23 brings the rounded number into the low bits of the f32.
                codes[i] = (block[i] * inverse + dither + 12_582_912.0).to_bits() as u8;
            }
            let bytes = bytemuck::cast_slice_mut::<u64, u8>(words);
            bytes[n + start / GROUP] = exponent as u8;
            bytes[start..end].copy_from_slice(&codes[..end - start]);
        }
    }
}

/// Sets the elements to zero where `places` is not zero. Groups keep their scale.
pub(super) fn clear(storage: Storage, words: &mut [u64], places: &[f32]) {
    fn clear<T: bytemuck::Pod>(words: &mut [u64], places: &[f32]) {
        let elements = bytemuck::cast_slice_mut::<u64, T>(words).iter_mut().zip(places);
        elements.filter(|(_, place)| **place != 0.0).for_each(|(x, _)| *x = T::zeroed());
    }
    match storage {
        Storage::F32 => clear::<u32>(words, places),
        Storage::Bf16 => clear::<u16>(words, places),
        Storage::Int8 => clear::<u8>(words, places),
    }
}

/// Bits of the largest magnitude. The bits of NaN exceed those of infinity.
#[inline(always)]
pub(super) fn largest_bits(block: &Block) -> u32 {
    const LANES: usize = 16;
    let mut largest = [0u32; LANES];
    for chunk in block.as_chunks::<LANES>().0 {
        for l in 0..LANES {
            largest[l] = largest[l].max(chunk[l].to_bits() & 0x7fff_ffff);
        }
    }
    largest.into_iter().fold(0, u32::max)
}
