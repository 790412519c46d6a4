//! The buffers of one bucket's exchange: their sizes, their memory, and a pool of buffers that no bucket uses at the moment.

use super::buffers::grow;
use super::layer_plan::StepPlan;
use super::lent_layer::{LentLayer, Places};
use crate::exchange::{Host, Layer, Layout, Moment, Spec};
use crate::gradient::{Dtype, ValuesMut};
use crate::{CoreError, Error};
use alloc::vec::Vec;

/// Sizes of the buffers that a bucket's layers need.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Needs {
    /// Number of f32 values for compressors' inputs that are stored outside of the gradients, during the whole exchange.
    pub offered: usize,
    /// Number of f32 values for compression errors, while means replace the gradients.
    pub rest: usize,
    /// Number of words of memory that keeps its contents between calls.
    pub workspace: usize,
    /// Scratch words of a call that compresses.
    pub compressing: usize,
    /// Scratch words of the call that makes means, besides `rest`.
    pub averaging: usize,
}

impl Needs {
    /// The sizes that these layers need together. `specs` have the element types of the gradients.
    pub(super) fn of<'a>(
        specs: impl Iterator<Item = Spec<'a>> + Clone,
        steps: impl Iterator<Item = StepPlan> + Clone,
        moment: &Moment,
    ) -> Result<Needs, Error> {
        let narrow = Layout::of(specs.clone(), moment)?;
        // The sum of gradient and residual is f32.
        let wide = Layout::of(specs.map(|spec| Spec { dtype: Dtype::F32, ..spec }), moment)?;
        Ok(Needs {
            offered: steps.clone().map(|step| step.offered_len).sum(),
            rest: steps.map(|step| step.rest_len).sum(),
            workspace: narrow.words().max(wide.words()),
            compressing: narrow.scratch_words().max(wide.scratch_words()),
            averaging: narrow.averaging_words().max(wide.averaging_words()),
        })
    }

    /// For each buffer, the larger of the two buckets' sizes, so that an arena is large enough for either bucket.
    pub(super) fn max(self, other: Needs) -> Needs {
        Needs {
            offered: self.offered.max(other.offered),
            rest: self.rest.max(other.rest),
            workspace: self.workspace.max(other.workspace),
            compressing: self.compressing.max(other.compressing),
            averaging: self.averaging.max(other.averaging),
        }
    }

    /// Bytes that a bucket holds during its whole exchange.
    pub(super) const fn lasting(&self) -> u64 {
        (self.workspace as u64).saturating_mul(8).saturating_add(4 * self.offered as u64)
    }

    /// Scratch bytes of the call that needs the most scratch memory.
    pub(super) fn passing(&self) -> u64 {
        // An outside method may state any workspace length, so the sum saturates.
        let words = self.compressing.max(self.averaging.saturating_add(self.rest.div_ceil(2)));
        (words as u64).saturating_mul(8)
    }
}

/// The layers of a bucket, and all memory of its exchange except the gradients.
#[derive(Default)]
pub(super) struct Arena {
    pub layers: Vec<LentLayer>,
    /// The compressors' inputs that are stored outside of the gradients; see [`StepPlan::offered_len`].
    pub offered: Vec<f32>,
    /// Bytes of this rank's payloads, by layer of the bucket.
    sent: Vec<u64>,
    /// Memory that keeps its contents between calls.
    pub workspace: Vec<u64>,
    /// Memory that is used within a single call. In the call that replaces gradients by means, this memory begins with the layers'
    /// compression errors.
    pub scratch: Vec<u64>,
    /// Empty between calls; see [`recycled`].
    list: Vec<Layer<'static>>,
}

impl Arena {
    /// Calls `work`, a part of an exchange, with the layers, their gradients and all buffers. `gradients` is empty if this rank has
    /// failed. `late` is an error of a residual that an earlier call has found. Returns the result of `work`, and an error of a
    /// residual: `late` or, without one, the first error that `work` finds. The first `rest` values of the scratch memory are
    /// compression errors.
    pub(super) fn exchange<T>(
        &mut self,
        gradients: &mut [ValuesMut<'_>],
        late: Option<Error>,
        rest: usize,
        work: impl FnOnce(&mut Host<'_, '_>) -> T,
    ) -> (T, Option<Error>) {
        let Arena { layers, offered, sent, workspace, scratch, list } = self;
        let (rest, scratch) = split_rest(scratch, rest);
        let mut places = Places { offered, rest };
        let mut gradients = gradients.iter_mut();
        let mut lent = recycled(core::mem::take(list));
        for (layer, &sent) in layers.iter_mut().zip(&*sent) {
            let places = places.take(&layer.step);
            lent.push(layer.for_exchange(places, gradients.next(), sent, late));
        }
        let result = work(&mut Host { layers: &mut lent, workspace, scratch: Some(scratch) });
        let mut found = late;
        for (to, layer) in sent.iter_mut().zip(&lent) {
            (*to, found) = (layer.sent, found.or(layer.late));
        }
        *list = recycled(lent);
        (result, found)
    }

    /// Stores compression errors as residuals, after an exchange. Returns the bytes that this rank has sent. `rest` is the same
    /// number as for [`exchange`](Arena::exchange).
    pub(super) fn remember(&mut self, rest: usize, moment: &Moment, late: &mut Option<Error>) -> u64 {
        let Arena { layers, offered, scratch, sent, .. } = self;
        let mut places = Places { offered, rest: split_rest(scratch, rest).0 };
        let mut bytes = 0;
        for (layer, &sent) in layers.iter_mut().zip(&*sent) {
            bytes += layer.remember(places.take(&layer.step), sent, moment, late);
        }
        bytes
    }

    /// Number of f32 values of compression errors, over all layers, that need scratch memory while means replace gradients.
    pub(super) fn rest(&self) -> usize {
        self.layers.iter().map(|layer| layer.step.rest_len).sum()
    }

    /// Grows all buffers to the sizes that a bucket of `layers` layers needs.
    fn reserve(&mut self, layers: usize, needs: &Needs) -> Result<(), Error> {
        grow(&mut self.offered, needs.offered)?;
        grow(&mut self.sent, layers)?;
        self.sent.fill(0);
        grow(&mut self.workspace, needs.workspace)?;
        let more = |len: usize| layers.saturating_sub(len);
        Ok(self.list.try_reserve(more(self.list.len())).map_err(|_| CoreError::OutOfMemory { words: layers })?)
    }

    /// Bytes of the buffers whose size depends on the gradients.
    fn bytes(&self) -> usize {
        8 * self.workspace.len() + 4 * self.offered.len()
    }
}

/// A pool of the arenas that no bucket uses. Free and lent arenas together take no more memory than the buckets of one step used at
/// the same time. So memory is linear in the model's size for any sizes of buckets.
#[derive(Default)]
pub(super) struct Arenas {
    free: Vec<Arena>,
    /// Empty lists, kept for their allocations.
    lists: Vec<Vec<LentLayer>>,
    /// Bytes of the arenas that buckets use.
    lent: usize,
    /// Largest number of bytes that buckets used at the same time, in this step and in the step before.
    most: [usize; 2],
}

impl Arenas {
    /// Takes an arena for a bucket of `layers` layers: the smallest free one that is large enough, but not more than about twice as
    /// large as needed. If no free arena fits, a new one replaces a free one. If buckets are exchanged one at a time (`alone`), all
    /// use the same arena, which grows.
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

    /// Prepares an arena that buckets of up to `layers` layers can use, one at a time, without allocating.
    pub(super) fn provide(&mut self, layers: usize, needs: &Needs) -> Result<(), Error> {
        let mut arena = self.take(layers, needs, true)?;
        let provided = grow(&mut arena.scratch, needs.passing() as usize / 8);
        self.put(arena);
        provided
    }

    /// Whether no arena is free.
    pub(super) fn is_empty(&self) -> bool {
        self.free.is_empty()
    }

    /// An empty list of layers.
    pub(super) fn list(&mut self, layers: usize) -> Result<Vec<LentLayer>, Error> {
        let mut list = self.lists.pop().unwrap_or_default();
        list.try_reserve_exact(layers).map_err(|_| CoreError::OutOfMemory { words: layers })?;
        Ok(list)
    }

    /// Takes an empty list of layers back.
    pub(super) fn put_list(&mut self, list: Vec<LentLayer>) {
        self.lists.push(list);
    }

    /// Takes back an arena from which the layers have been removed, or frees its memory if the pool is full.
    pub(super) fn put(&mut self, arena: Arena) {
        self.lent = self.lent.saturating_sub(arena.bytes());
        let free: usize = self.free.iter().map(Arena::bytes).sum();
        if self.lent + free + arena.bytes() <= self.most[0].max(self.most[1]) {
            self.free.push(arena);
        }
    }

    /// Begins the next step.
    pub(super) fn next_step(&mut self) {
        self.most = [self.lent, self.most[0]];
    }
}

/// An arena fits a bucket if it is not larger than twice the bucket's needs plus this number of bytes.
const SMALL: usize = 4096;

/// Splits scratch memory into its first `rest` values and the remaining words.
fn split_rest(scratch: &mut [u64], rest: usize) -> (&mut [f32], &mut [u64]) {
    let (values, words) = scratch.split_at_mut(rest.div_ceil(2));
    (&mut bytemuck::cast_slice_mut(values)[..rest], words)
}

/// Returns an empty list that reuses the allocation of `list`, so that steps allocate nothing.
///
/// An exchange takes its layers as a slice of `Layer<'b>`. Each `Layer` borrows a gradient for a single call, so each call fills a
/// new list. The arena cannot keep a list with the lifetime of a call, so it keeps an empty `Vec<Layer<'static>>`. An empty vector
/// can be converted to elements of any lifetime: `into_iter`, `map` and `collect` give the same allocation another type, because
/// the standard library collects in place if the element types have the same size. The conversion needs no unsafe code. With a
/// standard library that does not collect in place, the conversion would allocate, and the tests of allocations in
/// `lgreco-train/tests` would fail.
fn recycled<'b>(mut list: Vec<Layer<'_>>) -> Vec<Layer<'b>> {
    list.clear();
    list.into_iter().map(|_| unreachable!("the list is empty")).collect()
}
