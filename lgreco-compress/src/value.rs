//! Reads and writes values in the bytes of a payload.

use crate::gradient::Element;

/// An element type in payloads, little-endian.
pub(super) trait WireValue: Element {
    /// Writes the bytes of the nearest representable value. Returns whether that value is finite.
    #[inline(always)]
    fn put(value: f32, at: &mut [u8]) -> bool {
        let sent = Self::from_f32(value);
        sent.write_le(at);
        sent.to_f32().is_finite()
    }

    /// Reads the value in these bytes.
    #[inline(always)]
    fn get(at: &[u8]) -> f32 {
        Self::read_le(at).to_f32()
    }

    /// Rounds to the nearest representable value.
    #[inline(always)]
    fn rounded(value: f32) -> f32 {
        Self::from_f32(value).to_f32()
    }
}

impl<T: Element> WireValue for T {}

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
