//! Calls with tables and plans as views.

use super::memory::{Buffer, caller_structs};
use super::{Bytes, expect};
use crate::sequences::{List, pick};
use crate::*;
use core::ffi::c_char;
use core::fmt::Display;
use core::mem::offset_of;
use core::ptr::{null, null_mut};

/// Makes a table of up to three layers, as a view and as a handle. Solves for a plan, as a handle and in the caller's
/// buffers. Checks a plan of random numbers.
pub(super) fn table_and_plan(bytes: &mut Bytes) -> lgreco_status {
    let layers = usize::from(bytes.below(4));
    let mut ends = Buffer::<usize>::new(layers);
    let mut end = 0;
    for place in ends.values_mut() {
        end += usize::from(bytes.below(4));
        *place = end;
    }
    let mut choices = Buffer::<lgreco_choice>::new(end);
    for choice in choices.values_mut() {
        let size = if bytes.below(16) == 15 { u64::MAX / 2 } else { bytes.next().into() };
        *choice = lgreco_choice { size, error: f64::from(bytes.value()).abs() };
    }
    let names: [*const c_char; 3] = [c"a", c"b", c"c"].map(|name| bytes.maybe(name.as_ptr()));
    let elements = [u64::from(bytes.next()), u64::MAX, 7];
    let defaults: Vec<u32> = (0..layers).map(|_| bytes.below(4).into()).collect();
    let fixed: Vec<u32> =
        (0..layers).map(|_| [LGRECO_NO_OPTION, bytes.below(4).into()][usize::from(bytes.below(2))]).collect();
    let budget = f64::from(bytes.value());
    let view = lgreco_table_view {
        layers,
        ends: ends.place(bytes),
        choices: choices.place(bytes),
        defaults: bytes.maybe(defaults.as_ptr()),
        budget: if bytes.below(2) == 0 { &budget } else { null() },
        names: if bytes.below(2) == 0 { names.as_ptr() } else { null() },
        elements: if bytes.below(2) == 0 { elements.as_ptr() } else { null() },
        uncompressed_sizes: if bytes.below(2) == 0 { elements.as_ptr() } else { null() },
        groups: if bytes.below(4) == 0 { names.as_ptr() } else { null() },
        fixed: if bytes.below(4) == 0 { fixed.as_ptr() } else { null() },
        metric: if bytes.below(2) == 0 { c"l2".as_ptr() } else { null() },
        ..Default::default()
    };
    // No field of the view is overwritten, because all fields are pointers or lengths of arrays.
    let kept: Vec<usize> = (1..size_of::<lgreco_table_view>() / 8).map(|word| 8 * word).collect();
    let view = caller_structs(bytes, &[view], &kept);
    // `levels` and `states` are below 256, which limits memory and time.
    let solver = pick(bytes, &["exact", "dp", "paper"]);
    let (levels, states, bits) = (bytes.next(), bytes.next(), bytes.next().to_string());
    let budget = [bits.as_str(), "size", "error"][usize::from(bytes.below(3))];
    let pairs: [(&str, &dyn Display); 4] =
        [("solver", &solver), ("levels", &levels), ("states", &states), ("budget", &budget)];
    let options = List::new(bytes, &pairs);
    let (mut table, mut plan) = (core::ptr::dangling_mut(), core::ptr::dangling_mut());
    // SAFETY: structs and buffers are as large as they state. Handles are live or NULL.
    unsafe {
        let created = expect(lgreco_table_create(view.pointer(), &mut table));
        assert_eq!(created == LGRECO_OK, !table.is_null(), "a failed call leaves NULL");
        let mut got = caller_structs(bytes, &[lgreco_table_view::default()], &[]);
        if created == LGRECO_OK {
            expect(lgreco_table_get(table, got.place()));
            got.check_guard();
        }
        assert_eq!(lgreco_table_destroy(&mut table), LGRECO_OK);

        let solved = expect(lgreco_plan_solve(view.pointer(), options.pointer(), &mut plan));
        assert_eq!(solved == LGRECO_OK, !plan.is_null(), "a failed call leaves NULL");
        if solved == LGRECO_OK {
            let mut found = lgreco_plan_view::default();
            assert_eq!(lgreco_plan_get(plan, &mut found), LGRECO_OK);
            assert_eq!(lgreco_plan_check(view.pointer(), &found), LGRECO_OK, "a plan fails its own check");
            let kept = [offset_of!(lgreco_plan_view, layers), offset_of!(lgreco_plan_view, options)];
            let any = caller_structs(bytes, &[found], &[kept[0], kept[1], offset_of!(lgreco_plan_view, solver)]);
            expect(lgreco_plan_check(view.pointer(), any.pointer()));
        }
        assert_eq!(lgreco_plan_destroy(&mut plan), LGRECO_OK);
        assert_eq!(expect(lgreco_plan_solve(null(), null(), null_mut())), LGRECO_NULL_POINTER);
        solved
    }
}
