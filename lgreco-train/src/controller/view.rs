//! The layers of a bucket as an exchange takes them, borrowed from where each of their parts is.

use super::arena::{Kept, recycled};
use super::layer::LayerState;
use super::layer_plan::{LayerPlan, Left};
use crate::Error;
use crate::exchange::{Layer, Rest};
use crate::feedback::plain_values;
use crate::gradient::{Dtype, ValuesMut};
use alloc::vec::Vec;

/// Buffers with a place per element of the layers that need one: see [`LayerPlan::offered`] and [`LayerPlan::rest`].
pub(super) struct Places<'a> {
    pub offered: &'a mut [f32],
    /// Empty until means take the place of values.
    pub rest: &'a mut [f32],
}

impl<'a> Places<'a> {
    /// Cuts off the places of the next layer.
    pub(super) fn take(&mut self, plan: &LayerPlan) -> Places<'a> {
        fn take<'a>(room: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
            room.split_off_mut(..len).unwrap_or_default()
        }
        Places { offered: take(&mut self.offered, plan.offered()), rest: take(&mut self.rest, plan.rest()) }
    }
}

/// The layers as the exchange takes them. Without gradients, on a rank that has failed, nothing is in their place. `late` is what
/// has been found wrong with what is left of some.
pub(super) fn list_of<'a>(
    kept: &'a mut [Kept],
    mut places: Places<'a>,
    gradients: &'a mut [ValuesMut<'_>],
    late: Option<Error>,
    list: Vec<Layer<'static>>,
) -> Vec<Layer<'a>> {
    let mut list = recycled(list);
    let mut gradients = gradients.iter_mut();
    for kept in kept {
        let Places { offered, rest } = places.take(&kept.plan);
        let LayerPlan { index, setting, shape, dtype, left, .. } = kept.plan;
        let LayerState { memory, keeps_undo, pending, factor, .. } = &mut kept.state;
        let rest = match left {
            Left::Nowhere => Rest::Dropped,
            Left::Norm => Rest::Measured(&mut kept.norms[1]),
            Left::InPlace => match memory {
                Some(memory) if !*keeps_undo => Rest::Replacing(memory.plain_mut()),
                _ => Rest::Beside(plain_values(pending, shape)),
            },
            Left::Beside => Rest::Beside(rest),
            Left::Instead => Rest::Instead(offered),
        };
        let values = match (gradients.next(), dtype) {
            (Some(gradient), _) => gradient.reborrow(),
            (None, Dtype::F32) => ValuesMut::F32(&mut []),
            (None, Dtype::F16) => ValuesMut::F16(&mut []),
            (None, Dtype::Bf16) => ValuesMut::Bf16(&mut []),
        };
        let layer = Layer::new(index as u32, setting, shape, values, rest);
        list.push(Layer { shards: &kept.shards, factor, late, ..layer });
    }
    list
}

/// No gradients, where a rank has failed and they may be of any kind.
pub(super) fn unless_failed<'g, 'v>(
    failure: Option<Error>,
    gradients: &'g mut [ValuesMut<'v>],
) -> &'g mut [ValuesMut<'v>] {
    if failure.is_some() { &mut [] } else { gradients }
}
