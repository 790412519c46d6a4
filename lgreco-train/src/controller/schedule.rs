//! The schedule of decisions: at which steps they are made, by which rank, and what each rank knows about them. This module sends
//! no messages.
//!
//! When a decision is due, ranks ask for it in every step until it has been made. The measuring rank's message may state that the
//! decision has not been made yet. Ranks then take the step under their present settings and ask again at the next step. So no rank
//! waits for a planning thread.

use super::accordion::Highest;
use super::decision::{self, Decided, LayerSetting};
use super::groups::Groups;
use super::identity::{Field, checksum, fields};
use super::meter::Meter;
use super::planner::{refused, suited, uniform};
use super::window::Window;
use super::{Cause, Config, Decision, PlanResult, PlanTask, Policy, Schedule, Tensor, Timing, Uncompressed};
use crate::Error;
use crate::checksum::Hash;
use crate::compress::{Compressor, Setting};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::num::NonZero;
use lgreco::error::distinct;

/// The configuration, the layers, and everything that determines when settings change.
pub(super) struct Scheduler {
    pub(super) config: Arc<Config>,
    pub(super) tensors: Arc<[Tensor]>,
    /// The buckets of blocking steps.
    pub(super) groups: Groups,
    pub(super) rank: u32,
    pub(super) world: u32,
    /// Checksum of configuration and layers.
    pub(super) identity: u64,
    /// Steps taken.
    pub(super) step: u64,
    /// Steps in which this rank could not read the last message of a bucket, since a state was loaded. Other ranks may have read
    /// theirs, so that models differ.
    pub(super) unread: u64,
    /// The step of the next decision.
    pub(super) due: Option<u64>,
    pub(super) window: Window,
    /// Whether this step's gradients belong to the window.
    pub(super) watches: bool,
    /// The measuring rank's gradient norms at the last decision; empty before the first.
    pub(super) norms: Vec<f64>,
    pub(super) highest: Highest,
    /// The learning rate of this step.
    pub(super) rate: f64,
    /// Whether the learning rate has fallen at the step of a decision.
    pub(super) fell: bool,
    /// The last decision.
    pub(super) decision: Option<Decision>,
    /// Measured seconds, under the objective that needs them.
    pub(super) meter: Option<Meter>,
    /// Settings that the caller has given.
    pub(super) given: Given,
    /// On the measuring rank: the plan that it will broadcast.
    pub(super) result: Option<PlanResult>,
}

/// Whether the caller has given a fixed policy other settings. A rank that was given no settings does not expect an agreement about
/// settings. So a rank with new settings first reports them in the messages of a step's buckets. If the step begins with an
/// agreement anyway, the agreement compares the new settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Given {
    Nothing,
    /// Settings were given, and the other ranks do not know yet.
    Untold,
    /// All ranks know that they were given the same settings.
    Told,
}

impl Given {
    /// The state in a step that begins with an agreement, which checks whether all ranks were given the same settings.
    pub(super) fn in_agreement(self) -> Given {
        if self == Given::Untold { Given::Told } else { self }
    }

    /// The state after an agreement on the given settings has failed.
    pub(super) fn not_agreed(self) -> Given {
        if self == Given::Told { Given::Untold } else { self }
    }
}

/// The decision that is due at a step.
pub(super) enum Due {
    Nothing,
    /// The measuring rank broadcasts the decision.
    Broadcast,
    /// All ranks know the decision without a broadcast.
    Known(Decided),
}

impl Scheduler {
    /// # Errors
    /// The errors of [`Controller::new`](super::Controller::new).
    pub(super) fn new(
        mut config: Config,
        tensors: Vec<Tensor>,
        rank: u32,
        world_size: u32,
    ) -> Result<Scheduler, Error> {
        config.check(&tensors, world_size)?;
        config.search.workers = config.search.workers.or(NonZero::new(world_size));
        distinct(tensors.iter().map(|tensor| &*tensor.name))?;
        let adapts = config.policy != Policy::Uncompressed;
        let measures = adapts && rank == config.measuring_rank;
        let groups = Groups::new(&tensors, config.bucket_bytes);
        Ok(Scheduler {
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
            unread: 0,
            given: Given::Nothing,
            result: None,
            groups,
            tensors: tensors.into(),
            config: Arc::new(config),
        })
    }

    /// Whether this rank decides for all.
    pub(super) fn measures(&self) -> bool {
        self.rank == self.config.measuring_rank && self.config.policy != Policy::Uncompressed
    }

    /// Whether this step begins with a decision; the same on every rank.
    pub(super) fn is_due(&self) -> bool {
        self.given != Given::Untold && self.due.is_some_and(|due| self.step >= due)
    }

    /// The decision of a step with learning rate `rate`. If no decision is due and the learning rate has not fallen, this method
    /// only updates the highest learning rate.
    pub(super) fn due_now(&mut self, rate: f64) -> Result<Due, Error> {
        self.rate = rate;
        self.fell = self.falls(rate);
        // A plan that was made on a thread before the learning rate fell does not take the fall into account.
        let instead = self.fell && self.config.schedule.lead > 0;
        match (self.is_due() && !instead, &self.config.policy) {
            (true, Policy::Fixed(settings)) if self.given == Given::Told => {
                let choices = settings.iter().map(|&setting| LayerSetting::chosen(setting)).collect();
                Ok(Due::Known(self.unmeasured(choices, Cause::Caller)))
            }
            (true, _) => Ok(Due::Broadcast),
            (false, _) => Ok(self.without_plan()?.map_or(Due::Nothing, Due::Known)),
        }
    }

    /// Whether Accordion regards this learning rate as a fall.
    fn falls(&self, rate: f64) -> bool {
        let (mut highest, accordion) = (self.highest, self.config.accordion());
        let accordion = accordion.filter(|_| self.step >= self.config.schedule.warmup);
        accordion.is_some_and(|accordion| highest.falls(&accordion, rate))
    }

    /// The decision of a step without a plan: Accordion's low compression after a fall of the learning rate, else `None`.
    pub(super) fn without_plan(&mut self) -> Result<Option<Decided>, Error> {
        let Some(accordion) = self.config.accordion().filter(|_| self.fell) else {
            self.highest = Highest(self.highest.0.max(self.rate));
            return Ok(None);
        };
        let low = vec![accordion.low; self.tensors.len()];
        let choices = uniform(&self.config, &self.tensors, Some(&low))?;
        Ok(Some(self.unmeasured(choices, Cause::LearningRate)))
    }

    /// A decision that is made without looking at gradients.
    fn unmeasured(&self, choices: Vec<LayerSetting>, cause: Cause) -> Decided {
        let choices = choices.into_iter().zip(&*self.tensors);
        let choices: Vec<_> = choices.map(|(choice, tensor)| suited(&self.config, tensor, choice)).collect();
        let mut decision = Decision::without_plan(self.step, cause);
        decision.not_contractive = refused(&choices);
        Decided { decision, choices, norms: vec![] }
    }

    /// The work of the next decision, on the measuring rank, as soon as the window has all of its gradients; else `None`. The task
    /// shares the window's memory. A state that is saved while the task runs still contains the window, and nothing is lost if the
    /// task is dropped.
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
            // Without a lead, `due_now` may not have been called for this step yet, so the plan uses this step's learning rate.
            fell: if self.config.schedule.lead == 0 { self.falls(self.rate) } else { self.fell },
        })
    }

    /// Takes a task's result for the broadcast at the step of the decision, and returns whether the scheduler was still waiting for
    /// this result. The scheduler no longer waits after a saved state was loaded, or after a fall of the learning rate has replaced
    /// the decision.
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

    /// The measuring rank's message, as words.
    pub(super) fn message(&self) -> Vec<u64> {
        let decided = self.result.as_ref().map(|result| &result.decided);
        decision::write(self.tensors.len(), self.fingerprint(), decided)
    }

    /// Reads the measuring rank's message; `None` if that rank has decided nothing yet.
    pub(super) fn read(&mut self, words: &[u64]) -> Result<Option<Decided>, Error> {
        let step = self.step;
        let now = |decided: Decided| Decided { decision: Decision { step, ..decided.decision }, ..decided };
        let root = self.config.measuring_rank;
        let heard = decision::read(root, self.fingerprint(), words, &self.config.search.methods);
        // The message lacks a result that was handed in after the message was made.
        let told = !matches!(heard, Ok(None));
        if let Some(result) = self.result.take_if(|_| told) {
            return result.decided.map(|decided| Some(now(decided)));
        }
        let decided = heard.map_err(|error| match error {
            Error::PeerPlan { rank: 0 } => Error::PeerPlan { rank: self.rank },
            error => error,
        })?;
        if let Some(decided) = &decided {
            for (choice, tensor) in decided.choices.iter().zip(&*self.tensors) {
                let fits = choice.setting.payload_len(tensor.shape, tensor.dtype);
                fits.map_err(|error| Error::PeerMessage { rank: root, code: error.code() })?;
            }
        }
        Ok(decided.map(now))
    }

    /// Records a decision that all ranks have switched to.
    pub(super) fn commit(&mut self, decision: Decision, norms: Vec<f64>) {
        if self.is_due() && (decision.cause != Cause::LearningRate || self.config.schedule.lead > 0) {
            self.due = self.config.next_decision(self.step);
            if decision.cause == Cause::Schedule {
                self.norms = norms;
            }
            self.forget();
        }
        self.decision = Some(decision);
        (self.highest, self.fell, self.given) = (Highest(self.rate), false, Given::Nothing);
    }

    /// Gives a fixed policy other settings.
    pub(super) fn fix(&mut self, settings: Vec<Setting>) -> Result<(), Error> {
        let Policy::Fixed(_) = self.config.policy else { return Err(Error::NotFixed) };
        let config = Config { policy: Policy::Fixed(settings), ..Config::clone(&self.config) };
        config.check(&self.tensors, self.world)?;
        self.identity = checksum(&fields(&config, &self.tensors, self.world));
        self.config = Arc::new(config);
        if self.decision.is_some() {
            (self.due, self.given) = (Some(self.step), Given::Untold);
        } else if !self.window.is_free() {
            // A plan task under way was made with the old settings, so its result must be dropped.
            self.forget();
        }
        Ok(())
    }

    /// A fixed policy's settings at this step; under all other policies the search's default.
    pub(super) fn default_choices(&self, step: u64) -> Result<Vec<LayerSetting>, Error> {
        let config = self.config.at(step)?;
        let choices = match &config.policy {
            Policy::Fixed(settings) => settings.iter().map(|&setting| LayerSetting::chosen(setting)).collect(),
            _ => uniform(&config, &self.tensors, None)?,
        };
        let choices = choices.into_iter().zip(&*self.tensors);
        Ok(choices.map(|(choice, tensor)| suited(&config, tensor, choice)).collect())
    }

    /// Whether a policy that decides once would choose other settings than `saved`, the settings of a saved state.
    pub(super) fn overrules(&self, saved: &[LayerSetting], step: u64) -> Result<bool, Error> {
        if !matches!(self.config.policy, Policy::Fixed(_) | Policy::Uniform) || self.config.ramps(step) {
            return Ok(false);
        }
        // Gradients have shown that error feedback does not work with these layers' settings, or that compressing the layers saves
        // no time.
        let judged = |saved: &LayerSetting| {
            matches!(saved.uncompressed, Some(Uncompressed::NotContractive | Uncompressed::Slower))
        };
        let own = self.default_choices(step)?;
        Ok(own.iter().zip(saved).any(|(own, saved)| own.setting != saved.setting && !judged(saved)))
    }

    /// Makes a decision due at the next step, because the settings of a loaded state differ from the policy's settings.
    pub(super) fn decide_again(&mut self) {
        let comes = self.config.ramp_up.is_some() && self.due.is_some();
        if self.decision.is_some() && !comes {
            self.given = if matches!(self.config.policy, Policy::Fixed(_)) { Given::Untold } else { Given::Nothing };
            self.due = Some(self.step.max(self.config.schedule.warmup));
        }
    }

    /// Brings the next decision forward, as [`Planning::replan`](super::Planning::replan) does, and returns the step at which it is
    /// due; `None` if no decision is left. All ranks must call this method between the same two steps. O(1).
    pub(super) fn replan(&mut self) -> Option<u64> {
        let Schedule { warmup, window, lead, .. } = self.config.schedule;
        // The buckets of the next step show whether all ranks have asked for the decision. A probe comes before buckets, so with
        // measured seconds the window has at least two steps.
        let window = if self.meter.is_some() { window.max(2) } else { window };
        let soonest = self.step.saturating_add(window).saturating_add(lead).max(warmup);
        self.due = self.due.map(|due| due.min(soonest));
        self.due
    }

    /// Opens the step for buckets. `broken` means that some gradient is not finite. In that case, the step does not belong to the
    /// window.
    ///
    /// # Errors
    /// [`CoreError::OutOfMemory`](crate::CoreError::OutOfMemory) if a window begins. After this error, the step is open, and the
    /// window begins anew with the next step.
    pub(super) fn open(&mut self, broken: bool) -> Result<(), Error> {
        let Schedule { window, lead, .. } = self.config.schedule;
        let near = self.due.is_some_and(|due| {
            let end = self.step.saturating_add(lead);
            end.saturating_add(window) >= due && (end < due || self.window.steps == 0)
        });
        self.watches = near && !broken;
        self.window.steps += u64::from(self.watches);
        if self.window.steps != 1 || !self.watches() {
            return Ok(());
        }
        self.window.open(&self.tensors).inspect_err(|_| self.forget())
    }

    /// Ends the step.
    pub(super) fn close(&mut self) {
        self.step += 1;
        self.watches = false;
    }

    /// Gives up the step, which will be opened again.
    pub(super) fn reopen(&mut self) {
        if self.watches {
            self.forget();
        }
    }

    /// Whether this rank adds this step's gradients to the window.
    pub(super) fn watches(&self) -> bool {
        self.watches && self.measures()
    }

    /// The number of this step in its window, from 1; 0 outside a window.
    pub(super) fn window_step(&self) -> u64 {
        if self.watches { self.window.steps } else { 0 }
    }

    /// Lends a layer's mean to a bucket, which adds the layer's gradient to the mean. The mean is empty outside a window, and on
    /// ranks that do not measure.
    pub(super) fn lend_mean(&mut self, layer: usize) -> Vec<f32> {
        match self.watches() {
            true => core::mem::take(&mut self.window.means_mut()[layer]),
            false => vec![],
        }
    }

    pub(super) fn take_mean_back(&mut self, layer: usize, mean: Vec<f32>) {
        if !mean.is_empty() {
            self.window.means_mut()[layer] = mean;
        }
    }

    /// Begins the window anew. Results of plan tasks that are under way will be dropped.
    pub(super) fn forget(&mut self) {
        (self.result, self.watches) = (None, false);
        self.window.clear();
    }

    /// Discards the window and the settings given by the caller, because a saved state was loaded.
    pub(super) fn restart(&mut self) {
        (self.given, self.unread) = (Given::Nothing, 0);
        self.forget();
    }

    /// The values, in addition to the options, that must be the same on all ranks at this step.
    pub(super) fn step_fields(&self) -> [Field; 8] {
        let follows = self.config.accordion().is_some();
        let of_rate = |rate: f64| if follows { rate } else { f64::NAN };
        let elsewhere = self.meter.as_ref().is_some_and(|meter| meter.elsewhere);
        let decision = self
            .decision
            .iter()
            .flat_map(|decision| decision.encode().into_iter().chain(Timing::encode(decision.timing.as_ref())));
        [
            Field::whole("step", self.step),
            Field::whole("steps whose messages could not be read", self.unread),
            Field::named("settings given by set_settings", &["no", "yes"], u64::from(self.given != Given::Nothing)),
            Field::whole("step of the next decision", self.due.unwrap_or(u64::MAX)),
            Field::real("learning rate", of_rate(self.rate)),
            // Accordion compares the learning rate with the highest learning rate. If the highest rate differed between ranks, only
            // some ranks would ask for a switch.
            Field::real("highest learning rate since the last decision", of_rate(self.highest.0.max(self.rate))),
            // Ranks compute the size of a probe from the decision's times.
            Field::checksum("last decision", decision),
            // If the caller of one rank measures the seconds, the controller of this rank runs no probe. Ranks whose controllers
            // run a probe would wait for this rank's messages.
            Field::named(
                "seconds measured by the caller",
                &["no", "yes"],
                u64::from(elsewhere && self.is_last_before_task()),
            ),
        ]
    }

    /// Checksum of everything that must be the same on all ranks at this step.
    pub(super) fn fingerprint(&self) -> u64 {
        self.step_fields().iter().fold(Hash(self.identity), |hash, field| hash.add(field.word)).0
    }
}
