//! What an exchange does with a layer, and the memory that takes. A bucket makes a plan of each of its layers when it is lent, and
//! everything that follows reads it.

use super::codes::Choice;
use super::layer::LayerState;
use crate::Error;
use crate::compress::{Compressor, Setting};
use crate::exchange::{Layout, Moment, Route, Spec, is_gathered};
use crate::feedback::{Memory, Residual};
use crate::gradient::{Dtype, Shape};

/// Where the part of a layer's values goes that is not sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Left {
    Nowhere,
    /// Its norm is taken.
    Norm,
    /// It is made where the next residual will be.
    InPlace,
    /// Beside the values, for the time in which means take their place.
    Beside,
    /// It is made, from beginning to end, in memory beside the values: they are 16 bits, or the
    /// compressor looks at the gradient, too.
    Instead,
}

/// What is known of a layer in a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    /// The residual that there is.
    pub residual: Option<Residual>,
    /// Whether it takes note of what is left.
    pub feedback: bool,
    /// Whether relative errors are measured in this step.
    pub measured: bool,
    /// Whether the layer has no gradient in this step: zeros are sent, and the residual stays.
    pub withheld: bool,
}

/// What an exchange does with a layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerPlan {
    pub index: usize,
    pub setting: Setting,
    pub shape: Shape,
    /// Of the gradient.
    pub dtype: Dtype,
    /// Whether a residual goes out with the gradient.
    pub compensates: bool,
    pub left: Left,
    /// Whether its relative error is measured.
    pub measured: bool,
    pub withheld: bool,
    /// Whether a layer without a gradient has a residual that takes up what compressing this rank's share of the mean loses.
    pub repays: bool,
}

impl LayerPlan {
    /// Of layer `index` of this shape and type, of which so much is known.
    pub(super) fn new(index: usize, form: (Shape, Dtype), choice: &Choice, known: Known, route: Route) -> LayerPlan {
        let (shape, dtype) = form;
        let Known { residual, feedback, measured, withheld } = known;
        let setting = choice.setting;
        let scattered = route == Route::ScatterReduce && setting != Setting::Dense && !is_gathered(&setting, route);
        let repays = withheld && scattered && feedback && residual.is_some();
        let measured = measured && !withheld && choice.uncompressed.is_none();
        let compensates = residual.is_some() && !withheld;
        let keeps = compensates && feedback || repays;
        let left = match () {
            _ if setting.traits().sees_gradient && compensates => Left::Instead,
            // Also a residual that goes out whole is added in f32.
            _ if dtype != Dtype::F32 && (keeps || measured || compensates) => Left::Instead,
            _ if keeps && compensates && residual.is_some_and(Residual::is_plain) => Left::InPlace,
            _ if keeps => Left::Beside,
            _ if measured => Left::Norm,
            _ => Left::Nowhere,
        };
        LayerPlan { index, setting, shape, dtype, compensates, left, measured, withheld, repays }
    }

    /// The same in the step under way.
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

    /// What an exchange knows of it.
    pub(super) fn spec<'a>(&self, shards: &'a [u64]) -> Spec<'a> {
        // With a residual, f32 is compressed.
        let dtype = if self.compensates { Dtype::F32 } else { self.dtype };
        let spec = Spec::from((self.setting, self.shape, dtype));
        Spec { index: self.index as u32, shards, in_place: self.dtype == Dtype::F32, ..spec }
    }

    /// Values that it takes beside the trainer's, from beginning to end.
    pub(super) fn offered(&self) -> usize {
        if self.left == Left::Instead { self.shape.elements() } else { 0 }
    }

    /// The same while means take the place of values.
    pub(super) fn rest(&self) -> usize {
        if self.left == Left::Beside { self.shape.elements() } else { 0 }
    }
}

/// What the layers of a bucket take.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Needs {
    /// Values that are compressed in place of the gradients, from beginning to end.
    pub offered: usize,
    /// Values that are left, while means take the gradients' place.
    pub rest: usize,
    /// Words that hold something from one call to the next.
    pub workspace: usize,
    /// Words of a call that compresses.
    pub compressing: usize,
    /// Words of the call that makes means, beside `rest`.
    pub averaging: usize,
}

impl Needs {
    /// What these layers take together.
    pub(super) fn of<'a>(
        layers: impl Iterator<Item = (LayerPlan, &'a [u64])> + Clone,
        moment: &Moment,
    ) -> Result<Needs, Error> {
        let specs = layers.clone().map(|(plan, shards)| plan.spec(shards));
        let narrow = Layout::of(specs.clone(), moment)?;
        // With a residual, f32 is compressed.
        let wide = Layout::of(specs.map(|spec| Spec { dtype: Dtype::F32, ..spec }), moment)?;
        Ok(Needs {
            offered: layers.clone().map(|(plan, _)| plan.offered()).sum(),
            rest: layers.map(|(plan, _)| plan.rest()).sum(),
            workspace: narrow.words().max(wide.words()),
            compressing: narrow.scratch_words().max(wide.scratch_words()),
            averaging: narrow.averaging_words().max(wide.averaging_words()),
        })
    }

    /// What is enough for both.
    pub(super) fn max(self, other: Needs) -> Needs {
        Needs {
            offered: self.offered.max(other.offered),
            rest: self.rest.max(other.rest),
            workspace: self.workspace.max(other.workspace),
            compressing: self.compressing.max(other.compressing),
            averaging: self.averaging.max(other.averaging),
        }
    }

    /// Bytes from the bucket's beginning to its end.
    pub(super) const fn lasting(&self) -> u64 {
        8 * self.workspace as u64 + 4 * self.offered as u64
    }

    /// Bytes of the call that takes the most.
    pub(super) fn passing(&self) -> u64 {
        8 * self.compressing.max(self.averaging + self.rest.div_ceil(2)) as u64
    }
}
