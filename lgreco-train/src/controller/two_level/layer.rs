//! A layer of a bucket, and its shards.

use super::division::Division;
use crate::controller::Tensor;
use crate::gradient::{Dtype, Shape};
use core::ops::Range;

/// A layer of a bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layer {
    pub index: usize,
    pub shape: Shape,
    pub dtype: Dtype,
    division: Division,
    /// Whether this rank has a gradient.
    pub present: bool,
}

impl Layer {
    pub(super) fn new(index: usize, whole: &Tensor, per_node: u32) -> Layer {
        let (shape, dtype) = (whole.shape(), whole.dtype());
        Layer { index, shape, dtype, division: Division::new(shape, per_node), present: true }
    }

    /// Number of elements of a local rank's shard.
    pub(super) fn len(&self, local: u32) -> usize {
        self.range(local).len()
    }

    /// The elements of a local rank's shard, among the layer's.
    pub(super) fn range(&self, local: u32) -> Range<usize> {
        self.division.range(local)
    }

    /// Words of the mean of a local rank's shard.
    pub(super) fn words(&self, local: u32) -> usize {
        (self.len(local) * self.dtype.bytes()).div_ceil(8)
    }
}
