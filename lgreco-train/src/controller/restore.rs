//! Saving a controller, and continuing from what was saved.

use super::codes::Choice;
use super::decide::suited;
use super::layer::{Counts, LayerState};
use super::saved::{MAGIC, NONE, State, VERSION, Writer, check};
use super::{Cause, Controller, Decision, Planner, Policy, Uncompressed};
use crate::Error;
use crate::checksum;
use crate::feedback::{Memory, SavedState};
use crate::rng::Stream;
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

/// What [`Controller::load`] found, by layer name.
///
/// ```
/// # use lgreco_train::{search::Method, testing::controller::{alone, step_alone}};
/// # let (mut controller, mut worker) = alone(Method::TopK)?;
/// let loaded = controller.load(&controller.save()?, &[])?;
/// assert_eq!((loaded.missing.len(), loaded.rank, loaded.world_size), (0, 0, 1));
/// # Ok::<(), lgreco_train::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Layers of the model that the state does not have: they start without residual, uncompressed until the next
    /// decision, which then comes at once.
    pub missing: Vec<String>,
    /// Layers of the state that the model does not have: they are ignored, and their residuals lost.
    pub extra: Vec<String>,
    /// Layers whose shape or element type is not that of the state: they are missing and extra at once.
    pub misshaped: Vec<String>,
    /// The rank that saved the plan.
    pub rank: u32,
    /// The number of workers then.
    pub world_size: u32,
}

impl Controller {
    /// This rank's state as bytes, the same on every machine; every rank saves its own. A controller that
    /// [loads](Controller::load) it continues bit for bit. The configuration is not in it.
    ///
    /// ```
    /// # use lgreco_train::{search::Method, testing::controller::{alone, step_alone}};
    /// # let (mut controller, mut worker) = alone(Method::TopK)?;
    /// let saved = controller.save()?;
    /// assert_eq!(saved[..8], *b"lgreco-c");
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// This rank's overflow of a residual, if that was to be told by the next step; [`Error::InFlight`] while a bucket is
    /// being exchanged.
    ///
    /// # Complexity
    /// Residuals and factors; on the measuring rank the window's mean too.
    pub fn save(&self) -> Result<Vec<u8>, Error> {
        self.late.map_or(Ok(()), Err)?;
        if let Some(layer) = self.states.iter().position(|state| state.lent != 0) {
            return Err(Error::InFlight { layer });
        }
        let planner = &self.planner;
        let mut to = Writer(vec![]);
        to.numbers([MAGIC, VERSION, self.rank as u64, self.world as u64, planner.step, planner.due.unwrap_or(NONE)]);
        to.numbers([planner.window.steps, planner.highest.0.to_bits(), self.non_finite]);
        let decision = planner.decision.unwrap_or(Decision::without_plan(0, Cause::Schedule));
        to.numbers([planner.decision.is_some() as u64]);
        to.numbers(decision.encode());
        to.numbers([planner.time.buckets() as u64, planner.time.samples()]);
        to.numbers(planner.time.numbers().map(f64::to_bits));
        to.numbers([planner.tensors.len() as u64]);
        for (layer, (tensor, state)) in planner.tensors.iter().zip(&self.states).enumerate() {
            to.numbers([tensor.name.len() as u64]);
            to.0.extend(tensor.name.bytes());
            to.pad();
            to.numbers([tensor.shape.rows() as u64, tensor.shape.cols() as u64, tensor.dtype as u64]);
            let Counts { steps, bytes_in, bytes_out, not_contractive } = state.counts;
            to.numbers(state.choice.encode());
            to.numbers([steps, bytes_in, bytes_out, not_contractive]);
            let norm = planner.norms.get(layer).copied();
            to.numbers([state.relative_error, norm].map(|number| number.unwrap_or(f64::NAN).to_bits()));
            to.values(&state.factor);
            let mean = planner.window.means().get(layer);
            to.numbers([mean.is_some() as u64]);
            to.values(mean.map_or(&[], |mean| mean));
            let len = state.memory.as_ref().map_or(0, Memory::part_len);
            to.numbers([len as u64]);
            if let Some(memory) = &state.memory {
                let start = to.0.len();
                to.0.resize(start + len, 0);
                memory.save_part(&mut to.0[start..]);
                to.pad();
            }
        }
        let end = to.0.len() + checksum::LEN;
        to.0.resize(end, 0);
        checksum::seal(&mut to.0);
        Ok(to.0)
    }

    /// Continues from `plan`, the [saved](Controller::save) state of any rank, with the residuals of `residuals`, states
    /// of the same step.
    /// All ranks load between the same two steps, or none: afterwards they find out anew whether their buckets fit together.
    ///
    /// | | `plan` | `residuals` |
    /// |---|---|---|
    /// | resuming | this rank's state | the same: the run continues bit for bit |
    /// | fewer workers | this rank's state | the same, and those of the ranks that this one takes over |
    /// | more workers, on a new rank | any rank's state | none: it starts without residuals |
    ///
    /// Everything but residuals comes from `plan`: settings, factors, schedule, the window and the detector's norms where
    /// this rank measures. Residuals are summed and multiplied by the number of workers now over that then, so that
    /// the mean of all residuals stays what it was if every state is given to one rank; those of states that are given to
    /// none are lost. With another number of workers, or on a measuring rank that is given the state of another, the
    /// window starts anew. Samples of the time model are kept if there are as many buckets.
    ///
    /// Settings stay as saved until the next decision, whatever the configuration now says, but for
    /// [`Policy::Uncompressed`].
    ///
    /// ```
    /// # use lgreco_train::{search::Method, testing::controller::{alone, step_alone}};
    /// # let (mut controller, mut worker) = alone(Method::TopK)?;
    /// # (0..4).try_for_each(|_| step_alone(&mut controller, &mut worker).map(drop))?;
    /// let saved = controller.save()?;
    /// let (mut continued, _) = alone(Method::TopK)?;
    /// continued.load(&saved, &[&saved])?;
    /// assert_eq!((continued.steps(), continued.setting(0)), (4, controller.setting(0)));
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CoreError::Checksum`](crate::CoreError::Checksum) when a state is not as it was saved;
    /// [`CoreError::SavedState`](crate::CoreError::SavedState), [`CoreError::Length`](crate::CoreError::Length),
    /// [`CoreError::DuplicateName`](crate::CoreError::DuplicateName) and those of settings, shapes and residuals for
    /// bytes that are no state of version 2, whatever they are; [`CoreError::SavedState`](crate::CoreError::SavedState)
    /// when states are of different steps or numbers of workers; [`CoreError::Overflow`](crate::CoreError::Overflow) of
    /// summed residuals; [`CoreError::OutOfMemory`](crate::CoreError::OutOfMemory). The controller is then unchanged.
    ///
    /// # Complexity
    /// The bytes of all states, and O(n log n) in the layers.
    pub fn load(&mut self, plan: &[u8], residuals: &[&[u8]]) -> Result<Loaded, Error> {
        let plan = State::parse(plan)?;
        let residuals = residuals.iter().map(|bytes| State::parse(bytes)).collect::<Result<Vec<_>, _>>()?;
        for state in &residuals {
            check("a residual's step", state.step == plan.step, state.step)?;
            check("a residual's number of workers", state.world == plan.world, state.world as u64)?;
        }
        let mut loaded = Loaded { rank: plan.rank, world_size: plan.world, ..Loaded::default() };
        let Planner { config, tensors, .. } = &self.planner;
        let known: BTreeSet<&str> = tensors.iter().map(|tensor| &*tensor.name).collect();
        loaded.extra =
            plan.layers.iter().filter(|layer| !known.contains(layer.name)).map(|layer| layer.name.into()).collect();
        let mut states = vec![];
        let mut choices = vec![];
        for (index, tensor) in tensors.iter().enumerate() {
            let mut state = LayerState::new(&config.policy);
            match plan.fitting(tensor) {
                None if plan.layer(&tensor.name).is_some() => loaded.misshaped.push(tensor.name.clone()),
                None => loaded.missing.push(tensor.name.clone()),
                Some(layer) => {
                    state.factor = layer.factor.clone();
                    state.choice = layer.choice;
                    (state.counts, state.relative_error) = (layer.counts, layer.relative_error);
                    let memories: Vec<_> = residuals.iter().filter_map(|state| state.fitting(tensor)?.memory).collect();
                    let stream = Stream {
                        seed: config.search.seed,
                        step: plan.step as u32,
                        layer: index as u32,
                        rank: self.rank,
                    };
                    state.memory = combined(&memories, self.world as f32 / plan.world as f32, stream)?;
                }
            }
            choices.push(match config.policy {
                Policy::Uncompressed => Choice::dense(Uncompressed::Chosen),
                // Nothing is remembered yet, and no gradient is there to judge by.
                _ if state.memory.is_none() => suited(config, tensor, state.choice),
                _ => state.choice,
            });
            states.push(state);
        }
        let switches = self.prepare(&states, &choices, plan.step)?;
        for (state, switch) in states.iter_mut().zip(switches) {
            let counts = state.counts;
            state.commit(switch);
            state.counts = counts;
        }
        self.resume(&plan, &loaded);
        self.install(states);
        Ok(loaded)
    }

    /// Everything but the layers.
    fn resume(&mut self, plan: &State<'_>, loaded: &Loaded) {
        let incomplete = !(loaded.missing.is_empty() && loaded.misshaped.is_empty());
        (self.non_finite, self.late) = (plan.non_finite, None);
        let (same_world, planner) = (plan.world == self.world, &mut self.planner);
        let adapts = planner.config.policy != Policy::Uncompressed;
        let start = plan.step.max(planner.config.schedule.warmup);
        planner.due = match plan.due {
            _ if !adapts => None,
            Some(due) => Some(if incomplete { due.min(start) } else { due }),
            None if incomplete || plan.decision.is_none() => Some(start),
            None => planner.config.next_decision(start),
        };
        (planner.step, planner.highest, planner.decision) = (plan.step, plan.learning_rate, plan.decision);
        if plan.time.buckets() == planner.time.buckets() {
            planner.time = plan.time.clone();
        }
        let layers: Vec<_> = planner.tensors.iter().map(|tensor| plan.fitting(tensor)).collect();
        planner.norms = layers.iter().map_while(|layer| (*layer)?.norm).collect();
        if planner.norms.len() < layers.len() {
            planner.norms.clear();
        }
        planner.restart();
        let means: Vec<_> = layers.iter().map(|layer| layer.and_then(|layer| layer.mean.as_ref())).collect();
        let complete = !planner.measures() || means.iter().all(Option::is_some);
        if same_world && complete && !incomplete {
            planner.window.steps = plan.window_steps;
            for (to, mean) in planner.window.means_mut().iter_mut().zip(means) {
                to.iter_mut().zip(mean.into_iter().flatten()).for_each(|(to, &x)| *to = x);
            }
        }
    }
}

/// The sum of residuals times `scale`; exactly the only one for a scale of 1.
fn combined(memories: &[SavedState<'_>], scale: f32, stream: Stream) -> Result<Option<Memory<Vec<u64>>>, Error> {
    let Some(first) = memories.first() else { return Ok(None) };
    let restore =
        |saved: &SavedState<'_>| saved.restore(super::arena::workspace(saved.rule().state_len(saved.shape()))?);
    let mut memory = restore(first)?;
    if memories.len() > 1 || scale != 1.0 {
        let mut sum = vec![0.0; first.shape().elements()];
        let mut values = sum.clone();
        for saved in memories {
            restore(saved)?.values(&mut values)?;
            sum.iter_mut().zip(&values).for_each(|(sum, x)| *sum += x * scale);
        }
        memory.set(&sum, stream)?;
    }
    Ok(Some(memory))
}
