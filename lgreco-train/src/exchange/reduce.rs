//! Dense layers, PowerSGD and CLT-k: sums on the wire.

use super::bucket::{Layer, Moment};
use super::collective::Collective;
use super::leader;
use super::mean::average;
use super::workspace::Room;
use crate::compress::Setting;
use crate::compress::powersgd::{back_project, orthonormalise, project, reconstruct, start_matrix};
use crate::compress::{check_finite, powersgd::PowerSgd};
use crate::gradient::{Element, Gradient, with_elements};
use crate::rng::Stream;
use crate::{CoreError, Error};

/// Cuts the first `len` values off.
pub(super) fn take<'a>(values: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
    let (part, rest) = core::mem::take(values).split_at_mut(len);
    *values = rest;
    part
}

/// Lengths of a layer's parts of the two buffers.
pub(super) fn part_lens(layer: &Layer<'_>) -> (usize, usize) {
    let (shape, rank) = (layer.gradient.shape(), layer.rank());
    match layer.setting {
        Setting::Dense => (shape.elements(), 0),
        Setting::CltK(clt) => (clt.keep as usize, 0),
        _ => (shape.rows() * rank, shape.cols() * rank),
    }
}

/// Writes the gradient's values, widened, to `values`.
pub(super) fn widen(gradient: &Gradient<'_>, values: &mut [f32]) {
    with_elements!(gradient.values(), v => values.iter_mut().zip(v).for_each(|(to, x)| *to = x.to_f32()));
}

/// Fills the buffers with what the first all-reduce sums.
pub(super) fn begin(layers: &mut [Layer<'_>], moment: Moment, room: &mut Room<'_>) -> Result<(), Error> {
    leader::begin(layers, moment, room)?;
    let (mut left, mut right) = (&mut *room.left, &mut *room.right);
    for layer in layers {
        let (left_len, right_len) = part_lens(layer);
        let (p, q) = (take(&mut left, left_len), take(&mut right, right_len));
        match layer.setting {
            Setting::Dense => {
                check_finite(&layer.gradient)?;
                widen(&layer.gradient, p);
                if let Some(own) = &mut layer.own {
                    own.copy_from_slice(p);
                }
            }
            Setting::PowerSgd(PowerSgd { rank, .. }) => {
                warm_start(layer, moment.stream(layer.index, 0), q)?;
                project(&layer.gradient, rank, q, room.encode, p)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// The last step's factor, its columns of zeros replaced by those of the start matrix.
fn warm_start(layer: &Layer<'_>, stream: Stream, q: &mut [f32]) -> Result<(), Error> {
    let cols = layer.gradient.shape().cols();
    start_matrix(stream, cols, layer.rank() as u32, q)?;
    for (column, last) in q.chunks_exact_mut(cols.max(1)).zip(layer.factor.chunks_exact(cols.max(1))) {
        if last.iter().any(|&x| x != 0.0) {
            column.copy_from_slice(last);
        }
    }
    Ok(())
}

/// The broadcast, both all-reduces, and what comes between and after them. Fails on all ranks or on none.
pub(super) fn finish<C: Collective + ?Sized>(
    collective: &mut C,
    layers: &mut [Layer<'_>],
    moment: Moment,
    room: &mut Room<'_>,
) -> Result<(), Error> {
    let world = moment.place.world;
    if !room.positions.is_empty() {
        collective.broadcast(moment.leader(), room.positions)?;
    }
    let mut local = leader::fill(layers, moment, room);
    if local.is_err() {
        // Tells the others, in the only place they look at.
        room.left.fill(f32::NAN);
    }
    if !room.left.is_empty() {
        collective.all_reduce_sum(room.left)?;
    }
    if !room.right.is_empty() {
        local = local.and_then(|()| between(layers, room));
        if local.is_err() {
            room.right.fill(f32::NAN);
        }
        collective.all_reduce_sum(room.right)?;
    }
    local?;
    average(room.right, world)?;
    let (mut left, mut right, mut positions) = (&mut *room.left, &mut *room.right, &mut *room.positions);
    for layer in layers {
        let (left_len, right_len) = part_lens(layer);
        let (p, q) = (take(&mut left, left_len), take(&mut right, right_len));
        match layer.setting {
            Setting::Dense => {
                layer.mean.copy_from_slice(p);
                average(layer.mean, world)?;
            }
            Setting::PowerSgd(PowerSgd { rank, .. }) => reconstruct(layer.gradient.shape(), rank, p, q, layer.mean)?,
            Setting::CltK(clt) => {
                average(p, world)?;
                leader::scatter(&clt, layer, &mut positions, p)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// From summed `P` to this rank's `Q` and its own contribution.
fn between(layers: &mut [Layer<'_>], room: &mut Room<'_>) -> Result<(), Error> {
    let (mut left, mut right) = (&mut *room.left, &mut *room.right);
    for layer in layers {
        let (left_len, right_len) = part_lens(layer);
        let (p, q) = (take(&mut left, left_len), take(&mut right, right_len));
        let Setting::PowerSgd(PowerSgd { rank, .. }) = layer.setting else { continue };
        let shape = layer.gradient.shape();
        if !p.iter().all(|x| x.is_finite()) {
            return Err(Error::Core(CoreError::Overflow { what: "the sum over the workers" }));
        }
        orthonormalise(shape, rank, room.encode, p)?;
        back_project(&layer.gradient, rank, p, room.encode, q)?;
        if let Some(own) = &mut layer.own {
            reconstruct(shape, rank, p, q, own)?;
        }
    }
    Ok(())
}

/// Hands every layer its averaged `Q` for the next step.
pub(super) fn keep_factors(layers: &mut [Layer<'_>], mut right: &mut [f32]) {
    for layer in layers {
        let q = take(&mut right, part_lens(layer).1);
        layer.factor.copy_from_slice(q);
    }
}
