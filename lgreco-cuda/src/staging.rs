//! Page-locked memory through which host bytes are uploaded. Callers may free their own memory as soon as a call
//! returns, even on systems where devices read pageable memory directly. Because uploads go through page-locked memory,
//! no enqueued copy waits for pageable memory.

use crate::Error;
use crate::libcuda::{Cuda, Failure};
use cudarc::driver::sys::{CUevent, CUevent_flags, CUstream};
use std::ptr::null_mut;

/// Least size of each half, in bytes.
pub(crate) const HALF: usize = if cfg!(test) { 4096 } else { 2 << 20 };

/// Page-locked memory in two halves. The host writes one half while the device reads the other. In all calls, the
/// context must be current.
pub(crate) struct Staging {
    cuda: &'static Cuda,
    memory: *mut u8,
    /// Bytes of a half.
    half: usize,
    /// For each half, an event that the stream reaches once the device has read that half.
    read: [CUevent; 2],
    /// Whether the device may still be reading each half.
    busy: [bool; 2],
    current: usize,
    used: usize,
}

impl Staging {
    /// Allocates two halves of `half` bytes.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub(crate) fn new(cuda: &'static Cuda, half: usize) -> Result<Self, Error> {
        let read = [null_mut(); 2];
        let mut staging = Staging { cuda, memory: null_mut(), half, read, busy: [false; 2], current: 0, used: 0 };
        let made = staging.make();
        if made.is_err() {
            staging.free();
        }
        made?;
        Ok(staging)
    }

    fn make(&mut self) -> Result<(), Failure> {
        let mut memory = null_mut();
        // SAFETY: the pointers are valid for events and an address; the memory is written before it is read.
        unsafe {
            for event in &mut self.read {
                self.cuda.cuEventCreate(event, CUevent_flags::CU_EVENT_DISABLE_TIMING as u32)?;
            }
            self.cuda.cuMemHostAlloc(&mut memory, 2 * self.half, 0)?;
        }
        self.memory = memory.cast();
        Ok(())
    }

    /// Enqueued: uploads `bytes` to device memory at `address`. The call waits while both halves are full.
    pub(crate) fn upload(&mut self, bytes: &[u8], mut address: u64, stream: CUstream) -> Result<(), Error> {
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.used == self.half {
                self.turn(stream)?;
            }
            let (now, later) = rest.split_at(rest.len().min(self.half - self.used));
            let at = self.current * self.half + self.used;
            // SAFETY: the range lies inside the half. The device has read the old content of the range, because `turn`
            // waited for it. No other code writes the range until `turn` or `all_read`.
            unsafe {
                let place = self.memory.add(at);
                std::ptr::copy_nonoverlapping(now.as_ptr(), place, now.len());
                self.cuda.cuMemcpyHtoDAsync_v2(address, place.cast(), now.len(), stream)?;
            }
            self.used += now.len();
            address += now.len() as u64;
            rest = later;
        }
        Ok(())
    }

    /// Waits until the device has read the other half, and switches to that half.
    fn turn(&mut self, stream: CUstream) -> Result<(), Error> {
        // SAFETY: the event and the stream are alive.
        unsafe { self.cuda.cuEventRecord(self.read[self.current], stream) }?;
        self.busy[self.current] = true;
        self.current = 1 - self.current;
        if self.busy[self.current] {
            // SAFETY: the event is alive.
            unsafe { self.cuda.cuEventSynchronize(self.read[self.current]) }?;
            self.busy[self.current] = false;
        }
        self.used = 0;
        Ok(())
    }

    /// Bytes of a half.
    pub(crate) fn half(&self) -> usize {
        self.half
    }

    /// Marks all bytes as read. The caller has waited for the stream.
    pub(crate) fn all_read(&mut self) {
        (self.busy, self.used) = ([false; 2], 0);
    }

    /// Frees the memory and the events. The caller has waited for the stream. Errors are ignored, because callers could
    /// not handle them.
    pub(crate) fn free(&mut self) {
        for event in self.read.into_iter().filter(|event| !event.is_null()) {
            // SAFETY: the driver made the event, and nothing uses it any more.
            let _ = unsafe { self.cuda.cuEventDestroy_v2(event) };
        }
        if !self.memory.is_null() {
            // SAFETY: `make` allocated the memory, and nothing reads it any more.
            let _ = unsafe { self.cuda.cuMemFreeHost(self.memory.cast()) };
        }
    }
}
