//! The layers of a bucket as an exchange takes them, borrowed from where each of their parts is.

use super::arena::{Kept, recycled};
use super::codes::Choice;
use super::layer::LayerState;
use super::lens::{Lens, written_over};
use crate::Error;
use crate::compress::Setting;
use crate::exchange::{Input, Layer, Moment, Route, is_gathered};
use crate::feedback::{Memory, plain_values};
use crate::gradient::{Gradient, Values, ValuesMut};
use alloc::vec::Vec;

/// Cuts the first `len` values off.
pub(super) fn take<'a>(room: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
    let (part, rest) = core::mem::take(room).split_at_mut(len);
    *room = rest;
    part
}

impl Lens {
    /// For this layer.
    pub(super) fn of(kept: &Kept, route: Route, measured: bool) -> Lens {
        let Choice { setting, uncompressed } = &kept.state.choice;
        let repays = repays(kept, route);
        let memory = kept.memory().map(Memory::is_plain);
        let mut lens = Lens::with(setting, memory, uncompressed.is_some(), route, measured);
        lens.offered = lens.offered.max(repays.into());
        lens.own = usize::from(owns(kept, route, measured));
        lens.times(kept.shape.elements())
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
        let (in_place, owned) = (is_in_place(kept, route, measured), owns(kept, route, measured));
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
    written_over(&kept.state.choice.setting, kept.memory().map(Memory::is_plain), route, measured)
}

/// Whether a layer without a gradient has a residual that takes up what compressing this rank's share of the mean loses.
pub(super) fn repays(kept: &Kept, route: Route) -> bool {
    let LayerState { choice, memory, feedback, .. } = &kept.state;
    let scattered = route == Route::ScatterReduce && !is_gathered(&choice.setting, route);
    kept.withheld && scattered && *feedback && memory.is_some()
}

/// Whether a layer's own contribution is written down.
pub(super) fn owns(kept: &Kept, route: Route, measured: bool) -> bool {
    if kept.withheld {
        return repays(kept, route);
    }
    let updates = kept.memory().is_some_and(|memory| !memory.is_plain());
    updates || measured && (kept.memory().is_some() || kept.state.choice.uncompressed.is_none())
}
