//! Division of the layers into the buckets of blocking steps.

use super::Tensor;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

/// Groups of consecutive layers, the same on every rank and under every plan.
pub(super) struct Groups {
    pub ranges: Vec<Range<usize>>,
}

impl Groups {
    /// Makes groups whose gradients have at most `bucket_bytes` bytes, unless a single layer has more.
    pub(super) fn new(tensors: &[Tensor], bucket_bytes: usize) -> Self {
        let (mut ranges, mut start, mut bytes) = (vec![], 0, 0u64);
        for (index, tensor) in tensors.iter().enumerate() {
            if index > start && bytes + tensor.bytes() > bucket_bytes as u64 {
                ranges.push(start..index);
                (start, bytes) = (index, 0);
            }
            bytes += tensor.bytes();
        }
        if start < tensors.len() {
            ranges.push(start..tensors.len());
        }
        Groups { ranges }
    }
}
