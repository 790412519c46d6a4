//! Dense layers by shards: each rank gets the sums of its own.
//!
//! Shards are ranges of elements per layer and rank, given by where they end: rows (FSDP) are such ranges, and so is what the
//! division of a flat buffer (ZeRO) leaves of a layer. A worker contributes all of its gradient, so residuals are as
//! elsewhere. What is wrong with the mean of one shard its rank finds out alone, and tells by its next message.

use super::mean;
use super::room::Room;
use super::summed::{Wire, keep_rest, round};
use super::sums::{take, widen_part};
use crate::Error;
use crate::compress::{Setting, check_finite};
use crate::exchange::layer::Layer;
use crate::exchange::moment::Moment;
use crate::exchange::program::{Part, Program};
use crate::exchange::slip::Slip;
use core::ops::Range;

/// Fills the buffer: for each rank its shard of each layer, and room for slips.
pub(super) fn dense(layers: &mut [Layer<'_>], moment: Moment, room: &mut Room<'_>) -> Result<(), Error> {
    let (world, share) = (moment.world_size, mean::share(moment.world_size));
    let mut shards = &mut *room.shards;
    for rank in 0..world {
        for layer in layers.iter_mut().filter(|layer| layer.setting == Setting::Dense) {
            let gradient = layer.get()?;
            let range = layer.spec().shard(rank);
            let part = take(&mut shards, range.len());
            if !widen_part(&gradient, range.start, share, part) {
                check_finite(&gradient).map_err(|error| Error::from(error).of_layer(layer.index))?;
            }
            round(part, moment.reduce_dtype);
            if let Some(values) = layer.left() {
                keep_rest(&mut values[range], part, share, moment.reduce_dtype);
            }
        }
        take(&mut shards, Wire::of(&moment).slip_room());
    }
    Ok(())
}

/// Puts this rank's slip behind every shard, and writes down how long they are.
pub(super) fn put(slip: Slip, layers: &[Layer<'_>], program: &Program, room: &mut Room<'_>) -> Result<(), Error> {
    let wire = Wire::of(&program.moment);
    let (mut from, mut to) = (0, 0);
    for (owner, len) in (0..).zip(&mut *room.ranks.sent) {
        *len = program.part_len(Part::Shards, layers.iter().map(Layer::spec), owner)? as u64;
        let values = *len as usize - program.slips();
        wire.put(room.shards, from..from + values, to, slip);
        (from, to) = (from + values + wire.slip_room(), to + *len as usize);
    }
    Ok(())
}

/// Where the values of this rank's part of the buffer are.
fn own(layers: &[Layer<'_>], program: &Program) -> Result<Range<usize>, Error> {
    let len = |owner| program.part_len(Part::Shards, layers.iter().map(Layer::spec), owner);
    let rank = program.moment.rank;
    let start = (0..rank).map(len).sum::<Result<usize, Error>>()?;
    Ok(start..start + len(rank)? - program.slips())
}

/// What all ranks say of themselves behind this rank's shard.
pub(super) fn heard<'r>(
    layers: &[Layer<'_>],
    program: &Program,
    room: &'r Room<'_>,
) -> Result<impl Iterator<Item = Slip> + Clone + use<'r>, Error> {
    Ok(Wire::of(&program.moment).slips(room.shards, own(layers, program)?.end))
}

/// The means of this rank's shards.
pub(super) fn means(layers: &mut [Layer<'_>], program: &Program, room: &mut Room<'_>) -> Result<(), Error> {
    let (moment, places) = (program.moment, own(layers, program)?);
    let mut own = Wire::of(&moment).take(room.shards, places);
    for layer in layers.iter_mut().filter(|layer| layer.setting == Setting::Dense) {
        layer.put_rest()?;
        let wanted = layer.wanted(&moment);
        let sum = take(&mut own, wanted.len());
        mean::put(sum, moment.world_size, &mut layer.mean(&moment))
            .map_err(|error| mean::in_tensor(error, wanted.start).of_layer(layer.index))?;
    }
    Ok(())
}
