//! Division of the layers into the buckets of blocking steps, and the buckets on which ranks have agreed.

use super::Tensor;
use alloc::collections::BTreeSet;
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

/// Largest number of agreed sets of layers that ranks remember.
pub(super) const MOST_AGREED: usize = 1024;

/// Forgets all but one of the agreed sets if there are too many. Otherwise, a trainer with new buckets in every step would fill
/// the memory. All ranks have the same sets when a step begins. So all ranks forget the same sets, and agree on a forgotten set
/// again at its next exchange.
pub(super) fn forget_many(agreed: &mut BTreeSet<Vec<usize>>) {
    if agreed.len() >= MOST_AGREED {
        // One set is kept, because `Controller::provide` checks whether any set was agreed.
        let first = agreed.pop_first();
        agreed.clear();
        agreed.extend(first);
    }
}
