//! Exchanges of buckets whose layers lie on the device.
//!
//! wgpu has no collectives, and no way to hand a network memory of the device. So what travels is host memory: a bucket's own
//! messages come back in one readback per collective, all ranks' go up in one upload, and everything in between stays where
//! the gradients are. Between messages and what shaders read are [images](plan).
//!
//! A dispatch works on all layers of the bucket. For that, gradients are copied from the embedder's buffers into memory where
//! they follow one another, and means back: wgpu can bind but eight buffers at a time. TopK's selection alone goes from layer
//! to layer, within one submission.

mod bucket;
mod faults;
mod image;
mod memory;
pub(crate) mod moment;
mod outcome;
pub(crate) mod plan;
mod space;

pub use bucket::BufferBucket;
#[cfg(test)]
pub(crate) use bucket::MOST_RANKS;
pub use plan::BufferLayer;
pub use space::BufferSpace;
