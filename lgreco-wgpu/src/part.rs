//! Parts of buffers.

use wgpu::Buffer;

/// Part of a buffer that a kernel binds or a command copies.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Part {
    pub(crate) buffer: Buffer,
    pub(crate) offset: u64,
    pub(crate) size: u64,
}

impl From<&Buffer> for Part {
    fn from(buffer: &Buffer) -> Self {
        Part { buffer: buffer.clone(), offset: 0, size: buffer.size() }
    }
}

/// A dispatch or a copy of a rehearsed batch. A rehearsed batch does not run its commands, but lists them for tests.
#[cfg(test)]
#[derive(Clone, Debug)]
pub(crate) enum Rehearsed {
    Dispatch { entry: &'static str, parameters: Vec<u8>, bindings: Vec<(u32, Part)>, groups: [usize; 3] },
    Copy { from: Part, to: Part },
}
