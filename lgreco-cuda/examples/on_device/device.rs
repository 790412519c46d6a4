//! Memory of the device, and the stream that copies and calls share. The stream orders them: the null stream would not, because
//! a backend's stream does not wait for it.

use super::{Outcome, runs};
use cudarc::driver::result::{self, stream::StreamKind};
use cudarc::driver::sys::{CUevent, CUevent_flags, CUstream};

/// Device memory of the primary context.
pub(super) struct Memory(u64);

impl Memory {
    /// Its content is undefined.
    pub(super) fn new(bytes: usize) -> Outcome<Self> {
        // SAFETY: nothing reads it before it is written.
        Ok(Memory(unsafe { result::malloc_sync(bytes.max(1)) }?))
    }

    pub(super) fn at(&self) -> u64 {
        self.0
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: its own, and what uses it has been waited for, unless a call has failed. Nothing can be done about an error.
        let _ = unsafe { result::free_sync(self.0) };
    }
}

/// A stream, which stays as long as the process, and two events that take its time.
#[derive(Clone, Copy)]
pub(super) struct Clock {
    stream: CUstream,
    start: CUevent,
    end: CUevent,
}

impl Clock {
    pub(super) fn new() -> Outcome<Self> {
        let event = || result::event::create(CUevent_flags::CU_EVENT_DEFAULT);
        Ok(Clock { stream: result::stream::create(StreamKind::NonBlocking)?, start: event()?, end: event()? })
    }

    pub(super) fn stream(&self) -> CUstream {
        self.stream
    }

    /// Enqueues a copy on the device.
    pub(super) fn copy(&self, to: u64, from: u64, bytes: usize) -> Outcome<()> {
        // SAFETY: both are memory of the device, that long, and used in this stream alone.
        Ok(unsafe { result::memcpy_dtod_async(to, from, bytes, self.stream) }?)
    }

    /// Copies values to the device, and waits.
    pub(super) fn upload<T>(&self, to: u64, values: &[T]) -> Outcome<()> {
        // SAFETY: there is room for them, and the memory is used in this stream alone.
        unsafe { result::memcpy_htod_async(to, values, self.stream) }?;
        self.wait()
    }

    /// Copies values of plain numbers from the device, when everything is done that is enqueued.
    pub(super) fn download<T: bytemuck::Pod>(&self, from: u64, values: &mut [T]) -> Outcome<()> {
        // SAFETY: as many are there, and the memory is used in this stream alone.
        unsafe { result::memcpy_dtoh_async(values, from, self.stream) }?;
        self.wait()
    }

    pub(super) fn wait(&self) -> Outcome<()> {
        // SAFETY: the stream stays.
        Ok(unsafe { result::stream::synchronize(self.stream) }?)
    }

    /// Seconds that the device takes for what a call enqueues. Waits for it.
    pub(super) fn once(&self, enqueue: impl FnOnce() -> Outcome<()>) -> Outcome<f64> {
        // SAFETY: the stream and the events stay.
        unsafe {
            result::event::record(self.start, self.stream)?;
            enqueue()?;
            result::event::record(self.end, self.stream)?;
            result::event::synchronize(self.end)?;
            Ok(f64::from(result::event::elapsed(self.start, self.end)?) / 1e3)
        }
    }

    /// Seconds for one of `calls`, which are enqueued one after another: the least of some runs.
    pub(super) fn seconds(&self, calls: usize, mut enqueue: impl FnMut() -> Outcome<()>) -> Outcome<f64> {
        let mut least = f64::INFINITY;
        for _ in 0..runs()? {
            least = least.min(self.once(|| (0..calls).try_for_each(|_| enqueue()))? / calls as f64);
        }
        Ok(least)
    }
}
