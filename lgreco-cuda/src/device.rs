//! What the backend needs of a device. All other code is written once, over this.

use crate::Result;
use crate::kernels::Kernel;

/// Memory of a device, whose address is only ever passed on. Made by allocation, by cutting, or from what an embedder
/// promised, so that a kernel is never given memory that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
}

impl Part {
    /// The part's bytes `at .. at + bytes`, both at most the part's own.
    pub(crate) fn cut(self, at: u64, bytes: u64) -> Part {
        assert!(at <= self.bytes && bytes <= self.bytes - at, "{bytes} bytes at {at} of {} bytes", self.bytes);
        Part { address: self.address + at, bytes }
    }

    /// All from byte `at` on.
    pub(crate) fn from(self, at: u64) -> Part {
        self.cut(at, self.bytes - at)
    }

    /// Consecutive parts of these sizes, the first at the part's begin.
    pub(crate) fn split<const N: usize>(self, sizes: [u64; N]) -> [Part; N] {
        let mut rest = self;
        sizes.map(|bytes| {
            let own = rest.cut(0, bytes);
            rest = rest.from(bytes);
            own
        })
    }
}

/// Threads of a block, `BLOCK` in `device.cu`.
pub(crate) const BLOCK: u32 = 256;

/// One launch of a kernel: its arguments are `params`, by value, then the addresses of `parts`.
pub(crate) struct Launch<'a> {
    pub(crate) kernel: Kernel,
    pub(crate) blocks: u32,
    /// Threads per block.
    pub(crate) block: u32,
    /// The kernel's `Params`.
    pub(crate) params: &'a [u8],
    pub(crate) parts: &'a [Part],
    /// Whether it may become part of a graph: no argument changes from step to step, and the kernel is loaded.
    pub(crate) capturable: bool,
}

/// A device with one stream: whatever is enqueued happens in the order of the calls. Every error may be that of earlier
/// work.
pub(crate) trait Device: Send {
    /// `Err` while the device takes no memory back, because its stream is being captured.
    fn may_free(&self) -> Result<()> {
        Ok(())
    }

    /// Done: memory aligned to 256 bytes, its content undefined.
    fn allocate(&mut self, bytes: u64) -> Result<Part>;

    /// Memory that only what has been enqueued before may use.
    fn free(&mut self, part: Part);

    /// Done: makes a kernel ready, so that its first launch takes no longer than others.
    fn prepare(&mut self, kernel: Kernel) -> Result<()>;

    /// Done: from now on so many bytes can be uploaded one after another without a wait, unless the device has not read those before.
    fn stage(&mut self, _: usize) -> Result<()> {
        Ok(())
    }

    /// Whether memory may be used for more than one purpose after another. A device that looks for errors says no.
    fn reuses(&self) -> bool {
        true
    }

    /// Enqueued: a word, which goes with the command.
    fn set(&mut self, word_at: Part, word: u32) -> Result<()>;

    /// Enqueued: `bytes`, of the same length, which are read before the call returns.
    fn upload(&mut self, bytes: &[u8], to: Part) -> Result<()>;

    /// Enqueued: fills with zeros.
    fn clear(&mut self, part: Part) -> Result<()>;

    /// Enqueued: parts of the same length that do not overlap.
    fn copy(&mut self, from: Part, to: Part) -> Result<()>;

    /// Enqueued.
    fn launch(&mut self, launch: Launch<'_>) -> Result<()>;

    /// Blocks of a kernel, of so many threads, that run at a time.
    fn resident(&mut self, _: Kernel, _threads: u32) -> Result<u64> {
        Ok(2048)
    }

    /// Done, and so is all that was enqueued before. `bytes` are as long as `from`.
    fn download(&mut self, from: Part, bytes: &mut [u8]) -> Result<()>;

    /// Done: everything.
    fn synchronise(&mut self) -> Result<()>;
}
