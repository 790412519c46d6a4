use super::controller::lgreco_controller;
use super::setting::{lgreco_setting, read_settings};
use crate::device::Device;
use crate::failure::Result;
use crate::handle::{self, kind};
use crate::pointers::write;
use crate::status::lgreco_status;
use lgreco_train::Error;
use lgreco_train::controller::{PlanResult, PlanTask};
use std::sync::{Arc, Weak};

/// The work of a controller's next decision: to measure gradients and plan, for seconds with large models. One thread may
/// run it while others take steps with its controller.
pub struct lgreco_plan_task {
    _private: [u8; 0],
}

kind!(lgreco_plan_task, "plan task", b"lgplntsk", PlanTaskState, names: names, device: device);

pub(crate) struct PlanTaskState {
    /// Until it is run.
    task: Option<PlanTask>,
    /// From then on.
    result: Option<PlanResult>,
    /// What it measures on.
    device: Device,
    /// Gone when the controller is.
    owner: Weak<()>,
    /// Of the controller's layers.
    names: Arc<[String]>,
}

impl PlanTaskState {
    fn run(&mut self) -> Result<()> {
        let (what, expected) = ("the plan task has been run", "lgreco_controller_hand_in");
        let task = self.task.take().ok_or(Error::StepOrder { what, expected })?;
        let result = self.result.insert(task.run(&mut self.device));
        Ok(result.decision().map(drop)?)
    }
}

/// Makes the work of the controller's next decision a handle: once, on the measuring rank, from the end of the step
/// before the decision's `lead` on; `task` receives NULL at other times, on other ranks, and
/// where `lead` is 0. Ask after every step. Does not copy gradients.
///
/// At the step of the decision all ranks switch. If the task has not been handed in by then, they take the step as they
/// are and ask again at the next one: nobody waits. If it was not taken, or was destroyed, a call of
/// lgreco_controller_control or lgreco_controller_step does its work. A state that is saved meanwhile has the gradients;
/// whoever loads it decides by them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_take_plan_task(
    controller: *mut lgreco_controller,
    task: *mut *mut lgreco_plan_task,
) -> lgreco_status {
    create_on!(controller, task, |state| {
        let task = state.levels.controller_mut().planning().take_task();
        Ok(task.map(|task| PlanTaskState {
            task: Some(task),
            result: None,
            device: state.device.clone(),
            owner: Arc::downgrade(&state.owner),
            names: state.names.clone(),
        }))
    })
}

/// Measures and plans, in the calling thread, on the device of the controller's context. The controller may be used
/// meanwhile, and destroyed. Once. Allocates.
///
/// Codes of measuring and planning are this call's, and those of the step of the decision on every rank, if the task is
/// handed in all the same. LGRECO_STEP_ORDER when it has been run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_plan_task_run(task: *mut lgreco_plan_task) -> lgreco_status {
    call!(task, PlanTaskState::run)
}

/// Hands in a task that has been run, frees it and sets the caller's pointer to NULL; NULL, or a pointer to NULL, does
/// nothing. One that nobody waits for any more, because a saved state has been loaded or the learning rate has fallen
/// instead, is only freed.
///
/// LGRECO_STEP_ORDER for a task of another controller and for one that has not been run, LGRECO_BUSY for one that is
/// being run: it stays as it is. LGRECO_PANIC for one that has panicked: it is freed, and the controller does its work.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_hand_in(
    controller: *mut lgreco_controller,
    task: *mut *mut lgreco_plan_task,
) -> lgreco_status {
    call!(controller, |state| {
        let may = |task: &PlanTaskState| {
            state.check_own(&task.owner, "the plan task is another controller's")?;
            match task.task {
                None => Ok(()),
                Some(_) => {
                    let (what, expected) = ("the plan task has not been run", "lgreco_plan_task_run");
                    Err(Error::StepOrder { what, expected }.into())
                }
            }
        };
        if let Some(PlanTaskState { result: Some(result), .. }) = handle::take(task, may)? {
            state.levels.controller_mut().planning().hand_in(result);
        }
        Ok(())
    })
}

/// Frees a task and sets the caller's pointer to NULL; NULL, or a pointer to NULL, does nothing. Its work is there to be
/// taken again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_plan_task_destroy(task: *mut *mut lgreco_plan_task) -> lgreco_status {
    // SAFETY: README.md, handles.
    unsafe { handle::destroy(task) }
}

/// Asks for a decision before the schedule's next, because the data or the network have changed: its window begins with the next
/// step, and it is due `window + lead` steps later, or when it would have been if that is sooner. Tells that step in `due`,
/// UINT64_MAX under policies that decide nothing any more. All ranks ask, between the same two steps: the next step fails with
/// LGRECO_PEER_PLAN on every rank when some have not.
///
/// LGRECO_STEP_ORDER while a step is under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_replan(controller: *mut lgreco_controller, due: *mut u64) -> lgreco_status {
    call!(controller, |state| write(due, "due", || Ok(state
        .levels
        .controller_mut()
        .planning()
        .replan()?
        .unwrap_or(u64::MAX))))
}

/// Gives a controller that was made with settings other ones, one per layer. All ranks do, between the same two steps, and
/// switch at the next one, or at the end of the warm-up if that comes later. What is remembered of the layers stays. The
/// step fails with LGRECO_PEER_PLAN on every rank when ranks have given different settings. In buckets
/// (lgreco_controller_control) a rank that has given none does not expect what the others ask it first, and hangs.
///
/// LGRECO_NOT_FIXED for a controller that was made without; LGRECO_STEP_ORDER while a step is under way; LGRECO_LENGTH unless there are as
/// many settings as layers, codes of settings that do not fit their layer. Nothing has changed then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_set_settings(
    controller: *mut lgreco_controller,
    settings: *const lgreco_setting,
    settings_len: usize,
) -> lgreco_status {
    call!(controller, |state| { Ok(state.levels.set_settings(read_settings(settings, settings_len, "settings")?)?) })
}
