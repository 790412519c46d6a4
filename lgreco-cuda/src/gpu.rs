//! A device with its workspace: buffers that are kept between calls.

use crate::Result;
use crate::device::{BLOCK, Device, Launch, Part};
use crate::kernels::Kernel;
use bytemuck::Pod;
use std::collections::{HashMap, HashSet};

/// The buffers of the workspace. Each buffer has one purpose at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Scratch {
    Values,
    Results,
    Partials,
    Layers,
    Payload,
    Output,
    Statuses,
    Bins,
    Selected,
    RowBins,
    Cuts,
    Records,
    Entries,
    Bits,
    Positions,
    P,
    Q,
    Chunks,
    Triangle,
    Matrices,
    Counters,
}

/// Alignment of the parts of a workspace, in bytes.
pub(crate) const ALIGN: u64 = 256;

pub(crate) struct Gpu {
    device: Box<dyn Device>,
    buffers: HashMap<Scratch, Part>,
    /// Buffers that will contain zeros wherever the next user needs zeros, once the enqueued work is done.
    zeros: HashSet<Scratch>,
    /// Number of payloads in host memory that the device, not the core, decoded.
    #[cfg(test)]
    pub(crate) decoded: usize,
}

impl Gpu {
    pub(crate) fn new(device: Box<dyn Device>) -> Self {
        Gpu {
            device,
            buffers: HashMap::new(),
            zeros: HashSet::new(),
            #[cfg(test)]
            decoded: 0,
        }
    }

    /// Bytes of the workspace.
    pub(crate) fn held(&self) -> u64 {
        self.buffers.values().map(|buffer| buffer.bytes).sum()
    }

    /// Done: makes every buffer at least as large as the same buffer of `other`. Buffers that grow lose their content.
    pub(crate) fn grow_to(&mut self, other: &Gpu) -> Result<()> {
        for (&name, &Part { bytes, .. }) in &other.buffers {
            if self.buffers.get(&name).is_none_or(|buffer| buffer.bytes < bytes) {
                self.scratch(name, bytes)?;
            }
        }
        Ok(())
    }

    /// Bytes of the memory that [`within`](Gpu::within) needs to replace this workspace.
    pub(crate) fn room(&self) -> u64 {
        self.buffers.values().map(|buffer| buffer.bytes.next_multiple_of(ALIGN)).sum()
    }

    /// Runs `call` with a workspace in `memory`, which must be aligned, in place of the usual workspace. The buffers
    /// get the sizes of the buffers of `rehearsed`, so `memory` must have [`rehearsed.room()`](Gpu::room) bytes. A
    /// device that does not [reuse](Device::reuses) memory, such as the test device, ignores `memory` and allocates.
    pub(crate) fn within<T>(&mut self, memory: Part, rehearsed: &Gpu, call: impl FnOnce(&mut Gpu) -> T) -> T {
        if !self.device.reuses() {
            return call(self);
        }
        let mut rest = memory;
        let lent = rehearsed.buffers.iter().map(|(&name, buffer)| {
            let part = rest.cut(0, buffer.bytes);
            rest = rest.from(buffer.bytes.next_multiple_of(ALIGN));
            (name, part)
        });
        let lent = lent.collect();
        let (buffers, zeros) = (std::mem::replace(&mut self.buffers, lent), std::mem::take(&mut self.zeros));
        let outcome = call(self);
        (self.buffers, self.zeros) = (buffers, zeros);
        outcome
    }

    /// Done: enlarges the page-locked memory so that `bytes` bytes can be uploaded without a wait.
    pub(crate) fn stage(&mut self, bytes: usize) -> Result<()> {
        self.device.stage(bytes)
    }

    /// Done: loads a kernel.
    pub(crate) fn prepare(&mut self, kernel: Kernel) -> Result<()> {
        self.device.prepare(kernel)
    }

    /// Returns exactly `bytes` bytes of a buffer of the workspace, aligned to 256. The buffer's content is lost, and
    /// parts of the buffer from earlier calls must no longer be used. Waits for the device if the buffer has to grow.
    pub(crate) fn scratch(&mut self, name: Scratch, bytes: u64) -> Result<Part> {
        let bytes = bytes.max(1);
        if let Some(buffer) = self.buffers.get(&name).filter(|buffer| buffer.bytes >= bytes && self.device.reuses()) {
            return Ok(buffer.cut(0, bytes));
        }
        self.device.may_free()?;
        self.zeros.remove(&name);
        if let Some(buffer) = self.buffers.remove(&name) {
            self.device.free(buffer);
        }
        let buffer = self.device.allocate(bytes)?;
        self.buffers.insert(name, buffer);
        Ok(buffer)
    }

    /// Enqueued: like [`scratch`](Gpu::scratch), but the part has zeros wherever the user needs zeros. If the user's
    /// work restores these zeros, the user then calls [`are_zeros_again`](Gpu::are_zeros_again). Otherwise the next
    /// call fills the whole buffer with zeros.
    pub(crate) fn zeros(&mut self, name: Scratch, bytes: u64) -> Result<Part> {
        let part = self.scratch(name, bytes)?;
        if !self.zeros.remove(&name) {
            self.device.clear(self.buffers[&name])?;
        }
        Ok(part)
    }

    /// The whole buffer.
    #[cfg(test)]
    pub(crate) fn whole(&self, name: Scratch) -> Part {
        self.buffers[&name]
    }

    /// Notes that the enqueued work leaves zeros in a buffer wherever the buffer's next user needs zeros.
    pub(crate) fn are_zeros_again(&mut self, name: Scratch) {
        self.zeros.insert(name);
    }

    /// Enqueued: uploads `bytes` to a buffer of the workspace, and returns the buffer.
    pub(crate) fn upload(&mut self, name: Scratch, bytes: &[u8]) -> Result<Part> {
        let buffer = self.scratch(name, bytes.len() as u64)?;
        self.write(bytes, buffer)?;
        Ok(buffer)
    }

    /// Enqueued: writes words to the start of `to`. Each word is part of a command, so nothing is uploaded.
    pub(crate) fn write_words(&mut self, words: &[u32], to: Part) -> Result<()> {
        let at = |index: usize| to.cut(4 * index as u64, 4);
        words.iter().enumerate().try_for_each(|(index, &word)| self.device.set(at(index), word))
    }

    /// Enqueued: uploads `bytes` to the start of `to`.
    pub(crate) fn write(&mut self, bytes: &[u8], to: Part) -> Result<()> {
        if bytes.is_empty() { Ok(()) } else { self.device.upload(bytes, to.cut(0, bytes.len() as u64)) }
    }

    /// Enqueued: fills the part with zeros.
    pub(crate) fn clear(&mut self, part: Part) -> Result<()> {
        if part.bytes == 0 { Ok(()) } else { self.device.clear(part) }
    }

    /// Enqueued: copies all of `from` to the start of `to`.
    pub(crate) fn copy(&mut self, from: Part, to: Part) -> Result<()> {
        if from.bytes == 0 { Ok(()) } else { self.device.copy(from, to.cut(0, from.bytes)) }
    }

    /// Enqueued: launches `blocks` blocks of `BLOCK` threads. The kernel's arguments are `params`, then the addresses
    /// of `parts`.
    pub(crate) fn launch<P: Pod>(
        &mut self,
        kernel: Kernel,
        params: P,
        parts: &[Part],
        blocks: impl Into<Blocks>,
    ) -> Result<()> {
        self.launch_of(kernel, params, parts, blocks, BLOCK)
    }

    /// Enqueued: like [`launch`](Gpu::launch), with blocks of `threads` threads.
    pub(crate) fn launch_of<P: Pod>(
        &mut self,
        kernel: Kernel,
        params: P,
        parts: &[Part],
        blocks: impl Into<Blocks>,
        threads: u32,
    ) -> Result<()> {
        self.start(kernel, bytemuck::bytes_of(&params), parts, blocks.into(), (threads, false))
    }

    /// Enqueued: like [`launch`](Gpu::launch), but the launch may be captured into a graph. The launch must have the
    /// same arguments in every step, and its kernel must be [prepared](Gpu::prepare).
    pub(crate) fn launch_capturable<P: Pod>(
        &mut self,
        kernel: Kernel,
        params: P,
        parts: &[Part],
        blocks: impl Into<Blocks>,
    ) -> Result<()> {
        self.start(kernel, bytemuck::bytes_of(&params), parts, blocks.into(), (BLOCK, true))
    }

    fn start(
        &mut self,
        kernel: Kernel,
        params: &[u8],
        parts: &[Part],
        blocks: Blocks,
        (block, capturable): (u32, bool),
    ) -> Result<()> {
        let blocks = match blocks {
            Blocks::Exactly(blocks) => blocks,
            Blocks::AtMost(blocks) => blocks.min(most(self.device.resident(kernel, block)?)),
        };
        if blocks == 0 {
            return Ok(());
        }
        self.device.launch(Launch { kernel, blocks: blocks as u32, block, params, parts, capturable })
    }

    /// Done: downloads `part`.
    pub(crate) fn read<T: Pod>(&mut self, part: Part) -> Result<Vec<T>> {
        let mut values = vec![T::zeroed(); (part.bytes / size_of::<T>() as u64) as usize];
        self.read_into(part, bytemuck::cast_slice_mut(&mut values))?;
        Ok(values)
    }

    /// Done: downloads `part` to `bytes`, which must have the length of `part`.
    pub(crate) fn read_into(&mut self, part: Part, bytes: &mut [u8]) -> Result<()> {
        if bytes.is_empty() {
            self.device.synchronise()?
        } else {
            self.device.download(part, bytes)?
        }
        Ok(())
    }

    /// Done: waits for all enqueued work.
    pub(crate) fn synchronise(&mut self) -> Result<()> {
        self.device.synchronise()
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        for (_, buffer) in self.buffers.drain() {
            self.device.free(buffer);
        }
    }
}

/// Number of blocks of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Blocks {
    Exactly(u64),
    /// At most this number of blocks, and no more than the device runs at the same time. Each block loops over its
    /// share of the work.
    AtMost(u64),
}

impl From<u64> for Blocks {
    fn from(blocks: u64) -> Self {
        Blocks::Exactly(blocks)
    }
}

/// Largest number of blocks in a launch whose blocks loop over their shares of the work. The device runs `resident`
/// blocks at the same time.
#[cfg(not(test))]
const fn most(resident: u64) -> u64 {
    resident
}

/// Largest number of blocks that each compute one f64 sum of a layer. The number does not depend on the device, so that
/// all devices add in the same order.
#[cfg(not(test))]
const fn sums() -> u64 {
    2048
}

#[cfg(test)]
thread_local! {
    /// In tests, this number replaces the results of [`most`] and [`sums`]. The number is small, so that blocks loop
    /// and launches are split even for small tensors.
    pub(crate) static MOST: std::cell::Cell<u64> = const { std::cell::Cell::new(3) };
}

#[cfg(test)]
fn most(resident: u64) -> u64 {
    resident.min(MOST.get())
}

#[cfg(test)]
fn sums() -> u64 {
    MOST.get()
}

/// Largest number of blocks of a launch that several layers share.
pub(crate) fn together() -> u64 {
    64 * sums()
}

/// Number of blocks for `threads` threads.
pub(crate) fn blocks(threads: u64) -> u64 {
    threads.div_ceil(BLOCK.into())
}

/// Enough blocks for `threads` threads, or fewer blocks that loop over their shares of the work.
pub(crate) fn looping_blocks(threads: u64) -> Blocks {
    Blocks::AtMost(blocks(threads))
}

/// One block per piece of work, or fewer blocks that loop over their shares of the pieces.
pub(crate) fn looping_pieces(pieces: u64) -> Blocks {
    Blocks::AtMost(pieces)
}

/// Number of blocks for `pieces` pieces of work. Each block adds up the results of its pieces in f64.
pub(crate) fn summing_blocks(pieces: u64) -> u64 {
    pieces.min(sums())
}
