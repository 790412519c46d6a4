//! Buffers that may be refused.

use crate::Error;
use alloc::vec::Vec;

/// At least `len` values.
pub(super) fn grow<T: Clone>(values: &mut Vec<T>, len: usize, value: T) -> Result<(), Error> {
    let words = len.saturating_mul(size_of::<T>()).div_ceil(8);
    let more = len.saturating_sub(values.len());
    values.try_reserve_exact(more).map_err(|_| Error::out_of_memory(words))?;
    values.resize(len.max(values.len()), value);
    Ok(())
}

/// Zeros.
pub(super) fn values(len: usize) -> Result<Vec<f32>, Error> {
    let mut values = Vec::new();
    grow(&mut values, len, 0.0)?;
    Ok(values)
}

/// Zeroed memory.
pub(super) fn workspace(words: usize) -> Result<Vec<u64>, Error> {
    let mut workspace = Vec::new();
    grow(&mut workspace, words, 0)?;
    Ok(workspace)
}
