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

/// The work of a controller's next decision: measuring gradients and planning, which takes seconds for large models.
/// One thread may run the task while another thread takes steps with the controller.
pub struct lgreco_plan_task {
    _private: [u8; 0],
}

kind!(lgreco_plan_task, "plan task", b"lgplntsk", PlanTaskState, names: names, device: device);

pub(crate) struct PlanTaskState {
    /// The work; `None` once it was run.
    task: Option<PlanTask>,
    /// The result; `None` until the work was run.
    result: Option<PlanResult>,
    /// The device that measures.
    device: Device,
    /// Identifies the controller. Upgrading this weak reference fails once the controller is destroyed.
    owner: Weak<()>,
    /// Names of the controller's layers.
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

/// Takes the work of the controller's next decision as a handle. There is one task per decision, on the measuring rank.
/// The task is available once all steps before step `decision - lead` have ended. At other times, on other ranks and if
/// `lead` is 0, `task` receives NULL. Make this call after every step. The call does not copy gradients.
///
/// All ranks switch at the step of the decision. If the task was taken but not handed in by then, the ranks take the
/// step under the old settings, and ask again at the next step. No rank waits. If the task was not taken, or was
/// destroyed, lgreco_controller_control or lgreco_controller_step does the task's work. A state that is saved before
/// the decision contains the decision's gradients. A run that loads the state uses these gradients.
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

/// Measures and plans on the calling thread, with the device of the controller's context. Meanwhile the controller may
/// be used or destroyed. A task can be run once. Allocates.
///
/// Fails with the codes of measuring and planning. If a failed task is handed in nevertheless, the step of the decision
/// fails on every rank. Fails with LGRECO_STEP_ORDER when the task was already run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_plan_task_run(task: *mut lgreco_plan_task) -> lgreco_status {
    call!(task, PlanTaskState::run)
}

/// Hands in a task that was run, frees it and sets the caller's pointer to NULL. Does nothing for NULL, or for a
/// pointer to NULL. A task that is no longer needed is freed without any other effect. A task is no longer needed if a
/// saved state was loaded, or if a fall of the learning rate has caused the decision.
///
/// Fails with LGRECO_STEP_ORDER for a task that was not run, or that belongs to another controller. Fails with
/// LGRECO_BUSY for a task that is running. After these failures the task stays unchanged. LGRECO_PANIC means that the
/// task panicked: the task is freed, and the controller does its work.
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

/// Frees a task and sets the caller's pointer to NULL. Does nothing for NULL, or for a pointer to NULL. The
/// controller's work is not lost: it can be taken again as a new task.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_plan_task_destroy(task: *mut *mut lgreco_plan_task) -> lgreco_status {
    // SAFETY: the caller promises a handle that meets the requirements of lgreco-ffi/README.md.
    unsafe { handle::destroy(task) }
}

/// Asks for a decision before the next scheduled decision, for instance because the data or the network have changed.
/// The window of the decision begins with the next step. The decision is due `window + lead` steps later, or at the
/// scheduled step if that step is sooner. `due` receives the step of the decision, or UINT64_MAX under policies that
/// make no further decisions. All ranks must make this call between the same two steps. Otherwise the next step fails
/// with LGRECO_PEER_PLAN on every rank.
///
/// Fails with LGRECO_STEP_ORDER while a step is under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_replan(controller: *mut lgreco_controller, due: *mut u64) -> lgreco_status {
    call!(controller, |state| write(due, "due", || Ok(state
        .levels
        .controller_mut()
        .planning()
        .replan()?
        .unwrap_or(u64::MAX))))
}

/// Gives new settings, one per layer, to a controller that was made with settings. All ranks must make this call
/// between the same two steps. The ranks switch at the next step, or at the end of the warm-up if that is later. With
/// buckets in flight (lgreco_controller_control), the ranks switch one step later. Residuals and factors stay. If ranks
/// give different settings, or only some ranks make the call, the step fails with LGRECO_PEER_PLAN on every rank.
///
/// Fails with LGRECO_NOT_FIXED for a controller that was made without settings, and with LGRECO_STEP_ORDER while a step
/// is under way. Fails with LGRECO_LENGTH unless there is one setting per layer. Also fails if a setting is wrong or
/// does not fit its layer. A failed call changes nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_set_settings(
    controller: *mut lgreco_controller,
    settings: *const lgreco_setting,
    settings_len: usize,
) -> lgreco_status {
    call!(controller, |state| { Ok(state.levels.set_settings(read_settings(settings, settings_len, "settings")?)?) })
}
