//! What a controller's memory is used for, before it is used.

use super::Controller;
use super::bucket::words;
use super::codes::Choice;
use super::decide::{suited, uniform};
use super::groups::Groups;
use super::lens::{Facts, Left};
use super::{Policy, Tensor, Uncompressed};
use crate::Error;
use crate::exchange::{Moment, Spec, factor_rank};
use crate::feedback::Residual;
use crate::gradient::Dtype;
use alloc::vec::Vec;

/// Bytes that a controller takes on one rank, by what they are for. The trainer's gradients are not among them.
///
/// ```
/// # use lgreco_train::{controller::{Config, Controller, Tensor}, exchange::threads::ThreadCollective, gradient::Dtype};
/// # use lgreco_train::search::{Method, Search};
/// # let worker = ThreadCollective::group(1).remove(0);
/// let layers = vec![Tensor::new("fc1", &[1024, 1024], Dtype::F32)?];
/// let controller = Controller::new(Config::new(Search::new(Method::TopK)), layers, &worker)?;
/// let memory = controller.memory(None)?;
/// assert_eq!((memory.residuals, memory.undo, memory.window), (4 << 20, 0, 4 << 20));
/// assert!(memory.total() < 20 << 20);
/// # Ok::<(), lgreco_train::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Residuals of error feedback.
    pub residuals: u64,
    /// The residuals of the step before, where [`undo`](super::Config::undo) asks for them.
    pub undo: u64,
    /// PowerSGD's factors.
    pub factors: u64,
    /// Messages of the buckets that are on their way at the same time, and what one of them is computed in.
    pub exchange: u64,
    /// The gradients that a decision is made of: on the measuring rank, in the steps of the window and until the decision.
    pub window: u64,
}

impl MemoryUse {
    /// All of it.
    pub const fn total(&self) -> u64 {
        self.residuals + self.undo + self.factors + self.exchange + self.window
    }
}

impl Controller {
    /// How much memory the run takes on this rank: under the settings of the last decision, or before the first under the
    /// search's default, and with uncompressed steps before. `in_flight` is the size in bytes of buckets that are all on their way
    /// at the same time; `None` stands for [`step`](Controller::step), which has one at a time.
    ///
    /// # Errors
    /// Those of settings that do not fit their layers.
    ///
    /// # Complexity
    /// O(layers). Allocates for them.
    pub fn memory(&self, in_flight: Option<usize>) -> Result<MemoryUse, Error> {
        let (config, tensors) = (&self.planner.config, &self.planner.tensors);
        let choices = self.expected_choices()?;
        let mut memory = MemoryUse::default();
        for (choice, tensor) in choices.iter().zip(&**tensors) {
            let residual = config.feedback.of(&choice.setting);
            memory.residuals += residual.map_or(0, |residual| 8 * residual.state_len(tensor.shape) as u64);
            memory.factors += 4 * (tensor.shape.cols() * factor_rank(&choice.setting, tensor.shape)) as u64;
        }
        memory.undo = if config.keeps_undo() { memory.residuals } else { 0 };
        let dense: Vec<Choice> = choices.iter().map(|_| Choice::dense(Uncompressed::WarmUp)).collect();
        memory.exchange = self.exchange_bytes(&dense, in_flight)?.max(self.exchange_bytes(&choices, in_flight)?);
        if self.planner.measures() && config.looks_at_gradients() {
            memory.window = tensors.iter().map(|tensor| 4 * tensor.shape.elements() as u64).sum();
        }
        Ok(memory)
    }

    /// The settings of most of the run, as far as they are known.
    fn expected_choices(&self) -> Result<Vec<Choice>, Error> {
        let (config, tensors) = (&self.planner.config, &self.planner.tensors);
        let decided = self.planner.step > 0 && self.states.iter().any(|state| state.choice.uncompressed.is_none());
        let choices = match &config.policy {
            _ if decided => return Ok(self.states.iter().map(|state| state.choice).collect()),
            Policy::Uncompressed => return Ok(self.states.iter().map(|state| state.choice).collect()),
            Policy::Fixed(settings) => settings.iter().map(|&setting| super::decide::chosen(setting)).collect(),
            _ => uniform(config, tensors, None)?,
        };
        Ok(choices.into_iter().zip(&**tensors).map(|(choice, tensor)| suited(config, tensor, choice)).collect())
    }

    fn exchange_bytes(&self, choices: &[Choice], in_flight: Option<usize>) -> Result<u64, Error> {
        let (config, tensors) = (&self.planner.config, &self.planner.tensors);
        let moment = Moment {
            rank: self.rank,
            world_size: self.world,
            route: config.route,
            reduce_dtype: config.search.reduce_dtype,
            seed: config.search.seed,
            step: 0,
            terms: 0,
        };
        let groups = in_flight.map(|bytes| Groups::new(tensors, bytes));
        let groups = groups.as_ref().unwrap_or(&self.planner.groups);
        let (mut all, mut largest, mut one) = (0, 0, 0);
        for range in &groups.ranges {
            let group = || tensors[range.clone()].iter().zip(&choices[range.clone()]);
            let specs: Vec<Spec<'_>> = tensors[range.clone()]
                .iter()
                .zip(&choices[range.clone()])
                .map(|(tensor, choice)| Spec { in_place: tensor.dtype == Dtype::F32, ..tensor.spec(choice.setting) })
                .collect();
            let left = |(tensor, choice): (&Tensor, &Choice)| {
                let residual = config.feedback.of(&choice.setting);
                let facts = Facts::new(choice, tensor.dtype, [residual.is_some(), true, false, false], config.route);
                (facts.left, residual.is_some_and(|residual: Residual| residual.is_plain()), tensor.shape.elements())
            };
            let offered: usize = group().map(left).filter(|of| of.0 == Left::Instead).map(|of| of.2).sum();
            let beside = |of: &(Left, bool, usize)| of.0 == Left::Beside && !(config.keeps_undo() && of.1);
            let [words, scratch] = words(specs.iter().copied(), &moment)?.map(|words| 8 * words as u64);
            let bytes = words + 4 * offered as u64;
            all += bytes;
            largest = largest.max(bytes);
            let of_layers = group().map(left).filter(beside).map(|of| 4 * of.2 as u64);
            one = one.max(scratch + of_layers.sum::<u64>());
        }
        Ok(one + if in_flight.is_some() { all } else { largest })
    }
}
