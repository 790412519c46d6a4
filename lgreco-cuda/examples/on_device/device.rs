//! Device memory, and one stream for both copies and the backend's calls, so that copies and calls run in order. Copies
//! cannot use the null stream, because a backend's stream does not wait for the null stream.

use super::{Outcome, runs};
use cudarc::driver::result::{self, stream::StreamKind};
use cudarc::driver::sys::{CUevent, CUevent_flags, CUstream};

/// Device memory of the primary context.
pub(super) struct Memory(u64);

impl Memory {
    /// Allocates memory. Its content is undefined.
    pub(super) fn new(bytes: usize) -> Outcome<Self> {
        // SAFETY: nothing reads the memory before a write.
        Ok(Memory(unsafe { result::malloc_sync(bytes.max(1)) }?))
    }

    pub(super) fn at(&self) -> u64 {
        self.0
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: this value owns the memory. The host has waited for all work that used the memory, unless a call
        // failed. `drop` cannot return an error, so errors are ignored.
        let _ = unsafe { result::free_sync(self.0) };
    }
}

/// A stream, which is never destroyed, and two events that measure times on it.
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

    /// Enqueues a copy from device memory to device memory.
    pub(super) fn copy(&self, to: u64, from: u64, bytes: usize) -> Outcome<()> {
        // SAFETY: source and target are device memory of at least this length, and only this stream uses them.
        Ok(unsafe { result::memcpy_dtod_async(to, from, bytes, self.stream) }?)
    }

    /// Copies values to the device, and waits.
    pub(super) fn upload<T>(&self, to: u64, values: &[T]) -> Outcome<()> {
        // SAFETY: the memory is large enough for the values, and only this stream uses it.
        unsafe { result::memcpy_htod_async(to, values, self.stream) }?;
        self.wait()
    }

    /// Copies values from the device after all enqueued work is done.
    pub(super) fn download<T: bytemuck::Pod>(&self, from: u64, values: &mut [T]) -> Outcome<()> {
        // SAFETY: the memory holds this many values, and only this stream uses it.
        unsafe { result::memcpy_dtoh_async(values, from, self.stream) }?;
        self.wait()
    }

    pub(super) fn wait(&self) -> Outcome<()> {
        // SAFETY: the stream is never destroyed.
        Ok(unsafe { result::stream::synchronize(self.stream) }?)
    }

    /// Measures how long the device takes for the work that `enqueue` enqueues, in seconds. Waits for this work.
    pub(super) fn once(&self, enqueue: impl FnOnce() -> Outcome<()>) -> Outcome<f64> {
        // SAFETY: the stream and the events are never destroyed.
        unsafe {
            result::event::record(self.start, self.stream)?;
            enqueue()?;
            result::event::record(self.end, self.stream)?;
            result::event::synchronize(self.end)?;
            Ok(f64::from(result::event::elapsed(self.start, self.end)?) / 1e3)
        }
    }

    /// Measures the seconds of one call, averaged over `calls` calls in sequence. Takes the minimum of several runs.
    pub(super) fn seconds(&self, calls: usize, mut enqueue: impl FnMut() -> Outcome<()>) -> Outcome<f64> {
        let mut least = f64::INFINITY;
        for _ in 0..runs()? {
            least = least.min(self.once(|| (0..calls).try_for_each(|_| enqueue()))? / calls as f64);
        }
        Ok(least)
    }
}
