//! Decisions from the caller's side: planning on another thread, additional decisions, and settings that the caller gives.

use super::{Controller, PlanResult, PlanTask, Policy};
use crate::Error;
use crate::compress::Setting;
use alloc::vec::Vec;

impl Controller {
    /// Access to decisions: planning on another thread, additional decisions, and settings given by the caller.
    pub fn planning(&mut self) -> Planning<'_> {
        Planning(self)
    }
}

/// Access to the decisions of a [`Controller`], returned by [`Controller::planning`].
///
/// ```
/// # use lgreco_testing::controller::alone;
/// # use lgreco_train::search::Method;
/// # let (mut controller, _) = alone(Method::TopK)?;
/// assert!(!controller.planning().is_due()); // not before the end of the warm-up
/// # Ok::<(), lgreco_train::Error>(())
/// ```
pub struct Planning<'a>(&'a mut Controller);

impl Planning<'_> {
    /// Returns the work of the next decision as a task, once per decision and only on the measuring rank; otherwise `None`.
    ///
    /// The task is available from the end of step `due - lead - 1` on. `due` is the step of the decision, and `lead`, at least 1,
    /// comes from the [`Schedule`](super::Schedule). Call this method after every step. Any thread [runs](PlanTask::run) the task,
    /// and [`hand_in`](Planning::hand_in) takes the result.
    ///
    /// At step `due`, the ranks switch to the new settings. If the result has not been handed in yet, ranks take the step under
    /// their present settings and ask again at the next step. To switch without delay, a caller waits for the result when
    /// [`is_due`](Planning::is_due) returns true. If the task was not taken, or was dropped, [`control`](Controller::control) runs
    /// the work during its call. If the decision fails, the step of the decision fails on every rank. The step may be begun again,
    /// and then the task can be taken again. A state that is saved before the decision contains the gradients, so a run that loads
    /// this state makes the same decision.
    ///
    /// With Accordion, if the learning rate falls at step `due` or later, all layers get low compression instead of the planned
    /// settings.
    ///
    /// If a device [has gradients of the window](super::External::note_observed), the task is available even with a `lead` of 0,
    /// after the step of the decision has begun. Such a task needs [`run_with`](PlanTask::run_with), and `control` does not run the
    /// task.
    ///
    /// ```
    /// # use lgreco_testing::controller::{alone_with_lead, step_alone};
    /// # use lgreco_train::search::Method;
    /// # let (mut controller, mut worker) = alone_with_lead(Method::TopK, 1)?;
    /// let mut tasks = vec![];
    /// for step in 0..6 {
    ///     step_alone(&mut controller, &mut worker)?;
    ///     let task = controller.planning().take_task(); // dropped, and there again after the next step
    ///     tasks.push(task.is_some());
    /// }
    /// assert_eq!(tasks, [false, true, true, false, true, true]); // for the decisions of steps 3 and 6
    /// assert_eq!(controller.decision().map(|decision| decision.step), Some(3)); // made during the call
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Complexity
    /// O(layers). The window's gradients are shared with the task, not copied.
    pub fn take_task(&mut self) -> Option<PlanTask> {
        if self.0.scheduler.config.schedule.lead == 0 && !self.0.scheduler.window.is_elsewhere() {
            return None;
        }
        self.0.scheduler.take_task()
    }

    /// Whether a decision is due at the next step. A caller that plans on a thread can wait for the result before that step, so
    /// that every run switches at the same step.
    ///
    /// ```
    /// # use lgreco_testing::controller::{alone_with_lead, step_alone};
    /// # use lgreco_train::search::Method;
    /// # let (mut controller, mut worker) = alone_with_lead(Method::TopK, 1)?;
    /// let mut due = vec![];
    /// for step in 0..4 {
    ///     due.push(controller.planning().is_due());
    ///     step_alone(&mut controller, &mut worker)?;
    /// }
    /// assert_eq!(due, [false, false, false, true]);
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    pub fn is_due(&self) -> bool {
        self.0.scheduler.is_due()
    }

    /// Takes the result of a plan task, and returns whether the result was still awaited. After a saved state was loaded, or after
    /// a fall of the learning rate has replaced the decision, the result is dropped.
    pub fn hand_in(&mut self, result: PlanResult) -> bool {
        self.0.scheduler.hand_in(result)
    }

    /// Asks for a decision before the scheduled one, because the data or the network have changed. The window of this decision
    /// begins with the next step. The decision is due `window + lead` steps later, or at the scheduled step if that is sooner.
    /// Returns the step at which the decision is due, or `None` under policies that make no further decision. The rest of the
    /// schedule does not change. All ranks must call this method between the same two steps. Saved states contain the request.
    ///
    /// If some ranks have not called this method, the next step fails on every rank with [`Error::PeerOption`]. If the trainer
    /// exchanges the buckets itself, the first bucket fails with [`Error::PeerPlan`] instead.
    ///
    /// ```
    /// # use lgreco_testing::controller::{alone, step_alone};
    /// # use lgreco_train::search::Method;
    /// # let (mut controller, mut worker) = alone(Method::TopK)?; // decisions at 2, 5, 8, ... on two gradients
    /// (0..3).try_for_each(|_| step_alone(&mut controller, &mut worker).map(drop))?;
    /// assert_eq!(controller.planning().replan()?, Some(5));
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::StepOrder`] while a step is under way.
    pub fn replan(&mut self) -> Result<Option<u64>, Error> {
        self.0.control.expect_idle()?;
        Ok(self.0.scheduler.replan())
    }

    /// Gives a controller of [`Policy::Fixed`] other settings, one per layer. All ranks must call this method between the same two
    /// steps. Ranks switch to the new settings at the next step, or at the end of the warm-up if that is later. If a plan task with
    /// the old settings was taken, the switch at the end of the warm-up may come a step later. If the trainer exchanges the buckets
    /// itself, ranks switch one step later: the buckets of one step first check that all ranks were given the same settings.
    /// Residuals and PowerSGD's factors are kept, as at any switch. A setting with which error feedback does not work is
    /// [refused](super::Uncompressed::NotContractive) without looking at gradients.
    ///
    /// If ranks were given different settings, or if only some ranks were given settings, the next step fails on every rank with
    /// [`Error::PeerOption`]. If the trainer exchanges the buckets itself, the first bucket fails with [`Error::PeerPlan`] instead.
    /// The run continues after all ranks were given the same settings.
    ///
    /// ```
    /// use lgreco_train::controller::{Cause, Config, Controller, Policy, Tensor};
    /// use lgreco_train::exchange::threads::ThreadCollective;
    /// use lgreco_train::gradient::{Dtype, ValuesMut};
    /// use lgreco_train::search::{Method, Search};
    /// let mut config = Config::new(Search::new(Method::TopK));
    /// config.policy = Policy::Fixed(vec!["topk 4".parse()?]);
    /// config.schedule.warmup = 2;
    /// let mut worker = ThreadCollective::group(1).remove(0);
    /// let layers = vec![Tensor::new("fc1", &[64], Dtype::F32)?];
    /// let mut controller = Controller::new(config, layers, worker.rank(), worker.world_size())?;
    /// for step in 0..6 {
    ///     if step == 4 {
    ///         controller.planning().set_settings(vec!["topk 8".parse()?])?;
    ///     }
    ///     let mut gradient: Vec<f32> = (0..64).map(|i| i as f32).collect();
    ///     controller.step(&mut worker, &mut [ValuesMut::F32(&mut gradient)], 0.1)?;
    ///     assert_eq!(gradient.iter().filter(|&&x| x != 0.0).count(), [63, 63, 4, 4, 8, 8][step]);
    /// }
    /// assert_eq!(controller.decision().map(|decision| decision.cause), Some(Cause::Caller));
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotFixed`] under another policy; [`Error::StepOrder`] while a step is under way;
    /// [`CoreError::Length`](crate::CoreError::Length) unless there is one setting per layer; the errors of settings that do not
    /// fit their layer. On an error, nothing has changed.
    pub fn set_settings(&mut self, settings: Vec<Setting>) -> Result<(), Error> {
        self.0.control.expect_idle()?;
        self.0.scheduler.fix(settings)
    }

    /// Compresses gradients during the warm-up, too.
    ///
    /// Until the first decision, layers have the default settings, or the settings of a fixed policy. Compression during the
    /// warm-up suits few and large steps, such as [outer steps](crate::outer). In ordinary training, compression would damage the
    /// first gradients of a model too much. All ranks must call this method before the first step. This method has no effect under
    /// [`Policy::Uncompressed`]. Settings with which error feedback does not work are refused without looking at gradients.
    ///
    /// ```
    /// # use lgreco_testing::controller::{alone, step_alone};
    /// # use lgreco_train::search::Method;
    /// # let (mut controller, mut worker) = alone(Method::TopK)?;
    /// controller.planning().compress_warmup()?;
    /// let report = step_alone(&mut controller, &mut worker)?;
    /// assert!(report.step == 0 && report.bytes_out < report.bytes_in / 20);
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::StepOrder`] when steps have been taken; the errors of settings that do not fit their layer,
    /// [`CoreError::OutOfMemory`](crate::CoreError::OutOfMemory). On an error, nothing has changed.
    pub fn compress_warmup(&mut self) -> Result<(), Error> {
        self.0.control.expect_idle()?;
        if self.0.scheduler.step > 0 {
            return Err(Error::StepOrder { what: "steps have been taken", expected: "a call before the first step" });
        }
        if self.0.scheduler.config.policy == Policy::Uncompressed {
            return Ok(());
        }
        let choices = self.0.scheduler.default_choices(0)?;
        let switches = self.0.prepare(&self.0.states, &choices, 0)?;
        self.0.switch(switches);
        Ok(())
    }
}
