//! Decisions that others make: a thread while steps are taken, or the caller.

use super::{Controller, PlanResult, PlanTask, Policy};
use crate::Error;
use crate::compress::Setting;
use alloc::vec::Vec;

/// The decisions of a [`Controller`], by [`Controller::planning`].
///
/// ```
/// # use lgreco_testing::controller::alone;
/// # use lgreco_train::search::Method;
/// # let (mut controller, _) = alone(Method::TopK)?;
/// assert!(!controller.planning().is_due()); // not before the end of the warm-up
/// # Ok::<(), lgreco_train::Error>(())
/// ```
pub struct Planning<'a>(pub(super) &'a mut Controller);

impl Planning<'_> {
    /// The work of the next decision, once, on the measuring rank; elsewhere, and at other times, `None`. It is there from
    /// the end of step `due - lead - 1` on, where `due` is the step of the decision and `lead` that of the
    /// [`Schedule`](super::Schedule), at least 1; ask after every step. Any thread [runs](PlanTask::run) it, and
    /// [`hand_in`](Planning::hand_in) takes the result.
    ///
    /// At step `due` the ranks then switch. If the result is not there yet ([`is_plan_due`](Planning::is_due) tells when to
    /// wait for it), they take the step under the settings as they
    /// are, and ask again at the next one. If the task was not taken, or was dropped, [`control`](Controller::control) runs
    /// it during that call. A decision that fails is an error of that step on every rank; begun again, the step may be taken
    /// while the task is tried again. In a state that is saved meanwhile the task has not been taken: whoever loads it
    /// decides by the same gradients.
    ///
    /// With Accordion, a learning rate that falls at step `due` or later takes the place of the decision.
    ///
    /// Where gradients were [observed elsewhere](super::Elsewhere::note_observed), the task is there without a lead, too, when the step of
    /// the decision has begun, and needs [`run_with`](PlanTask::run_with); it is not run during a call.
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
        if self.0.planner.config.schedule.lead == 0 && !self.0.planner.window.is_elsewhere() {
            return None;
        }
        self.0.planner.take_task()
    }

    /// Whether the next step is that of a decision: whoever plans on a thread waits for the result before it begins, so that every
    /// run switches at the same step.
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
        self.0.planner.is_due()
    }

    /// Takes what became of a plan task; whether anybody still waits for it. Nobody does when a saved state has been
    /// loaded since, or the learning rate has fallen instead: it is then dropped.
    pub fn hand_in(&mut self, result: PlanResult) -> bool {
        self.0.planner.hand_in(result)
    }

    /// Asks for a decision before the next of the [`Schedule`](super::Schedule), because the data or the network have changed: its
    /// window begins with the next step, and it is due `window + lead` steps later, or when it would have been if that is sooner.
    /// Returns that step, `None` under policies that decide nothing any more. The schedule goes on as it would have. All ranks ask,
    /// between the same two steps; a saved state remembers it.
    ///
    /// The next step fails on every rank when some have not asked: by [`Error::PeerOption`], in buckets its first bucket by
    /// [`Error::PeerPlan`].
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
        Ok(self.0.planner.replan())
    }

    /// Gives a controller of [`Policy::Fixed`](super::Policy::Fixed) other settings, one per layer. All ranks do, between the
    /// same two steps, and switch at the next one, or at the end of the warm-up if that comes later (a step after it where a
    /// plan task of the settings before was taken). Steps that are made of buckets switch a step later: the buckets of the step
    /// between tell whether all ranks have been given the same. Residuals and
    /// PowerSGD's factors stay as at any switch. A setting that does not suit its layer's feedback is
    /// [refused](super::Uncompressed::NotContractive) as after a fall of the learning rate, without looking at gradients.
    ///
    /// The next step fails on every rank when ranks have been given different settings, or only some have been given any: by
    /// [`Error::PeerOption`], in buckets its first bucket by [`Error::PeerPlan`]. Given the same, they go on.
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
    /// [`CoreError::Length`](crate::CoreError::Length) unless there is one setting per layer, those of settings that do not
    /// fit their layer. Nothing has changed then.
    pub fn set_settings(&mut self, settings: Vec<Setting>) -> Result<(), Error> {
        self.0.control.expect_idle()?;
        self.0.planner.fix(settings)
    }

    /// Compresses the warm-up, too: until the first decision layers have the default settings, those of a fixed policy have
    /// these, instead of none. For steps that are few and large, as [outer steps](crate::outer) are; gradients of a model's
    /// first steps bear it badly. All ranks do, before the first step. Nothing changes where nothing is to be compressed, and
    /// settings that do not suit their layer's feedback are refused without looking at gradients.
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
    /// [`Error::StepOrder`] when steps have been taken; those of settings that do not fit their layer,
    /// [`CoreError::OutOfMemory`](crate::CoreError::OutOfMemory). Nothing has changed then.
    pub fn compress_warmup(&mut self) -> Result<(), Error> {
        self.0.control.expect_idle()?;
        if self.0.planner.step > 0 {
            return Err(Error::StepOrder { what: "steps have been taken", expected: "none" });
        }
        if self.0.planner.config.policy == Policy::Uncompressed {
            return Ok(());
        }
        let choices = self.0.planner.default_choices(0)?;
        let switches = self.0.prepare(&self.0.states, &choices, 0)?;
        self.0.switch(switches);
        Ok(())
    }
}
