//! From a window of gradients to one setting per layer: what the measuring rank does for all, on any thread.

use super::codes::Choice;
use super::costs::{Costs, Trial};
use super::decide::{Decided, chosen, refused, uniform};
use super::observed::{Means, Observed};
use super::offers::{Offers, PICOSECONDS, k_means};
use super::{Accordion, Budget, Cause, Config, Decision, Policy, Tensor, Uncompressed, accordion};
use crate::backend::Backend;
use crate::compress::{Compressor, Setting};
use crate::feedback::require_contraction;
use crate::plan;
use crate::table::Table;
use crate::{CoreError, Error};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

/// The work of a decision, apart from the training that goes on meanwhile: measures the gradients of a window and plans.
/// [`Planning::take_task`](super::Planning::take_task) gives it, any thread runs it,
/// [`Planning::hand_in`](super::Planning::hand_in) takes the result. It shares the window's gradients instead of
/// copying them. One that is dropped is there to be taken again.
///
/// ```
/// use lgreco_train::backend::Portable;
/// # use lgreco_testing::controller::{alone_with_lead, step_alone};
/// # use lgreco_train::search::Method;
/// let (mut controller, mut worker) = alone_with_lead(Method::TopK, 1)?; // decisions take effect at step 3, 6, 9, ...
/// (0..2).try_for_each(|_| step_alone(&mut controller, &mut worker).map(drop))?;
/// let task = controller.planning().take_task().unwrap();
/// let thread = std::thread::spawn(move || task.run(&mut Portable));
/// step_alone(&mut controller, &mut worker)?; // goes on meanwhile
/// assert!(controller.planning().hand_in(thread.join().unwrap()));
/// assert!(step_alone(&mut controller, &mut worker)?.switched);
/// # Ok::<(), lgreco_train::Error>(())
/// ```
pub struct PlanTask {
    pub(super) config: Arc<Config>,
    pub(super) tensors: Arc<[Tensor]>,
    /// The step to decide for.
    pub(super) step: u64,
    /// Its gradients, at least one step of them.
    pub(super) means: Arc<Vec<Vec<f32>>>,
    /// By layer, whether these are elsewhere.
    pub(super) elsewhere: Vec<bool>,
    /// Norms of the gradients at the last decision; empty at the first.
    pub(super) norms: Vec<f64>,
    /// Whether the learning rate fell.
    pub(super) fell: bool,
    /// As measured, if anything was.
    pub(super) costs: Option<Costs>,
}

/// What became of a [`PlanTask`].
///
/// ```
/// use lgreco_train::backend::Portable;
/// # use lgreco_testing::controller::{alone_with_lead, step_alone};
/// # use lgreco_train::search::Method;
/// # let (mut controller, mut worker) = alone_with_lead(Method::TopK, 1)?;
/// # (0..2).try_for_each(|_| step_alone(&mut controller, &mut worker).map(drop))?;
/// # let task = controller.planning().take_task().unwrap();
/// let result = task.run(&mut Portable);
/// assert!(result.decision()?.pays().unwrap());
/// # Ok::<(), lgreco_train::Error>(())
/// ```
pub struct PlanResult {
    pub(super) decided: Result<Decided, Error>,
    /// By which the planner knows it.
    pub(super) means: Arc<Vec<Vec<f32>>>,
    pub(super) trials: Vec<Trial>,
}

impl PlanResult {
    /// What was decided; its step is the one it was planned for.
    ///
    /// # Errors
    /// Those of search, planner and objective. All ranks are told when the result is handed in.
    pub fn decision(&self) -> Result<Decision, Error> {
        self.decided.as_ref().map(|decided| decided.decision).map_err(|error| *error)
    }
}

impl PlanTask {
    /// Measures and plans, with the rows of the error table from `backend`. What fails is part of the result, so that all
    /// ranks are told; so does a task of gradients that were [observed elsewhere](super::Elsewhere::note_observed), which needs
    /// [`run_with`](PlanTask::run_with).
    ///
    /// # Complexity
    /// That of [`Search::measure`](crate::search::Search) and of the solver: seconds for large models. Allocates.
    pub fn run(self, backend: &mut dyn Backend) -> PlanResult {
        self.run_by(None, backend)
    }

    /// As [`run`](PlanTask::run), with the rows and norms of what was [observed elsewhere](super::Elsewhere::note_observed) from
    /// `observed`, and those of all else from `backend`.
    ///
    /// ```
    /// use lgreco_train::backend::{Backend, Job, JobError, Portable};
    /// use lgreco_train::controller::Observed;
    /// use lgreco_train::gradient::{Gradient, Shape, Values};
    /// use lgreco_train::search::{Method, OfferedRow};
    /// # use lgreco_testing::controller::alone_with_lead;
    /// struct Elsewhere(Vec<f32>);
    /// impl Observed for Elsewhere {
    ///     fn squared_norms(&mut self, layers: &[usize], norms: &mut [f64]) -> Result<(), lgreco_train::CoreError> {
    ///         assert_eq!(layers, [0]);
    ///         norms[0] = self.0.iter().map(|&x| f64::from(x * x)).sum();
    ///         Ok(())
    ///     }
    ///     fn measure(&mut self, rows: &[OfferedRow<'_>], squared_errors: &mut [f64]) -> Result<(), JobError> {
    ///         let gradient = Gradient::new(Values::F32(&self.0), Shape::new(64, 64)?)?;
    ///         let jobs: Vec<_> =
    ///             rows.iter().map(|row| Job { gradient, candidates: row.candidates, stream: row.stream }).collect();
    ///         Portable.measure(&jobs, &mut vec![0; Portable.workspace_len(&jobs)], squared_errors)
    ///     }
    /// }
    /// let (mut controller, _) = alone_with_lead(Method::TopK, 1)?; // decisions by one gradient
    /// let gradient: Vec<f32> = (0..4096).map(|i| (i as f32).sin().powi(5)).collect();
    /// for step in 0..2 {
    ///     controller.begin_step(0.1)?;
    ///     assert!(controller.control()?.is_none());
    ///     controller.elsewhere().note_observed(0)?; // the device has its gradient; the bias was not observed
    ///     controller.elsewhere().note_exchanged(&[0, 1])?;
    ///     controller.finish_step()?;
    /// }
    /// let task = controller.planning().take_task().unwrap();
    /// let result = task.run_with(&mut Elsewhere(gradient), &mut Portable);
    /// assert!(result.decision()?.pays().unwrap());
    /// assert!(controller.planning().hand_in(result));
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Complexity
    /// As [`run`](PlanTask::run), but for what is measured elsewhere.
    pub fn run_with(self, observed: &mut dyn Observed, backend: &mut dyn Backend) -> PlanResult {
        self.run_by(Some(observed), backend)
    }

    fn run_by(mut self, observed: Option<&mut dyn Observed>, backend: &mut dyn Backend) -> PlanResult {
        let mut trials = vec![];
        let decided = self.config.at(self.step).and_then(|config| {
            self.config = config;
            let costs = self.costs.take();
            let mut means = Means::new(&self.means, &self.tensors, &self.elsewhere, observed)?;
            self.decide(&mut means, backend, costs, &mut trials)
        });
        PlanResult { decided, means: self.means, trials }
    }

    fn decide(
        &self,
        means: &mut Means<'_, '_>,
        backend: &mut dyn Backend,
        mut costs: Option<Costs>,
        trials: &mut Vec<Trial>,
    ) -> Result<Decided, Error> {
        let norms = means.norms.clone();
        let mut decision = Decision::without_plan(self.step, Cause::Schedule);
        let mut relative = vec![None; self.tensors.len()];
        let mut choices = match &self.config.policy {
            Policy::Uncompressed => vec![Choice::dense(Uncompressed::Chosen); self.tensors.len()],
            Policy::Uniform => uniform(&self.config, &self.tensors, None)?,
            Policy::Fixed(settings) => settings.iter().map(|&setting| chosen(setting)).collect(),
            Policy::Accordion(accordion) => {
                let levels = self.levels(accordion, &norms);
                uniform(&self.config, &self.tensors, Some(&levels))?
            }
            Policy::Legacy(legacy) => {
                let elements = self.tensors.iter().map(|tensor| tensor.shape.elements() as u64);
                let levels: Vec<f64> = elements.map(|elements| legacy.level(self.step, elements)).collect();
                uniform(&self.config, &self.tensors, Some(&levels))?
            }
            Policy::KMeans { .. } | Policy::LGreco { .. } => {
                self.plan(backend, means, &norms, &mut decision, &mut relative, costs.as_mut().zip(Some(trials)))?
            }
        };
        self.require_contractions(means, &relative, &mut choices)?;
        let slower = choices.iter().filter(|choice| choice.uncompressed == Some(Uncompressed::Slower));
        decision.slower = slower.count() as u32;
        decision.not_contractive = refused(&choices);
        if let (Some(costs), Some(_)) = (costs, decision.plan) {
            let default = uniform(&self.config, &self.tensors, None)?;
            let settings = |choices: &[Choice]| choices.iter().map(|choice| choice.setting).collect::<Vec<_>>();
            decision.timing = Some(costs.timing(&self.tensors, [&settings(&choices), &settings(&default)])?);
        }
        Ok(Decided { decision, choices, norms })
    }

    /// Accordion's parameter for each layer.
    fn levels(&self, accordion: &Accordion, norms: &[f64]) -> Vec<f64> {
        let before = self.norms.iter().copied().map(Some).chain(core::iter::repeat(None));
        let critical = |(&now, before)| self.fell || accordion::critical(accordion, before, now);
        norms.iter().zip(before).map(critical).map(|low| if low { accordion.low } else { accordion.high }).collect()
    }

    /// Measures and plans. Writes the relative squared error of what was chosen to `relative`.
    fn plan(
        &self,
        backend: &mut dyn Backend,
        means: &mut Means<'_, '_>,
        norms: &[f64],
        decision: &mut Decision,
        relative: &mut [Option<f64>],
        measured_costs: Option<(&mut Costs, &mut Vec<Trial>)>,
    ) -> Result<Vec<Choice>, Error> {
        let mut choices = uniform(&self.config, &self.tensors, None)?;
        if !self.tensors.iter().any(|tensor| self.config.search.takes(&tensor.dims)) {
            return Ok(choices);
        }
        let measured = means.measure(&self.config.search, backend)?;
        let timed = measured_costs.is_some();
        let mut offers = Offers::new(&measured, &self.tensors, self.config.search.reduce_dtype, timed)?;
        if let Some(accordion) = self.config.accordion() {
            let levels = self.levels(&accordion, norms);
            let settings = uniform(&self.config, &self.tensors, Some(&levels))?;
            offers.refer_to(&settings)?;
        }
        if let Some((costs, trials)) = measured_costs {
            if let Some(clock) = self.config.clock.filter(|_| costs.tries) {
                *trials = costs.try_out(offers.options(), &self.tensors, means, clock, backend)?;
            }
            offers.cost_seconds(|layer, setting, bits| {
                costs.seconds_with_margin(layer, setting, &self.tensors[layer], bits)
            })?;
        }
        let table = Table::new(&offers.choices, &offers.ends)?;
        let Some(budget) = self.budget(&offers.reference, timed) else { return Ok(choices) };
        let limit = budget.limit(&table)?;
        let in_its_unit = |error| match error {
            Error::Core(CoreError::SizeInfeasible { limit, smallest, .. }) if timed => {
                let [limit, smallest] = [limit, smallest].map(|time| time as f64 / PICOSECONDS);
                Error::TimeInfeasible { limit, smallest }
            }
            error => error,
        };
        let plan = match self.config.policy {
            Policy::KMeans { clusters } => k_means(&table, limit, &measured, clusters),
            Policy::LGreco { solver, .. } => {
                plan::solve_against(&table, limit.into(), budget.reference(), solver).map_err(Error::Core)
            }
            _ => return Ok(choices),
        };
        let plan = plan.map_err(in_its_unit)?;
        decision.plan = Some(*plan.summary());
        decision.default_size = table.chosen(&offers.reference)?.map(|choice| choice.size).sum();
        decision.uncompressed_size = offers.uncompressed();
        for (place, (&layer, &option)) in offers.layers.iter().zip(plan.options()).enumerate() {
            let at = offers.start(place) + option as usize;
            let error = offers.choices[at].error;
            let squared = self.config.search.squared_error(&offers.settings[at], error);
            relative[layer] = Some(if norms[layer] > 0.0 { squared / (norms[layer] * norms[layer]) } else { 0.0 });
            choices[layer] = match offers.settings[at] {
                Setting::Dense if offers.added[place] => Choice::dense(Uncompressed::Slower),
                // The default saves nothing either.
                Setting::Dense if choices[layer].setting == Setting::Dense => choices[layer],
                setting => chosen(setting),
            };
        }
        Ok(choices)
    }

    /// What the plan keeps within; `None` for seconds where the table has bits.
    fn budget<'a>(&self, reference: &'a [u32], timed: bool) -> Option<plan::budget::Budget<'a>> {
        use plan::budget::Budget as Planned;
        let (alpha, options) = (self.config.alpha, reference);
        Some(match self.config.budget {
            Budget::Error => Planned::Defaults { alpha, options },
            Budget::Size => Planned::DefaultSize { alpha, options },
            Budget::Bits(bits) => Planned::Size(bits),
            Budget::Seconds(seconds) if timed => Planned::Size((seconds * PICOSECONDS) as u64),
            Budget::Seconds(_) => return None,
        })
    }

    /// Replaces settings with which feedback would amplify errors.
    fn require_contractions(
        &self,
        means: &mut Means<'_, '_>,
        relative: &[Option<f64>],
        choices: &mut [Choice],
    ) -> Result<(), Error> {
        for (layer, choice) in choices.iter_mut().enumerate() {
            if choice.setting.traits().bounded || self.config.feedback.of(&choice.setting).is_none() {
                continue;
            }
            let relative = match relative[layer] {
                Some(relative) => relative,
                None => means.contraction(&choice.setting, layer, self.config.search.seed)?,
            };
            if require_contraction(relative).is_err() {
                *choice = Choice::dense(Uncompressed::NotContractive);
            }
        }
        Ok(())
    }
}
