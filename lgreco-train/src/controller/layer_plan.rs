//! How a layer is treated in an exchange, and how much memory that takes. The controller makes a plan for each layer that it lends
//! to a bucket. All later steps of the exchange read this plan.

use super::decision::LayerSetting;
use super::layer::LayerState;
use crate::Error;
use crate::compress::{Aggregation, Compressor, Setting};
use crate::exchange::{Layout, Moment, Route, Spec, is_gathered};
use crate::feedback::{Memory, Residual};
use crate::gradient::{Dtype, Shape};

/// The place of a layer's compression error, which is the layer's values minus the decoded payload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Left {
    Nowhere,
    /// The error is not stored, but its norm is computed.
    Norm,
    /// The error is written to the memory of the next residual.
    InPlace,
    /// The error is written to scratch memory, while the mean replaces the gradient.
    Beside,
    /// The error replaces the compressor's input, in a buffer apart from the gradient. This is for gradients of 16 bits, and for
    /// compressors that also look at the gradient.
    Instead,
}

/// The facts about a layer in a step from which its plan follows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    /// The residual, if the layer has one.
    pub residual: Option<Residual>,
    /// Whether the setting has error feedback. If not, a residual is sent once and then dropped.
    pub feedback: bool,
    /// Whether relative errors are measured in this step.
    pub measured: bool,
    /// Whether the layer has no gradient in this step. In this case, zeros are sent, and the residual does not change.
    pub withheld: bool,
}

/// How a layer is treated in an exchange.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerPlan {
    pub index: usize,
    pub setting: Setting,
    pub shape: Shape,
    /// The gradient's element type.
    pub dtype: Dtype,
    /// Whether a residual is added to the gradient.
    pub compensates: bool,
    pub left: Left,
    /// Whether the layer's relative error is measured.
    pub measured: bool,
    pub withheld: bool,
    /// Whether the error of compressing this rank's share of the mean is added to the residual, although the layer has no gradient.
    pub takes_reencode_error: bool,
}

impl LayerPlan {
    /// The plan of layer `index`, with this shape and element type.
    pub(super) fn new(
        index: usize,
        form: (Shape, Dtype),
        choice: &LayerSetting,
        known: Known,
        route: Route,
    ) -> LayerPlan {
        let (shape, dtype) = form;
        let Known { residual, feedback, measured, withheld } = known;
        let setting = choice.setting;
        let scattered = route == Route::ScatterReduce && setting != Setting::Dense && !is_gathered(&setting, route);
        let takes_reencode_error = withheld && scattered && feedback && residual.is_some();
        let measured = measured && !withheld && choice.uncompressed.is_none();
        let compensates = residual.is_some() && !withheld;
        let keeps = compensates && feedback || takes_reencode_error;
        let left = match () {
            _ if setting.traits().sees_gradient && compensates => Left::Instead,
            // A residual that an earlier setting has left is also added in f32.
            _ if dtype != Dtype::F32 && (keeps || measured || compensates) => Left::Instead,
            _ if keeps && compensates && residual.is_some_and(Residual::is_plain) => Left::InPlace,
            _ if keeps => Left::Beside,
            _ if measured => Left::Norm,
            _ => Left::Nowhere,
        };
        LayerPlan { index, setting, shape, dtype, compensates, left, measured, withheld, takes_reencode_error }
    }

    /// The plan of a layer with this state in the present step.
    pub(super) fn of(
        index: usize,
        form: (Shape, Dtype),
        state: &LayerState,
        [measured, withheld]: [bool; 2],
        route: Route,
    ) -> LayerPlan {
        let (residual, feedback) = (state.memory.as_ref().map(Memory::residual), state.feedback);
        LayerPlan::new(index, form, &state.choice, Known { residual, feedback, measured, withheld }, route)
    }

    /// The layer's description for the exchange.
    pub(super) fn spec<'a>(&self, shards: &'a [u64]) -> Spec<'a> {
        // The sum of gradient and residual is f32.
        let dtype = if self.compensates { Dtype::F32 } else { self.dtype };
        let spec = Spec::from((self.setting, self.shape, dtype));
        Spec { index: self.index as u32, shards, in_place: self.dtype == Dtype::F32, ..spec }
    }

    /// Number of f32 values that the layer needs for the compressor's input, besides the gradient, during the whole exchange.
    pub(super) fn offered(&self) -> usize {
        if self.left == Left::Instead { self.shape.elements() } else { 0 }
    }

    /// Number of f32 values that the layer needs for its compression error, while the mean replaces the gradient.
    pub(super) fn rest(&self) -> usize {
        if self.left == Left::Beside { self.shape.elements() } else { 0 }
    }
}

/// Sizes of the buffers that a bucket's layers need.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Needs {
    /// Number of f32 values for compressors' inputs besides the gradients, during the whole exchange.
    pub offered: usize,
    /// Number of f32 values for compression errors, while means replace the gradients.
    pub rest: usize,
    /// Number of words that keep their contents between calls.
    pub workspace: usize,
    /// Scratch words of a call that compresses.
    pub compressing: usize,
    /// Scratch words of the call that makes means, besides `rest`.
    pub averaging: usize,
}

impl Needs {
    /// The memory of these layers together.
    pub(super) fn of<'a>(
        layers: impl Iterator<Item = (LayerPlan, &'a [u64])> + Clone,
        moment: &Moment,
    ) -> Result<Needs, Error> {
        let specs = layers.clone().map(|(plan, shards)| plan.spec(shards));
        let narrow = Layout::of(specs.clone(), moment)?;
        // The sum of gradient and residual is f32.
        let wide = Layout::of(specs.map(|spec| Spec { dtype: Dtype::F32, ..spec }), moment)?;
        Ok(Needs {
            offered: layers.clone().map(|(plan, _)| plan.offered()).sum(),
            rest: layers.map(|(plan, _)| plan.rest()).sum(),
            workspace: narrow.words().max(wide.words()),
            compressing: narrow.scratch_words().max(wide.scratch_words()),
            averaging: narrow.averaging_words().max(wide.averaging_words()),
        })
    }

    /// The larger size of each buffer, which is enough for both buckets.
    pub(super) fn max(self, other: Needs) -> Needs {
        Needs {
            offered: self.offered.max(other.offered),
            rest: self.rest.max(other.rest),
            workspace: self.workspace.max(other.workspace),
            compressing: self.compressing.max(other.compressing),
            averaging: self.averaging.max(other.averaging),
        }
    }

    /// Bytes that a bucket holds during its whole exchange.
    pub(super) const fn lasting(&self) -> u64 {
        8 * self.workspace as u64 + 4 * self.offered as u64
    }

    /// Scratch bytes of the call that needs the most.
    pub(super) fn passing(&self) -> u64 {
        8 * self.compressing.max(self.averaging + self.rest.div_ceil(2)) as u64
    }
}

/// Bytes that are sent for a layer; `None` if the length depends on the values.
pub(super) fn known_len(
    setting: &Setting,
    shape: Shape,
    dtype: Dtype,
    reduce_dtype: Dtype,
) -> Result<Option<u64>, Error> {
    Ok(match setting {
        // Uncompressed values travel without a header.
        Setting::Dense => Some((shape.elements() * dtype.bytes().min(reduce_dtype.bytes())) as u64),
        _ if setting.traits().aggregation != Aggregation::WholePayloads => {
            Some(setting.exchanged_len(shape, dtype, reduce_dtype)? as u64)
        }
        _ => None,
    })
}
