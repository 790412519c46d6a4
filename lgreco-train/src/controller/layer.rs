//! What one rank keeps of one layer, and what survives a new setting.

use super::codes::Choice;
use super::{Config, Policy, Tensor, Uncompressed};
use crate::Error;
use crate::compress::{Compressor, Setting};
use crate::feedback::{Aggregation, Memory, Rule};
use crate::gradient::Shape;
use crate::rng::Stream;
use alloc::vec;
use alloc::vec::Vec;

/// One layer between steps.
#[derive(Clone, Debug)]
pub(super) struct LayerState {
    pub choice: Choice,
    /// The residual. Under a setting without feedback it is what is left of the one before: it goes out whole with the
    /// next gradient.
    pub memory: Option<Memory<Vec<u64>>>,
    /// Whether the residual takes note of what is sent.
    pub feedback: bool,
    /// PowerSGD's averaged `Q`.
    pub factor: Vec<f32>,
    /// Counters for people.
    pub counts: Counts,
    /// Relative squared error of the last exchange that was measured.
    pub relative_error: Option<f64>,
    /// Seconds that its bucket's exchanges took. Not saved.
    pub bucket_seconds: Option<f64>,
    /// Whether a bucket has all of this but the choice.
    pub lent: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Counts {
    pub steps: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub not_contractive: u64,
}

/// What a new setting changes, made before anything is changed.
pub(super) struct Switch {
    choice: Choice,
    feedback: bool,
    /// Replaces the memory, if there is anything to replace.
    memory: Option<Memory<Vec<u64>>>,
    factor: Vec<f32>,
}

/// Columns of PowerSGD's factors.
pub(super) fn rank(setting: &Setting, shape: Shape) -> usize {
    match setting {
        Setting::PowerSgd(c) => (c.rank as usize).min(shape.rows()).min(shape.cols()),
        _ => 0,
    }
}

impl LayerState {
    /// A layer before the first decision.
    pub(super) fn new(policy: &Policy) -> Self {
        let why = if *policy == Policy::Uncompressed { Uncompressed::Chosen } else { Uncompressed::WarmUp };
        LayerState {
            choice: Choice::dense(why),
            memory: None,
            feedback: false,
            factor: vec![],
            counts: Counts::default(),
            relative_error: None,
            bucket_seconds: None,
            lent: false,
        }
    }

    /// Lends everything; the choice stays known.
    pub(super) fn lend(&mut self) -> LayerState {
        let nothing = LayerState {
            choice: self.choice,
            memory: None,
            feedback: self.feedback,
            factor: vec![],
            counts: self.counts,
            relative_error: self.relative_error,
            bucket_seconds: self.bucket_seconds,
            lent: true,
        };
        core::mem::replace(self, nothing)
    }

    /// Prepares a new setting. The residual stays, in the format of the new rule; PowerSGD's factor is cut, or extended
    /// by zeros, in whose place the exchange puts columns drawn from the seed that all ranks share.
    pub(super) fn prepare(
        &self,
        choice: Choice,
        config: &Config,
        tensor: &Tensor,
        stream: Stream,
    ) -> Result<Switch, Error> {
        let shape = tensor.shape;
        choice.setting.payload_len(shape, tensor.dtype)?;
        let mut factor = vec![0.0; shape.cols() * rank(&choice.setting, shape)];
        factor.iter_mut().zip(&self.factor).for_each(|(new, &old)| *new = old);
        let rule = config.feedback.of(&choice.setting).map(Rule::Residual);
        let memory = match (rule, &self.memory) {
            (None, _) => None,
            (Some(rule), Some(memory)) if memory.rule() == rule => None,
            (Some(rule), memory) => {
                let mut new = Memory::owned(rule, Aggregation::Summed, shape)?;
                if let Some(memory) = memory {
                    let mut values = vec![0.0; shape.elements()];
                    memory.values(&mut values)?;
                    new.set(&values, stream)?;
                }
                Some(new)
            }
        };
        Ok(Switch { choice, feedback: rule.is_some(), memory, factor })
    }

    pub(super) fn commit(&mut self, switch: Switch) {
        let Switch { choice, feedback, memory, factor } = switch;
        self.counts.not_contractive += (choice.uncompressed == Some(Uncompressed::NotContractive)) as u64;
        (self.choice, self.feedback, self.factor) = (choice, feedback, factor);
        self.memory = memory.or(self.memory.take());
    }
}
