//! The buffers of one exchange, and those that no exchange has at the moment.
//!
//! Steps allocate nothing although an exchange's list borrows from the caller: collecting an emptied vector in place
//! keeps the list's memory.

use super::buffers::grow;
use super::layer::LayerState;
use super::layer_plan::{LayerPlan, Needs};
use crate::{CoreError, Error};
use crate::exchange::{Layer, Spec};
use crate::feedback::Memory;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// A layer on loan from the controller.
pub(super) struct Kept {
    pub plan: LayerPlan,
    pub shards: Arc<[u64]>,
    pub state: LayerState,
    /// The measuring rank's mean gradient; empty on others.
    pub window: Vec<f32>,
    /// Squared norm of what is offered to the compressor, and of what that leaves, where errors are measured.
    pub norms: [f64; 2],
}

impl Kept {
    /// What an exchange knows of it.
    pub(super) fn spec(&self) -> Spec<'_> {
        self.plan.spec(&self.shards)
    }

    /// The residual that goes out with the gradient.
    pub(super) fn memory(&self) -> Option<&Memory<Vec<u64>>> {
        self.state.memory.as_ref().filter(|_| self.plan.compensates)
    }
}

/// What an exchange needs beside the gradients.
#[derive(Default)]
pub(super) struct Arena {
    pub kept: Vec<Kept>,
    /// What is offered to the compressors, of layers that have no room for it in the gradients.
    pub offered: Vec<f32>,
    /// Bytes of this rank's payloads, by layer of the bucket.
    pub sent: Vec<u64>,
    pub workspace: Vec<u64>,
    /// What is computed in during a call. Where means take the place of values, what is left is at its beginning.
    pub scratch: Vec<u64>,
    /// Empty between calls; kept for its room.
    pub list: Vec<Layer<'static>>,
}

impl Arena {
    /// Values that are left of all layers, while means take the place of values.
    pub(super) fn rest(&self) -> usize {
        self.kept.iter().map(|kept| kept.plan.rest()).sum()
    }

    /// Has room for so much, without making room that is there already.
    fn reserve(&mut self, layers: usize, needs: &Needs) -> Result<(), Error> {
        grow(&mut self.offered, needs.offered)?;
        grow(&mut self.sent, layers)?;
        grow(&mut self.workspace, needs.workspace)?;
        let more = |len: usize| layers.saturating_sub(len);
        Ok(self.list.try_reserve(more(self.list.len())).map_err(|_| CoreError::OutOfMemory { words: layers })?)
    }

    /// Bytes that depend on the gradients' size.
    fn bytes(&self) -> usize {
        8 * self.workspace.len() + 4 * self.offered.len()
    }
}

/// The arenas that no bucket has. Together with those that buckets have they take no more than the buckets of a step have
/// taken at a time, so memory is linear in the model's size whatever sizes buckets have.
#[derive(Default)]
pub(super) struct Arenas {
    free: Vec<Arena>,
    /// Empty lists, kept for their room.
    lists: Vec<Vec<Kept>>,
    /// Bytes that buckets have.
    lent: usize,
    /// The most bytes that buckets had at a time in this step, and in the one before.
    most: [usize; 2],
}

impl Arenas {
    /// An arena for a bucket of so many layers: the smallest that is large enough and not twice too large, else a new one in the
    /// place of another. A bucket that is `alone`, one at a time, grows the one that there is.
    pub(super) fn take(&mut self, layers: usize, needs: &Needs, alone: bool) -> Result<Arena, Error> {
        let fits = |arena: &Arena| {
            let enough = arena.workspace.len() >= needs.workspace && arena.offered.len() >= needs.offered;
            alone || enough && arena.bytes() <= 2 * needs.lasting() as usize + SMALL
        };
        let fitting = self.free.iter().enumerate().filter(|(_, arena)| fits(arena));
        let found = fitting.min_by_key(|(_, arena)| arena.bytes()).map(|(at, _)| at);
        let mut arena = match found {
            Some(at) => self.free.swap_remove(at),
            None => {
                let Arena { sent, list, .. } = self.free.pop().unwrap_or_default();
                Arena { sent, list, ..Arena::default() }
            }
        };
        arena.reserve(layers, needs)?;
        self.lent += arena.bytes();
        self.most[0] = self.most[0].max(self.lent);
        Ok(arena)
    }

    /// Makes one that buckets with so many layers, one at a time, can take without making room.
    pub(super) fn provide(&mut self, layers: usize, needs: &Needs) -> Result<(), Error> {
        let mut arena = self.take(layers, needs, true)?;
        let provided = grow(&mut arena.scratch, needs.passing() as usize / 8);
        self.put(arena);
        provided
    }

    /// Whether no bucket has been taken back yet.
    pub(super) fn is_empty(&self) -> bool {
        self.free.is_empty()
    }

    /// An empty list of layers.
    pub(super) fn list(&mut self, layers: usize) -> Result<Vec<Kept>, Error> {
        let mut list = self.lists.pop().unwrap_or_default();
        list.try_reserve_exact(layers).map_err(|_| CoreError::OutOfMemory { words: layers })?;
        Ok(list)
    }

    /// Takes an empty list back.
    pub(super) fn put_list(&mut self, list: Vec<Kept>) {
        self.lists.push(list);
    }

    /// Takes an arena back, whose layers are no longer in it.
    pub(super) fn put(&mut self, arena: Arena) {
        self.lent = self.lent.saturating_sub(arena.bytes());
        let free: usize = self.free.iter().map(Arena::bytes).sum();
        if self.lent + free + arena.bytes() <= self.most[0].max(self.most[1]) {
            self.free.push(arena);
        }
    }

    /// The next step begins.
    pub(super) fn next_step(&mut self) {
        self.most = [self.lent, self.most[0]];
    }
}

/// Bytes that need not be saved.
const SMALL: usize = 4096;

/// The values at the beginning of words, and the words behind them.
pub(super) fn split_rest(scratch: &mut [u64], rest: usize) -> (&mut [f32], &mut [u64]) {
    let (values, words) = scratch.split_at_mut(rest.div_ceil(2));
    (&mut bytemuck::cast_slice_mut(values)[..rest], words)
}

/// The room of an empty list, for layers of another lifetime; collecting in place keeps the allocation.
pub(super) fn recycled<'b>(mut list: Vec<Layer<'_>>) -> Vec<Layer<'b>> {
    list.clear();
    list.into_iter().map(|_| unreachable!("the list is empty")).collect()
}
