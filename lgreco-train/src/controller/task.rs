//! Runs the work of a decision on any thread, while training goes on.

use super::costs::{Costs, Trial};
use super::decision::Decided;
use super::observed::{Means, Observed};
use super::planner::Planner;
use super::{Config, Decision, Tensor};
use crate::Error;
use crate::backend::Backend;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

/// The work of a decision: measures the gradients of a window and plans, while training goes on.
/// [`Planning::take_task`](super::Planning::take_task) returns the task, any thread runs it, and
/// [`Planning::hand_in`](super::Planning::hand_in) takes the result. The task shares the window's gradients; it does not copy them.
/// A task that was dropped can be taken again.
///
/// The task contains no [`Backend`]. The caller of [`run`](PlanTask::run) chooses the backend.
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
    /// The step at which the decision takes effect.
    pub(super) step: u64,
    /// The window's mean gradients, of at least one step.
    pub(super) means: Arc<Vec<Vec<f32>>>,
    /// For each layer, whether a device has the mean.
    pub(super) elsewhere: Vec<bool>,
    /// Norms of the gradients at the last decision; empty at the first.
    pub(super) norms: Vec<f64>,
    /// Whether the learning rate fell.
    pub(super) fell: bool,
    /// Measured seconds, under the objective that needs them.
    pub(super) costs: Option<Costs>,
}

/// The result of a [`PlanTask`].
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
    /// The means from which the decision was made. The scheduler drops the result unless these are still its present means.
    pub(super) means: Arc<Vec<Vec<f32>>>,
    pub(super) trials: Vec<Trial>,
}

impl PlanResult {
    /// The decision, for the step for which the task has planned.
    ///
    /// # Errors
    /// The errors of search, solver and objective. All ranks get such an error after the result was handed in.
    pub fn decision(&self) -> Result<Decision, Error> {
        self.decided.as_ref().map(|decided| decided.decision).map_err(|error| *error)
    }
}

impl PlanTask {
    /// Measures the error table on `backend`, and plans. An error is part of the result, so that all ranks get it. If a [device
    /// has](super::External::note_observed) gradients of the window, this call fails, and the task needs
    /// [`run_with`](PlanTask::run_with).
    ///
    /// # Complexity
    /// The time of [`Search::measure`](crate::search::Search) and of the solver: seconds for large models. Allocates. If `backend`
    /// is parallel, call this method in a separate thread pool: steps that use the same pool would wait for this work.
    pub fn run(self, backend: &mut dyn Backend) -> PlanResult {
        self.run_by(None, backend)
    }

    /// Like [`run`](PlanTask::run), but `observed` measures the layers with gradients on a
    /// [device](super::External::note_observed). `backend` measures all others.
    ///
    /// ```
    /// use lgreco_train::backend::{Backend, Job, JobError, Portable};
    /// use lgreco_train::controller::Observed;
    /// use lgreco_train::gradient::{Gradient, Shape, Values};
    /// use lgreco_train::search::{Method, OfferedRow};
    /// # use lgreco_testing::controller::alone_with_lead;
    /// struct OnDevice(Vec<f32>);
    /// impl Observed for OnDevice {
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
    ///     controller.external().note_observed(0)?; // the device has its gradient; the bias was not observed
    ///     controller.external().note_exchanged(&[0, 1])?;
    ///     controller.finish_step()?;
    /// }
    /// let task = controller.planning().take_task().unwrap();
    /// let result = task.run_with(&mut OnDevice(gradient), &mut Portable);
    /// assert!(result.decision()?.pays().unwrap());
    /// assert!(controller.planning().hand_in(result));
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Complexity
    /// The time of [`run`](PlanTask::run), without the layers that `observed` measures.
    pub fn run_with(self, observed: &mut dyn Observed, backend: &mut dyn Backend) -> PlanResult {
        self.run_by(Some(observed), backend)
    }

    fn run_by(mut self, observed: Option<&mut dyn Observed>, backend: &mut dyn Backend) -> PlanResult {
        let mut trials = vec![];
        let decided = self.config.at(self.step).and_then(|config| {
            self.config = config;
            let costs = self.costs.take();
            let mut means = Means::new(&self.means, &self.tensors, &self.elsewhere, observed)?;
            let (config, tensors) = (&*self.config, &*self.tensors);
            let planner = Planner { config, tensors, step: self.step, norms: &self.norms, fell: self.fell };
            planner.decide(&mut means, backend, costs, &mut trials)
        });
        PlanResult { decided, means: self.means, trials }
    }
}
