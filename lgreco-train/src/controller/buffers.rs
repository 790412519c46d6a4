//! Buffers whose allocation may fail.

use crate::{CoreError, Error};
use alloc::vec::Vec;
use bytemuck::Zeroable;
use bytemuck::allocation::try_zeroed_vec;

/// Makes `values` at least `len` long. A shorter buffer is replaced by a new one of zeros. Zeros from the allocator take no memory
/// until they are written.
pub(super) fn grow<T: Zeroable + Clone>(values: &mut Vec<T>, len: usize) -> Result<(), Error> {
    if values.len() < len {
        let words = len.saturating_mul(size_of::<T>()).div_ceil(8);
        *values = Vec::new();
        *values = try_zeroed_vec(len).map_err(|()| CoreError::OutOfMemory { words })?;
    }
    Ok(())
}

/// An empty list with memory for `len` items.
pub(super) fn list<T>(len: usize) -> Result<Vec<T>, Error> {
    let mut list = Vec::new();
    let words = len.saturating_mul(size_of::<T>()).div_ceil(8);
    list.try_reserve_exact(len).map_err(|_| CoreError::OutOfMemory { words })?;
    Ok(list)
}

/// `len` zeros.
pub(crate) fn values(len: usize) -> Result<Vec<f32>, Error> {
    let mut values = Vec::new();
    grow(&mut values, len)?;
    Ok(values)
}

/// `words` words of zeros.
pub(super) fn workspace(words: usize) -> Result<Vec<u64>, Error> {
    let mut workspace = Vec::new();
    grow(&mut workspace, words)?;
    Ok(workspace)
}

/// Splits off the first `len` values of a buffer.
pub(super) fn take<'a, T>(values: &mut &'a mut [T], len: usize) -> &'a mut [T] {
    values.split_off_mut(..len).unwrap_or_default()
}
