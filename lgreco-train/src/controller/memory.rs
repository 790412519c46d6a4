//! Prediction of a controller's memory.

use super::Controller;
use super::decision::LayerSetting;
use super::groups::Groups;
use super::layer_plan::{Known, LayerPlan, Needs};
use super::schedule::Scheduler;
use super::{Policy, Uncompressed};
use crate::Error;
use crate::exchange::factor_rank;
use alloc::vec::Vec;
use core::ops::Range;

/// Bytes of a controller on one rank, by purpose. The trainer's gradients are not included.
///
/// ```
/// # use lgreco_train::{controller::{Config, Controller, Tensor}, exchange::threads::ThreadCollective, gradient::Dtype};
/// # use lgreco_train::search::{Method, Search};
/// # let worker = ThreadCollective::group(1).remove(0);
/// let layers = vec![Tensor::new("fc1", &[1024, 1024], Dtype::F32)?];
/// let controller = Controller::new(Config::new(Search::new(Method::TopK)), layers, worker.rank(), worker.world_size())?;
/// let memory = controller.memory(None, 1)?;
/// assert_eq!((memory.residuals, memory.undo, memory.window), (4 << 20, 0, 4 << 20));
/// assert!(memory.total() < 20 << 20);
/// # Ok::<(), lgreco_train::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Residuals.
    pub residuals: u64,
    /// The residuals from before the last step, with [`undo`](super::Config::undo).
    pub undo: u64,
    /// PowerSGD's factors.
    pub factors: u64,
    /// Messages of the buckets that are exchanged at the same time, and the scratch memory of one of them.
    pub exchange: u64,
    /// The window's mean gradient, which the measuring rank holds from the first step of the window to the decision.
    pub window: u64,
}

impl MemoryUse {
    /// The sum of all fields.
    pub const fn total(&self) -> u64 {
        self.residuals + self.undo + self.factors + self.exchange + self.window
    }
}

impl Controller {
    /// Predicts the memory of the run on this rank, under the settings of the last decision.
    ///
    /// Before the first decision, the search's default settings are assumed. The uncompressed steps of the warm-up are included. At
    /// most `at_once` buckets of `bucket_bytes` each are exchanged at the same time. `None` stands for the configured size.
    /// [`step`](Controller::step) exchanges one bucket of the configured size at a time.
    ///
    /// # Errors
    /// The errors of settings that do not fit their layers.
    ///
    /// # Complexity
    /// O(layers), also in memory.
    pub fn memory(&self, bucket_bytes: Option<usize>, at_once: usize) -> Result<MemoryUse, Error> {
        let (config, tensors) = (&self.scheduler.config, &self.scheduler.tensors);
        let choices = self.expected_choices()?;
        let mut memory = MemoryUse::default();
        for (choice, tensor) in choices.iter().zip(&**tensors) {
            let residual = config.feedback.of(&choice.setting);
            memory.residuals += residual.map_or(0, |residual| 8 * residual.state_len(tensor.shape) as u64);
            memory.factors += 4 * (tensor.shape.cols() * factor_rank(&choice.setting, tensor.shape)) as u64;
        }
        memory.undo = if config.keeps_undo() { memory.residuals } else { 0 };
        let dense: Vec<LayerSetting> = choices.iter().map(|_| LayerSetting::dense(Uncompressed::WarmUp)).collect();
        let groups = bucket_bytes.map(|bytes| Groups::new(tensors, bytes));
        let groups = groups.as_ref().unwrap_or(&self.scheduler.groups);
        let exchange = |choices: &[LayerSetting]| self.exchange_bytes(choices, groups, at_once);
        memory.exchange = match bucket_bytes {
            // One arena serves all buckets of blocking steps. It never shrinks.
            None if at_once == 1 => {
                let needs = self.most_needed(&dense)?.max(self.most_needed(&choices)?);
                needs.lasting() + needs.passing()
            }
            _ => exchange(&dense)?.max(exchange(&choices)?),
        };
        if self.scheduler.measures() && config.looks_at_gradients() {
            memory.window = tensors.iter().map(|tensor| 4 * tensor.shape.elements() as u64).sum();
        }
        Ok(memory)
    }

    /// The settings of most of the run, as far as they are known now.
    fn expected_choices(&self) -> Result<Vec<LayerSetting>, Error> {
        let decided = self.states.iter().any(|state| state.choice.uncompressed.is_none());
        if decided || self.scheduler.config.policy == Policy::Uncompressed {
            return Ok(self.choices());
        }
        self.scheduler.default_choices(self.scheduler.config.schedule.warmup)
    }

    /// The settings in use.
    fn choices(&self) -> Vec<LayerSetting> {
        self.states.iter().map(|state| state.choice).collect()
    }

    fn exchange_bytes(&self, choices: &[LayerSetting], groups: &Groups, at_once: usize) -> Result<u64, Error> {
        let needs = groups.ranges.iter().map(|range| self.needs_of(choices, range.clone()));
        let needs = needs.collect::<Result<Vec<_>, _>>()?;
        let mut lasting: Vec<u64> = needs.iter().map(Needs::lasting).collect();
        lasting.sort_unstable_by(|one, other| other.cmp(one));
        let passing = needs.iter().map(Needs::passing).max();
        Ok(passing.unwrap_or(0) + lasting.iter().take(at_once).sum::<u64>())
    }

    /// Memory that is enough for each bucket of blocking steps under these settings.
    fn most_needed(&self, choices: &[LayerSetting]) -> Result<Needs, Error> {
        let mut ranges = self.scheduler.groups.ranges.iter();
        ranges.try_fold(Needs::default(), |most, range| Ok(most.max(self.needs_of(choices, range.clone())?)))
    }

    /// Memory of these layers together under these settings.
    fn needs_of(&self, choices: &[LayerSetting], layers: Range<usize>) -> Result<Needs, Error> {
        let Scheduler { config, tensors, .. } = &self.scheduler;
        let known = Known { residual: None, feedback: true, measured: false, withheld: false };
        let plans = tensors[layers.clone()].iter().zip(&choices[layers]).map(|(tensor, choice)| {
            let known = Known { residual: config.feedback.of(&choice.setting), ..known };
            let form = (tensor.shape, tensor.dtype);
            (LayerPlan::new(0, form, choice, known, config.route), &*tensor.shards)
        });
        Needs::of(plans, &self.moment())
    }

    /// Allocates the memory of blocking steps under these settings, so that a lack of memory is found before ranks agree to switch.
    /// If the caller opens buckets itself, memory is allocated when it opens them.
    pub(super) fn provide(&mut self, choices: &[LayerSetting]) -> Result<(), Error> {
        if !self.agreed.is_empty() {
            return Ok(());
        }
        let layers = self.scheduler.groups.ranges.iter().map(Range::len).max();
        self.arenas.provide(layers.unwrap_or(0), &self.most_needed(choices)?)
    }

    /// Calls [`provide`](Controller::provide) with the present settings, before the first step.
    pub(super) fn provide_once(&mut self) -> Result<(), Error> {
        if self.arenas.is_empty() { self.provide(&self.choices()) } else { Ok(()) }
    }
}
