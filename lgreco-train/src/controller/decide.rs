//! One setting per layer, as policies give them without a plan.

use super::codes::Choice;
use super::window::Typed;
use super::{Config, Decision, Tensor, Uncompressed};
use crate::Error;
use crate::compress::Setting;
use crate::feedback::suits;
use crate::gradient::{Element, with_elements};
use crate::num::{Sum, sqrt};
use alloc::vec::Vec;

/// What was decided.
pub(super) struct Decided {
    pub decision: Decision,
    pub choices: Vec<Choice>,
    /// Norms of the window's gradients, on the rank that has measured.
    pub norms: Vec<f64>,
}

/// The same parameter everywhere, the search's default, or one per layer.
pub(super) fn uniform(config: &Config, tensors: &[Tensor], levels: Option<&[f64]>) -> Result<Vec<Choice>, Error> {
    let of = |(layer, tensor): (usize, &Tensor)| {
        let Tensor { dims, dtype, .. } = tensor;
        let setting = match levels {
            None => config.search.uniform(dims, *dtype)?,
            Some(levels) => config.search.clone().with_default(levels[layer])?.uniform(dims, *dtype)?,
        };
        Ok(match setting {
            Setting::Dense if !config.search.takes(dims) => Choice::dense(Uncompressed::Small),
            Setting::Dense => Choice::dense(Uncompressed::NoSaving),
            setting => chosen(setting),
        })
    };
    tensors.iter().enumerate().map(of).collect()
}

/// A choice made without a gradient; uncompressed where its setting does not suit its feedback.
pub(super) fn suited(config: &Config, tensor: &Tensor, choice: Choice) -> Choice {
    let remembers = config.feedback.of(&choice.setting).is_some();
    match remembers && suits(&choice.setting, tensor.shape).is_err() {
        true => Choice::dense(Uncompressed::NotContractive),
        false => choice,
    }
}

/// How many settings were refused because feedback would amplify errors.
pub(super) fn refused(choices: &[Choice]) -> u32 {
    choices.iter().filter(|choice| choice.uncompressed == Some(Uncompressed::NotContractive)).count() as u32
}

/// What the caller or a plan has chosen.
pub(super) fn chosen(setting: Setting) -> Choice {
    Choice { setting, uncompressed: (setting == Setting::Dense).then_some(Uncompressed::Chosen) }
}

/// L2 norm.
pub(super) fn norm(values: &Typed<'_>) -> f64 {
    fn square(x: f32) -> f64 {
        x as f64 * x as f64
    }
    let sum: Sum = with_elements!(values.values(), v => v.iter().map(|x| square(x.to_f32())).collect());
    sqrt(sum.value())
}
