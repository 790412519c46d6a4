//! Continuing from saved states.

use super::buffers::{list, values, workspace};
use super::decision::LayerSetting;
use super::layer::LayerState;
use super::layer_plan::LayerPlan;
use super::planner::suited;
use super::schedule::Scheduler;
use super::state_format::{self, Layers, Owner, Run};
use super::{Controller, Policy, Uncompressed};
use crate::compress::method::Methods;
use crate::feedback::{Memory, SavedState};
use crate::rng::Stream;
use crate::{CoreError, Error};
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

/// The result of [`Controller::load`], by layer name.
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
    /// Layers that the state lacks. Such layers start without residual, and are uncompressed until the next decision, which is made
    /// at once.
    pub missing: Vec<String>,
    /// Layers that the model lacks. The state of such layers is ignored, and their residuals are lost.
    pub extra: Vec<String>,
    /// Layers whose shape or element type differs from the state. The model's layer is treated as missing in the state, and the
    /// saved layer as missing in the model.
    pub misshaped: Vec<String>,
    /// The rank that saved the plan.
    pub rank: u32,
    /// The number of workers when the plan was saved.
    pub world_size: u32,
    /// The step at which the plan was saved, and with which the run continues.
    pub step: u64,
    /// The earliest step at which one of the residuals was saved; at most the step of the plan. The compression errors of the steps
    /// between saving this residual and saving the plan are lost.
    pub oldest_residual: u64,
}

impl Controller {
    /// Continues from [saved](Controller::save) states: `plan` is the state of any rank, and `residuals` are states that supply
    /// residuals.
    ///
    /// The residuals come from the same step as the plan, or from earlier steps. A state is given whole, or in
    /// [parts](Controller::save_part) in any order. `plan` has all parts of one rank; parts of layers that the model lacks may be
    /// missing. `residuals` has parts of layers, from one or more ranks.
    ///
    /// Results of earlier plan tasks are ignored. All ranks must load between the same two steps. After loading, ranks agree on
    /// their buckets anew.
    ///
    /// | | `plan` | `residuals` |
    /// |---|---|---|
    /// | resuming | this rank's state | this rank's state: the run continues bit for bit |
    /// | fewer workers | this rank's state | this rank's state, and the states of the ranks that this one takes over |
    /// | more workers, on a new rank | any rank's state | none: it starts without residuals |
    /// | a rank has died, and the others have [abandoned](Controller::abandon_step) a step | one rank's state, the same on all ranks | this rank's state; on one rank also the dead rank's last state |
    ///
    /// Everything except residuals comes from `plan`: settings, factors, schedule, and on the measuring rank the window and Accordion's
    /// norms. Residuals are summed, and multiplied by the ratio of the present number of workers to the saved number.
    /// So the mean of all residuals stays the same if each state is given to exactly one rank. Residuals that are given
    /// to no rank are lost. The window starts anew if the number of workers differs, and on a measuring rank that loads
    /// another rank's state. Measured seconds are kept if the number of workers is the same.
    ///
    /// Saved settings stay in use until the next decision, even if the configuration has other settings, except under
    /// [`Policy::Uncompressed`]. A policy that decides once, [`Policy::Uniform`] or [`Policy::Fixed`], decides again at once if it
    /// would choose other settings.
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
    /// [`CoreError::Checksum`] for damaged states. [`CoreError::SavedState`], [`CoreError::Length`], [`CoreError::DuplicateName`]
    /// and the errors of settings, shapes and residuals for bytes that are not a state of version 4 or 6. These errors also report
    /// parts of several ranks in `plan`, and a part that is given twice. [`CoreError::SavedState`] for a residual of a later step
    /// than the plan, or of another number of workers. [`CoreError::Overflow`] of summed residuals; [`CoreError::OutOfMemory`].
    /// After an error, the controller is unchanged.
    ///
    /// # Complexity
    /// Linear in the bytes of all states, and O(n log n) in the number of layers.
    pub fn load(&mut self, plan: &[&[u8]], residuals: &[&[u8]]) -> Result<Loaded, Error> {
        let (runs, mut plans) = sorted(plan, &self.scheduler.config.search.methods)?;
        let several = |what, found: usize| CoreError::SavedState { what, found: found as u64 };
        let [run] = &runs[..] else {
            return Err(several("number of parts that belong to no layer (expected 1)", runs.len()).into());
        };
        let states = several("number of states that the plan's parts belong to (expected 1)", plans.len());
        let plan = plans.pop().filter(|_| plans.is_empty()).ok_or(states)?;
        self.continue_from(run, &plan, &sorted(residuals, &self.scheduler.config.search.methods)?.1)
    }

    /// Returns an error unless `state`, a whole saved state, has the controller's layers in the same order.
    pub(crate) fn check_saved_layers(&self, state: &[u8]) -> Result<(), Error> {
        let Scheduler { config, tensors, .. } = &self.scheduler;
        let (_, _, layers) = state_format::parse(state, &config.search.methods)?;
        CoreError::require_saved(layers.len() == tensors.len(), "number of layers", layers.len() as u64)?;
        for (index, (saved, tensor)) in layers.iter().zip(tensors.iter()).enumerate() {
            let same = (saved.name, saved.shape, saved.dtype) == (&*tensor.name, tensor.shape, tensor.dtype);
            let what = "size of a layer whose name, shape, element type or place differs from the model's";
            let found = saved.shape.elements() as u64;
            CoreError::require_saved(same, what, found).map_err(|error| Error::from(error).of_layer(index as u32))?;
        }
        Ok(())
    }

    /// Like [`load`](Controller::load), for states that have been parsed.
    pub(super) fn continue_from(
        &mut self,
        run: &Run,
        plan: &Layers<'_>,
        residuals: &[Layers<'_>],
    ) -> Result<Loaded, Error> {
        let Owner { rank, world, step } = plan.owner;
        for Owner { world: other, step: at, .. } in residuals.iter().map(|layers| layers.owner) {
            CoreError::require_saved(at <= step, "a residual's step", at)?;
            CoreError::require_saved(other == world, "a residual's number of workers", other as u64)?;
        }
        let oldest_residual = residuals.iter().map(|layers| layers.owner.step).fold(step, u64::min);
        let mut loaded = Loaded { rank, world_size: world, step, oldest_residual, ..Loaded::default() };
        let Scheduler { config, tensors, .. } = &self.scheduler;
        let known: BTreeSet<&str> = tensors.iter().map(|tensor| &*tensor.name).collect();
        loaded.extra =
            plan.layers.iter().filter(|layer| !known.contains(layer.name)).map(|layer| layer.name.into()).collect();
        let (mut states, mut choices) = (list(tensors.len())?, list(tensors.len())?);
        for (index, tensor) in tensors.iter().enumerate() {
            let mut state = LayerState::new(LayerPlan::before_decisions(index, tensor, config)?);
            let mut choice = state.plan.choice;
            let saved = plan.fitting(tensor);
            match saved {
                None if plan.layer(&tensor.name).is_some() => loaded.misshaped.push(tensor.name.clone()),
                None => loaded.missing.push(tensor.name.clone()),
                Some(layer) => {
                    state.factor = layer.factor.clone();
                    choice = layer.choice;
                    (state.counts, state.relative_error) = (layer.counts, layer.relative_error);
                    let memories: Vec<_> = residuals.iter().filter_map(|state| state.fitting(tensor)?.memory).collect();
                    let stream =
                        Stream { seed: config.search.seed, step: step as u32, layer: index as u32, rank: self.rank };
                    state.memory = combined(&memories, self.world as f32 / world as f32, stream)?;
                }
            }
            choices.push(match config.policy {
                Policy::Uncompressed => LayerSetting::dense(Uncompressed::Chosen),
                // The layer was saved without a residual, so no gradient has shown whether error feedback works with the setting.
                // The state of this rank may lack a residual for another reason: new ranks get none.
                _ if saved.is_none_or(|layer| layer.memory.is_none()) => suited(config, tensor, choice),
                _ => choice,
            });
            states.push(state);
        }
        let switches = self.prepare(&states, &choices, step)?;
        for (state, switch) in states.iter_mut().zip(switches) {
            let counts = state.counts;
            state.commit(switch);
            state.counts = counts;
        }
        let overruled = self.scheduler.overrules(&choices, step)?;
        self.resume(run, plan, &loaded);
        if overruled {
            self.scheduler.decide_again();
        }
        self.install(states);
        Ok(loaded)
    }

    /// Restores everything except the layers.
    fn resume(&mut self, run: &Run, plan: &Layers<'_>, loaded: &Loaded) {
        let Owner { world, step, .. } = plan.owner;
        let incomplete = !(loaded.missing.is_empty() && loaded.misshaped.is_empty());
        (self.non_finite, self.late, self.totals.unread) = (run.non_finite, None, false);
        let (same_world, scheduler) = (world == self.world, &mut self.scheduler);
        let adapts = scheduler.config.policy != Policy::Uncompressed;
        let start = step.max(scheduler.config.schedule.warmup);
        scheduler.due = match run.due {
            _ if !adapts => None,
            // The warm-up of the present configuration may be over, or may be longer than that of the saved run.
            Some(due) if run.decision.is_none() => Some(if step < start { start } else { due.min(step) }),
            Some(due) if incomplete => Some(due.min(start)),
            // The schedule of the present configuration may plan earlier than that of the saved run.
            Some(due) => Some(scheduler.config.next_decision(start).map_or(due, |next| due.min(next))),
            None if incomplete || run.decision.is_none() => Some(start),
            None => scheduler.config.next_decision(start),
        };
        (scheduler.step, scheduler.highest, scheduler.decision) = (step, run.learning_rate, run.decision);
        if let (Some(meter), Some((compute, link)), true) = (&mut scheduler.meter, &run.learnt, same_world) {
            (meter.compute, meter.link) = (compute.clone(), link.clone());
        }
        let layers: Vec<_> = scheduler.tensors.iter().map(|tensor| plan.fitting(tensor)).collect();
        scheduler.norms = layers.iter().map_while(|layer| (*layer)?.norm).collect();
        if scheduler.norms.len() < layers.len() {
            scheduler.norms.clear();
        }
        scheduler.restart();
        let means: Vec<_> = layers.iter().map(|layer| layer.and_then(|layer| layer.mean.as_ref())).collect();
        let complete = !scheduler.measures() || means.iter().all(Option::is_some);
        if same_world && complete && !incomplete {
            scheduler.window.steps = run.window_steps;
            for (to, mean) in scheduler.window.means_mut().iter_mut().zip(means) {
                *to = mean.cloned().unwrap_or_default();
            }
        }
    }
}

/// Groups parts by the state to which they belong, in the order of first occurrence.
pub(super) fn sorted<'a>(parts: &[&'a [u8]], methods: &Methods) -> Result<(Vec<Run>, Vec<Layers<'a>>), Error> {
    let (mut runs, mut owners, mut layers): (_, _, Vec<Vec<_>>) = (vec![], vec![], vec![]);
    for bytes in parts {
        let (owner, run, parsed) = state_format::parse(bytes, methods)?;
        match owners.iter().position(|&known| known == owner) {
            Some(at) => layers[at].extend(parsed),
            None => {
                owners.push(owner);
                layers.push(parsed);
            }
        }
        runs.extend(run);
    }
    let states = owners.into_iter().zip(layers).map(|(owner, layers)| Layers::new(owner, layers));
    Ok((runs, states.collect::<Result<_, _>>()?))
}

/// The sum of residuals, times `scale`. A single residual with a scale of 1 stays exactly the same.
fn combined(memories: &[SavedState<'_>], scale: f32, stream: Stream) -> Result<Option<Memory<Vec<u64>>>, Error> {
    let Some(first) = memories.first() else { return Ok(None) };
    let restore = |saved: &SavedState<'_>| saved.restore(workspace(saved.residual().state_len(saved.shape()))?);
    let mut memory = restore(first)?;
    if memories.len() > 1 || scale != 1.0 {
        let elements = first.shape().elements();
        let (mut sum, mut values) = (values(elements)?, values(elements)?);
        for saved in memories {
            restore(saved)?.values(&mut values)?;
            sum.iter_mut().zip(&values).for_each(|(sum, x)| *sum += x * scale);
        }
        memory.set(&sum, stream)?;
    }
    Ok(Some(memory))
}
