//! Dense layers by shards: each rank gets the sums of its own.
//!
//! Shards are ranges of elements per layer and rank, given by where they end: rows (FSDP) are such ranges, and so is what the
//! division of a flat buffer (ZeRO) leaves of a layer. A worker contributes all of its gradient, so residuals are as
//! elsewhere. What is wrong with the mean of one shard its rank finds out alone, and tells by its next message.

use super::mean;
use super::room::{Room, put_slip, slips, sum};
use super::sums::{take, widen_part};
use crate::Error;
use crate::compress::{Setting, check_finite};
use crate::exchange::layer::{Input, Layer};
use crate::exchange::moment::Moment;
use crate::exchange::program::{Part, Program};
use crate::exchange::slip::Slip;

/// Fills the buffer: for each rank its shard of each layer, and room for slips.
pub(super) fn dense(layers: &mut [Layer<'_>], moment: Moment, room: &mut Room<'_>) -> Result<(), Error> {
    let world = moment.world_size;
    let mut shards = &mut *room.shards;
    for rank in 0..world {
        for layer in layers.iter_mut().filter(|layer| layer.setting == Setting::Dense) {
            let gradient = layer.gradient.get()?;
            let range = layer.spec().shard(rank);
            let part = take(&mut shards, range.len());
            if !widen_part(&gradient, range.start, part) {
                check_finite(&gradient)?;
            }
            if let Some(own) = &mut layer.own {
                own[range].copy_from_slice(part);
            }
        }
        take(&mut shards, world as usize);
    }
    for layer in layers.iter_mut().filter(|layer| layer.setting == Setting::Dense) {
        if let Input::Compensated { values, .. } = &mut layer.gradient {
            values.fill(0.0);
        }
    }
    Ok(())
}

/// Puts this rank's slip behind every shard, and writes down how long they are.
pub(super) fn put(slip: Slip, layers: &[Layer<'_>], program: &Program, room: &mut Room<'_>) -> Result<(), Error> {
    let (rank, world) = (program.moment.rank, program.layout.world);
    let mut shards = &mut *room.shards;
    for (owner, len) in (0..).zip(&mut *room.ranks.lens) {
        *len = program.part_len(Part::Shards, layers.iter().map(Layer::spec), owner)? as u64;
        put_slip(take(&mut shards, *len as usize), *len as usize - world, rank, slip);
    }
    Ok(())
}

/// This rank's part of the buffer.
fn own<'r>(moment: Moment, room: &'r mut Room<'_>) -> &'r mut [f32] {
    let (before, rest) = room.ranks.lens.split_at(moment.rank as usize);
    &mut room.shards[sum(before)..][..rest[0] as usize]
}

/// What all ranks say of themselves behind this rank's shard.
pub(super) fn heard<'r>(moment: Moment, room: &'r mut Room<'_>) -> impl Iterator<Item = Slip> + Clone + 'r {
    let own = own(moment, room);
    slips(own, own.len() - moment.world_size as usize)
}

/// The means of this rank's shards.
pub(super) fn means(layers: &mut [Layer<'_>], moment: Moment, room: &mut Room<'_>) -> Result<(), Error> {
    let mut own = own(moment, room);
    for layer in layers.iter_mut().filter(|layer| layer.setting == Setting::Dense) {
        let sum = take(&mut own, layer.mean.values().len());
        let start = layer.spec().shard(moment.rank).start;
        mean::put(sum, moment.world_size, &mut layer.mean).map_err(|error| mean::in_tensor(error, start))?;
    }
    Ok(())
}
