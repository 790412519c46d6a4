//! The layers of a bucket as an exchange takes them, borrowed from where each of their parts is.

use super::arena::{Kept, recycled};
use super::layer::LayerState;
use crate::Error;
use crate::compress::Setting;
use crate::exchange::{Input, Layer, Moment, Route, is_gathered, is_sharded};
use crate::feedback::{Memory, plain_values};
use crate::gradient::{Gradient, Values, ValuesMut};
use alloc::vec::Vec;

/// Cuts the first `len` values off.
pub(super) fn take<'a>(room: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
    let (part, rest) = core::mem::take(room).split_at_mut(len);
    *room = rest;
    part
}

/// How many values a layer has of each of the bucket's buffers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lens {
    pub mean: usize,
    pub offered: usize,
    pub own: usize,
}

impl Lens {
    pub(super) fn add(self, other: Lens) -> Lens {
        let Lens { mean, offered, own } = self;
        Lens { mean: mean + other.mean, offered: offered + other.offered, own: own + other.own }
    }

    pub(super) fn of(kept: &Kept, route: Route, measured: bool) -> Lens {
        let len = |needed: bool| if needed { kept.shape.elements() } else { 0 };
        Lens {
            mean: len(!is_in_place(kept, route, measured)),
            offered: len(kept.memory().is_some_and(|memory| !memory.is_plain())),
            own: len(owns(kept, measured)),
        }
    }
}

/// For what the layers of a bucket are borrowed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum When {
    Begin,
    Next,
    /// This rank has failed: gradients may be of any kind, and are not looked at.
    Failed,
}

/// Buffers with a place per element of the layers that need one, by [`Lens`].
pub(super) struct Places<'a> {
    pub mean: &'a mut [f32],
    pub offered: &'a mut [f32],
    pub own: &'a mut [f32],
}

/// The layers as the exchange takes them.
pub(super) fn list_of<'a>(
    kept: &'a mut [Kept],
    Places { mut mean, mut offered, mut own }: Places<'a>,
    gradients: &'a mut [ValuesMut<'_>],
    when: When,
    moment: &Moment,
    measured: bool,
    list: Vec<Layer<'static>>,
) -> Result<Vec<Layer<'a>>, Error> {
    let route = moment.route;
    let mut list = recycled(list);
    let mut gradients = gradients.iter_mut();
    for kept in kept {
        let (shape, dtype, lens) = (kept.shape, kept.dtype, Lens::of(kept, route, measured));
        let (in_place, owned) = (is_in_place(kept, route, measured), owns(kept, measured));
        let plain = kept.memory().map(Memory::is_plain);
        let wanted = kept.spec().wanted(route, moment.rank);
        let LayerState { choice, pending, factor, .. } = &mut kept.state;
        let (mean, offered, own) =
            (take(&mut mean, lens.mean), take(&mut offered, lens.offered), take(&mut own, lens.own));
        let setting = choice.setting;
        let mut layer = Layer {
            index: kept.index as u32,
            setting,
            gradient: Input::Spent { shape, dtype },
            fresh: None,
            sent: 0,
            late: None,
            shards: &kept.shards,
            mean: ValuesMut::F32(if in_place { &mut [] } else { &mut mean[..wanted.len()] }),
            own: owned.then_some(own),
            factor,
        };
        if let (Some(gradient), true) = (gradients.next(), when != When::Failed) {
            layer.gradient = match plain {
                Some(true) if !measured => Input::Compensated { values: plain_values(pending, shape), shape },
                Some(true) => Gradient::new(Values::F32(plain_values(pending, shape)), shape)?.into(),
                Some(false) => Gradient::new(Values::F32(offered), shape)?.into(),
                None => layer.gradient,
            };
            if in_place && when == When::Next {
                layer.mean = gradient.part(wanted);
            } else {
                let values = Gradient::new(gradient.values(), shape)?;
                layer.fresh = (plain.is_some() && matches!(setting, Setting::AdaComp(_))).then_some(values);
                if plain.is_none() {
                    layer.gradient = values.into();
                }
            }
        }
        list.push(layer);
    }
    Ok(list)
}

/// Whether means are written over the gradients as they arrive: nobody needs these then.
pub(super) fn is_in_place(kept: &Kept, route: Route, measured: bool) -> bool {
    let setting = &kept.state.choice.setting;
    !measured
        && !matches!(setting, Setting::AdaComp(_))
        && match kept.memory() {
            Some(memory) => memory.is_plain(),
            None => *setting == Setting::Dense || is_gathered(setting, route) || is_sharded(setting, route),
        }
}

/// Whether a layer's own contribution is written down.
pub(super) fn owns(kept: &Kept, measured: bool) -> bool {
    let updates = kept.memory().is_some_and(|memory| !memory.is_plain());
    updates || measured && (kept.memory().is_some() || kept.state.choice.uncompressed.is_none())
}
