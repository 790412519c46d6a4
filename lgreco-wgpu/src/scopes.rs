//! Captures the errors of wgpu calls that return no result.

use crate::Error;

/// Captures all errors of a device, from the creation of this value to its [`end`](Scopes::end).
pub(crate) struct Scopes([wgpu::ErrorScopeGuard; 3]);

impl Scopes {
    pub(crate) fn new(device: &wgpu::Device) -> Scopes {
        let filters = [wgpu::ErrorFilter::OutOfMemory, wgpu::ErrorFilter::Internal, wgpu::ErrorFilter::Validation];
        let mut scopes = filters.map(|filter| device.push_error_scope(filter));
        // wgpu requires that the last opened scope ends first. `end` and `drop` follow the order of the array.
        scopes.reverse();
        Scopes(scopes)
    }

    /// # Errors
    /// The first wgpu error that was captured.
    pub(crate) fn end(self) -> Result<(), Error> {
        let errors = self.0.map(|scope| pollster::block_on(scope.pop()));
        errors.into_iter().flatten().next().map_or(Ok(()), |error| Err(error.into()))
    }
}
