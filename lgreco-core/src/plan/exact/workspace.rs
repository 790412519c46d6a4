//! Typed buffers from one workspace.

/// Splits a workspace into typed buffers.
pub(super) struct Carver<'w>(pub(super) &'w mut [u64]);

impl<'w> Carver<'w> {
    pub(super) fn take<T: bytemuck::Pod>(&mut self, count: usize) -> &'w mut [T] {
        let (head, rest) = core::mem::take(&mut self.0).split_at_mut(words::<T>(count));
        self.0 = rest;
        &mut bytemuck::cast_slice_mut(head)[..count]
    }
}

/// Number of 8-byte words that hold `count` values.
pub(super) const fn words<T>(count: usize) -> usize {
    (count * size_of::<T>()).div_ceil(8)
}
