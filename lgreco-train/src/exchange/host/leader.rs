//! Shared positions (CLT-k): the leader broadcasts positions, and the first all-reduce sums the values of all ranks at these
//! positions.

use super::mean::{average_shares, in_tensor, narrow, share};
use super::room::Room;
use super::summed::rounded;
use super::sums;
use crate::Error;
use crate::compress::check_finite;
use crate::exchange::layer::Layer;
use crate::exchange::moment::Moment;
use crate::exchange::program::Program;
use crate::gradient::{Element, with_elements};

/// Splits off the positions of a layer.
fn take<'a>(positions: &mut &'a mut [u8], len: usize) -> &'a mut [u8] {
    let (part, rest) = core::mem::take(positions).split_at_mut(len);
    *positions = rest;
    part
}

/// On the leader, writes the positions. On the other ranks, checks that values are finite.
pub(super) fn lead(layers: &[Layer<'_>], moment: Moment, room: &mut Room<'_>) -> Result<(), Error> {
    let mut positions = &mut *room.positions;
    for layer in layers {
        let setting = layer.spec.setting;
        let Some(shared) = setting.shared_positions() else { continue };
        let positions = take(&mut positions, shared.positions_len(layer.spec.shape));
        let led = match moment.rank == moment.leader() {
            true => shared.lead(&layer.get()?, room.scratch.encode, positions),
            false => check_finite(&layer.get()?),
        };
        led.map_err(|error| Error::from(error).of_layer(layer.spec.index))?;
    }
    Ok(())
}

/// Writes this rank's values at the leader's positions to the sums.
///
/// # Errors
/// [`Error::PeerMessage`] when the positions cannot be decoded.
pub(super) fn pick(layers: &mut [Layer<'_>], program: &Program, room: &mut Room<'_>) -> Result<(), Error> {
    let moment = program.moment;
    let (mut positions, mut sums, dtype) = (&mut *room.positions, &mut *room.sums, moment.reduce_dtype);
    let share = share(moment.world_size);
    for layer in layers {
        let mut values = sums::take(&mut sums, sums::part_lens(layer, program).0).iter_mut();
        let setting = layer.spec.setting;
        let Some(shared) = setting.shared_positions() else { continue };
        let positions = take(&mut positions, shared.positions_len(layer.spec.shape));
        let shape = layer.spec.shape;
        let mut put = |value: f32| values.next().into_iter().for_each(|place| *place = value * share);
        let filled = match layer.left() {
            Some(values) => shared.for_each(shape, positions, |at| {
                let sent = rounded(values[at], dtype);
                put(sent);
                values[at] -= sent;
            }),
            None => with_elements!(layer.get()?.values(), v => shared.for_each(shape, positions, |at| {
                put(rounded(v[at].to_f32(), dtype));
            })),
        };
        filled.map_err(|error| Error::PeerMessage { rank: moment.leader(), code: error.code() })?;
    }
    Ok(())
}

/// Writes the means: the sums divided by the number of workers at the leader's positions, and zeros elsewhere.
pub(super) fn place(layers: &mut [Layer<'_>], program: &Program, room: &mut Room<'_>) -> Result<(), Error> {
    let moment = program.moment;
    let (mut positions, mut sums) = (&mut *room.positions, &mut *room.sums);
    for layer in layers {
        let values = sums::take(&mut sums, sums::part_lens(layer, program).0);
        let setting = layer.spec.setting;
        let Some(shared) = setting.shared_positions() else { continue };
        let shape = layer.spec.shape;
        let positions = take(&mut positions, shared.positions_len(shape));
        average_shares(values, moment.world_size)?;
        let mut values = values.iter();
        layer.put_rest()?;
        let wanted = layer.wanted(&moment);
        let mean = &mut layer.mean(&moment);
        mean.write(core::iter::repeat(0.0));
        let mut placed = Ok(());
        shared.for_each(shape, positions, |at| {
            if let (Some(value), true) = (values.next(), placed.is_ok() && wanted.contains(&at)) {
                placed = narrow(core::slice::from_ref(value), at - wanted.start, mean)
                    .map_err(|error| in_tensor(error, wanted.start));
            }
        })?;
        placed.map_err(|error| error.of_layer(layer.spec.index))?;
    }
    Ok(())
}
