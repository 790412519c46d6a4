//! The trait [`Device`]: the operations that the backend needs. All other host code works with every implementation of
//! this trait.

use crate::Result;
use crate::kernels::Kernel;

/// Memory of a device; the host never dereferences its address. A part is an allocation, a piece of another part, or
/// memory at an address that the caller promises to be valid. So kernels receive only valid memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
}

impl Part {
    /// The bytes `at .. at + bytes` of this part. The range must lie within the part.
    pub(crate) fn cut(self, at: u64, bytes: u64) -> Part {
        assert!(at <= self.bytes && bytes <= self.bytes - at, "{bytes} bytes at {at} of {} bytes", self.bytes);
        Part { address: self.address + at, bytes }
    }

    /// The bytes of this part from `at` to the end.
    pub(crate) fn from(self, at: u64) -> Part {
        self.cut(at, self.bytes - at)
    }

    /// Divides this part, from its beginning, into consecutive parts of these sizes.
    pub(crate) fn split<const N: usize>(self, sizes: [u64; N]) -> [Part; N] {
        let mut rest = self;
        sizes.map(|bytes| {
            let own = rest.cut(0, bytes);
            rest = rest.from(bytes);
            own
        })
    }
}

/// Threads per block. `device.cu` has the same constant.
pub(crate) const BLOCK: u32 = 256;

/// One launch of a kernel. The kernel's arguments are `params`, by value, and then the addresses of `parts`.
pub(crate) struct Launch<'a> {
    pub(crate) kernel: Kernel,
    pub(crate) blocks: u32,
    /// Threads per block.
    pub(crate) block: u32,
    /// The kernel's `Params`, as bytes.
    pub(crate) params: &'a [u8],
    pub(crate) parts: &'a [Part],
    /// Whether the launch may be captured into a graph. Such a launch must have the same arguments in every step, and
    /// its kernel must already be loaded.
    pub(crate) capturable: bool,
}

/// A device with one stream: enqueued work happens in the order of the calls. Any call may return an error of earlier
/// work. In the comments, "Enqueued:" means that the work may still be running when the call returns. "Done:" means
/// that the work is complete.
pub(crate) trait Device: Send {
    /// `Err` while memory cannot be freed, because the stream is being captured.
    fn may_free(&self) -> Result<()> {
        Ok(())
    }

    /// Done: allocates memory aligned to 256 bytes. Its content is undefined.
    fn allocate(&mut self, bytes: u64) -> Result<Part>;

    /// Frees memory. Only work that was enqueued before this call may use the memory.
    fn free(&mut self, part: Part);

    /// Done: loads a kernel, so that its first launch takes no longer than later ones.
    fn prepare(&mut self, kernel: Kernel) -> Result<()>;

    /// Done: enlarges the page-locked memory so that uploads of this many bytes in all need no wait. An upload still
    /// waits while the page-locked memory is full of bytes that the device has not read.
    fn stage(&mut self, _: usize) -> Result<()> {
        Ok(())
    }

    /// Whether the workspace may reuse memory for another purpose. The test device returns false, to find reads of
    /// stale contents.
    fn reuses(&self) -> bool {
        true
    }

    /// Enqueued: sets a word. The value is part of the command, so nothing is uploaded.
    fn set(&mut self, word_at: Part, word: u32) -> Result<()>;

    /// Enqueued: uploads `bytes`, which must be as long as the part. The call reads `bytes` before it returns.
    fn upload(&mut self, bytes: &[u8], to: Part) -> Result<()>;

    /// Enqueued: fills the part with zeros.
    fn clear(&mut self, part: Part) -> Result<()>;

    /// Enqueued: copies between parts of the same length that do not overlap.
    fn copy(&mut self, from: Part, to: Part) -> Result<()>;

    /// Enqueued: launches a kernel.
    fn launch(&mut self, launch: Launch<'_>) -> Result<()>;

    /// Number of blocks of the kernel that the device runs at the same time, with this many threads per block.
    fn resident(&mut self, _: Kernel, _threads: u32) -> Result<u64> {
        Ok(2048)
    }

    /// Done: copies `from` to `bytes` after all earlier work. Both must have the same length.
    fn download(&mut self, from: Part, bytes: &mut [u8]) -> Result<()>;

    /// Done: waits for all enqueued work.
    fn synchronise(&mut self) -> Result<()>;
}
