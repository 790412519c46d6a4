//! Shared positions (CLT-k): the leader's by broadcast, everybody's values there in the first all-reduce.

use super::bucket::{Layer, Moment};
use super::reduce;
use super::workspace::Room;
use crate::Error;
use crate::compress::{Setting, check_finite, clt::CltK};
use crate::gradient::{Element, Shape, with_elements};
use crate::internal::clt::Positions;

/// Cuts the positions of a layer off.
fn take<'a>(positions: &mut &'a mut [u8], clt: &CltK, shape: Shape) -> &'a mut [u8] {
    let (part, rest) = core::mem::take(positions).split_at_mut(clt.positions_len(shape));
    *positions = rest;
    part
}

/// Writes the positions, on the leader; looks for what is not finite, on all.
pub(super) fn begin(layers: &[Layer<'_>], moment: Moment, room: &mut Room<'_>) -> Result<(), Error> {
    let mut positions = &mut *room.positions;
    for layer in layers {
        let Setting::CltK(clt) = layer.setting else { continue };
        let positions = take(&mut positions, &clt, layer.gradient.shape());
        if moment.place.rank == moment.leader() {
            clt.lead(&layer.gradient, room.encode, positions)?;
        } else {
            check_finite(&layer.gradient)?;
        }
    }
    Ok(())
}

/// Fills this rank's part of `room.left` with its values at the positions that the leader has handed out.
///
/// # Errors
/// [`Error::PeerMessage`] when they are not positions.
pub(super) fn fill(layers: &mut [Layer<'_>], moment: Moment, room: &mut Room<'_>) -> Result<(), Error> {
    let (mut positions, mut left) = (&mut *room.positions, &mut *room.left);
    for layer in layers {
        let mut values = reduce::take(&mut left, reduce::part_lens(layer).0).iter_mut();
        let Setting::CltK(clt) = layer.setting else { continue };
        let positions = take(&mut positions, &clt, layer.gradient.shape());
        if let Some(own) = &mut layer.own {
            own.fill(0.0);
        }
        let mut put = |at: usize, value: f32| {
            values.next().into_iter().for_each(|place| *place = value);
            if let Some(own) = &mut layer.own {
                own[at] = value;
            }
        };
        let shape = layer.gradient.shape();
        with_elements!(layer.gradient.values(), v => clt.for_each(shape, positions, |at| put(at, v[at].to_f32())))
            .map_err(|error| Error::PeerMessage { rank: moment.leader(), code: error.code() })?;
    }
    Ok(())
}

/// Writes the mean of a layer whose averaged `values` belong at the next of `positions`.
pub(super) fn scatter(
    clt: &CltK,
    layer: &mut Layer<'_>,
    positions: &mut &mut [u8],
    values: &[f32],
) -> Result<(), Error> {
    let mut values = values.iter();
    layer.mean.fill(0.0);
    let mean = &mut layer.mean;
    let positions = take(positions, clt, layer.gradient.shape());
    let mut put = |at: usize| values.next().into_iter().for_each(|&value| mean[at] = value);
    Ok(clt.for_each(layer.gradient.shape(), positions, &mut put)?)
}
