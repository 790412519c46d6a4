//! Controllers of a group of one, whose callbacks sometimes fail.

use super::{Bytes, ELEMENTS, ROOM, State, gradient, layer, renew, search, setting};
use crate::*;
use core::ffi::c_void;
use core::ptr::{null, null_mut};
use lgreco::checksum::seal;

// Of up to two classes and phases.
static LEGACY_LEVELS: [f64; 4] = [0.5, 0.1, 0.2, 4.0];
static LEGACY_SIZES: [u64; 1] = [64];

unsafe extern "C" fn perform(user: *mut c_void, _: *const lgreco_request) -> i32 {
    i32::from(!user.is_null())
}

/// Whose calls succeed.
pub(super) fn collective_of_one() -> lgreco_collective {
    lgreco_collective { perform: Some(perform), ..Default::default() }
}

fn collective(bytes: &mut Bytes) -> lgreco_collective {
    lgreco_collective {
        rank: u32::from(bytes.below(32) == 31),
        user: if bytes.below(16) == 15 { core::ptr::dangling_mut() } else { null_mut() },
        perform: (bytes.below(32) < 31).then_some(perform),
        ..Default::default()
    }
}

pub(super) fn call(bytes: &mut Bytes, state: &mut State, which: usize) -> lgreco_status {
    let context = state.context(which, bytes);
    let collective = collective(bytes);
    let controller = bytes.maybe_mut(state.controllers[which]);
    // SAFETY: every pointer is NULL, or to a value that lives as long as the call and is as long as is said; handles are
    // live or NULL.
    unsafe {
        match bytes.below(9) {
            0 => {
                let gradient = gradient(bytes);
                let (layer, fixed) = (layer(bytes, &gradient), setting(bytes));
                let search = lgreco_search_options { reduce_dtype: u32::from(bytes.below(4)), ..search(bytes) };
                let options = lgreco_controller_options {
                    search: bytes.maybe(&raw const search),
                    fixed: bytes.maybe(&raw const fixed),
                    policy: u32::from(bytes.below(8)),
                    warmup: 1 + u64::from(bytes.below(3)),
                    period: u64::from(bytes.below(5)),
                    lead: u64::from(bytes.below(4) / 2),
                    feedback: u32::from(bytes.below(3)),
                    legacy_levels: LEGACY_LEVELS.as_ptr(),
                    legacy_sizes: LEGACY_SIZES.as_ptr(),
                    legacy_classes: 1 + usize::from(bytes.below(2)),
                    legacy_phases: usize::from(bytes.below(3)),
                    legacy_steps: u64::from(bytes.below(5)),
                    ramp_up_first: f64::from(bytes.below(4)),
                    ramp_up_steps: u64::from(bytes.below(4)),
                    gain: bytes.value(),
                    loco_storage: u32::from(bytes.below(4)),
                    reset_every: u32::from(bytes.below(3)),
                    non_finite: u32::from(bytes.below(4)),
                    ..Default::default()
                };
                let options = bytes.maybe(&raw const options);
                renew(&mut state.controllers[which], lgreco_controller_destroy, |to| {
                    lgreco_controller_create(context, &collective, &layer, 1, options, to)
                })
            }
            1..=3 => {
                let mut status = LGRECO_OK;
                for _ in 0..=bytes.below(4) {
                    let mut gradient = gradient(bytes);
                    let pointers = [bytes.maybe_mut(gradient.as_mut_ptr().cast::<c_void>())];
                    let mut report = lgreco_report::default();
                    let report = bytes.maybe_mut(&raw mut report);
                    let from = pointers.as_ptr();
                    status = lgreco_controller_step(controller, &collective, from, 1, 0.1, report);
                }
                status
            }
            4 => {
                let (mut setting, mut metrics) = (lgreco_setting::default(), lgreco_metrics::default());
                let (mut decision, mut values) = (lgreco_decision::default(), [0.0; ELEMENTS]);
                let layer = usize::from(bytes.below(8) == 7);
                match bytes.below(4) {
                    0 => lgreco_controller_setting(controller, layer, &mut setting),
                    1 => lgreco_controller_metrics(controller, layer, &mut metrics),
                    2 => lgreco_controller_residual(controller, layer, values.as_mut_ptr(), ELEMENTS),
                    _ => lgreco_controller_decision(controller, &mut decision),
                }
            }
            5 => {
                let (to, capacity) = (bytes.maybe_mut(state.saved.as_mut_ptr()), ROOM - usize::from(bytes.next()) * 8);
                let (contents, length) = (u32::from(bytes.below(32)) / 15, &raw mut state.saved_length);
                let mut name = null();
                match bytes.below(4) {
                    3 => {
                        let part = usize::from(bytes.below(4)) % 3;
                        lgreco_controller_save_part(controller, part, contents, &mut name, to, capacity, length)
                    }
                    _ => lgreco_controller_save(controller, contents, to, capacity, length),
                }
            }
            6 => {
                let length = state.saved_length.min(ROOM).saturating_sub(usize::from(bytes.below(8) / 7));
                let at = usize::from(bytes.next()) * ROOM / 256;
                state.saved[at] ^= bytes.below(4) / 3;
                seal(&mut state.saved[..length]);
                let (saved, count) = ([bytes.maybe(state.saved.as_ptr())], usize::from(bytes.below(2)));
                let mut loaded = lgreco_loaded::default();
                let loaded = bytes.maybe_mut(&raw mut loaded);
                match bytes.below(4) {
                    3 => {
                        let (parts, lens) = (saved.as_ptr(), &raw const length);
                        lgreco_controller_load_parts(controller, parts, lens, 1, parts, lens, count, loaded)
                    }
                    _ => lgreco_controller_load(controller, saved[0], length, saved.as_ptr(), &length, count, loaded),
                }
            }
            7 => {
                let other = usize::from(bytes.below(8) / 7);
                planned(bytes, &mut state.tasks[which ^ other], controller)
            }
            _ => match bytes.below(2) {
                0 => lgreco_controller_destroy(&raw mut state.controllers[which]),
                _ => lgreco_controller_step(controller, null(), null(), 1, 0.1, null_mut()),
            },
        }
    }
}

/// Calls on a plan task, which may be another controller's, and on the settings of a fixed policy.
pub(super) fn planned(
    bytes: &mut Bytes,
    task: &mut *mut lgreco_plan_task,
    controller: *mut lgreco_controller,
) -> lgreco_status {
    // SAFETY: as above.
    unsafe {
        match bytes.below(6) {
            0 | 1 => {
                assert_eq!(lgreco_plan_task_destroy(task), LGRECO_OK);
                *task = core::ptr::dangling_mut();
                let status = lgreco_controller_take_plan_task(controller, task);
                assert!(status == LGRECO_OK || task.is_null(), "a failed call leaves NULL");
                match bytes.below(2) {
                    1 if !task.is_null() => lgreco_plan_task_run(*task),
                    _ => status,
                }
            }
            2 => lgreco_plan_task_run(bytes.maybe_mut(*task)),
            3 => lgreco_controller_hand_in(controller, task),
            4 => lgreco_plan_task_destroy(task),
            _ => {
                let setting = setting(bytes);
                lgreco_controller_set_settings(controller, bytes.maybe(&raw const setting), 1)
            }
        }
    }
}
