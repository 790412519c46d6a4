//! What a step begins with, and what comes of it.

use super::accordion::Highest;
use super::codes::Choice;
use super::decide::{Decided, chosen, refused, suited, uniform};
use super::identity::{Field, checksum, fields};
use super::planner::{Given, Planner, Turn};
use super::{Cause, Config, Decision, Policy, Schedule, Uncompressed, message};
use crate::Error;
use crate::checksum::Hash;
use crate::compress::{Compressor, Setting};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

impl Planner {
    /// What the step begins with. Nothing has changed but for the highest learning rate where there is nothing to do.
    pub(super) fn next(&mut self, rate: f64) -> Result<Turn, Error> {
        self.rate = rate;
        self.fell = self.falls(rate);
        // A decision that was made before the fall does not know of it.
        let instead = self.fell && self.config.schedule.lead > 0;
        match (self.is_due() && !instead, &self.config.policy) {
            (true, Policy::Fixed(settings)) if self.given == Given::Told => {
                let choices = settings.iter().map(|&setting| chosen(setting)).collect();
                Ok(Turn::Known(self.unmeasured(choices, Cause::Caller)))
            }
            (true, _) => Ok(Turn::Broadcast),
            (false, _) => Ok(self.undecided()?.map_or(Turn::Nothing, Turn::Known)),
        }
    }

    /// Whether this learning rate is a fall that Accordion looks at.
    pub(super) fn falls(&self, rate: f64) -> bool {
        let (mut highest, accordion) = (self.highest, self.config.accordion());
        let accordion = accordion.filter(|_| self.step >= self.config.schedule.warmup);
        accordion.is_some_and(|accordion| highest.falls(&accordion, rate))
    }

    /// A decision that is made without looking at gradients.
    fn unmeasured(&self, choices: Vec<Choice>, cause: Cause) -> Decided {
        let choices = choices.into_iter().zip(&*self.tensors);
        let choices: Vec<_> = choices.map(|(choice, tensor)| suited(&self.config, tensor, choice)).collect();
        let mut decision = Decision::without_plan(self.step, cause);
        decision.not_contractive = refused(&choices);
        Decided { decision, choices, norms: vec![] }
    }

    /// New settings of a fixed policy.
    pub(super) fn fix(&mut self, settings: Vec<Setting>) -> Result<(), Error> {
        let Policy::Fixed(_) = self.config.policy else { return Err(Error::NotFixed) };
        let config = Config { policy: Policy::Fixed(settings), ..Config::clone(&self.config) };
        config.check(&self.tensors, self.world)?;
        self.identity = checksum(&fields(&config, &self.tensors, self.world));
        self.config = Arc::new(config);
        if self.decision.is_some() {
            (self.due, self.given) = (Some(self.step), Given::Untold);
        } else if !self.window.is_free() {
            // A task is about the settings before.
            self.forget();
        }
        Ok(())
    }

    /// What a fixed policy chooses at this step, and for all others the search's default.
    pub(super) fn default_choices(&self, step: u64) -> Result<Vec<Choice>, Error> {
        let config = self.config.at(step)?;
        let choices = match &config.policy {
            Policy::Fixed(settings) => settings.iter().map(|&setting| chosen(setting)).collect(),
            _ => uniform(&config, &self.tensors, None)?,
        };
        let choices = choices.into_iter().zip(&*self.tensors);
        Ok(choices.map(|(choice, tensor)| suited(&config, tensor, choice)).collect())
    }

    /// Whether a policy that decides once would have chosen other settings than these, which are of a saved state.
    pub(super) fn overrules(&self, saved: &[Choice], step: u64) -> Result<bool, Error> {
        if !matches!(self.config.policy, Policy::Fixed(_) | Policy::Uniform) || self.config.ramps(step) {
            return Ok(false);
        }
        // Which layers do not bear compression, or are not worth it, gradients have shown.
        let judged =
            |saved: &Choice| matches!(saved.uncompressed, Some(Uncompressed::NotContractive | Uncompressed::Slower));
        let own = self.default_choices(step)?;
        Ok(own.iter().zip(saved).any(|(own, saved)| own.setting != saved.setting && !judged(saved)))
    }

    /// Decides at the next step, as a state was loaded whose settings are not those of the policy.
    pub(super) fn decide_again(&mut self) {
        let comes = self.config.ramp_up.is_some() && self.due.is_some();
        if self.decision.is_some() && !comes {
            self.given = if matches!(self.config.policy, Policy::Fixed(_)) { Given::Untold } else { Given::Nothing };
            self.due = Some(self.step.max(self.config.schedule.warmup));
        }
    }

    /// What is to be done without a plan.
    pub(super) fn undecided(&mut self) -> Result<Option<Decided>, Error> {
        let Some(accordion) = self.config.accordion().filter(|_| self.fell) else {
            self.highest = Highest(self.highest.0.max(self.rate));
            return Ok(None);
        };
        let low = vec![accordion.low; self.tensors.len()];
        let choices = uniform(&self.config, &self.tensors, Some(&low))?;
        Ok(Some(self.unmeasured(choices, Cause::LearningRate)))
    }

    /// Whether this rank decides for all.
    pub(super) fn measures(&self) -> bool {
        self.rank == self.config.measuring_rank && self.config.policy != Policy::Uncompressed
    }

    /// The message, as words.
    pub(super) fn words(&self) -> Vec<u64> {
        let decided = self.result.as_ref().map(|result| &result.decided);
        message::write(self.tensors.len(), self.fingerprint(), decided)
    }

    /// What the measuring rank's message says.
    pub(super) fn read(&mut self, words: &[u64]) -> Result<Option<Decided>, Error> {
        let step = self.step;
        let now = |decided: Decided| Decided { decision: Decision { step, ..decided.decision }, ..decided };
        let root = self.config.measuring_rank;
        let heard = message::read(root, self.fingerprint(), words, &self.config.search.methods);
        // What has been handed in since the message was made is not in it.
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

    /// Takes note of a decision that all ranks take over.
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

    /// Between two steps, on all ranks: brings the next decision forward, as [`Planning::replan`](super::Planning::replan)
    /// does, and returns the step at which it is due, `None` where nothing is left to decide. O(1).
    pub(super) fn replan(&mut self) -> Option<u64> {
        let Schedule { warmup, window, lead, .. } = self.config.schedule;
        // The buckets of the next step tell whether all ranks have asked; a probe would come before them.
        let window = if self.meter.is_some() { window.max(2) } else { window };
        let soonest = self.step.saturating_add(window).saturating_add(lead).max(warmup);
        self.due = self.due.map(|due| due.min(soonest));
        self.due
    }

    /// Opens the step; without gradients for the window if some are `broken`.
    pub(super) fn open(&mut self, broken: bool) {
        let Schedule { window, lead, .. } = self.config.schedule;
        let near = self.due.is_some_and(|due| {
            let end = self.step.saturating_add(lead);
            end.saturating_add(window) >= due && (end < due || self.window.steps == 0)
        });
        self.watches = near && !broken;
        self.window.steps += u64::from(self.watches);
        if self.window.steps == 1 && self.watches() {
            self.window.open(&self.tensors);
        }
    }

    /// The next step is another one.
    pub(super) fn close(&mut self) {
        self.step += 1;
        self.watches = false;
    }

    /// The step is to be opened again.
    pub(super) fn reopen(&mut self) {
        if self.watches {
            self.forget();
        }
    }

    /// Which step of a window this is; 0 for none.
    pub(super) fn window_step(&self) -> u64 {
        if self.watches { self.window.steps } else { 0 }
    }

    /// A layer's mean, to be added to elsewhere in a step of a window; else nothing.
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

    /// Begins the window anew. Tasks that are still out are not waited for.
    pub(super) fn forget(&mut self) {
        (self.result, self.watches) = (None, false);
        self.window.clear();
    }

    /// Forgets what belongs to the run before a saved state.
    pub(super) fn restart(&mut self) {
        self.given = Given::Nothing;
        self.forget();
    }

    /// What all ranks must have alike at this step, but for the options.
    pub(super) fn step_fields(&self) -> [Field; 4] {
        let rate = if self.config.accordion().is_some() { self.rate } else { f64::NAN };
        [
            Field::whole("step", self.step),
            Field::named("settings given by set_settings", &["no", "yes"], u64::from(self.given != Given::Nothing)),
            Field::whole("step of the next decision", self.due.unwrap_or(u64::MAX)),
            Field::real("learning rate", rate),
        ]
    }

    /// The checksum of what all ranks must agree on at this step.
    pub(super) fn fingerprint(&self) -> u64 {
        self.step_fields().iter().fold(Hash(self.identity), |hash, field| hash.add(field.word)).0
    }
}
