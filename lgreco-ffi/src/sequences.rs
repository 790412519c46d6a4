//! Random sequences of calls through the C API, for tests and fuzzing.

use crate::*;
use core::ffi::{CStr, c_void};
use core::ptr::{null, null_mut};

const ROWS: usize = 4;
const COLS: usize = 6;
const ELEMENTS: usize = ROWS * COLS;
const DIMS: [usize; 2] = [ROWS, COLS];

/// Choices out of bytes, zeros when they are used up.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> u8 {
        let (&first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        first
    }

    fn below(&mut self, count: u8) -> u8 {
        self.next() % count
    }

    /// The pointer, one time in eight NULL.
    fn maybe<T>(&mut self, pointer: *const T) -> *const T {
        if self.below(8) == 7 { null() } else { pointer }
    }

    fn maybe_mut<T>(&mut self, pointer: *mut T) -> *mut T {
        self.maybe(pointer).cast_mut()
    }

    /// Mostly small numbers, sometimes NaN or infinity.
    fn value(&mut self) -> f32 {
        match self.next() {
            254 => f32::NAN,
            255 => f32::INFINITY,
            byte => (f32::from(byte) - 100.0) / 16.0,
        }
    }
}

/// Two of each handle, NULL until they are made and after they are destroyed.
struct Handles {
    contexts: [*mut lgreco_context; 2],
    tables: [*mut lgreco_table; 2],
    plans: [*mut lgreco_plan; 2],
    compressors: [*mut lgreco_compressor; 2],
}

/// Makes the calls that `bytes` say, with NULLs, handles of other kinds, destroyed handles, truncated payloads and
/// numbers that are no constants among them; returns how many succeed.
///
/// # Panics
/// When a call returns a status without a name, panics inside, leaves a handle behind a failure, or a message is no text;
/// when a payload that was just made is not decoded to finite values.
pub fn check(bytes: &[u8]) -> usize {
    let mut done = 0;
    let mut bytes = Bytes(bytes);
    let mut handles = Handles {
        contexts: [null_mut(); 2],
        tables: [null_mut(); 2],
        plans: [null_mut(); 2],
        compressors: [null_mut(); 2],
    };
    let (mut payload, mut length) = (vec![0u8; 256], 0);
    for _ in 0..64 {
        let which = usize::from(bytes.below(2));
        let status = call(&mut bytes, &mut handles, which, &mut payload, &mut length);
        assert_ne!(status, LGRECO_PANIC);
        done += usize::from(status == LGRECO_OK);
        // SAFETY: static text.
        let name = unsafe { CStr::from_ptr(lgreco_status_name(status)) };
        assert_ne!(name, c"unknown status", "{status}");
        // SAFETY: handles are live or NULL, and no call is using them.
        unsafe {
            for message in
                [lgreco_context_message(handles.contexts[which]), lgreco_compressor_message(handles.compressors[which])]
            {
                assert!(CStr::from_ptr(message).to_str().is_ok());
            }
        }
        if bytes.0.is_empty() {
            break;
        }
    }
    // SAFETY: handles are live or NULL.
    unsafe {
        handles.contexts.iter_mut().for_each(|handle| assert_eq!(lgreco_context_destroy(handle), LGRECO_OK));
        handles.tables.iter_mut().for_each(|handle| assert_eq!(lgreco_table_destroy(handle), LGRECO_OK));
        handles.plans.iter_mut().for_each(|handle| assert_eq!(lgreco_plan_destroy(handle), LGRECO_OK));
        handles.compressors.iter_mut().for_each(|handle| assert_eq!(lgreco_compressor_destroy(handle), LGRECO_OK));
    }
    done
}

fn call(
    bytes: &mut Bytes,
    handles: &mut Handles,
    which: usize,
    payload: &mut [u8],
    length: &mut usize,
) -> lgreco_status {
    let kind = bytes.below(16);
    let mut context = bytes.maybe_mut(handles.contexts[which]);
    if bytes.below(32) == 31 {
        context = handles.tables[which].cast();
    }
    let mut gradient = [0.0f32; ELEMENTS];
    gradient.iter_mut().for_each(|value| *value = bytes.value());
    let layer = lgreco_layer {
        name: bytes.maybe(c"fc1".as_ptr()),
        dims: bytes.maybe(DIMS.as_ptr()),
        dims_len: 2,
        values: bytes.maybe(gradient.as_ptr().cast::<c_void>()),
        dtype: u32::from(bytes.below(16) == 15) * 3,
        ..Default::default()
    };
    let setting = lgreco_setting {
        method: u32::from(bytes.below(5)),
        bits: u32::from(bytes.below(10)),
        bucket: u32::from(bytes.below(9)),
        keep: u32::from(bytes.below(26)),
        rank: u32::from(bytes.below(6)),
        ..Default::default()
    };
    let compressor = bytes.maybe_mut(handles.compressors[which]);
    // SAFETY: every pointer is NULL, or to a value that lives as long as the call and is as long as is said; handles are
    // live or NULL.
    unsafe {
        match kind {
            0 => renew(&mut handles.contexts[which], lgreco_context_destroy, |to| lgreco_context_create(null(), to)),
            1 => lgreco_context_destroy(&raw mut handles.contexts[which]),
            2 => {
                let mut choices = [lgreco_choice::default(); 4];
                for choice in &mut choices {
                    *choice = lgreco_choice { size: bytes.next().into(), error: bytes.value().into() };
                }
                let (ends, defaults) = ([1 + usize::from(bytes.below(3)), 4], [0, u32::from(bytes.below(4))]);
                let view = lgreco_table_view {
                    layers: usize::from(bytes.below(3)),
                    ends: bytes.maybe(ends.as_ptr()),
                    choices: bytes.maybe(choices.as_ptr()),
                    defaults: bytes.maybe(defaults.as_ptr()),
                    ..Default::default()
                };
                renew(&mut handles.tables[which], lgreco_table_destroy, |to| lgreco_table_create(context, &view, to))
            }
            3 => {
                let search = lgreco_search_options {
                    method: u32::from(bytes.below(5)),
                    min_elements: usize::from(bytes.below(40)),
                    ..Default::default()
                };
                renew(&mut handles.tables[which], lgreco_table_destroy, |to| {
                    lgreco_table_measure(context, &layer, 1, &search, to, null_mut())
                })
            }
            4 => lgreco_table_destroy(&raw mut handles.tables[which]),
            5 => {
                let mut view = lgreco_table_view::default();
                let status = lgreco_table_get(handles.tables[which], &mut view);
                let options = lgreco_plan_options {
                    solver: u32::from(bytes.below(3)),
                    levels: bytes.next().into(),
                    states: bytes.next().into(),
                    alpha: bytes.value().into(),
                    ..Default::default()
                };
                match status {
                    LGRECO_OK => renew(&mut handles.plans[which], lgreco_plan_destroy, |to| {
                        lgreco_plan_solve(context, &view, &options, to)
                    }),
                    status => status,
                }
            }
            6 => {
                let (mut table, mut plan) = (lgreco_table_view::default(), lgreco_plan_view::default());
                match lgreco_table_get(handles.tables[which], &mut table) {
                    LGRECO_OK => match lgreco_plan_get(handles.plans[which], &mut plan) {
                        LGRECO_OK => lgreco_plan_check(context, &table, &plan),
                        status => status,
                    },
                    status => status,
                }
            }
            7 => lgreco_plan_destroy(&raw mut handles.plans[which]),
            8 => {
                let mut json = [0; 300];
                let capacity = usize::from(bytes.next());
                let json = bytes.maybe_mut(json.as_mut_ptr());
                lgreco_table_to_json(handles.tables[which], json, capacity, length)
            }
            9 | 10 => {
                let options = lgreco_compressor_options {
                    feedback: u32::from(bytes.below(6)),
                    storage: u32::from(bytes.below(4)),
                    aggregation: u32::from(bytes.below(2)),
                    gain: bytes.value(),
                    ..Default::default()
                };
                let options = bytes.maybe(&raw const options);
                renew(&mut handles.compressors[which], lgreco_compressor_destroy, |to| {
                    lgreco_compressor_create(context, &layer, &setting, options, to)
                })
            }
            11 => lgreco_compressor_destroy(&raw mut handles.compressors[which]),
            12 => lgreco_compressor_set_setting(compressor, &setting),
            13 => {
                let (from, to) = (bytes.maybe(gradient.as_ptr().cast()), bytes.maybe_mut(payload.as_mut_ptr()));
                let capacity = payload.len() - usize::from(bytes.next()) / 4;
                lgreco_compressor_encode(compressor, 1, from, to, capacity, length, null_mut())
            }
            14 => {
                let mut values = [0.0f32; ELEMENTS];
                let cut = (*length).min(payload.len()).saturating_sub(usize::from(bytes.below(8)));
                let from = bytes.maybe(payload.as_ptr());
                let decode = if bytes.below(2) == 0 { lgreco_compressor_decode } else { lgreco_compressor_receive };
                let status = decode(compressor, from, cut, values.as_mut_ptr(), ELEMENTS, null_mut());
                assert!(status != LGRECO_OK || values.iter().all(|value| value.is_finite()));
                status
            }
            _ => {
                let mut saved = [0; 200];
                let capacity = usize::from(bytes.below(200));
                let status = lgreco_compressor_save(compressor, saved.as_mut_ptr(), capacity);
                let at = usize::from(bytes.below(200));
                saved[at] ^= bytes.next();
                match status {
                    LGRECO_OK => lgreco_compressor_load(compressor, saved.as_ptr(), capacity),
                    status => status,
                }
            }
        }
    }
}

/// Replaces a handle by what `create` makes; a failed creation must leave NULL.
fn renew<T>(
    handle: &mut *mut T,
    destroy: unsafe extern "C" fn(*mut *mut T) -> lgreco_status,
    create: impl FnOnce(*mut *mut T) -> lgreco_status,
) -> lgreco_status {
    // SAFETY: live or NULL.
    assert_eq!(unsafe { destroy(handle) }, LGRECO_OK);
    *handle = core::ptr::dangling_mut();
    let status = create(handle);
    assert_eq!(status == LGRECO_OK, !handle.is_null(), "a failed call leaves NULL");
    status
}

#[cfg(test)]
mod tests {
    #[test]
    fn random_sequences_of_calls_keep_the_contract() {
        let (mut state, mut done) = (1u64, 0);
        for _ in 0..3000 {
            let bytes: Vec<u8> = (0..2500)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (state >> 56) as u8
                })
                .collect();
            done += super::check(&bytes);
        }
        assert!(done > 3000 * 8, "only {done} calls did something");
    }
}
