//! Reads and writes values in a message, in the type in which they are sent.

use crate::CoreError as Error;
use crate::gradient::{Bf16, Dtype, Element, F16};

fn put_as<T: Element>(value: f32, slot: &mut [u8]) -> bool {
    let sent = T::from_f32(value);
    sent.write_le(slot);
    sent.to_f32().is_finite()
}

/// Writes `value`, element `index` of its tensor, rounded to nearest.
///
/// # Errors
/// [`Error::ElementOverflow`] when `value` is too large for the type.
#[inline(always)]
pub(super) fn put(dtype: Dtype, index: usize, value: f32, slot: &mut [u8]) -> Result<(), Error> {
    let fits = match dtype {
        Dtype::F32 => put_as::<f32>(value, slot),
        Dtype::F16 => put_as::<F16>(value, slot),
        Dtype::Bf16 => put_as::<Bf16>(value, slot),
    };
    if fits { Ok(()) } else { Err(Error::ElementOverflow { index, value }) }
}

/// Reads a value.
///
/// # Errors
/// [`Error::PayloadBody`] when the value is not finite.
#[inline(always)]
pub(super) fn get(dtype: Dtype, slot: &[u8]) -> Result<f32, Error> {
    let value = match dtype {
        Dtype::F32 => f32::read_le(slot),
        Dtype::F16 => F16::read_le(slot).to_f32(),
        Dtype::Bf16 => Bf16::read_le(slot).to_f32(),
    };
    if value.is_finite() { Ok(value) } else { Err(Error::PayloadBody { what: "a value is not finite" }) }
}

/// Writes consecutive values as [`put`] does.
pub(super) fn put_all(dtype: Dtype, values: &[f32], bytes: &mut [u8]) -> Result<(), Error> {
    let slots = bytes.chunks_exact_mut(dtype.bytes());
    values.iter().zip(slots).enumerate().try_for_each(|(index, (&value, slot))| put(dtype, index, value, slot))
}

/// Reads consecutive values as [`get`] does.
pub(super) fn get_all(dtype: Dtype, bytes: &[u8], values: &mut [f32]) -> Result<(), Error> {
    let slots = bytes.chunks_exact(dtype.bytes());
    values.iter_mut().zip(slots).try_for_each(|(value, slot)| get(dtype, slot).map(|read| *value = read))
}
