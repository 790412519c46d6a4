//! Page-locked memory through which bytes of the host go to the device: callers may free theirs at once, wherever a device
//! reads the processor's memory by itself, and no enqueued copy waits for pageable memory.

use crate::Error;
use crate::error::said;
use cudarc::driver::{result, sys};

/// Bytes of each half, at least.
pub(crate) const HALF: usize = if cfg!(test) { 4096 } else { 2 << 20 };

/// Two halves: one is written while the device reads the other. The context is current in all calls.
pub(crate) struct Staging {
    memory: *mut u8,
    /// Bytes of a half.
    half: usize,
    /// What marks that the device has read a half.
    read: [sys::CUevent; 2],
    /// Whether the device may still read it.
    busy: [bool; 2],
    current: usize,
    used: usize,
}

impl Staging {
    /// With so many bytes in each half.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub(crate) fn new(half: usize) -> Result<Self, Error> {
        let event = || result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
        let first = said("cuEventCreate", event())?;
        let second = said("cuEventCreate", event()).inspect_err(|_| forget(first))?;
        // SAFETY: the memory is written before it is read.
        let memory = said("cuMemHostAlloc", unsafe { result::malloc_host(2 * half, 0) }).inspect_err(|_| {
            forget(first);
            forget(second);
        })?;
        Ok(Staging { memory: memory.cast(), half, read: [first, second], busy: [false; 2], current: 0, used: 0 })
    }

    /// Enqueued, unless both halves are full: `bytes` to device memory that has as many.
    pub(crate) fn upload(&mut self, bytes: &[u8], mut address: u64, stream: sys::CUstream) -> Result<(), Error> {
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.used == self.half {
                self.turn(stream)?;
            }
            let (now, later) = rest.split_at(rest.len().min(self.half - self.used));
            let at = self.current * self.half + self.used;
            // SAFETY: `used` and what is added are at most a half, so that it is inside; the device has read what was there,
            // as `turn` has waited for, and nobody else writes it until `turn` or `all_read`.
            unsafe {
                let place = self.memory.add(at);
                std::ptr::copy_nonoverlapping(now.as_ptr(), place, now.len());
                let staged = std::slice::from_raw_parts(place, now.len());
                said("cuMemcpyHtoDAsync", result::memcpy_htod_async(address, staged, stream))?;
            }
            self.used += now.len();
            address += now.len() as u64;
            rest = later;
        }
        Ok(())
    }

    /// Goes over to the other half, when the device has read it.
    fn turn(&mut self, stream: sys::CUstream) -> Result<(), Error> {
        // SAFETY: the event lives, and so does the stream.
        said("cuEventRecord", unsafe { result::event::record(self.read[self.current], stream) })?;
        self.busy[self.current] = true;
        self.current = 1 - self.current;
        if self.busy[self.current] {
            // SAFETY: the event lives.
            said("cuEventSynchronize", unsafe { result::event::synchronize(self.read[self.current]) })?;
            self.busy[self.current] = false;
        }
        self.used = 0;
        Ok(())
    }

    /// Bytes of a half.
    pub(crate) fn half(&self) -> usize {
        self.half
    }

    /// The stream has been waited for.
    pub(crate) fn all_read(&mut self) {
        (self.busy, self.used) = ([false; 2], 0);
    }

    /// Gives everything back; the stream has been waited for. Nothing can be done about an error.
    pub(crate) fn free(&mut self) {
        self.read.into_iter().for_each(forget);
        // SAFETY: `new` got it, and nobody reads it any more.
        let _ = unsafe { result::free_host(self.memory.cast()) };
    }
}

/// Nothing can be done about an error.
fn forget(event: sys::CUevent) {
    // SAFETY: made by the driver, and used no more.
    let _ = unsafe { result::event::destroy(event) };
}
