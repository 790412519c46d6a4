//! A layer in a bucket: the computations on its values before, during and after the exchange.

use super::layer::LayerState;
use super::layer_plan::{LayerPlan, Left, StepPlan};
use super::tensor::expect_finite;
use super::window;
use crate::exchange::{Aggregation, Layer, Moment, Rest, Spec, scale_part};
use crate::feedback::{Memory, plain_values, squared_norm};
use crate::gradient::{Dtype, Gradient, Values, ValuesMut};
use crate::rng::Stream;
use crate::{CoreError, Error};
use alloc::sync::Arc;
use alloc::vec::Vec;

/// A layer that the controller has lent to a bucket.
pub(super) struct LentLayer {
    /// The state, with the layer's plan.
    pub state: LayerState,
    pub step: StepPlan,
    pub shards: Arc<[u64]>,
    /// The window's mean gradient, on the measuring rank; empty on other ranks.
    pub window: Vec<f32>,
    /// Squared norms of the compressor's input and of its error, if relative errors are measured.
    pub norms: [f64; 2],
}

/// The parts of a bucket's buffers that belong to one layer, or to all layers whose parts [`take`](Places::take) has not split off
/// yet. See [`StepPlan::offered_len`] and [`StepPlan::rest_len`].
pub(super) struct Places<'a> {
    pub offered: &'a mut [f32],
    /// Empty before the call that replaces gradients by means.
    pub rest: &'a mut [f32],
}

impl<'a> Places<'a> {
    /// Splits off the parts of the next layer.
    pub(super) fn take(&mut self, step: &StepPlan) -> Places<'a> {
        fn take<'a>(room: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
            room.split_off_mut(..len).unwrap_or_default()
        }
        Places { offered: take(&mut self.offered, step.offered_len), rest: take(&mut self.rest, step.rest_len) }
    }
}

impl LentLayer {
    /// The layer's description for the exchange.
    pub(super) fn spec(&self) -> Spec<'_> {
        self.step.spec(self.state.plan.spec(&self.shards))
    }

    /// The residual that is added to the gradient.
    fn memory(&self) -> Option<&Memory<Vec<u64>>> {
        self.state.memory.as_ref().filter(|_| self.step.compensates)
    }

    /// Before the exchange, adds the gradient to the window's mean, and the residual to the gradient. `window_step` is the
    /// gradient's number in the window, from 1; 0 outside a window. The sum of gradient and residual replaces the gradient, or is
    /// written to `offered` if the plan says so.
    pub(super) fn offer(
        &mut self,
        gradient: &mut ValuesMut<'_>,
        offered: &mut [f32],
        window_step: u64,
    ) -> Result<(), Error> {
        let LayerPlan { index, shape, .. } = self.state.plan;
        let StepPlan { left, measured, withheld, .. } = self.step;
        if withheld {
            gradient.write(core::iter::repeat(0.0));
            offered.fill(0.0);
        }
        if window_step > 0 {
            window::add(&mut self.window, gradient.values(), window_step);
        }
        if withheld {
            return Ok(());
        }
        let values = match gradient {
            ValuesMut::F32(values) if left != Left::Instead => {
                if self.memory().is_some_and(|memory| !memory.compensate_in_place(values)) {
                    expect_finite(index, Values::F32(values))?;
                }
                &**values
            }
            _ => {
                let gradient = Gradient::new(gradient.values(), shape)?;
                match self.memory() {
                    Some(memory) if memory.compensate(&gradient, offered).is_err() => {
                        expect_finite(index, Values::F32(offered))?;
                    }
                    // The compressor reports values that are not finite.
                    None if left == Left::Instead => drop(scale_part(&gradient, 0, 1.0, offered)),
                    _ => {}
                }
                offered
            }
        };
        if measured {
            self.norms[0] = squared_norm(values);
        }
        Ok(())
    }

    /// The layer as an exchange takes it: with the gradient, and with the parts of the state that the exchange changes. A
    /// `gradient` of `None` means that this rank has failed. `late` is an error of another residual of the bucket.
    pub(super) fn for_exchange<'a>(
        &'a mut self,
        Places { offered, rest }: Places<'a>,
        gradient: Option<&'a mut ValuesMut<'_>>,
        sent: u64,
        late: Option<Error>,
    ) -> Layer<'a> {
        let LentLayer { state: LayerState { plan, memory, pending, factor, .. }, step, shards, norms, .. } = self;
        let rest = match step.left {
            Left::Nowhere => Rest::Dropped,
            Left::Norm => Rest::Measured(&mut norms[1]),
            Left::InPlace => match memory {
                Some(memory) if !plan.keeps_undo => Rest::Replacing(memory.plain_mut()),
                _ => Rest::Beside(plain_values(pending, plan.shape)),
            },
            Left::Beside => Rest::Beside(rest),
            Left::Instead => Rest::Instead(offered),
        };
        let values = match (gradient, plan.dtype) {
            (Some(gradient), _) => gradient.reborrow(),
            (None, Dtype::F32) => ValuesMut::F32(&mut []),
            (None, Dtype::F16) => ValuesMut::F16(&mut []),
            (None, Dtype::Bf16) => ValuesMut::Bf16(&mut []),
        };
        Layer { spec: step.spec(plan.spec(shards)), values, rest, sent, late, factor }
    }

    /// After the exchange, makes the compression error the residual, and counts bytes. `sent` is the length of this rank's payload,
    /// for methods whose payloads are not divided. Returns the bytes that this rank has sent. An error of the residual is stored in
    /// `late`, if `late` is `None`.
    pub(super) fn remember(
        &mut self,
        Places { offered, rest }: Places<'_>,
        sent: u64,
        moment: &Moment,
        late: &mut Option<Error>,
    ) -> u64 {
        let LayerPlan { index, shape, dtype, aggregation, sent_len, .. } = self.state.plan;
        let StepPlan { left, measured, withheld, takes_reencode_error, .. } = self.step;
        let Moment { seed, step, rank, .. } = *moment;
        let stream = Stream { seed, step, layer: index as u32, rank };
        let rest = match left {
            Left::Instead => Some(&*offered),
            Left::Beside => Some(&*rest),
            Left::Nowhere | Left::Norm | Left::InPlace => None,
        };
        let LentLayer { state, norms: [all, lost], .. } = self;
        if measured {
            match (left, rest) {
                (Left::Norm, _) => {}
                (_, Some(rest)) => *lost = squared_norm(rest),
                (_, None) => *lost = squared_norm(state.left(shape)),
            }
            state.relative_error = Some(if *all > 0.0 { *lost / *all } else { 0.0 });
        }
        let remembered = match (takes_reencode_error, withheld) {
            (true, _) => state.add_reencode_error(rest.unwrap_or_default(), stream),
            (false, false) => state.remember(rest, *late, stream),
            (false, true) => Ok(()),
        };
        *late = late.or(remembered.err().map(|error| error.of_layer(index as u32)));
        let sent = if aggregation == Aggregation::WholePayloads { sent } else { sent_len };
        let counts = &mut state.counts;
        counts.steps += 1;
        counts.bytes_in += (shape.elements() * dtype.bytes()) as u64;
        counts.bytes_out += sent;
        sent
    }
}

/// Whether an error means that values or sums have overflowed the type in which they are computed or sent, on this rank or another.
/// A loss scaler must know about such errors.
pub(super) fn is_too_large(error: &Error) -> bool {
    let code = match error {
        Error::Peer { code, .. } => *code,
        error => error.code(),
    };
    let overflow = CoreError::ElementOverflow { index: 0, value: 0.0 }.code();
    code == Error::NON_FINITE_GRADIENT || code == overflow
}
