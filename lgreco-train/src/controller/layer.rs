//! What one rank keeps of one layer, and what survives a new setting.

use super::buffers::{values, workspace};
use super::codes::Choice;
use super::{Config, Policy, Tensor, Uncompressed};
use crate::{CoreError, Error};
use crate::compress::Compressor;
use crate::exchange::factor_rank;
use crate::feedback::{Memory, copy, is_finite, plain_values};
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
    /// Whether the residual of the step before is kept, so that a step can be taken back.
    pub keeps_undo: bool,
    /// With that, as many words as the memory has. During a step it is where the next residual is made, if that is plain f32;
    /// after it, the residual of the step before. Not saved.
    pub pending: Vec<u64>,
    /// What the last step can be undone with.
    pub undo: Undo,
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
    /// The ticket of the bucket that has all of this but the choice; 0 of none.
    pub lent: u64,
    /// What has become of it in this step.
    pub fate: Fate,
    /// A residual that went out whole in the last step, because its setting has no feedback.
    pub spent: Option<Memory<Vec<u64>>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Undo {
    Nothing,
    /// What was remembered before the step is gone.
    Lost,
    /// `pending`, or `spent`, is what was remembered before the step.
    Step,
    /// `pending` likewise, of a layer without a gradient: the memory has not counted the step.
    Uncounted,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fate {
    Waiting,
    Exchanged,
    /// Its bucket's exchange has failed.
    Failed,
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
    /// Where the next residual is made, if it is of another size.
    pending: Option<Vec<u64>>,
    factor: Vec<f32>,
}

impl LayerState {
    /// A layer before the first decision.
    pub(super) fn new(config: &Config) -> Self {
        let why = if config.policy == Policy::Uncompressed { Uncompressed::Chosen } else { Uncompressed::WarmUp };
        LayerState { keeps_undo: config.keeps_undo(), ..LayerState::with(Choice::dense(why)) }
    }

    /// A layer of which nothing is known but its setting.
    fn with(choice: Choice) -> Self {
        LayerState {
            choice,
            memory: None,
            keeps_undo: false,
            pending: vec![],
            undo: Undo::Nothing,
            feedback: false,
            factor: vec![],
            counts: Counts::default(),
            relative_error: None,
            bucket_seconds: None,
            lent: 0,
            fate: Fate::Waiting,
            spent: None,
        }
    }

    /// Lends everything to the bucket with this ticket; the choice stays known.
    pub(super) fn lend(&mut self, ticket: u64) -> LayerState {
        let nothing = LayerState {
            feedback: self.feedback,
            keeps_undo: self.keeps_undo,
            counts: self.counts,
            relative_error: self.relative_error,
            bucket_seconds: self.bucket_seconds,
            lent: ticket,
            fate: self.fate,
            ..LayerState::with(self.choice)
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
        let mut factor = values(shape.cols() * factor_rank(&choice.setting, shape))?;
        factor.iter_mut().zip(&self.factor).for_each(|(new, &old)| *new = old);
        let residual = config.feedback.of(&choice.setting);
        let memory = match (residual, &self.memory) {
            (None, _) => None,
            (Some(residual), Some(memory)) if memory.residual() == residual => None,
            (Some(residual), memory) => {
                let mut new = Memory::owned(residual, shape)?;
                if let Some(memory) = memory {
                    let mut left = values(shape.elements())?;
                    memory.values(&mut left)?;
                    new.set(&left, stream)?;
                }
                Some(new)
            }
        };
        let words = self.words_for_undo(memory.as_ref().or(self.memory.as_ref()));
        let pending = (self.pending.len() != words).then(|| workspace(words)).transpose()?;
        Ok(Switch { choice, feedback: residual.is_some(), memory, pending, factor })
    }

    fn words_for_undo(&self, memory: Option<&Memory<Vec<u64>>>) -> usize {
        let kept = memory.filter(|_| self.keeps_undo);
        kept.map_or(0, |memory| memory.residual().state_len(memory.shape()))
    }

    /// Makes room for what a step can be taken back with.
    pub(super) fn reserve(&mut self) -> Result<(), Error> {
        (self.undo, self.spent) = (Undo::Nothing, None);
        let words = self.words_for_undo(self.memory.as_ref());
        if self.pending.len() != words {
            self.pending = workspace(words)?;
        }
        Ok(())
    }

    /// What is left of a plain residual and the gradient, where the next residual is made.
    pub(super) fn left(&mut self, shape: Shape) -> &mut [f32] {
        match &mut self.memory {
            Some(memory) if !self.keeps_undo => memory.plain_mut(),
            _ => plain_values(&mut self.pending, shape),
        }
    }

    /// Takes note of what is left of residual and gradient: `rest`, or, if it is `None`, what is where the next residual is made.
    /// `late` is what has gone wrong with plain residuals, of which one has then failed, and is unchanged.
    ///
    /// # Errors
    /// [`CoreError::Overflow`](crate::CoreError::Overflow) when the residual does not fit its format; it is then unchanged.
    pub(super) fn remember(&mut self, rest: Option<&[f32]>, late: Option<Error>, stream: Stream) -> Result<(), Error> {
        let undo = if self.keeps_undo { Undo::Step } else { Undo::Lost };
        let Some(memory) = self.memory.as_mut().filter(|_| self.feedback) else {
            if let Some(memory) = self.memory.take() {
                self.undo = undo;
                self.spent = Some(memory).filter(|_| self.keeps_undo);
            }
            return Ok(());
        };
        if memory.is_plain() {
            let shape = memory.shape();
            if let Some(rest) = rest {
                CoreError::require_finite(late.is_none() || is_finite(rest), "the residual")?;
                copy(rest, self.left(shape));
            } else if self.keeps_undo {
                CoreError::require_finite(late.is_none() || is_finite(self.left(shape)), "the residual")?;
            }
            self.count_remembered();
        } else {
            if self.keeps_undo {
                memory.copy_words(&mut self.pending);
            }
            memory.keep(rest.unwrap_or_default(), stream)?;
        }
        self.undo = undo;
        Ok(())
    }

    /// The next plain residual has been made.
    fn count_remembered(&mut self) {
        match &mut self.memory {
            Some(memory) if self.keeps_undo => memory.replace(&mut self.pending),
            Some(memory) => memory.count(),
            None => {}
        }
    }

    /// Takes note of what this rank has added to the mean of a layer of which it has no gradient, times -1: `rest`, what another
    /// compression of its share has lost.
    ///
    /// # Errors
    /// As [`remember`](LayerState::remember).
    pub(super) fn repay(&mut self, rest: &[f32], stream: Stream) -> Result<(), Error> {
        let Some(memory) = &mut self.memory else { return Ok(()) };
        if self.keeps_undo {
            memory.copy_words(&mut self.pending);
        }
        memory.add(rest, stream)?;
        self.undo = if self.keeps_undo { Undo::Uncounted } else { Undo::Lost };
        Ok(())
    }

    /// Takes back what the last step has changed, if it was the last of this layer.
    pub(super) fn undo(&mut self) {
        let undo = core::mem::replace(&mut self.undo, Undo::Nothing);
        match (undo, &mut self.memory, self.spent.take()) {
            (Undo::Nothing | Undo::Lost, ..) => {}
            (_, None, spent) => self.memory = spent,
            (Undo::Step, Some(memory), _) => memory.undo(&mut self.pending),
            (Undo::Uncounted, Some(memory), _) => memory.swap_words(&mut self.pending),
        }
    }

    pub(super) fn commit(&mut self, switch: Switch) {
        let Switch { choice, feedback, memory, pending, factor } = switch;
        self.counts.not_contractive += (choice.uncompressed == Some(Uncompressed::NotContractive)) as u64;
        (self.choice, self.feedback, self.factor) = (choice, feedback, factor);
        self.memory = memory.or(self.memory.take());
        self.pending = pending.unwrap_or(core::mem::take(&mut self.pending));
        (self.undo, self.spent) = (Undo::Nothing, None);
    }
}
