//! Dense layers and PowerSGD: sums on the wire.

use super::mean::{self, average};
use super::room::Room;
use crate::compress::Setting;
use crate::compress::powersgd::{
    back_project, orthonormalise, project, reconstruct, reconstruct_rows, start_matrix, take_off,
};
use crate::compress::{check_finite, powersgd::PowerSgd};
use crate::exchange::layer::{Input, Layer};
use crate::exchange::layout::ROWS;
use crate::exchange::moment::Moment;
use crate::gradient::{Element, Gradient, with_elements};
use crate::rng::Stream;
use crate::{CoreError, Error};

/// Cuts the first `len` values off.
pub(super) fn take<'a>(values: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
    let (part, rest) = core::mem::take(values).split_at_mut(len);
    *values = rest;
    part
}

/// Whether it is dense, and everybody gets all of it.
fn is_summed(layer: &Layer<'_>) -> bool {
    layer.setting == Setting::Dense && layer.shards.is_empty()
}

/// Lengths of a layer's parts of the two buffers; by shards, dense layers have a buffer of their own.
pub(super) fn part_lens(layer: &Layer<'_>) -> (usize, usize) {
    let (shape, rank) = (layer.gradient.shape(), layer.rank());
    match layer.setting {
        Setting::Dense if is_summed(layer) => (shape.elements(), 0),
        Setting::Dense => (0, 0),
        Setting::CltK(clt) => (clt.keep as usize, 0),
        _ => (shape.rows() * rank, shape.cols() * rank),
    }
}

/// Writes the gradient's values, widened, to `values`.
pub(super) fn widen(gradient: &Gradient<'_>, values: &mut [f32]) {
    widen_part(gradient, 0, values);
}

/// The same from element `from` on.
pub(super) fn widen_part(gradient: &Gradient<'_>, from: usize, values: &mut [f32]) {
    with_elements!(gradient.values(), v => values.iter_mut().zip(&v[from..]).for_each(|(to, x)| *to = x.to_f32()));
}

/// Fills the sums with the values of dense layers.
pub(super) fn dense(layers: &mut [Layer<'_>], room: &mut Room<'_>) -> Result<(), Error> {
    let mut sums = &mut *room.sums;
    for layer in layers {
        let sum = take(&mut sums, part_lens(layer).0);
        if !is_summed(layer) {
            continue;
        }
        let gradient = layer.gradient.get()?;
        check_finite(&gradient)?;
        widen(&gradient, sum);
        if let Some(own) = &mut layer.own {
            own.copy_from_slice(sum);
        }
        if let Input::Compensated { values, .. } = &mut layer.gradient {
            values.fill(0.0);
        }
    }
    Ok(())
}

/// The means of dense layers.
pub(super) fn dense_means(layers: &mut [Layer<'_>], world: u32, room: &mut Room<'_>) -> Result<(), Error> {
    let mut sums = &mut *room.sums;
    for layer in layers {
        let sum = take(&mut sums, part_lens(layer).0);
        if is_summed(layer) {
            mean::put(sum, world, &mut layer.mean)?;
        }
    }
    Ok(())
}

/// Calls `visit` with each layer of PowerSGD, its rank and its parts of both buffers.
fn for_each_product<'r>(
    layers: &mut [Layer<'_>],
    mut sums: &'r mut [f32],
    mut factors: &'r mut [f32],
    mut visit: impl FnMut(&mut Layer<'_>, u32, &'r mut [f32], &'r mut [f32]) -> Result<(), Error>,
) -> Result<(), Error> {
    for layer in layers {
        let (p, q) = part_lens(layer);
        let (p, q) = (take(&mut sums, p), take(&mut factors, q));
        if let Setting::PowerSgd(PowerSgd { rank, .. }) = layer.setting {
            visit(layer, rank, p, q)?;
        }
    }
    Ok(())
}

/// From the last step's `Q` to this rank's `P`.
pub(super) fn start(layers: &mut [Layer<'_>], moment: Moment, room: &mut Room<'_>) -> Result<(), Error> {
    let Room { sums, factors, encode, .. } = room;
    for_each_product(layers, sums, factors, |layer, rank, p, q| {
        warm_start(layer, moment.stream(layer.index, 0), q)?;
        Ok(project(&layer.gradient.get()?, rank, q, encode, p)?)
    })
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

/// From summed `P` to this rank's `Q` and its own contribution.
pub(super) fn between(layers: &mut [Layer<'_>], room: &mut Room<'_>) -> Result<(), Error> {
    let Room { sums, factors, encode, .. } = room;
    for_each_product(layers, sums, factors, |layer, rank, p, q| {
        let shape = layer.gradient.shape();
        if !p.iter().all(|x| x.is_finite()) {
            return Err(Error::Core(CoreError::Overflow { what: "the sum over the workers" }));
        }
        orthonormalise(shape, rank, encode, p)?;
        back_project(&layer.gradient.get()?, rank, p, encode, q)?;
        if let Some(own) = &mut layer.own {
            reconstruct(shape, rank, p, q, own)?;
        }
        if let Input::Compensated { values, .. } = &mut layer.gradient {
            layer.late = take_off(shape, rank, p, q, values).err().map(Error::from);
        }
        Ok(())
    })
}

/// Averages `Q`.
pub(super) fn average_factors(layers: &mut [Layer<'_>], world: u32, room: &mut Room<'_>) -> Result<(), Error> {
    for_each_product(layers, room.sums, room.factors, |_, _, _, q| average(q, world))
}

/// From `P` and `Q` to means.
pub(super) fn products(layers: &mut [Layer<'_>], moment: Moment, room: &mut Room<'_>) -> Result<(), Error> {
    let Room { sums, factors, decoded, .. } = room;
    for_each_product(layers, sums, factors, |layer, rank, p, q| {
        let (shape, cols) = (layer.gradient.shape(), layer.gradient.shape().cols());
        let wanted = layer.spec().wanted(moment.route, moment.rank);
        if let (Some(mean), true) = (layer.mean.as_f32(), wanted.len() == shape.elements()) {
            return Ok(reconstruct(shape, rank, p, q, mean)?);
        }
        // Some rows at a time, of which a shard may want parts.
        let mut at = wanted.start;
        while at < wanted.end {
            let rows = at / cols..wanted.end.div_ceil(cols).min(at / cols + ROWS);
            let made = &mut decoded[..rows.len() * cols];
            reconstruct_rows(shape, rank, p, q, rows.clone(), made)?;
            let end = wanted.end.min(rows.end * cols);
            let made = &made[at - rows.start * cols..end - rows.start * cols];
            mean::narrow(made, at - wanted.start, &mut layer.mean)
                .map_err(|error| mean::in_tensor(error, wanted.start))?;
            at = end;
        }
        Ok(())
    })
}

/// Hands every layer its averaged `Q` for the next step.
pub(super) fn remember(layers: &mut [Layer<'_>], room: &mut Room<'_>) -> Result<(), Error> {
    for_each_product(layers, room.sums, room.factors, |layer, _, _, q| {
        layer.factor.copy_from_slice(q);
        Ok(())
    })
}
