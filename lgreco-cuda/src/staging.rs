//! Page-locked memory through which bytes of the host go to the device: callers may free theirs at once, wherever a device
//! reads the processor's memory by itself, and no enqueued copy waits for pageable memory.

use crate::Error;
use crate::libcuda::{Cuda, Failure};
use cudarc::driver::sys::{CUevent, CUevent_flags, CUstream};
use std::ptr::null_mut;

/// Bytes of each half, at least.
pub(crate) const HALF: usize = if cfg!(test) { 4096 } else { 2 << 20 };

/// Two halves: one is written while the device reads the other. The context is current in all calls.
pub(crate) struct Staging {
    cuda: &'static Cuda,
    memory: *mut u8,
    /// Bytes of a half.
    half: usize,
    /// What marks that the device has read a half.
    read: [CUevent; 2],
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
        // SAFETY: places for events and an address; the memory is written before it is read.
        unsafe {
            for event in &mut self.read {
                self.cuda.cuEventCreate(event, CUevent_flags::CU_EVENT_DISABLE_TIMING as u32)?;
            }
            self.cuda.cuMemHostAlloc(&mut memory, 2 * self.half, 0)?;
        }
        self.memory = memory.cast();
        Ok(())
    }

    /// Enqueued, unless both halves are full: `bytes` to device memory that has as many.
    pub(crate) fn upload(&mut self, bytes: &[u8], mut address: u64, stream: CUstream) -> Result<(), Error> {
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
                self.cuda.cuMemcpyHtoDAsync_v2(address, place.cast(), now.len(), stream)?;
            }
            self.used += now.len();
            address += now.len() as u64;
            rest = later;
        }
        Ok(())
    }

    /// Goes over to the other half, when the device has read it.
    fn turn(&mut self, stream: CUstream) -> Result<(), Error> {
        // SAFETY: the event lives, and so does the stream.
        unsafe { self.cuda.cuEventRecord(self.read[self.current], stream) }?;
        self.busy[self.current] = true;
        self.current = 1 - self.current;
        if self.busy[self.current] {
            // SAFETY: the event lives.
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

    /// The stream has been waited for.
    pub(crate) fn all_read(&mut self) {
        (self.busy, self.used) = ([false; 2], 0);
    }

    /// Gives everything back; the stream has been waited for. Nothing can be done about an error.
    pub(crate) fn free(&mut self) {
        for event in self.read.into_iter().filter(|event| !event.is_null()) {
            // SAFETY: made by the driver, and used no more.
            let _ = unsafe { self.cuda.cuEventDestroy_v2(event) };
        }
        if !self.memory.is_null() {
            // SAFETY: `make` got it, and nobody reads it any more.
            let _ = unsafe { self.cuda.cuMemFreeHost(self.memory.cast()) };
        }
    }
}
