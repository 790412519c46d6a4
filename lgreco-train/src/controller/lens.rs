//! What becomes of a layer's values in an exchange, and the memory that takes.

use super::codes::Choice;
use crate::compress::{Compressor, Setting};
use crate::exchange::{Route, is_gathered};
use crate::gradient::Dtype;

/// Where the part of a layer's values goes that is not sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Left {
    Nowhere,
    /// Its norm is taken.
    Norm,
    /// Beside the values, for the time in which means take their place.
    Beside,
    /// It is made, from beginning to end, in memory beside the values: they are 16 bits, or the
    /// compressor looks at the gradient, too.
    Instead,
}

/// What an exchange does with a layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub left: Left,
    /// Whether relative errors are measured.
    pub measured: bool,
    /// Whether a layer without a gradient has a residual that takes up what compressing this rank's share of the mean loses.
    pub repays: bool,
}

impl Facts {
    /// Of a layer whose values are of this type, with a residual or without. `feedback` says whether the residual takes note of
    /// what is left; `measured` whether errors are measured in this step; `withheld` whether the layer has no gradient.
    pub(super) fn new(
        choice: &Choice,
        dtype: Dtype,
        [residual, feedback, measured, withheld]: [bool; 4],
        route: Route,
    ) -> Facts {
        let setting = &choice.setting;
        let scattered = route == Route::ScatterReduce && *setting != Setting::Dense && !is_gathered(setting, route);
        let repays = withheld && scattered && feedback && residual;
        let measured = measured && !withheld && choice.uncompressed.is_none();
        let narrow = dtype != Dtype::F32;
        let keeps = residual && feedback && !withheld || repays;
        let sees_gradient = setting.traits().sees_gradient;
        let left = match () {
            _ if sees_gradient && residual && !withheld => Left::Instead,
            // Also a residual that goes out whole is added in f32.
            _ if narrow && (keeps || measured || residual && !withheld) => Left::Instead,
            _ if keeps => Left::Beside,
            _ if measured => Left::Norm,
            _ => Left::Nowhere,
        };
        Facts { left, measured, repays }
    }
}
