//! Decisions that are made on another thread while steps are taken.

use super::{Controller, PlanResult, PlanTask};

impl Controller {
    /// The work of the next decision, once, on the measuring rank; elsewhere, and at other times, `None`. It is there from
    /// the end of step `due - lead - 1` on, where `due` is the step of the decision and `lead` that of the
    /// [`Schedule`](super::Schedule), at least 1; ask after every step. Any thread [runs](PlanTask::run) it, and
    /// [`hand_in`](Controller::hand_in) takes the result.
    ///
    /// At step `due` the ranks then switch. If the result is not there yet, they take the step under the settings as they
    /// are, and ask again at the next one. If the task was not taken, or was dropped, [`control`](Controller::control) runs
    /// it during that call. A decision that fails is an error of that step on every rank; begun again, the step may be taken
    /// while the task is tried again. In a state that is saved meanwhile the task has not been taken: whoever loads it
    /// decides by the same gradients.
    ///
    /// With Accordion, a learning rate that falls at step `due` or later takes the place of the decision.
    ///
    /// ```
    /// # use lgreco_train::{search::Method, testing::controller::{alone_with_lead, step_alone}};
    /// # let (mut controller, mut worker) = alone_with_lead(Method::TopK, 1)?;
    /// let mut due = vec![];
    /// for step in 0..6 {
    ///     step_alone(&mut controller, &mut worker)?;
    ///     due.extend(controller.take_plan_task().map(|_| step)); // and dropped
    /// }
    /// assert_eq!(due, [1, 4]); // for the decisions of steps 3 and 6
    /// assert_eq!(controller.decision().map(|decision| decision.step), Some(3)); // made during the call
    /// # Ok::<(), lgreco_train::Error>(())
    /// ```
    ///
    /// # Complexity
    /// O(layers). The window's gradients are shared with the task, not copied.
    pub fn take_plan_task(&mut self) -> Option<PlanTask> {
        self.planner.take_task().filter(|_| self.planner.config.schedule.lead > 0)
    }

    /// Takes what became of a plan task; whether anybody still waits for it. Nobody does when a saved state has been
    /// loaded since, or the learning rate has fallen instead: it is then dropped.
    pub fn hand_in(&mut self, result: PlanResult) -> bool {
        self.planner.hand_in(result)
    }
}
