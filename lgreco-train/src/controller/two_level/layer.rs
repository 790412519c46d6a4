//! A layer of a bucket, and its shards.

use super::division::Division;
use crate::controller::Tensor;
use crate::gradient::{Dtype, Shape, ValuesMut};
use alloc::vec::Vec;
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

    /// The elements of a local rank's shard, as a range of the layer's elements.
    pub(super) fn range(&self, local: u32) -> Range<usize> {
        self.division.range(local)
    }

    /// A shard without elements.
    pub(super) fn without_values(&self) -> ValuesMut<'static> {
        match self.dtype {
            Dtype::F32 => ValuesMut::F32(&mut []),
            Dtype::F16 => ValuesMut::F16(&mut []),
            Dtype::Bf16 => ValuesMut::Bf16(&mut []),
        }
    }

    /// Number of 8-byte words for the mean of a local rank's shard.
    pub(super) fn words(&self, local: u32) -> usize {
        (self.len(local) * self.dtype.bytes()).div_ceil(8)
    }
}

/// A local rank's shards of the gradients. Shards without elements need no gradients, which a rank that has failed may lack.
pub(super) fn shards<'a>(layers: &[Layer], gradients: &'a mut [ValuesMut<'_>], local: u32) -> Vec<ValuesMut<'a>> {
    let mut gradients = gradients.iter_mut();
    let shard = |layer: &Layer| {
        let (gradient, range) = (gradients.next(), layer.range(local));
        match gradient.filter(|_| !range.is_empty()) {
            Some(gradient) => gradient.part(range),
            None => layer.without_values(),
        }
    };
    layers.iter().map(shard).collect()
}
