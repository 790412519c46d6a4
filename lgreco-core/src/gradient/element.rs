//! Element types of gradients: f32, f16 and bf16.
//!
//! The 16-bit types only wrap their bits, so this crate does not depend on the crate `half`. Tests compare the
//! conversions with `half`. No other crate can add element types.

use crate::{Error, Result};
use bytemuck::{Pod, Zeroable};

/// An IEEE half-precision number, held as its bits.
///
/// ```
/// use lgreco_core::gradient::{Element, F16};
/// assert_eq!(F16(0x3c00).to_f32(), 1.0);
/// assert_eq!(F16::from_f32(65520.0).to_f32(), f32::INFINITY); // the largest is 65504
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct F16(pub u16);

/// A bfloat16 number (the upper half of an f32), held as its bits.
///
/// ```
/// use lgreco_core::gradient::{Bf16, Element};
/// assert_eq!(Bf16(0x3f80).to_f32(), 1.0);
/// assert_eq!(Bf16::from_f32(1.0 + 1.0 / 256.0), Bf16(0x3f80)); // 8 significant bits, ties to even
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct Bf16(pub u16);

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for super::F16 {}
    impl Sealed for super::Bf16 {}
}

/// An element type of gradients. Every element converts exactly to f32, and all arithmetic is done in f32.
///
/// ```
/// use lgreco_core::gradient::{Bf16, Element, F16};
/// fn energy<T: Element>(values: &[T]) -> f64 {
///     values.iter().map(|&value| f64::from(value.to_f32()).powi(2)).sum()
/// }
/// assert_eq!(energy(&[3.0f32, 4.0]), 25.0);
/// assert_eq!(energy(&[3.0, 4.0].map(F16::from_f32)), energy(&[3.0, 4.0].map(Bf16::from_f32)));
/// ```
pub trait Element: Copy + Pod + Send + Sync + sealed::Sealed {
    /// This type as a run-time value.
    const DTYPE: Dtype;
    /// The value as f32. The conversion is exact.
    fn to_f32(self) -> f32;
    /// The nearest representable value. Ties go to even; overflow becomes infinity.
    fn from_f32(value: f32) -> Self;

    /// Writes the value's 2 or 4 bytes, little-endian, to the start of `bytes`.
    ///
    /// # Panics
    /// When `bytes` is shorter than the value.
    #[inline(always)]
    fn write_le(self, bytes: &mut [u8]) {
        let own = bytemuck::bytes_of(&self);
        let bytes = &mut bytes[..own.len()];
        bytes.copy_from_slice(own);
        if cfg!(target_endian = "big") {
            bytes.reverse();
        }
    }

    /// Reads a value from the little-endian bytes at the start of `bytes`.
    ///
    /// # Panics
    /// When `bytes` is shorter than a value.
    #[inline(always)]
    fn read_le(bytes: &[u8]) -> Self {
        let mut value = Self::zeroed();
        let own = bytemuck::bytes_of_mut(&mut value);
        own.copy_from_slice(&bytes[..own.len()]);
        if cfg!(target_endian = "big") {
            own.reverse();
        }
        value
    }
}

impl Element for f32 {
    const DTYPE: Dtype = Dtype::F32;
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }
}

impl Element for Bf16 {
    const DTYPE: Dtype = Dtype::Bf16;
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits((self.0 as u32) << 16)
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        let bits = value.to_bits();
        if value.is_nan() {
            return Bf16((bits >> 16) as u16 | 0x0040);
        }
        Bf16(((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16)
    }
}

impl Element for F16 {
    const DTYPE: Dtype = Dtype::F16;
    /// Shifts exponent and mantissa to their positions in an f32, then multiplies by 2^112. The product is exact, also
    /// for subnormal numbers.
    #[inline(always)]
    fn to_f32(self) -> f32 {
        let sign = ((self.0 & 0x8000) as u32) << 16;
        let magnitude = (self.0 & 0x7fff) as u32;
        let scaled = f32::from_bits(magnitude << 13) * f32::from_bits(0x7780_0000);
        let special = if magnitude >= 0x7c00 { 0x7f80_0000 | (magnitude << 13) } else { scaled.to_bits() };
        f32::from_bits(sign | special)
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        let bits = value.to_bits();
        let sign = ((bits >> 16) & 0x8000) as u16;
        let magnitude = bits & 0x7fff_ffff;
        let half = if magnitude > 0x7f80_0000 {
            0x7e00 | ((magnitude >> 13) & 0x03ff) as u16
        } else if magnitude >= 0x4780_0000 {
            0x7c00
        } else if magnitude < 0x3880_0000 {
            // The result is subnormal. Adding 0.5 rounds the value to a multiple of 2^-24, and leaves it in the low
            // mantissa bits.
            (f32::from_bits(magnitude) + 0.5).to_bits() as u16
        } else {
            let rounded = magnitude + 0x0fff + ((magnitude >> 13) & 1);
            ((rounded >> 13) - (112 << 10)) as u16
        };
        F16(sign | half)
    }
}

/// An element type of gradients, as a run-time value. The discriminants are part of payload headers and never change.
///
/// ```
/// use lgreco_core::gradient::{Dtype, Element, F16};
/// assert_eq!((F16::DTYPE, F16::DTYPE as u8, F16::DTYPE.bytes()), (Dtype::F16, 1, 2));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Dtype {
    /// IEEE single precision.
    F32 = 0,
    /// IEEE half precision.
    F16 = 1,
    /// bfloat16.
    Bf16 = 2,
}

impl Dtype {
    /// The element type whose discriminant is `code`.
    ///
    /// # Errors
    /// [`Error::PayloadField`] when no element type has this code.
    pub const fn from_code(code: u8) -> Result<Self> {
        match code {
            0 => Ok(Dtype::F32),
            1 => Ok(Dtype::F16),
            2 => Ok(Dtype::Bf16),
            _ => Err(Error::PayloadField { what: "element type", largest: 2, found: code as u64 }),
        }
    }

    /// The name as text: `f32`, `f16` or `bf16`.
    ///
    /// ```
    /// assert_eq!(lgreco_core::gradient::Dtype::Bf16.name(), "bf16");
    /// ```
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "f32",
            Dtype::F16 => "f16",
            Dtype::Bf16 => "bf16",
        }
    }

    /// Bytes per element.
    pub const fn bytes(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_bit_values_widen_like_the_half_crate() {
        for bits in 0..=u16::MAX {
            let (f, b) = (half::f16::from_bits(bits).to_f32(), half::bf16::from_bits(bits).to_f32());
            assert!(F16(bits).to_f32() == f || f.is_nan() && F16(bits).to_f32().is_nan(), "f16 {bits:#x}");
            assert!(Bf16(bits).to_f32() == b || b.is_nan() && Bf16(bits).to_f32().is_nan(), "bf16 {bits:#x}");
        }
    }

    #[test]
    fn sixteen_bit_values_narrow_like_the_half_crate() {
        for high in 0..=u16::MAX {
            for low in [0u32, 1, 0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let value = f32::from_bits((high as u32) << 16 | low);
                let (f, b) = (half::f16::from_f32(value), half::bf16::from_f32(value));
                let (ours_f, ours_b) = (F16::from_f32(value), Bf16::from_f32(value));
                if value.is_nan() {
                    assert!(ours_f.to_f32().is_nan() && ours_b.to_f32().is_nan());
                } else {
                    assert_eq!((ours_f.0, ours_b.0), (f.to_bits(), b.to_bits()), "{value:e}");
                }
            }
        }
    }
}
