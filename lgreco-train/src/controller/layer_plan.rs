//! How a layer is treated in exchanges.
//!
//! A [`LayerPlan`] has everything that follows from a layer and its setting. A [`LayerPlan`] is made when settings switch, and is
//! part of the layer's state. Buffers, lengths, residual, factor and the prediction of memory follow from the [`LayerPlan`]. A
//! [`StepPlan`] adds the parts that can differ between steps under the same setting.

use super::decision::LayerSetting;
use super::{Config, Policy, Tensor, Uncompressed};
use crate::Error;
use crate::compress::{Aggregation, Compressor, Setting};
use crate::exchange::{Route, Spec, factor_len, is_gathered};
use crate::feedback::Residual;
use crate::gradient::{Dtype, Shape};

/// How a layer is treated under its setting.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerPlan {
    pub index: usize,
    pub choice: LayerSetting,
    pub shape: Shape,
    /// The gradient's element type.
    pub dtype: Dtype,
    /// The collectives that average the layer.
    pub aggregation: Aggregation,
    /// Whether the residual gets the error of compressing this rank's share of the mean, even if the layer has no gradient. Under
    /// PowerSGD and CLT-k, this error is zero for a layer without a gradient.
    pub reencoded: bool,
    /// The residual, if the setting has error feedback. Without error feedback, a residual that an earlier setting has left is sent
    /// once and then dropped.
    pub residual: Option<Residual>,
    /// Number of 8-byte words of the residual.
    pub residual_words: usize,
    /// Whether the residual from before the last step is kept, so that this step can be undone.
    pub keeps_undo: bool,
    /// Number of f32 values of PowerSGD's factor.
    pub factor_len: usize,
    /// Number of bytes that this rank sends in a step: the largest number, if the length of a payload depends on its values.
    pub sent_len: u64,
}

impl LayerPlan {
    /// Bytes of a payload of an outside method, which ranks compare; `None` for built-in methods, whose settings determine the
    /// bytes.
    pub(super) fn own_len(&self) -> Option<u64> {
        let len = || self.choice.setting.payload_len(self.shape, self.dtype).map_or(u64::MAX, |len| len as u64);
        matches!(self.choice.setting, Setting::Own(_)).then(len)
    }

    /// The plan of layer `index` under the setting `choice`.
    ///
    /// # Errors
    /// The errors of a setting that does not fit its layer.
    pub(super) fn new(
        index: usize,
        tensor: &Tensor,
        choice: LayerSetting,
        config: &Config,
    ) -> Result<LayerPlan, Error> {
        let &Tensor { shape, dtype, .. } = tensor;
        let LayerSetting { setting, .. } = choice;
        let aggregation = setting.traits().aggregation;
        let divided = config.route == Route::ScatterReduce && !is_gathered(aggregation, config.route);
        let residual = config.feedback.of(&setting);
        let reduce_dtype = config.search.reduce_dtype;
        Ok(LayerPlan {
            index,
            choice,
            shape,
            dtype,
            aggregation,
            reencoded: divided && aggregation != Aggregation::AllReduce,
            residual,
            residual_words: residual.map_or(0, |residual| residual.state_len(shape)),
            keeps_undo: config.keeps_undo(),
            factor_len: factor_len(&setting, shape),
            sent_len: match setting {
                // Uncompressed values travel without a header.
                Setting::Dense => (shape.elements() * dtype.bytes().min(reduce_dtype.bytes())) as u64,
                setting => setting.exchanged_len(shape, dtype, reduce_dtype)? as u64,
            },
        })
    }

    /// The plan of a layer before the first decision.
    ///
    /// # Errors
    /// No errors are expected, because uncompressed values fit every layer.
    pub(super) fn before_decisions(index: usize, tensor: &Tensor, config: &Config) -> Result<LayerPlan, Error> {
        let chosen = config.policy == Policy::Uncompressed;
        let why = if chosen { Uncompressed::Chosen } else { Uncompressed::WarmUp };
        LayerPlan::new(index, tensor, LayerSetting::dense(why), config)
    }

    /// Number of 8-byte words of the second buffer of the residual, which is needed to undo a step.
    pub(super) const fn undo_words(&self) -> usize {
        if self.keeps_undo { self.residual_words } else { 0 }
    }

    /// The layer's description for an exchange of the gradient without a residual.
    pub(super) fn spec<'a>(&self, shards: &'a [u64]) -> Spec<'a> {
        let spec = Spec::from((self.choice.setting, self.shape, self.dtype));
        Spec { index: self.index as u32, shards, in_place: self.dtype == Dtype::F32, ..spec }
    }

    /// The plan of a step. `residual` is the layer's present residual. `measured` is true if relative errors are measured, and
    /// `withheld` if the layer has no gradient.
    pub(super) fn in_step(&self, residual: Option<Residual>, measured: bool, withheld: bool) -> StepPlan {
        let feedback = self.residual.is_some();
        let takes_reencode_error = withheld && self.reencoded && feedback && residual.is_some();
        let measured = measured && !withheld && self.choice.uncompressed.is_none();
        let compensates = residual.is_some() && !withheld;
        let keeps = compensates && feedback || takes_reencode_error;
        let left = match () {
            _ if self.choice.setting.traits().sees_gradient && compensates => Left::Instead,
            // A residual that an earlier setting has left is also added in f32.
            _ if self.dtype != Dtype::F32 && (keeps || measured || compensates) => Left::Instead,
            _ if keeps && compensates && residual.is_some_and(Residual::is_plain) => Left::InPlace,
            _ if keeps => Left::Beside,
            _ if measured => Left::Norm,
            _ => Left::Nowhere,
        };
        let elements = self.shape.elements();
        StepPlan {
            compensates,
            left,
            offered_len: if left == Left::Instead { elements } else { 0 },
            rest_len: if left == Left::Beside { elements } else { 0 },
            measured,
            withheld,
            takes_reencode_error,
            joined: false,
        }
    }
}

/// Where a layer's compression error, the compressor's input minus the decoded payload, is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Left {
    Nowhere,
    /// The error is not stored, but its norm is computed.
    Norm,
    /// The error is written to the memory of the next residual.
    InPlace,
    /// The error is written to scratch memory, while the mean replaces the gradient.
    Beside,
    /// The error replaces the compressor's input, in a buffer apart from the gradient. Gradients of 16 bits, and compressors that
    /// also look at the gradient, need this separate buffer.
    Instead,
}

/// The treatment of a layer in one step: the parts that can differ between steps under the same setting.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepPlan {
    /// Whether a residual is added to the gradient.
    pub compensates: bool,
    pub left: Left,
    /// Number of f32 values that the layer needs for the compressor's input, besides the gradient, during the whole exchange.
    pub offered_len: usize,
    /// Number of f32 values that the layer needs for its compression error, while the mean replaces the gradient.
    pub rest_len: usize,
    /// Whether the layer's relative error is measured.
    pub measured: bool,
    /// Whether the layer has no gradient in this step. For a layer without a gradient, zeros are sent, and the residual does not
    /// change.
    pub withheld: bool,
    /// Whether the error of compressing this rank's share of the mean is added to the residual, although the layer has no gradient.
    pub takes_reencode_error: bool,
    /// See [`Spec::joined`].
    pub joined: bool,
}

impl StepPlan {
    /// The layer's description for this step's exchange. `spec` describes an exchange of the gradient without a residual.
    pub(super) fn spec<'a>(&self, spec: Spec<'a>) -> Spec<'a> {
        match self.left {
            // The compressor's input is f32, in a separate buffer.
            Left::Instead => Spec { dtype: Dtype::F32, in_place: false, ..spec },
            _ => Spec { joined: self.joined, ..spec },
        }
    }
}
