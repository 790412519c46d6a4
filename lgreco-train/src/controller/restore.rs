//! Continuing from what was saved.

use super::codes::Choice;
use super::decide::suited;
use super::layer::LayerState;
use super::planner::Planner;
use super::saved::{self, Layers, Owner, Part, Run};
use super::{Controller, Policy, Uncompressed};
use crate::Error;
use crate::compress::method::Methods;
use crate::feedback::{Memory, SavedState};
use crate::rng::Stream;
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

/// What [`Controller::load`] found, by layer name.
///
/// ```
/// # use lgreco_testing::controller::{alone, step_alone};
/// # use lgreco_train::search::Method;
/// # let (mut controller, mut worker) = alone(Method::TopK)?;
/// let loaded = controller.load(&[&controller.save()?], &[])?;
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
    /// The step that the run continues with: that of the plan.
    pub step: u64,
    /// The earliest step of a residual; that of the plan if none is earlier. What a rank has not sent between the two, its
    /// residual does not have.
    pub oldest_residual: u64,
}

impl Controller {
    /// Continues from `plan`, the [saved](Controller::save) state of any rank, with the residuals of `residuals`, states
    /// of the same step or earlier ones. A state is given whole, or in [parts](Controller::save_part) in any order: as `plan` all
    /// of one rank's, where layers that the model does not have may be left out; as `residuals` those of layers, of one or more
    /// ranks.
    /// Plan tasks of before are not waited for. All ranks load between the same two steps, or none: afterwards they find
    /// out anew whether their buckets fit together.
    ///
    /// | | `plan` | `residuals` |
    /// |---|---|---|
    /// | resuming | this rank's state | the same: the run continues bit for bit |
    /// | fewer workers | this rank's state | the same, and those of the ranks that this one takes over |
    /// | more workers, on a new rank | any rank's state | none: it starts without residuals |
    /// | a rank has died, the others have [abandoned](Controller::abandon_step) a step | one rank's state, the same on all | this rank's; in place of the dead one its last |
    ///
    /// Everything but residuals comes from `plan`: settings, factors, schedule, the window and the detector's norms where
    /// this rank measures. Residuals are summed and multiplied by the number of workers now over that then, so that
    /// the mean of all residuals stays what it was if every state is given to one rank; those of states that are given to
    /// none are lost. With another number of workers, or on a measuring rank that is given the state of another, the
    /// window starts anew. What was measured is kept with as many workers.
    ///
    /// Settings stay as saved until the next decision, whatever the configuration now says, but for
    /// [`Policy::Uncompressed`]. A policy that decides once, [`Policy::Uniform`] or [`Policy::Fixed`], decides again at once
    /// where it would not have chosen what was saved.
    ///
    /// ```
    /// # use lgreco_testing::controller::{alone, step_alone};
    /// # use lgreco_train::search::Method;
    /// # let (mut controller, mut worker) = alone(Method::TopK)?;
    /// # (0..4).try_for_each(|_| step_alone(&mut controller, &mut worker).map(drop))?;
    /// let saved = controller.save()?;
    /// let (mut continued, _) = alone(Method::TopK)?;
    /// continued.load(&[&saved], &[&saved])?;
    /// assert_eq!((continued.steps(), continued.setting(0)), (4, controller.setting(0)));
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CoreError::Checksum`](crate::CoreError::Checksum) when a state is not as it was saved;
    /// [`CoreError::SavedState`](crate::CoreError::SavedState), [`CoreError::Length`](crate::CoreError::Length),
    /// [`CoreError::DuplicateName`](crate::CoreError::DuplicateName) and those of settings, shapes and residuals for
    /// bytes that are no state of version 4 or 6, whatever they are, parts of several ranks as `plan`, and the same part twice; [`CoreError::SavedState`](crate::CoreError::SavedState)
    /// when a residual is of a later step than the plan, or of another number of workers; [`CoreError::Overflow`](crate::CoreError::Overflow) of
    /// summed residuals; [`CoreError::OutOfMemory`](crate::CoreError::OutOfMemory). The controller is then unchanged.
    ///
    /// # Complexity
    /// The bytes of all states, and O(n log n) in the layers.
    pub fn load(&mut self, plan: &[&[u8]], residuals: &[&[u8]]) -> Result<Loaded, Error> {
        let (runs, mut plans) = sorted(plan, &self.planner.config.search.methods)?;
        let several = |what, found: usize| Error::saved(what, found as u64);
        let [run] = &runs[..] else {
            return Err(several("parts that belong to no layer, of which there must be one", runs.len()));
        };
        let states = several("states that the plan's parts are of", plans.len());
        let plan = plans.pop().filter(|_| plans.is_empty()).ok_or(states)?;
        self.continue_from(run, &plan, &sorted(residuals, &self.planner.config.search.methods)?.1)
    }

    /// As [`load`](Controller::load), of states that have been read.
    pub(super) fn continue_from(
        &mut self,
        run: &Run,
        plan: &Layers<'_>,
        residuals: &[Layers<'_>],
    ) -> Result<Loaded, Error> {
        let Owner { rank, world, step } = plan.owner;
        for Owner { world: other, step: at, .. } in residuals.iter().map(|layers| layers.owner) {
            Error::require_saved(at <= step, "a residual's step", at)?;
            Error::require_saved(other == world, "a residual's number of workers", other as u64)?;
        }
        let oldest_residual = residuals.iter().map(|layers| layers.owner.step).fold(step, u64::min);
        let mut loaded = Loaded { rank, world_size: world, step, oldest_residual, ..Loaded::default() };
        let Planner { config, tensors, .. } = &self.planner;
        let known: BTreeSet<&str> = tensors.iter().map(|tensor| &*tensor.name).collect();
        loaded.extra =
            plan.layers.iter().filter(|layer| !known.contains(layer.name)).map(|layer| layer.name.into()).collect();
        let mut states = vec![];
        let mut choices = vec![];
        for (index, tensor) in tensors.iter().enumerate() {
            let mut state = LayerState::new(config);
            match plan.fitting(tensor) {
                None if plan.layer(&tensor.name).is_some() => loaded.misshaped.push(tensor.name.clone()),
                None => loaded.missing.push(tensor.name.clone()),
                Some(layer) => {
                    state.factor = layer.factor.clone();
                    state.choice = layer.choice;
                    (state.counts, state.relative_error) = (layer.counts, layer.relative_error);
                    let memories: Vec<_> = residuals.iter().filter_map(|state| state.fitting(tensor)?.memory).collect();
                    let stream =
                        Stream { seed: config.search.seed, step: step as u32, layer: index as u32, rank: self.rank };
                    state.memory = combined(&memories, self.world as f32 / world as f32, stream)?;
                }
            }
            choices.push(match config.policy {
                Policy::Uncompressed => Choice::dense(Uncompressed::Chosen),
                // Nothing was remembered, and no gradient is there to judge by. New ranks are given no residuals, so that
                // `state` does not know.
                _ if plan.fitting(tensor).is_none_or(|layer| layer.memory.is_none()) => {
                    suited(config, tensor, state.choice)
                }
                _ => state.choice,
            });
            states.push(state);
        }
        let switches = self.prepare(&states, &choices, step)?;
        for (state, switch) in states.iter_mut().zip(switches) {
            let counts = state.counts;
            state.commit(switch);
            state.counts = counts;
        }
        let overruled = self.planner.overrules(&choices, step)?;
        self.resume(run, plan, &loaded);
        if overruled {
            self.planner.decide_again();
        }
        self.install(states);
        Ok(loaded)
    }

    /// Everything but the layers.
    fn resume(&mut self, run: &Run, plan: &Layers<'_>, loaded: &Loaded) {
        let Owner { world, step, .. } = plan.owner;
        let incomplete = !(loaded.missing.is_empty() && loaded.misshaped.is_empty());
        (self.non_finite, self.late) = (run.non_finite, None);
        let (same_world, planner) = (world == self.world, &mut self.planner);
        let adapts = planner.config.policy != Policy::Uncompressed;
        let start = step.max(planner.config.schedule.warmup);
        planner.due = match run.due {
            _ if !adapts => None,
            Some(due) => Some(if incomplete { due.min(start) } else { due }),
            None if incomplete || run.decision.is_none() => Some(start),
            None => planner.config.next_decision(start),
        };
        (planner.step, planner.highest, planner.decision) = (step, run.learning_rate, run.decision);
        if let (Some(meter), Some((compute, link)), true) = (&mut planner.meter, &run.learnt, same_world) {
            (meter.compute, meter.link) = (compute.clone(), link.clone());
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
            planner.window.steps = run.window_steps;
            for (to, mean) in planner.window.means_mut().iter_mut().zip(means) {
                *to = mean.cloned().unwrap_or_default();
            }
        }
    }
}

/// States and parts of them, by the state that they are of, in the order of their first ones.
pub(super) fn sorted<'a>(parts: &[&'a [u8]], methods: &Methods) -> Result<(Vec<Run>, Vec<Layers<'a>>), Error> {
    let (mut runs, mut owners, mut layers) = (vec![], vec![], vec![]);
    for bytes in parts {
        let (owner, parts) = saved::parse(bytes, methods)?;
        let at = owners.iter().position(|&known| known == owner).unwrap_or_else(|| {
            owners.push(owner);
            layers.push(vec![]);
            owners.len() - 1
        });
        for part in parts {
            match part {
                Part::Run(run) => runs.push(run),
                Part::Layer(layer) => layers[at].push(layer),
            }
        }
    }
    let states = owners.into_iter().zip(layers).map(|(owner, layers)| Layers::new(owner, layers));
    Ok((runs, states.collect::<Result<_, _>>()?))
}

/// The sum of residuals times `scale`; exactly the only one for a scale of 1.
fn combined(memories: &[SavedState<'_>], scale: f32, stream: Stream) -> Result<Option<Memory<Vec<u64>>>, Error> {
    let Some(first) = memories.first() else { return Ok(None) };
    let restore =
        |saved: &SavedState<'_>| saved.restore(super::buffers::workspace(saved.residual().state_len(saved.shape()))?);
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
