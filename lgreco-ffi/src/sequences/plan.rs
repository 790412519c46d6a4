//! Calls on tables and plans.

use super::{Bytes, List, State, gradient, layer, pick, renew, search, setting};
use crate::*;
use core::ffi::CStr;
use core::fmt::Display;

pub(super) fn call(bytes: &mut Bytes, state: &mut State, which: usize) -> lgreco_status {
    let context = state.context(which, bytes);
    let mut json = [0; 300];
    let capacity = usize::from(bytes.next());
    // SAFETY: every pointer is NULL, or points to a value that outlives the call and has the stated length. Handles are
    // live or NULL.
    unsafe {
        match bytes.below(12) {
            0 | 1 => {
                let mut choices = [lgreco_choice::default(); 4];
                for choice in &mut choices {
                    *choice = lgreco_choice { size: bytes.next().into(), error: bytes.value().into() };
                }
                let groups = [c"a".as_ptr(), bytes.maybe(c"a".as_ptr())];
                let fixed = [LGRECO_NO_OPTION, bytes.below(3).into()];
                let (ends, defaults) = ([1 + usize::from(bytes.below(3)), 4], [0, u32::from(bytes.below(4))]);
                let view = lgreco_table_view {
                    layers: usize::from(bytes.below(3)),
                    ends: bytes.maybe(ends.as_ptr()),
                    choices: bytes.maybe(choices.as_ptr()),
                    defaults: bytes.maybe(defaults.as_ptr()),
                    groups: if bytes.below(4) == 0 { groups.as_ptr() } else { core::ptr::null() },
                    fixed: if bytes.below(4) == 0 { fixed.as_ptr() } else { core::ptr::null() },
                    ..Default::default()
                };
                renew(&mut state.tables[which], lgreco_table_destroy, |to| lgreco_table_create(&view, to))
            }
            2 => {
                let gradient = gradient(bytes);
                let layer = layer(bytes, &gradient);
                let search = search(bytes);
                renew(&mut state.tables[which], lgreco_table_destroy, |to| {
                    lgreco_table_measure(context, &layer, 1, search.pointer(), to)
                })
            }
            3 => lgreco_table_destroy(&raw mut state.tables[which]),
            4 => {
                let mut setting = lgreco_setting::default();
                let (layer, option) = (usize::from(bytes.below(3)), u32::from(bytes.below(9)));
                lgreco_table_setting(state.tables[which], layer, option, bytes.maybe_mut(&raw mut setting))
            }
            5 | 6 => {
                let mut view = lgreco_table_view::default();
                let status = lgreco_table_get(state.tables[which], &mut view);
                let solver = pick(bytes, &["exact", "dp", "paper", "best"]);
                let bits = (u64::from(bytes.next()) << (bytes.below(9) * 7)).to_string();
                let budget = [bits.as_str(), "size", "error", "error", "-1"][usize::from(bytes.below(5))];
                let (levels, states, alpha) = (bytes.next(), bytes.next(), bytes.value());
                let pairs: [(&str, &dyn Display); 5] = [
                    ("solver", &solver),
                    ("levels", &levels),
                    ("states", &states),
                    ("alpha", &alpha),
                    ("budget", &budget),
                ];
                let options = List::new(bytes, &pairs);
                match status {
                    LGRECO_OK => renew(&mut state.plans[which], lgreco_plan_destroy, |to| {
                        lgreco_plan_solve(&view, options.pointer(), to)
                    }),
                    status => status,
                }
            }
            7 => {
                let (mut table, mut plan) = (lgreco_table_view::default(), lgreco_plan_view::default());
                match lgreco_table_get(state.tables[which], &mut table) {
                    LGRECO_OK => match lgreco_plan_get(state.plans[which], &mut plan) {
                        LGRECO_OK => lgreco_plan_check(&table, &plan),
                        status => status,
                    },
                    status => status,
                }
            }
            8 => lgreco_plan_destroy(&raw mut state.plans[which]),
            9 => {
                let json = bytes.maybe_mut(json.as_mut_ptr());
                lgreco_table_to_json(state.tables[which], json, capacity, &mut state.length)
            }
            10 => {
                let (plan, table) = (state.plans[which], state.tables[usize::from(bytes.below(2))]);
                let (place, length) = (json.as_mut_ptr(), &mut state.length);
                let written = lgreco_plan_to_json(plan, table, place, json.len(), length);
                if written != LGRECO_OK {
                    return written;
                }
                let text = CStr::from_ptr(place).count_bytes();
                json[usize::from(bytes.next()) % text.max(1)] ^= i8::from(bytes.below(2) == 1) as core::ffi::c_char;
                let text = text - usize::from(bytes.below(4) / 3);
                renew(&mut state.plans[which], lgreco_plan_destroy, |to| {
                    lgreco_plan_from_json(table, json.as_ptr(), text, to)
                })
            }
            _ => {
                let gradient = gradient(bytes);
                let (layer, settings) = (layer(bytes, &gradient), [setting(bytes), setting(bytes), setting(bytes)]);
                let (mut errors, mut sizes) = ([0.0; 3], [0; 3]);
                let (from, count) = (bytes.maybe(settings.as_ptr()), usize::from(bytes.below(4)));
                let (to, sizes) = (bytes.maybe_mut(errors.as_mut_ptr()), bytes.maybe_mut(sizes.as_mut_ptr()));
                let status = lgreco_measure(context, &layer, from, count, 1, 0, to, sizes);
                assert!(status != LGRECO_OK || errors.iter().all(|&error| error >= 0.0 && error.is_finite()));
                status
            }
        }
    }
}
