//! Exchanges of buckets whose layers lie on the device.
//!
//! wgpu has no collectives, and no way to hand a network memory of the device. So what travels is host memory: a bucket's own
//! messages come back in one readback per collective, all ranks' go up in one upload, and everything in between stays where
//! the gradients are. Between messages and what shaders read are [images](plan).
//!
//! A dispatch works on all layers of the bucket. For that, gradients are copied from the embedder's buffers into memory where
//! they follow one another, and means back: wgpu can bind but eight buffers at a time. Whatever the host is to do with PowerSGD's
//! summed factors, which it has anyway, it does: to see whether they are finite, and to make means of them.

mod bucket;
pub(crate) mod factors;
mod faults;
mod image;
pub(crate) mod matrices;
mod memory;
pub(crate) mod moment;
mod outcome;
pub(crate) mod plan;
mod space;
mod summed;
mod topk;

pub use bucket::BufferBucket;
#[cfg(test)]
pub(crate) use bucket::MOST_RANKS;
pub use faults::BufferFault;
pub use outcome::BufferOutcome;
pub use plan::BufferLayer;
pub use space::BufferSpace;
