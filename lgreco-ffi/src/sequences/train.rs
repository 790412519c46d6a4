//! Calls on controllers with a single rank. Their callbacks sometimes fail.

use super::{Bytes, DTYPES, ELEMENTS, List, METHODS, ROOM, State, TRUTHS, gradient, layer, pick, renew, setting};
use crate::*;
use core::ffi::c_void;
use core::fmt::Display;
use core::ptr::{null, null_mut};
use lgreco::checksum::seal;

unsafe extern "C" fn perform(user: *mut c_void, _: *const lgreco_request) -> i32 {
    i32::from(!user.is_null())
}

/// A collective of one rank. Its callback always succeeds.
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
    // SAFETY: every pointer is NULL, or points to a value that outlives the call and has the stated length. Handles are
    // live or NULL.
    unsafe {
        match bytes.below(9) {
            0 => {
                let gradient = gradient(bytes);
                let (layer, fixed) = (layer(bytes, &gradient), setting(bytes));
                let fixed = if bytes.below(3) == 0 { &raw const fixed } else { null() };
                let texts = [
                    pick(
                        bytes,
                        &["lgreco", "paper", "uniform", "uncompressed", "kmeans", "accordion", "legacy", "none"],
                    ),
                    METHODS[usize::from(bytes.below(METHODS.len() as u8))],
                    pick(bytes, &DTYPES),
                    pick(bytes, &DTYPES),
                    pick(bytes, &TRUTHS),
                    pick(bytes, &["0.5,0.1", "8,2", "4,2,0.5,1.5", "1"]),
                    pick(bytes, &["64; 0.5,0.1; 0.2,4; 3", "; 4; 2; 1", "; 4", "64; 4; 2"]),
                    pick(bytes, &["error", "skip", "pass_through", "ignore"]),
                ];
                let names = [
                    "policy",
                    "method",
                    "reduce_dtype",
                    "loco_residual_dtype",
                    "error_feedback",
                    "accordion",
                    "legacy",
                    "non_finite",
                ];
                let numbers = [1 + bytes.below(3), bytes.below(5), bytes.below(4) / 2, bytes.below(3), bytes.below(40)];
                let (gain, ramp_up) = (bytes.value(), format!("{},{}", bytes.below(4), bytes.below(4)));
                let mut pairs: Vec<(&str, &dyn Display)> = vec![
                    ("start_iter", &numbers[0]),
                    ("period", &numbers[1]),
                    ("lead", &numbers[2]),
                    ("reset_every", &numbers[3]),
                    ("min_elements", &numbers[4]),
                    ("gain", &gain),
                ];
                if bytes.below(4) == 0 {
                    pairs.push(("ramp_up", &ramp_up));
                }
                // One wrong option would hide errors in the other options, so a random half of the options is left out.
                for (name, text) in names.iter().zip(&texts) {
                    if (*name != "policy" || fixed.is_null()) && bytes.below(2) == 0 {
                        pairs.push((*name, text));
                    }
                }
                let options = List::new(bytes, &pairs);
                let options = options.maybe(bytes);
                renew(&mut state.controllers[which], lgreco_controller_destroy, |to| {
                    lgreco_controller_create(context, &collective, &layer, 1, fixed, options, to)
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

/// Makes a random call on a plan task, which may belong to another controller, or replaces the controller's settings.
pub(super) fn planned(
    bytes: &mut Bytes,
    task: &mut *mut lgreco_plan_task,
    controller: *mut lgreco_controller,
) -> lgreco_status {
    // SAFETY: every pointer is NULL, or points to a value that outlives the call. Handles are live or NULL.
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
