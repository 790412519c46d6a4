//! When and what is decided, without a network and without the exchange.
//!
//! A plan that is late is asked for again: the measuring rank's message may say "not yet", ranks then take the step as they are
//! and ask at the next one, so that nobody waits for a thread. A task shares the window's memory instead of owning it, so
//! a state saved meanwhile has the window, a task that is dropped loses nothing, and a result is known by the memory it
//! was made from. It brings no backend: where it runs is the business of who runs it.

use super::accordion::Highest;
use super::decide::Decided;
use super::groups::Groups;
use super::identity::{checksum, fields};
use super::meter::Meter;
use super::window::Window;
use super::{Config, Decision, PlanResult, PlanTask, Policy, Tensor};
use crate::{CoreError, Error};
use crate::compress::Setting;
use lgreco::error::expect_distinct;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::num::NonZero;

/// What a controller knows of its decisions.
pub(super) struct Planner {
    pub(super) config: Arc<Config>,
    pub(super) tensors: Arc<[Tensor]>,
    pub(super) groups: Groups,
    pub(super) rank: u32,
    pub(super) world: u32,
    /// Of the configuration and the model.
    pub(super) identity: u64,
    /// Steps taken.
    pub(super) step: u64,
    /// The step of the next decision.
    pub(super) due: Option<u64>,
    pub(super) window: Window,
    /// Whether this step's gradients belong to the window.
    pub(super) watches: bool,
    /// The measuring rank's gradient norms at the last decision; empty before.
    pub(super) norms: Vec<f64>,
    pub(super) highest: Highest,
    /// Of this step.
    pub(super) rate: f64,
    /// Whether the learning rate has fallen at the step of a decision.
    pub(super) fell: bool,
    pub(super) decision: Option<Decision>,
    /// Of a controller that measures seconds.
    pub(super) meter: Option<Meter>,
    /// What the caller has decided.
    pub(super) given: Given,
    /// What the measuring rank has to tell.
    pub(super) result: Option<PlanResult>,
}

/// Settings that the caller has given a fixed policy. Ranks that have been given none do not expect a conversation about them,
/// so the messages of a step's buckets tell them first, unless ranks talk before that step anyway.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Given {
    Nothing,
    /// The other ranks have not been told.
    Untold,
    /// All ranks know that they have been given the same.
    Told,
}

impl Given {
    /// The step begins with an agreement, which finds out whether all ranks have been given the same.
    pub(super) fn in_agreement(self) -> Given {
        if self == Given::Untold { Given::Told } else { self }
    }

    /// The agreement has failed.
    pub(super) fn not_agreed(self) -> Given {
        if self == Given::Told { Given::Untold } else { self }
    }
}

/// What a step begins with.
pub(super) enum Turn {
    Nothing,
    /// The measuring rank tells what it has decided.
    Broadcast,
    /// All ranks know what to do.
    Known(Decided),
}

impl Planner {
    /// Of rank `rank` of `world_size`.
    ///
    /// # Errors
    /// Those of [`Controller::new`](super::Controller::new).
    pub(super) fn new(mut config: Config, tensors: Vec<Tensor>, rank: u32, world_size: u32) -> Result<Planner, Error> {
        config.check(&tensors, world_size)?;
        config.search.workers = config.search.workers.or(NonZero::new(world_size));
        expect_distinct(tensors.iter().map(|tensor| &*tensor.name))?;
        let adapts = config.policy != Policy::Uncompressed;
        let measures = adapts && rank == config.measuring_rank;
        let groups = Groups::new(&tensors, config.bucket_bytes);
        Ok(Planner {
            rank,
            world: world_size,
            identity: checksum(&fields(&config, &tensors, world_size)),
            step: 0,
            due: adapts.then_some(config.schedule.warmup),
            window: if measures { Window::new(&tensors) } else { Window::default() },
            watches: false,
            norms: vec![],
            highest: Highest::default(),
            rate: 0.0,
            fell: false,
            decision: None,
            meter: config.measures_seconds().then(|| Meter::new(vec![Setting::Dense; tensors.len()])),
            given: Given::Nothing,
            result: None,
            groups,
            tensors: tensors.into(),
            config: Arc::new(config),
        })
    }

    /// Whether this step begins with a decision; the same on every rank.
    pub(super) fn is_due(&self) -> bool {
        self.given != Given::Untold && self.due.is_some_and(|due| self.step >= due)
    }

    /// Whether gradients of this step are to be observed, on this rank.
    pub(super) fn watches(&self) -> bool {
        self.watches && self.measures()
    }

    /// The work of the next decision, once, when all of its gradients have been seen: between the end of a step and the
    /// decision's message. On other ranks than the measuring one there is none.
    pub(super) fn take_task(&mut self) -> Option<PlanTask> {
        let due = self.due.filter(|due| self.step.saturating_add(self.config.schedule.lead) >= *due)?;
        if self.watches || self.window.steps == 0 || !self.measures() {
            return None;
        }
        let means = self.window.share()?;
        let meter = self.meter.as_mut();
        let costs = meter.and_then(|meter| meter.costs(due, &self.config, &self.tensors, self.world));
        Some(PlanTask {
            means,
            costs,
            elsewhere: self.window.elsewhere(),
            config: self.config.clone(),
            tensors: self.tensors.clone(),
            step: due.max(self.step),
            norms: self.norms.clone(),
            // Without a lead it is this step's rate that counts, which may have been given before it was looked at.
            fell: if self.config.schedule.lead == 0 { self.falls(self.rate) } else { self.fell },
        })
    }

    /// Takes what became of a task, to be told to all ranks when the decision is due; whether anybody still waits for it.
    /// Nobody does when a saved state has been loaded since, or the learning rate has fallen instead.
    pub(super) fn hand_in(&mut self, result: PlanResult) -> bool {
        let awaited = self.window.is_of(&result.means);
        if awaited {
            if let Some(meter) = &mut self.meter {
                result.trials.iter().for_each(|trial| meter.compute.try_out(trial.family, trial.work, trial.seconds));
            }
            self.result = Some(result);
        }
        awaited
    }
}

pub(super) fn check_rate(learning_rate: f64) -> Result<(), Error> {
    let sound = learning_rate.is_finite() && learning_rate >= 0.0;
    Ok(CoreError::require(sound, "learning rate", learning_rate, "a finite number >= 0")?)
}
