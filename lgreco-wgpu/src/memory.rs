//! Device memory that is kept from call to call. Scratch buffers are kept by name, other buffers by size and usage.

use crate::Error;
use std::collections::HashMap;
use wgpu::{Buffer, BufferDescriptor, BufferUsages};

/// Names of buffers that are kept from batch to batch. Each batch may overwrite the buffers' content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Scratch {
    Results,
    /// Values of layers whose rows are measured together.
    Gathered,
    Extremes,
    Grids,
    Scales,
    Words,
    Output,
    Totals,
    MoreTotals,
    Bins,
    Slots,
    Fine,
    Prefix,
    State,
    Blocks,
    Counters,
    Entries,
    FewBits,
    /// A chunk, with this number, of the values that TopK in few bits keeps.
    Kept(usize),
    BinSums,
    /// A band, with this number, of a factor of PowerSGD.
    P(usize),
    Q(usize),
    Columns,
    Partial,
    Inner,
    #[cfg(feature = "train")]
    Offered,
    #[cfg(feature = "train")]
    Decoded,
    /// Exponents of an int8 residual, with the codes that share a word with the first exponent.
    #[cfg(feature = "train")]
    Exponents,
}

/// Largest sizes of a device's buffers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Largest {
    pub(crate) binding: u64,
    pub(crate) buffer: u64,
}

#[derive(Default)]
pub(crate) struct Memory {
    scratch: HashMap<Scratch, Buffer>,
    free: HashMap<(BufferUsages, u64), Vec<Buffer>>,
    taken: Vec<Buffer>,
    #[cfg(test)]
    pub(crate) created: usize,
    /// Whether buffers that wgpu refuses are returned anyway, for tests that only check the layout.
    #[cfg(test)]
    pub(crate) pretends: bool,
}

impl Memory {
    /// Returns the scratch buffer `name`, with at least `bytes` bytes. Its content is lost.
    pub(crate) fn scratch(
        &mut self,
        device: &wgpu::Device,
        largest: Largest,
        name: Scratch,
        bytes: u64,
    ) -> Result<Buffer, Error> {
        if let Some(buffer) = self.scratch.get(&name).filter(|buffer| buffer.size() >= bytes) {
            return Ok(buffer.clone());
        }
        let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
        let buffer = self.create(device, rounded(bytes, largest)?, usage);
        self.scratch.insert(name, buffer.clone());
        Ok(buffer)
    }

    /// Returns a buffer of at least `bytes` bytes, for use until [`give_back`](Memory::give_back). Its content is
    /// arbitrary.
    pub(crate) fn take(
        &mut self,
        device: &wgpu::Device,
        largest: Largest,
        bytes: u64,
        usage: BufferUsages,
    ) -> Result<Buffer, Error> {
        let size = rounded(bytes, largest)?;
        let buffer = match self.free.get_mut(&(usage, size)).and_then(Vec::pop) {
            Some(buffer) => buffer,
            None => self.create(device, size, usage),
        };
        self.taken.push(buffer.clone());
        Ok(buffer)
    }

    /// Makes all taken buffers available again.
    pub(crate) fn give_back(&mut self) {
        for buffer in self.taken.drain(..) {
            self.free.entry((buffer.usage(), buffer.size())).or_default().push(buffer);
        }
    }

    /// Drops all buffers. wgpu frees them when the device no longer uses them.
    pub(crate) fn forget(&mut self) {
        self.scratch.clear();
        self.free.clear();
        self.taken.clear();
    }

    /// Total size of all buffers in bytes.
    pub(crate) fn held(&self) -> u64 {
        let free = self.free.values().flatten();
        self.scratch.values().chain(free).chain(&self.taken).map(Buffer::size).sum()
    }

    fn create(&mut self, device: &wgpu::Device, size: u64, usage: BufferUsages) -> Buffer {
        #[cfg(test)]
        {
            self.created += 1;
        }
        #[cfg(test)]
        let _refused = self.pretends.then(|| device.push_error_scope(wgpu::ErrorFilter::Validation));
        device.create_buffer(&BufferDescriptor { label: None, size, usage, mapped_at_creation: false })
    }
}

/// Returns the size of a buffer for `bytes` bytes. The buffer is up to a quarter larger than requested, so that a few
/// sizes serve all requests. If `bytes` is within the limit of a binding, the returned size is also within this limit.
fn rounded(bytes: u64, largest: Largest) -> Result<u64, Error> {
    if bytes > largest.buffer {
        return Err(Error::TooLarge { what: "a buffer", bytes, limit: "max_buffer_size", largest: largest.buffer });
    }
    let step = (bytes.next_power_of_two() / 8).max(16);
    let most = if bytes <= largest.binding { largest.binding } else { largest.buffer / 4 * 4 };
    Ok(bytes.next_multiple_of(step).min(most).max(16))
}
