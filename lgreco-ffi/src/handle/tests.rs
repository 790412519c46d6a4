use super::*;
use crate::status::*;
use std::ffi::CStr;

struct Counter;
struct Other;

impl Kind for Counter {
    const WHAT: &'static str = "counter";
    const TAG: [u8; 8] = *b"counter ";
    type State = u32;
    fn layer(state: &u32) -> Option<&str> {
        (*state > 5).then_some("fc1")
    }
}

impl Kind for Other {
    const WHAT: &'static str = "other";
    const TAG: [u8; 8] = *b"other   ";
    type State = String;
}

fn count(handle: *mut Counter, call: impl FnOnce(&mut u32) -> Result<(), Failure>) -> (lgreco_status, String) {
    // SAFETY: the tests' handles are live or null.
    unsafe {
        let status = super::call(handle, call);
        (status, CStr::from_ptr(message::lgreco_message()).to_str().unwrap().to_owned())
    }
}

#[test]
fn calls_change_state_and_failures_leave_a_message() {
    let mut handle = new::<Counter>(5);
    let add = |n: &mut u32| {
        *n += 1;
        Ok(())
    };
    let fail = |_: &mut u32| Err(Failure::Null("values"));
    assert_eq!(count(handle, fail), (LGRECO_NULL_POINTER, "values is NULL".into()));
    assert_eq!(count(handle, add).0, LGRECO_OK);
    assert_eq!(count(handle, fail).1, "layer `fc1`: values is NULL");
    // SAFETY: the handle is live, then null.
    unsafe {
        assert_eq!(destroy(&raw mut handle), LGRECO_OK);
        assert!(handle.is_null());
        assert_eq!(destroy(&raw mut handle), LGRECO_OK);
        assert_eq!(destroy::<Counter>(core::ptr::null_mut()), LGRECO_OK);
    }
}

#[test]
fn a_panic_becomes_a_status_and_closes_the_handle() {
    let mut handle = new::<Counter>(0);
    let (status, message) = count(handle, |_| panic!("boom {}", 7));
    assert_eq!((status, message.as_str()), (LGRECO_PANIC, "a bug in lgreco, please report it: boom 7"));
    assert_eq!(count(handle, |_| Ok(())).0, LGRECO_PANIC);
    assert_eq!(call_without_handle(|| panic!("boom")), LGRECO_PANIC);
    // SAFETY: the handle is live.
    assert_eq!(unsafe { destroy(&raw mut handle) }, LGRECO_OK);
}

#[test]
fn a_handle_is_for_one_call_at_a_time() {
    let mut handle = new::<Counter>(0);
    let inside = |_: &mut u32| {
        // SAFETY: the handle is live.
        let (again, mut copy) = (unsafe { super::call(handle, |_| Ok(())) }, handle);
        assert_eq!(again, LGRECO_BUSY);
        // SAFETY: the handle is live. The handle is in use, and therefore not freed.
        assert_eq!(unsafe { destroy(&raw mut copy) }, LGRECO_BUSY);
        assert_eq!(copy, handle);
        Ok(())
    };
    assert_eq!(count(handle, inside).0, LGRECO_OK);
    // SAFETY: the handle is live.
    assert_eq!(unsafe { destroy(&raw mut handle) }, LGRECO_OK);
}

#[test]
fn a_further_handle_is_used_within_a_call() {
    let (mut first, mut second) = (new::<Counter>(3), new::<Counter>(4));
    let with = |from: *mut Counter, to: *mut Counter| {
        let add = |own: &mut u32, other: &mut u32| {
            *other += *own;
            Ok(())
        };
        // SAFETY: the handle is live.
        unsafe { super::call(from, |own| super::with(to, |other| add(own, other))) }
    };
    assert_eq!((with(first, second), with(second, second)), (LGRECO_OK, LGRECO_BUSY));
    // SAFETY: the handle is live.
    let panicked = unsafe { super::call(first, |_| super::with(second, |_: &mut u32| panic!("boom"))) };
    assert_eq!((panicked, count(second, |_| Ok(())).0), (LGRECO_PANIC, LGRECO_PANIC));
    // SAFETY: the handle is live.
    unsafe {
        assert_eq!(destroy(&raw mut first), LGRECO_OK);
        assert_eq!(destroy(&raw mut second), LGRECO_OK);
    }
}

#[test]
fn states_are_taken_out_of_handles_that_nobody_uses() {
    let take = |place: *mut *mut Counter, may: fn(&u32) -> Result<(), Failure>| {
        // SAFETY: the handle is live or null.
        unsafe { super::take(place, may) }.map_err(|failure| failure.status())
    };
    let mut handle = new::<Counter>(7);
    assert_eq!(take(core::ptr::null_mut(), |_| Ok(())), Ok(None));
    assert_eq!(take(&raw mut handle, |_| Err(Failure::OtherEnd)), Err(LGRECO_OTHER_END));
    let mut copy = handle;
    let inside = |_: &mut u32| {
        assert_eq!(take(&raw mut copy, |_| Ok(())), Err(LGRECO_BUSY));
        Ok(())
    };
    assert_eq!(count(handle, inside).0, LGRECO_OK);
    assert_eq!(take(&raw mut handle, |_| Ok(())), Ok(Some(7)));
    assert!(handle.is_null());
    assert_eq!(take(&raw mut handle, |_| Ok(())), Ok(None));
    let mut handle = new::<Counter>(7);
    assert_eq!(count(handle, |_| panic!("boom")).0, LGRECO_PANIC);
    assert_eq!(take(&raw mut handle, |_| Err(Failure::OtherEnd)), Err(LGRECO_OTHER_END));
    assert_eq!(take(&raw mut handle, |_| Ok(())), Err(LGRECO_PANIC));
    assert!(handle.is_null());
    let mut other = new::<Other>("text".into()).cast::<Counter>();
    assert_eq!(take(&raw mut other, |_| Ok(())), Err(LGRECO_HANDLE));
    let mut other = other.cast::<Other>();
    // SAFETY: the handle is live.
    assert_eq!(unsafe { destroy(&raw mut other) }, LGRECO_OK);
}

#[test]
fn other_kinds_are_recognised() {
    let mut other = new::<Other>("text".into());
    assert_eq!(count(other.cast(), |_| Ok(())), (LGRECO_HANDLE, "not a counter handle".into()));
    assert_eq!(count(core::ptr::null_mut(), |_| Ok(())), (LGRECO_NULL_POINTER, "counter is NULL".into()));
    let mut wrong = other.cast::<Counter>();
    // SAFETY: the handle is live. The handle is first passed as a handle of another kind, then as its own kind.
    unsafe {
        assert_eq!(destroy(&raw mut wrong), LGRECO_HANDLE);
        assert_eq!(destroy(&raw mut other), LGRECO_OK);
    }
}
