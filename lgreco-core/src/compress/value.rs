//! Values in the bytes of a payload.

use crate::gradient::{Bf16, Element, F16};

/// An element type as it is written: little-endian.
pub(super) trait WireValue: Element {
    /// The nearest representable value's bytes, and whether it is finite.
    fn put(value: f32, at: &mut [u8]) -> bool;
    /// The value in these bytes.
    fn get(at: &[u8]) -> f32;
    /// The nearest representable value.
    #[inline(always)]
    fn rounded(value: f32) -> f32 {
        Self::from_f32(value).to_f32()
    }
}

macro_rules! wire_value {
    ($type:ty, $bits:ty, $to_bits:expr, $from_bits:expr) => {
        impl WireValue for $type {
            #[inline(always)]
            fn put(value: f32, at: &mut [u8]) -> bool {
                let sent = <$type>::from_f32(value);
                at.copy_from_slice(&<$bits>::to_le_bytes($to_bits(sent)));
                sent.to_f32().is_finite()
            }
            #[inline(always)]
            fn get(at: &[u8]) -> f32 {
                let mut bytes = [0; size_of::<$type>()];
                bytes.copy_from_slice(at);
                <$type>::to_f32($from_bits(<$bits>::from_le_bytes(bytes)))
            }
        }
    };
}

wire_value!(f32, u32, f32::to_bits, f32::from_bits);
wire_value!(F16, u16, |v: F16| v.0, F16);
wire_value!(Bf16, u16, |v: Bf16| v.0, Bf16);

/// Runs generic code with the type that a [`Dtype`](crate::gradient::Dtype) names.
macro_rules! with_wire_type {
    ($dtype:expr, $type:ident => $body:expr) => {
        match $dtype {
            $crate::gradient::Dtype::F32 => {
                type $type = f32;
                $body
            }
            $crate::gradient::Dtype::F16 => {
                type $type = $crate::gradient::F16;
                $body
            }
            $crate::gradient::Dtype::Bf16 => {
                type $type = $crate::gradient::Bf16;
                $body
            }
        }
    };
}
pub(super) use with_wire_type;
