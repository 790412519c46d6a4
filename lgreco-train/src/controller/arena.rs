//! The buffers of one exchange.
//!
//! Steps allocate nothing although an exchange's list borrows from the caller: collecting an emptied vector in place
//! keeps the list's memory.

use super::buffers::grow;
use super::groups::Groups;
use super::layer::LayerState;
use super::lens::Lens;
use super::{Config, Tensor};
use crate::Error;
use crate::compress::Setting;
use crate::exchange::{Layer, Spec, workspace_len};
use crate::feedback::Memory;
use crate::gradient::{Dtype, Shape};
use alloc::sync::Arc;
use alloc::vec::Vec;

/// A layer on loan from the controller.
pub(super) struct Kept {
    pub index: usize,
    pub shape: Shape,
    pub dtype: Dtype,
    pub shards: Arc<[u64]>,
    pub state: LayerState,
    /// The measuring rank's mean gradient; empty on others.
    pub window: Vec<f32>,
    /// Whether it has no gradient in this step: zeros are sent, and the residual stays.
    pub withheld: bool,
}

impl Kept {
    /// What an exchange knows of it.
    pub(super) fn spec(&self) -> Spec<'_> {
        // With a residual, f32 is compressed.
        let dtype = if self.memory().is_some() { Dtype::F32 } else { self.dtype };
        let spec = Spec::from((self.state.choice.setting, self.shape, dtype));
        Spec { index: self.index as u32, shards: &self.shards, ..spec }
    }

    /// The residual that goes out with the gradient.
    pub(super) fn memory(&self) -> Option<&Memory<Vec<u64>>> {
        self.state.memory.as_ref().filter(|_| !self.withheld)
    }
}

/// What an exchange needs beside the gradients, kept from one to the next.
#[derive(Default)]
pub(super) struct Arena {
    pub kept: Vec<Kept>,
    /// A place per element of the layers that need one: means that are not written over the gradients, what is offered to the
    /// compressors, this rank's contributions.
    pub mean: Vec<f32>,
    pub offered: Vec<f32>,
    pub own: Vec<f32>,
    /// Bytes of this rank's payloads, by layer of the bucket.
    pub sent: Vec<u64>,
    pub workspace: Vec<u64>,
    /// Empty between calls; kept for its room.
    pub list: Vec<Layer<'static>>,
}

impl Arena {
    /// Room for each of the groups, uncompressed, also in steps whose errors are measured if there are any.
    pub(super) fn new(tensors: &[Tensor], groups: &Groups, config: &Config, world: u32) -> Result<Arena, Error> {
        let mut arena = Arena::default();
        let (mut layers, mut words, mut lens) = (0, 0, Lens::default());
        for range in &groups.ranges {
            let group = &tensors[range.clone()];
            layers = layers.max(group.len());
            let dense = group.iter().map(|tensor| tensor.spec(Setting::Dense));
            words = words.max(workspace_len(dense, config.route, world)?);
            if config.metrics_every > 0 {
                lens.mean = lens.mean.max(group.iter().map(|tensor| tensor.shape.elements()).sum());
            }
        }
        arena.reserve(layers, lens, words)?;
        Ok(arena)
    }

    /// Has room for so much, without making room that is there already.
    pub(super) fn reserve(&mut self, layers: usize, lens: Lens, words: usize) -> Result<(), Error> {
        grow(&mut self.mean, lens.mean, 0.0)?;
        grow(&mut self.offered, lens.offered, 0.0)?;
        grow(&mut self.own, lens.own, 0.0)?;
        grow(&mut self.sent, layers, 0)?;
        grow(&mut self.workspace, words, 0)?;
        let more = |len: usize| layers.saturating_sub(len);
        let out_of_memory = Error::out_of_memory(layers);
        self.kept.try_reserve(more(self.kept.len())).map_err(|_| out_of_memory)?;
        self.list.try_reserve(more(self.list.len())).map_err(|_| out_of_memory)
    }
}

/// The room of an empty list, for layers of another lifetime; collecting in place keeps the allocation.
pub(super) fn recycled<'b>(mut list: Vec<Layer<'_>>) -> Vec<Layer<'b>> {
    list.clear();
    list.into_iter().map(|_| unreachable!("the list is empty")).collect()
}
