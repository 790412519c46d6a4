//! Dense layers and PowerSGD: sums on the wire.

use super::bucket::{Layer, Moment, Room};
use super::collective::{Collective, Place};
use super::mean::average;
use crate::Error;
use crate::compress::Setting;
use crate::compress::powersgd::{back_project, orthonormalise, project, reconstruct, start_matrix};
use crate::compress::{check_finite, powersgd::PowerSgd};
use crate::gradient::{Element, Gradient, with_elements};
use crate::rng::Stream;

/// Cuts the first `len` values off.
fn take<'a>(values: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
    let (part, rest) = core::mem::take(values).split_at_mut(len);
    *values = rest;
    part
}

/// Lengths of a layer's parts of the two buffers.
fn part_lens(layer: &Layer<'_>) -> (usize, usize) {
    let (shape, rank) = (layer.gradient.shape(), layer.rank());
    match layer.setting {
        Setting::Dense => (shape.elements(), 0),
        _ => (shape.rows() * rank, shape.cols() * rank),
    }
}

/// Writes the gradient's values, widened, to `values`.
pub(super) fn widen(gradient: &Gradient<'_>, values: &mut [f32]) {
    with_elements!(gradient.values(), v => values.iter_mut().zip(v).for_each(|(to, x)| *to = x.to_f32()));
}

/// Fills the buffers with what the first all-reduce sums.
pub(super) fn begin(layers: &mut [Layer<'_>], moment: Moment, room: &mut Room<'_>) -> Result<(), Error> {
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
            Setting::Qsgd(_) | Setting::TopK(_) => {}
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

/// Both all-reduces and what comes between and after them. Fails on all ranks or on none.
pub(super) fn finish<C: Collective + ?Sized>(
    collective: &mut C,
    layers: &mut [Layer<'_>],
    place: Place,
    room: &mut Room<'_>,
) -> Result<(), Error> {
    if !room.left.is_empty() {
        collective.all_reduce_sum(room.left)?;
    }
    if !room.right.is_empty() {
        let local = between(layers, room);
        if local.is_err() {
            // Tells the others, in the only place they look at.
            room.right.fill(f32::NAN);
        }
        collective.all_reduce_sum(room.right)?;
        local?;
        average(room.right, place.world)?;
    }
    let (mut left, mut right) = (&mut *room.left, &mut *room.right);
    for layer in layers {
        let (left_len, right_len) = part_lens(layer);
        let (p, q) = (take(&mut left, left_len), take(&mut right, right_len));
        match layer.setting {
            Setting::Dense => {
                layer.mean.copy_from_slice(p);
                average(layer.mean, place.world)?;
            }
            Setting::PowerSgd(PowerSgd { rank, .. }) => reconstruct(layer.gradient.shape(), rank, p, q, layer.mean)?,
            Setting::Qsgd(_) | Setting::TopK(_) => {}
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
            return Err(Error::Overflow { what: "the sum over the workers" });
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
