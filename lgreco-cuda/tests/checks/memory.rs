//! Access to a device's memory for checks.

use cudarc::driver::result::{self, DriverError};
use lgreco_cuda::DeviceMemory;
use lgreco_train::exchange::CollectiveError;

/// Device memory followed by a guard area that no work may write.
pub trait Memory: Sized {
    /// Allocates `bytes` bytes, aligned to 16. Each byte is 255, so that every value is NaN.
    fn new(bytes: u64) -> Self;

    /// The address of the memory.
    fn address(&mut self) -> u64;

    /// The content, after all enqueued work is done.
    ///
    /// # Panics
    /// If something has been written to the guard area.
    fn bytes(&self) -> Vec<u8>;

    /// Writes `bytes` to the start of the memory.
    fn fill(&mut self, bytes: &[u8]);

    /// Reads device memory.
    ///
    /// # Safety
    /// `address` is valid for `bytes.len()` bytes, and no enqueued work writes this memory.
    unsafe fn read(address: u64, bytes: &mut [u8]);

    /// Writes device memory.
    ///
    /// # Safety
    /// `address` is valid for `bytes.len()` bytes, and no enqueued work uses this memory.
    unsafe fn write(address: u64, bytes: &[u8]);

    /// Copies device memory to the host, runs a collective on the copy, and copies the result back.
    ///
    /// # Errors
    /// The collective's errors.
    ///
    /// # Safety
    /// `lent` is valid memory of `lent.len` values of type `T`, and no enqueued work uses this memory.
    unsafe fn lend<T: bytemuck::Pod>(
        lent: DeviceMemory,
        collective: impl FnOnce(&mut [T]) -> Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        let mut values = vec![T::zeroed(); lent.len];
        // SAFETY: `values` has the length of the memory, and the caller guarantees that the memory is valid.
        unsafe { Self::read(lent.address, bytemuck::cast_slice_mut(&mut values)) };
        let performed = collective(&mut values);
        // SAFETY: `values` has the length of the memory, and the caller guarantees that the memory is valid.
        unsafe { Self::write(lent.address, bytemuck::cast_slice(&values)) };
        performed
    }
}

/// Makes the primary context of a device current on this thread.
///
/// # Errors
/// The driver's errors.
pub fn enter(ordinal: i32) -> Result<(), DriverError> {
    // SAFETY: the context is retained, and lives as long as the process.
    unsafe { result::ctx::set_current(result::primary_ctx::retain(result::device::get(ordinal)?)?) }
}

/// Bytes of the guard area after a [`Driven`] memory.
const BEHIND: usize = 64;

/// Memory of the current context, allocated by the driver.
pub struct Driven {
    address: u64,
    bytes: usize,
}

impl Memory for Driven {
    fn new(bytes: u64) -> Self {
        let bytes = bytes as usize;
        // SAFETY: nothing reads the memory before the write below.
        let address = unsafe { result::malloc_sync(bytes + BEHIND) }.expect("memory of the device");
        // SAFETY: just allocated.
        unsafe { Self::write(address, &vec![u8::MAX; bytes + BEHIND]) };
        Driven { address, bytes }
    }

    fn address(&mut self) -> u64 {
        self.address
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes + BEHIND];
        // SAFETY: the memory has at least this many bytes.
        unsafe { Self::read(self.address, &mut bytes) };
        assert_eq!(bytes.split_off(self.bytes), [u8::MAX; BEHIND], "written behind the memory");
        bytes
    }

    fn fill(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.bytes);
        // SAFETY: the memory has at least this many bytes.
        unsafe { Self::write(self.address, bytes) };
    }

    unsafe fn read(address: u64, bytes: &mut [u8]) {
        if !bytes.is_empty() {
            // SAFETY: the caller guarantees that the memory is valid and that no work writes it.
            unsafe { result::memcpy_dtoh_sync(bytes, address) }.expect("a copy from the device");
        }
    }

    unsafe fn write(address: u64, bytes: &[u8]) {
        if !bytes.is_empty() {
            // SAFETY: the caller guarantees that the memory is valid and unused. The copy may still be running after
            // the call, and other streams do not wait for the copy. So `write` waits for the null stream.
            let written = unsafe { result::memcpy_htod_sync(address, bytes) }
                .and_then(|()| unsafe { result::stream::synchronize(std::ptr::null_mut()) });
            written.expect("a copy to the device");
        }
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        // SAFETY: this value owns the memory. An error here repeats an earlier error, which has been reported.
        let _ = unsafe { result::free_sync(self.address) };
    }
}
