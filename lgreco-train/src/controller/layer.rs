//! The state of one layer on one rank, between steps and across settings.

use super::Uncompressed;
use super::buffers::{values, workspace};
use super::layer_plan::{LayerPlan, StepPlan};
use crate::feedback::{Memory, copy, is_finite, plain_values};
use crate::gradient::Shape;
use crate::rng::Stream;
use crate::{CoreError, Error};
use alloc::vec;
use alloc::vec::Vec;

/// One layer between steps.
#[derive(Clone, Debug)]
pub(super) struct LayerState {
    /// How the layer is treated under its setting.
    pub plan: LayerPlan,
    /// The residual. Under a setting without feedback, this is the residual that an earlier setting has left. Such a residual is
    /// sent once, with the next gradient.
    pub memory: Option<Memory<Vec<u64>>>,
    /// With [`LayerPlan::keeps_undo`], a second buffer as large as the residual. During a step, the next residual is written to
    /// this buffer if residuals are plain f32. After the step, the buffer has the residual from before the step. Saved states do
    /// not contain this buffer.
    pub pending: Vec<u64>,
    /// How the last step can be undone.
    pub undo: Undo,
    /// PowerSGD's averaged `Q`.
    pub factor: Vec<f32>,
    /// Counters for metrics.
    pub counts: Counts,
    /// Relative squared error of compression, when it was last measured.
    pub relative_error: Option<f64>,
    /// Seconds of the exchanges of the layer's buckets. Saved states do not contain this number.
    pub bucket_seconds: Option<f64>,
    /// The ticket of the bucket to which this state is lent; 0 if it is not lent.
    pub lent: u64,
    /// The progress of the layer's bucket in this step.
    pub status: BucketStatus,
    /// With [`LayerPlan::keeps_undo`], a residual that was sent and dropped in the last step, because the setting has no feedback.
    pub spent: Option<Memory<Vec<u64>>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Undo {
    Nothing,
    /// The residual from before the step is lost.
    Lost,
    /// The residual from before the step is in `pending`, or in `spent`.
    Step,
    /// The residual from before the step is in `pending`. The layer had no gradient, so the residual has not counted the step.
    Uncounted,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum BucketStatus {
    Waiting,
    Exchanged,
    /// The exchange has failed.
    Failed,
    /// This rank has closed the bucket in the middle of its exchange.
    GivenUp,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Counts {
    pub steps: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub not_contractive: u64,
}

/// A layer's new state under a new plan, made before anything changes.
pub(super) struct Switch {
    pub plan: LayerPlan,
    /// Replaces the residual; `None` if the residual stays as it is.
    memory: Option<Memory<Vec<u64>>>,
    /// Replaces `pending`, if its length changes.
    pending: Option<Vec<u64>>,
    factor: Vec<f32>,
}

impl LayerState {
    /// A layer with this plan, without residual and factor.
    pub(super) fn new(plan: LayerPlan) -> Self {
        LayerState {
            plan,
            memory: None,
            pending: vec![],
            undo: Undo::Nothing,
            factor: vec![],
            counts: Counts::default(),
            relative_error: None,
            bucket_seconds: None,
            lent: 0,
            status: BucketStatus::Waiting,
            spent: None,
        }
    }

    /// Moves the state to the bucket with this ticket. Copies of the plan and of the counters stay in the controller.
    pub(super) fn lend(&mut self, ticket: u64) -> LayerState {
        (self.undo, self.spent) = (Undo::Nothing, None);
        let nothing = LayerState {
            counts: self.counts,
            relative_error: self.relative_error,
            bucket_seconds: self.bucket_seconds,
            lent: ticket,
            status: self.status,
            ..LayerState::new(self.plan)
        };
        core::mem::replace(self, nothing)
    }

    /// The plan of the present step.
    pub(super) fn in_step(&self, measured: bool, withheld: bool) -> StepPlan {
        self.plan.in_step(self.memory.as_ref().map(Memory::residual), measured, withheld)
    }

    /// Prepares a new plan. The residual keeps its values, in the format of the new setting. PowerSGD's factor is cut, or extended
    /// by columns of zeros, which the exchange replaces by columns drawn from the seed that all ranks share.
    pub(super) fn prepare(&self, plan: LayerPlan, stream: Stream) -> Result<Switch, Error> {
        let mut factor = values(plan.factor_len)?;
        factor.iter_mut().zip(&self.factor).for_each(|(new, &old)| *new = old);
        let memory = match (plan.residual, &self.memory) {
            (None, _) => None,
            (Some(residual), Some(memory)) if memory.residual() == residual => None,
            (Some(residual), memory) => {
                let mut new = Memory::new(residual, plan.shape, workspace(plan.residual_words)?)?;
                if let Some(memory) = memory {
                    let mut left = values(plan.shape.elements())?;
                    memory.values(&mut left)?;
                    new.set(&left, stream)?;
                }
                Some(new)
            }
        };
        let words = plan.undo_words();
        let pending = (self.pending.len() != words).then(|| workspace(words)).transpose()?;
        Ok(Switch { plan, memory, pending, factor })
    }

    /// The memory in which the next residual is made, if residuals are plain f32.
    pub(super) fn left(&mut self, shape: Shape) -> &mut [f32] {
        match &mut self.memory {
            Some(memory) if !self.plan.keeps_undo => memory.plain_mut(),
            _ => plain_values(&mut self.pending, shape),
        }
    }

    /// Makes the compression error the new residual. The error is in `rest` or, if `rest` is `None`, already in the memory of the
    /// next residual. `late` is given if some plain residual of the bucket is not finite. In this case, each new residual is
    /// checked, and a layer whose new residual is not finite keeps the old residual.
    ///
    /// # Errors
    /// [`CoreError::Overflow`] when the new residual does not fit its format. The old residual is then unchanged.
    pub(super) fn remember(&mut self, rest: Option<&[f32]>, late: Option<Error>, stream: Stream) -> Result<(), Error> {
        let undo = if self.plan.keeps_undo { Undo::Step } else { Undo::Lost };
        let Some(memory) = self.memory.as_mut().filter(|_| self.plan.residual.is_some()) else {
            if let Some(memory) = self.memory.take() {
                self.undo = undo;
                self.spent = Some(memory).filter(|_| self.plan.keeps_undo);
            }
            return Ok(());
        };
        if memory.is_plain() {
            let shape = memory.shape();
            if let Some(rest) = rest {
                CoreError::require_finite(late.is_none() || is_finite(rest), "the residual")?;
                copy(rest, self.left(shape));
            } else if self.plan.keeps_undo {
                CoreError::require_finite(late.is_none() || is_finite(self.left(shape)), "the residual")?;
            }
            self.count_remembered();
        } else {
            if self.plan.keeps_undo {
                memory.copy_words(&mut self.pending);
            }
            memory.keep(rest.unwrap_or_default(), stream)?;
        }
        self.undo = undo;
        Ok(())
    }

    /// Makes the plain residual in `pending` the current one. If the residual was made in place, this function only counts the
    /// step.
    fn count_remembered(&mut self) {
        match &mut self.memory {
            Some(memory) if self.plan.keeps_undo => memory.replace(&mut self.pending),
            Some(memory) => memory.count(),
            None => {}
        }
    }

    /// Adds `rest`, the error of compressing this rank's share of the mean, to the residual of a layer without a gradient.
    ///
    /// # Errors
    /// As [`remember`](LayerState::remember).
    pub(super) fn add_reencode_error(&mut self, rest: &[f32], stream: Stream) -> Result<(), Error> {
        let Some(memory) = &mut self.memory else { return Ok(()) };
        if self.plan.keeps_undo {
            memory.copy_words(&mut self.pending);
        }
        memory.add(rest, stream)?;
        self.undo = if self.plan.keeps_undo { Undo::Uncounted } else { Undo::Lost };
        Ok(())
    }

    /// Undoes the last step, if this layer took part in it.
    pub(super) fn undo(&mut self) {
        let undo = core::mem::replace(&mut self.undo, Undo::Nothing);
        match (undo, &mut self.memory, self.spent.take()) {
            (Undo::Nothing | Undo::Lost, ..) => {}
            (_, None, spent) => self.memory = spent,
            (Undo::Step, Some(memory), _) => memory.undo(&mut self.pending),
            (Undo::Uncounted, Some(memory), _) => memory.swap_words(&mut self.pending),
        }
    }

    /// Switches to the prepared plan.
    pub(super) fn commit(&mut self, switch: Switch) {
        let Switch { plan, memory, pending, factor } = switch;
        self.counts.not_contractive += (plan.choice.uncompressed == Some(Uncompressed::NotContractive)) as u64;
        (self.plan, self.factor) = (plan, factor);
        self.memory = memory.or(self.memory.take());
        self.pending = pending.unwrap_or(core::mem::take(&mut self.pending));
        (self.undo, self.spent) = (Undo::Nothing, None);
    }
}
