//! Memory of a device as checks see it, where they bring what an exchange needs and look at what it leaves.

use cudarc::driver::result::{self, DriverError};
use lgreco_cuda::DeviceMemory;
use lgreco_train::exchange::CollectiveError;

/// Memory with some bytes behind it that nothing may write.
pub trait Memory: Sized {
    /// As many bytes, aligned to 16, all of them 255: NaN.
    fn new(bytes: u64) -> Self;

    /// Where it begins.
    fn address(&mut self) -> u64;

    /// What is in it, once all is done that is enqueued.
    ///
    /// # Panics
    /// Where something has been written behind it.
    fn bytes(&self) -> Vec<u8>;

    /// Puts these bytes at its beginning.
    fn fill(&mut self, bytes: &[u8]);

    /// Reads memory of this kind.
    ///
    /// # Safety
    /// As many bytes are there, and nothing that is enqueued writes them.
    unsafe fn read(address: u64, bytes: &mut [u8]);

    /// Writes memory of this kind.
    ///
    /// # Safety
    /// As many bytes are there, and nothing that is enqueued uses them.
    unsafe fn write(address: u64, bytes: &[u8]);

    /// Has a collective of the host's work on what is there.
    ///
    /// # Errors
    /// The collective's.
    ///
    /// # Safety
    /// As many values are there, and nothing that is enqueued uses them.
    unsafe fn lend<T: bytemuck::Pod>(
        lent: DeviceMemory,
        collective: impl FnOnce(&mut [T]) -> Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        let mut values = vec![T::zeroed(); lent.len];
        // SAFETY: as many values.
        unsafe { Self::read(lent.address, bytemuck::cast_slice_mut(&mut values)) };
        let performed = collective(&mut values);
        // SAFETY: the same.
        unsafe { Self::write(lent.address, bytemuck::cast_slice(&values)) };
        performed
    }
}

/// Makes the primary context of a device current on this thread.
///
/// # Errors
/// The driver's.
pub fn enter(ordinal: i32) -> Result<(), DriverError> {
    // SAFETY: the context is retained, and stays as long as the process.
    unsafe { result::ctx::set_current(result::primary_ctx::retain(result::device::get(ordinal)?)?) }
}

/// Bytes behind a [`Driven`] memory.
const BEHIND: usize = 64;

/// Memory that the driver gives, of the context that is current.
pub struct Driven {
    address: u64,
    bytes: usize,
}

impl Memory for Driven {
    fn new(bytes: u64) -> Self {
        let bytes = bytes as usize;
        // SAFETY: nothing reads it before it is written.
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
        // SAFETY: as many are there.
        unsafe { Self::read(self.address, &mut bytes) };
        assert_eq!(bytes.split_off(self.bytes), [u8::MAX; BEHIND], "written behind the memory");
        bytes
    }

    fn fill(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.bytes);
        // SAFETY: as many are there.
        unsafe { Self::write(self.address, bytes) };
    }

    unsafe fn read(address: u64, bytes: &mut [u8]) {
        if !bytes.is_empty() {
            // SAFETY: as the caller says.
            unsafe { result::memcpy_dtoh_sync(bytes, address) }.expect("a copy from the device");
        }
    }

    unsafe fn write(address: u64, bytes: &[u8]) {
        if !bytes.is_empty() {
            // SAFETY: as the caller says. The copy returns before all of it is there, and other streams do not wait for it.
            let written = unsafe { result::memcpy_htod_sync(address, bytes) }
                .and_then(|()| unsafe { result::stream::synchronize(std::ptr::null_mut()) });
            written.expect("a copy to the device");
        }
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        // SAFETY: its own. What has failed before fails here, too, and has been said.
        let _ = unsafe { result::free_sync(self.address) };
    }
}
