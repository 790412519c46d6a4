//! Dense layers with shards: each rank gets the sums of its own shards.
//!
//! A shard is a range of a layer's elements, given by its end: rows of a matrix (FSDP), or the part of a layer in a range of a flat
//! buffer (ZeRO). A worker's contribution is all of its gradient, so residuals are the same as with other routes. Only the owner of
//! a shard can find an error in the shard's mean. The owner's next message reports the error to the other ranks.

use super::mean;
use super::room::Room;
use super::summed::{Wire, keep_rest, round};
use super::sums::{scale_part, take};
use crate::Error;
use crate::compress::{Setting, check_finite};
use crate::exchange::layer::Layer;
use crate::exchange::moment::Moment;
use crate::exchange::program::{Part, Program};
use crate::exchange::slip::Slip;
use core::ops::Range;

/// Fills the buffer of the reduce-scatter. For each rank, the buffer has the rank's shard of each layer, and memory for status
/// records.
pub(super) fn dense(layers: &mut [Layer<'_>], moment: Moment, room: &mut Room<'_>) -> Result<(), Error> {
    let (world, share) = (moment.world_size, mean::share(moment.world_size));
    let mut shards = &mut *room.shards;
    for rank in 0..world {
        for layer in layers.iter_mut().filter(|layer| layer.spec.setting == Setting::Dense) {
            let gradient = layer.get()?;
            let range = layer.spec.shard(rank);
            let part = take(&mut shards, range.len());
            if !scale_part(&gradient, range.start, share, part) {
                check_finite(&gradient).map_err(|error| Error::from(error).of_layer(layer.spec.index))?;
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

/// Writes this rank's status record after the shards of every rank, and records the lengths of these parts.
pub(super) fn put(slip: Slip, layers: &[Layer<'_>], program: &Program, room: &mut Room<'_>) -> Result<(), Error> {
    let wire = Wire::of(&program.moment);
    let (mut from, mut to) = (0, 0);
    for (owner, len) in (0..).zip(&mut *room.ranks.sent) {
        *len = program.part_len(Part::Shards, layers.iter().map(|layer| layer.spec), owner)? as u64;
        let values = *len as usize - program.slips();
        wire.put(room.shards, from..from + values, to, slip);
        (from, to) = (from + values + wire.slip_room(), to + *len as usize);
    }
    Ok(())
}

/// The range of this rank's values in the buffer.
fn own(layers: &[Layer<'_>], program: &Program) -> Result<Range<usize>, Error> {
    let len = |owner| program.part_len(Part::Shards, layers.iter().map(|layer| layer.spec), owner);
    let rank = program.moment.rank;
    let start = (0..rank).map(len).sum::<Result<usize, Error>>()?;
    Ok(start..start + len(rank)? - program.slips())
}

/// The status records of all ranks, which follow this rank's shards.
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
    for layer in layers.iter_mut().filter(|layer| layer.spec.setting == Setting::Dense) {
        layer.put_rest()?;
        let wanted = layer.wanted(&moment);
        let sum = take(&mut own, wanted.len());
        mean::put(sum, moment.world_size, &mut layer.mean(&moment))
            .map_err(|error| mean::in_tensor(error, wanted.start).of_layer(layer.spec.index))?;
    }
    Ok(())
}
