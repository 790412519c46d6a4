//! Prediction of a controller's memory.

use super::Controller;
use super::Policy;
use super::arena::Needs;
use super::groups::Groups;
use super::layer_plan::LayerPlan;
use super::schedule::Scheduler;
use crate::Error;
use alloc::vec::Vec;
use core::ops::Range;

/// Bytes of a controller on one rank, by purpose. The trainer's gradients are not included.
///
/// ```
/// # use lgreco_train::{controller::{Config, Controller, MemoryUse, Tensor}, exchange::threads::ThreadCollective, gradient::Dtype};
/// # use lgreco_train::search::{Method, Search};
/// # let worker = ThreadCollective::group(1).remove(0);
/// let layers = vec![Tensor::new("fc1", &[1024, 1024], Dtype::F32)?];
/// let controller = Controller::new(Config::new(Search::new(Method::TopK)), layers, worker.rank(), worker.world_size())?;
/// let memory = MemoryUse::of(&controller, None, 1)?;
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
    /// Messages of the buckets that are exchanged at the same time, and the scratch memory of one bucket.
    pub exchange: u64,
    /// The window's mean gradient, which the measuring rank holds from the first step of the window to the decision.
    pub window: u64,
}

impl MemoryUse {
    /// Predicts the memory of a controller's run on its rank, under the settings of the last decision.
    ///
    /// Before the first decision, the search's default settings are assumed. The uncompressed steps of the warm-up are included. At
    /// most `at_once` buckets of `bucket_bytes` each are exchanged at the same time. `None` means the configured size.
    /// [`Controller::step`] exchanges one bucket of the configured size at a time.
    ///
    /// # Errors
    /// The errors of settings that do not fit their layers.
    ///
    /// # Complexity
    /// O(layers), also in memory.
    pub fn of(controller: &Controller, bucket_bytes: Option<usize>, at_once: usize) -> Result<MemoryUse, Error> {
        let groups = bucket_bytes.map(|bytes| Groups::new(&controller.scheduler.tensors, bytes));
        MemoryUse::of_groups(controller, groups.as_ref(), at_once, &[])
    }

    /// The memory for buckets of these groups. `None` means the groups of blocking steps. `messages` has the bytes of each bucket's
    /// messages inside a node, empty without nodes.
    pub(super) fn of_groups(
        controller: &Controller,
        groups: Option<&Groups>,
        at_once: usize,
        messages: &[u64],
    ) -> Result<MemoryUse, Error> {
        let (config, tensors) = (&controller.scheduler.config, &controller.scheduler.tensors);
        let plans = controller.expected_plans()?;
        let mut memory = MemoryUse::default();
        for plan in &plans {
            memory.residuals += 8 * plan.residual_words as u64;
            memory.undo += 8 * plan.undo_words() as u64;
            memory.factors += 4 * plan.factor_len as u64;
        }
        let dense =
            tensors.iter().enumerate().map(|(index, tensor)| LayerPlan::before_decisions(index, tensor, config));
        let dense = dense.collect::<Result<Vec<_>, _>>()?;
        let exchange = |plans: &[LayerPlan]| {
            controller.exchange_bytes(plans, groups.unwrap_or(&controller.scheduler.groups), at_once, messages)
        };
        memory.exchange = match groups {
            // The same memory serves all buckets of blocking steps. It never shrinks.
            None if at_once == 1 => {
                let needs = controller.most_needed(&dense)?.max(controller.most_needed(&plans)?);
                needs.lasting().saturating_add(needs.passing()).saturating_add(*messages.iter().max().unwrap_or(&0))
            }
            _ => exchange(&dense)?.max(exchange(&plans)?),
        };
        if controller.scheduler.measures() && config.looks_at_gradients() {
            memory.window = tensors.iter().map(|tensor| 4 * tensor.shape.elements() as u64).sum();
        }
        Ok(memory)
    }

    /// The sum of all fields.
    pub const fn total(&self) -> u64 {
        (self.residuals + self.undo + self.factors + self.window).saturating_add(self.exchange)
    }
}

impl Controller {
    /// The plans that most steps will use. The expected plans are the present plans if some plan compresses its layer, or if the
    /// policy never compresses. Otherwise, the expected plans have a fixed policy's settings or the search's default settings.
    fn expected_plans(&self) -> Result<Vec<LayerPlan>, Error> {
        let Scheduler { config, tensors, .. } = &self.scheduler;
        let decided = self.states.iter().any(|state| state.plan.choice.uncompressed.is_none());
        if decided || config.policy == Policy::Uncompressed {
            return Ok(self.plans());
        }
        let choices = self.scheduler.default_choices(config.schedule.warmup)?;
        let layers = tensors.iter().zip(choices).enumerate();
        layers.map(|(index, (tensor, choice))| LayerPlan::new(index, tensor, choice, config)).collect()
    }

    /// The plans in use.
    fn plans(&self) -> Vec<LayerPlan> {
        self.states.iter().map(|state| state.plan).collect()
    }

    fn exchange_bytes(
        &self,
        plans: &[LayerPlan],
        groups: &Groups,
        at_once: usize,
        messages: &[u64],
    ) -> Result<u64, Error> {
        let needs = groups.ranges.iter().map(|range| self.needs_of(&plans[range.clone()]));
        let needs = needs.collect::<Result<Vec<_>, _>>()?;
        let message = |at: usize| messages.get(at).copied().unwrap_or(0);
        let passing = needs.iter().enumerate().map(|(at, needs)| needs.passing().max(message(at))).collect();
        let lasting = needs.iter().map(Needs::lasting).collect();
        // A bucket's message inside the node may be under way while the previous bucket computes.
        let passing_at_once = if messages.is_empty() { 1 } else { at_once.min(2) };
        Ok(largest(passing, passing_at_once).saturating_add(largest(lasting, at_once)))
    }

    /// Memory that is enough for each bucket of blocking steps under these plans.
    fn most_needed(&self, plans: &[LayerPlan]) -> Result<Needs, Error> {
        let mut ranges = self.scheduler.groups.ranges.iter();
        ranges.try_fold(Needs::default(), |most, range| Ok(most.max(self.needs_of(&plans[range.clone()])?)))
    }

    /// Memory of a bucket of layers with these plans. Each layer is assumed to have a residual if its setting has error feedback.
    fn needs_of(&self, plans: &[LayerPlan]) -> Result<Needs, Error> {
        let specs = plans.iter().map(|plan| plan.spec(&self.scheduler.tensors[plan.index].shards));
        Needs::of(specs, plans.iter().map(|plan| plan.in_step(plan.residual, false, false)), &self.moment())
    }

    /// Allocates the memory of blocking steps under these plans, so that a lack of memory is found before ranks agree to switch.
    /// If the caller opens buckets itself, memory is allocated when a bucket is opened.
    pub(super) fn provide(&mut self, plans: &[LayerPlan]) -> Result<(), Error> {
        if !self.agreed.is_empty() {
            return Ok(());
        }
        let layers = self.scheduler.groups.ranges.iter().map(Range::len).max();
        self.arenas.provide(layers.unwrap_or(0), &self.most_needed(plans)?)
    }

    /// Calls [`provide`](Controller::provide) with the present plans, before the first step.
    pub(super) fn provide_once(&mut self) -> Result<(), Error> {
        if self.arenas.is_empty() { self.provide(&self.plans()) } else { Ok(()) }
    }
}

/// The sum of the `count` largest values.
fn largest(mut bytes: Vec<u64>, count: usize) -> u64 {
    bytes.sort_unstable_by(|one, other| other.cmp(one));
    bytes.iter().take(count).fold(0, |sum, &bytes| sum.saturating_add(bytes))
}
