//! The layers of a bucket as an exchange takes them, borrowed from where each of their parts is.

use super::arena::{Kept, recycled};
use super::layer::LayerState;
use super::lens::{Facts, Lens};
use crate::Error;
use crate::compress::Setting;
use crate::exchange::{Input, Layer, Moment, Route, is_gathered};
use crate::feedback::{Memory, plain_values};
use crate::gradient::{Gradient, Values, ValuesMut};
use alloc::vec::Vec;

impl Facts {
    /// Of a layer on loan.
    pub(super) fn of(kept: &Kept, route: Route, measured: bool) -> Facts {
        let LayerState { choice, memory, feedback, .. } = &kept.state;
        let facts = Facts::new(choice, kept.memory().map(Memory::is_plain), route, measured);
        if !kept.withheld {
            return facts;
        }
        let scattered = route == Route::ScatterReduce && !is_gathered(&choice.setting, route);
        let repays = scattered && *feedback && memory.is_some();
        Facts { owns: repays, repays, ..facts }
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

impl<'a> Places<'a> {
    /// Cuts off the places of the first layers.
    pub(super) fn take(&mut self, lens: Lens) -> Places<'a> {
        fn take<'a>(room: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
            room.split_off_mut(..len).unwrap_or_default()
        }
        let (mean, offered) = (take(&mut self.mean, lens.mean), take(&mut self.offered, lens.offered));
        Places { mean, offered, own: take(&mut self.own, lens.own) }
    }
}

/// The layers as the exchange takes them.
pub(super) fn list_of<'a>(
    kept: &'a mut [Kept],
    mut places: Places<'a>,
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
        let (shape, dtype) = (kept.shape, kept.dtype);
        let facts @ Facts { plain, in_place, owns, .. } = Facts::of(kept, route, measured);
        let Places { mean, offered, own } = places.take(facts.lens(shape.elements()));
        let wanted = kept.spec().wanted(route, moment.rank);
        let LayerState { choice, pending, factor, .. } = &mut kept.state;
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
            own: owns.then_some(own),
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
