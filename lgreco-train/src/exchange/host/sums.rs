//! Dense layers and PowerSGD: collectives sum their values and factors.

use super::lanes::{Parts, Scratch, side_by_side};
use super::mean::{self, average, average_shares, to_shares};
use super::room::Room;
use super::summed::{keep_rest, round};
use crate::compress::Setting;
use crate::compress::powersgd::{
    back_project, orthonormalise, project, reconstruct, reconstruct_rows, start_matrix, take_off,
};
use crate::compress::{check_finite, powersgd::PowerSgd};
use crate::exchange::layer::Layer;
use crate::exchange::layout::ROWS;
use crate::exchange::program::Program;
use crate::feedback::is_finite;
use crate::gradient::{Element, Gradient, with_elements};
use crate::rng::Stream;
use crate::{CoreError, Error};
use lgreco::compress::spread::spread_parts;

/// Splits off the first `len` values of a buffer.
pub(super) fn take<'a>(values: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
    let (part, rest) = core::mem::take(values).split_at_mut(len);
    *values = rest;
    part
}

/// Whether a layer is dense, and all ranks get its whole mean.
fn is_summed(layer: &Layer<'_>) -> bool {
    layer.spec.setting == Setting::Dense && layer.spec.shards.is_empty()
}

/// Lengths of a layer's parts in the two buffers, sums and factors. With shards, dense layers use another buffer.
pub(super) fn part_lens(layer: &Layer<'_>, program: &Program) -> (usize, usize) {
    let (shape, rank) = (layer.spec.shape, layer.rank());
    match layer.spec.setting {
        Setting::Dense if is_summed(layer) && !program.is_in_place(&layer.spec) => (shape.elements(), 0),
        Setting::Dense => (0, 0),
        setting => match setting.shared_positions() {
            Some(shared) => (shared.keep as usize, 0),
            None => (shape.rows() * rank, shape.cols() * rank),
        },
    }
}

/// Writes the gradient's values from element `from` on to `values`, multiplied by `times` in f32 and rounded to the
/// type of `values`. Returns whether the products were finite before they were rounded.
pub(crate) fn scale_part<U: Element>(gradient: &Gradient<'_>, from: usize, times: f32, values: &mut [U]) -> bool {
    #[inline(always)]
    fn run<T: Element, U: Element>((from, to): (&[T], &mut [U]), times: f32) -> bool {
        let mut largest = 0;
        for (to, x) in to.iter_mut().zip(from) {
            let product = x.to_f32() * times;
            *to = U::from_f32(product);
            largest = largest.max(product.to_bits() & 0x7fff_ffff);
        }
        f32::from_bits(largest).is_finite()
    }
    with_elements!(gradient.values(), v => spread_parts!(values.len(), 1, (&v[from..][..values.len()], values), times, run))
}

/// The parts of some layers in the buffers of sums and factors.
struct Sums<'r> {
    program: &'r Program,
    sums: &'r mut [f32],
    factors: &'r mut [f32],
}

impl<'r> Sums<'r> {
    /// Splits off the parts of the next layer.
    fn take(&mut self, layer: &Layer<'_>) -> (&'r mut [f32], &'r mut [f32]) {
        let (sums, factors) = part_lens(layer, self.program);
        (take(&mut self.sums, sums), take(&mut self.factors, factors))
    }
}

impl Parts for Sums<'_> {
    fn split(self, first: &[Layer<'_>]) -> Result<(Self, Self), Error> {
        let program = self.program;
        let lens = first.iter().map(|layer| part_lens(layer, program));
        let lens = lens.fold((0, 0), |(p, q), (sums, factors)| (p + sums, q + factors));
        let ((sums, other_sums), (factors, others)) =
            (self.sums.split_at_mut(lens.0), self.factors.split_at_mut(lens.1));
        Ok((Sums { program, sums, factors }, Sums { program, sums: other_sums, factors: others }))
    }
}

/// Calls `visit` with each layer, its parts of the buffers of sums and factors, and scratch memory. Errors name the layer.
fn for_each(
    layers: &mut [Layer<'_>],
    program: &Program,
    room: &mut Room<'_>,
    visit: impl Fn(&mut Layer<'_>, &mut [f32], &mut [f32], &mut Scratch<'_>) -> Result<(), Error> + Sync,
) -> Result<(), Error> {
    let sums = Sums { program, sums: room.sums, factors: room.factors };
    side_by_side(layers, &program.layout, &mut room.scratch, sums, |layers, mut sums, scratch| {
        layers.iter_mut().try_for_each(|layer| {
            let (p, q) = sums.take(layer);
            visit(layer, p, q, scratch).map_err(|error| error.of_layer(layer.spec.index))
        })
    })
}

/// Like [`for_each`], for dense layers.
fn for_each_dense(
    layers: &mut [Layer<'_>],
    program: &Program,
    room: &mut Room<'_>,
    visit: impl Fn(&mut Layer<'_>, &mut [f32]) -> Result<(), Error> + Sync,
) -> Result<(), Error> {
    for_each(layers, program, room, |layer, sum, _, _| if is_summed(layer) { visit(layer, sum) } else { Ok(()) })
}

/// Like [`for_each`], for layers under PowerSGD. `visit` also gets the rank of the factors.
fn for_each_product(
    layers: &mut [Layer<'_>],
    program: &Program,
    room: &mut Room<'_>,
    visit: impl Fn(&mut Layer<'_>, u32, &mut [f32], &mut [f32], &mut Scratch<'_>) -> Result<(), Error> + Sync,
) -> Result<(), Error> {
    for_each(layers, program, room, |layer, p, q, scratch| match layer.spec.setting {
        Setting::PowerSgd(PowerSgd { rank, .. }) => visit(layer, rank, p, q, scratch),
        _ => Ok(()),
    })
}

/// Writes the [shares](mean::share) of dense layers to the sums.
pub(super) fn dense(layers: &mut [Layer<'_>], program: &Program, room: &mut Room<'_>) -> Result<(), Error> {
    for_each_dense(layers, program, room, |layer, sum| {
        if program.is_in_place(&layer.spec) {
            return share_in_place(layer, program.moment.world_size);
        }
        let (gradient, share) = (layer.get()?, mean::share(program.moment.world_size));
        if !scale_part(&gradient, 0, share, sum) {
            check_finite(&gradient)?;
        }
        round(sum, program.moment.reduce_dtype);
        if let Some(values) = layer.left() {
            keep_rest(values, sum, share, program.moment.reduce_dtype);
        }
        Ok(())
    })
}

/// Turns values into shares, in place.
///
/// # Errors
/// [`CoreError::NonFinite`]. After this error, the values are unchanged.
fn share_in_place(layer: &mut Layer<'_>, world: u32) -> Result<(), Error> {
    if let Some(values) = layer.values.as_f32()
        && !is_finite(values)
    {
        check_finite(&layer.get()?)?;
    }
    layer.values.as_f32().into_iter().for_each(|values| to_shares(values, world));
    Ok(())
}

/// Writes the means of dense layers.
pub(super) fn dense_means(layers: &mut [Layer<'_>], program: &Program, room: &mut Room<'_>) -> Result<(), Error> {
    let world = program.moment.world_size;
    for_each_dense(layers, program, room, |layer, sum| {
        if program.is_in_place(&layer.spec) {
            layer.put_nothing()?;
            return match layer.values.as_f32() {
                // If the number of workers is a power of two, the sums of shares are already the means.
                Some(sums) if !world.is_power_of_two() => average_shares(sums, world),
                _ => Ok(()),
            };
        }
        layer.put_rest()?;
        mean::put(sum, world, &mut layer.values)
    })
}

/// Computes this rank's `P` from the last step's `Q`.
pub(super) fn start(layers: &mut [Layer<'_>], program: &Program, room: &mut Room<'_>) -> Result<(), Error> {
    for_each_product(layers, program, room, |layer, rank, p, q, scratch| {
        warm_start(layer, program.moment.stream(layer.spec.index, 0), q)?;
        Ok(project(&layer.get()?, rank, q, scratch.encode, p)?)
    })
}

/// Writes the last step's factor to `q`, with columns of the random start matrix in place of columns of zeros.
fn warm_start(layer: &Layer<'_>, stream: Stream, q: &mut [f32]) -> Result<(), Error> {
    let cols = layer.spec.shape.cols();
    start_matrix(stream, cols, layer.rank() as u32, q)?;
    for (column, last) in q.chunks_exact_mut(cols.max(1)).zip(layer.factor.chunks_exact(cols.max(1))) {
        if last.iter().any(|&x| x != 0.0) {
            column.copy_from_slice(last);
        }
    }
    Ok(())
}

/// Computes this rank's `Q` from the summed `P`, and subtracts the rank's contribution.
pub(super) fn between(layers: &mut [Layer<'_>], program: &Program, room: &mut Room<'_>) -> Result<(), Error> {
    for_each_product(layers, program, room, |layer, rank, p, q, scratch| {
        let shape = layer.spec.shape;
        CoreError::require_finite(p.iter().all(|x| x.is_finite()), "the sum over the workers")?;
        orthonormalise(shape, rank, scratch.encode, p)?;
        back_project(&layer.get()?, rank, p, scratch.encode, q)?;
        round(q, program.moment.reduce_dtype);
        if let Some(values) = layer.left() {
            let taken =
                take_off(shape, rank, p, q, values).map_err(|error| Error::from(error).of_layer(layer.spec.index));
            layer.late = layer.late.or(taken.err());
        }
        Ok(())
    })
}

/// Averages `Q`.
pub(super) fn average_factors(layers: &mut [Layer<'_>], program: &Program, room: &mut Room<'_>) -> Result<(), Error> {
    for_each_product(layers, program, room, |_, _, _, q, _| average(q, program.moment.world_size))
}

/// Computes the means from `P` and `Q`.
pub(super) fn products(layers: &mut [Layer<'_>], program: &Program, room: &mut Room<'_>) -> Result<(), Error> {
    let moment = program.moment;
    for_each_product(layers, program, room, |layer, rank, p, q, scratch| {
        let (shape, cols) = (layer.spec.shape, layer.spec.shape.cols());
        layer.put_rest()?;
        let wanted = layer.wanted(&moment);
        if let (Some(mean), true) = (layer.values.as_f32(), wanted.len() == shape.elements()) {
            return Ok(reconstruct(shape, rank, p, q, mean)?);
        }
        // Computes a few rows at a time, of which a shard may need only a part.
        let mut at = wanted.start;
        while at < wanted.end {
            let rows = at / cols..wanted.end.div_ceil(cols).min(at / cols + ROWS);
            let made = &mut scratch.decoded[..rows.len() * cols];
            reconstruct_rows(shape, rank, p, q, rows.clone(), made)?;
            let end = wanted.end.min(rows.end * cols);
            let made = &made[at - rows.start * cols..end - rows.start * cols];
            mean::narrow(made, at, &mut layer.values)?;
            at = end;
        }
        Ok(())
    })
}

/// Keeps every layer's averaged `Q` for the next step.
pub(super) fn remember(layers: &mut [Layer<'_>], program: &Program, room: &mut Room<'_>) -> Result<(), Error> {
    for_each_product(layers, program, room, |layer, _, _, q, _| {
        layer.factor.copy_from_slice(q);
        Ok(())
    })
}
