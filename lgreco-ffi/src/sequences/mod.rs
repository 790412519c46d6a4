//! Random sequences of calls through the C API, for tests and fuzzing.

mod buckets;
mod compress;
mod cuda;
mod cut;
mod plan;
pub mod structs;
mod train;

use crate::*;
use core::ffi::{CStr, c_char, c_void};
use core::fmt::Display;
use core::ptr::{null, null_mut};
use std::ffi::CString;

const ROWS: usize = 4;
const COLS: usize = 6;
const ELEMENTS: usize = ROWS * COLS;
const DIMS: [usize; 2] = [ROWS, COLS];
/// Bytes of each output buffer.
const ROOM: usize = 2048;

/// Turns bytes into choices. After the last byte, all further bytes are zeros.
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

    /// Returns the pointer, or NULL one time in eight.
    fn maybe<T>(&mut self, pointer: *const T) -> *const T {
        if self.below(8) == 7 { null() } else { pointer }
    }

    fn maybe_mut<T>(&mut self, pointer: *mut T) -> *mut T {
        self.maybe(pointer).cast_mut()
    }

    /// Returns mostly small numbers, sometimes NaN or infinity.
    fn value(&mut self) -> f32 {
        match self.next() {
            254 => f32::NAN,
            255 => f32::INFINITY,
            byte => (f32::from(byte) - 100.0) / 16.0,
        }
    }
}

/// The options of a call, as a C array of texts.
struct List {
    _texts: Vec<CString>,
    pointers: Vec<*const c_char>,
}

impl List {
    /// Sometimes adds an unknown name, repeats a name, or leaves out a value.
    fn new(bytes: &mut Bytes, pairs: &[(&str, &dyn Display)]) -> List {
        let mut texts: Vec<CString> = Vec::new();
        let mut add = |text: &dyn Display| texts.push(CString::new(text.to_string()).expect("no NUL"));
        for (name, value) in pairs {
            add(name);
            add(value);
        }
        match (bytes.below(64), pairs.first()) {
            (61, _) => {
                add(&"nonsense");
                add(&"1");
            }
            (62, Some((name, value))) => {
                add(name);
                add(value);
            }
            (63, Some((name, _))) => add(name),
            _ => (),
        }
        let pointers = texts.iter().map(|text| text.as_ptr()).chain([null(), null()]).collect();
        List { _texts: texts, pointers }
    }

    /// Returns the array, or NULL one time in eight.
    fn maybe(&self, bytes: &mut Bytes) -> *const *const c_char {
        bytes.maybe(self.pointers.as_ptr())
    }

    fn pointer(&self) -> *const *const c_char {
        self.pointers.as_ptr()
    }
}

/// Two handles of each kind, and outputs of calls. A handle is NULL before it is made and after it is destroyed.
struct State {
    /// A handle that is not a context. No call replaces this handle, so any call may get it as a wrong argument.
    foreign: *mut lgreco_table,
    contexts: [*mut lgreco_context; 2],
    tables: [*mut lgreco_table; 2],
    plans: [*mut lgreco_plan; 2],
    compressors: [*mut lgreco_compressor; 2],
    controllers: [*mut lgreco_controller; 2],
    buckets: [*mut lgreco_bucket; 2],
    tasks: [*mut lgreco_plan_task; 2],
    /// Gradients of the layer in the buckets. The buckets keep pointers to these gradients.
    gradients: [Vec<f32>; 2],
    /// The upstream and the downstream end of a cut.
    cuts: [*mut lgreco_cut; 2],
    cudas: [*mut lgreco_cuda; 2],
    cuda_buckets: [*mut lgreco_cuda_bucket; 2],
    payload: Vec<u8>,
    length: usize,
    message: Vec<u8>,
    message_length: usize,
    saved: Vec<u8>,
    saved_length: usize,
    ticket: u64,
}

impl State {
    fn new() -> State {
        State {
            foreign: foreign(),
            contexts: [null_mut(); 2],
            tables: [null_mut(); 2],
            plans: [null_mut(); 2],
            compressors: [null_mut(); 2],
            controllers: [null_mut(); 2],
            buckets: [null_mut(); 2],
            tasks: [null_mut(); 2],
            gradients: [vec![0.0; ELEMENTS], vec![0.0; ELEMENTS]],
            cuts: [null_mut(); 2],
            cudas: [null_mut(); 2],
            cuda_buckets: [null_mut(); 2],
            payload: vec![0; ROOM],
            length: 0,
            message: vec![0; ROOM],
            message_length: 0,
            saved: vec![0; ROOM],
            saved_length: 0,
            ticket: 0,
        }
    }

    /// Returns the context. Instead, one call in 16 gets a handle of another kind, and one call in 32 gets NULL.
    fn context(&self, which: usize, bytes: &mut Bytes) -> *mut lgreco_context {
        match bytes.below(32) {
            30 | 31 => self.foreign.cast(),
            29 => null_mut(),
            _ => self.contexts[which],
        }
    }
}

/// Asserts that the thread's message is valid text.
fn check_message() {
    // SAFETY: the text ends with a NUL, and no call changes it meanwhile.
    assert!(unsafe { CStr::from_ptr(lgreco_message()) }.to_str().is_ok());
}

/// Makes a table of one layer with one option.
fn foreign() -> *mut lgreco_table {
    let mut table = null_mut();
    let view = lgreco_table_view {
        layers: 1,
        ends: &1,
        choices: &lgreco_choice { size: 8, error: 0.0 },
        ..Default::default()
    };
    // SAFETY: every pointer is NULL, or points to a value that outlives the call.
    assert_eq!(unsafe { lgreco_table_create(&view, &mut table) }, LGRECO_OK);
    table
}

impl Drop for State {
    fn drop(&mut self) {
        // SAFETY: handles are live or NULL.
        unsafe {
            assert_eq!(lgreco_table_destroy(&raw mut self.foreign), LGRECO_OK);
            self.contexts.iter_mut().for_each(|handle| assert_eq!(lgreco_context_destroy(handle), LGRECO_OK));
            self.tables.iter_mut().for_each(|handle| assert_eq!(lgreco_table_destroy(handle), LGRECO_OK));
            self.plans.iter_mut().for_each(|handle| assert_eq!(lgreco_plan_destroy(handle), LGRECO_OK));
            self.compressors.iter_mut().for_each(|handle| assert_eq!(lgreco_compressor_destroy(handle), LGRECO_OK));
            self.controllers.iter_mut().for_each(|handle| assert_eq!(lgreco_controller_destroy(handle), LGRECO_OK));
            self.buckets.iter_mut().for_each(|handle| assert_eq!(lgreco_bucket_close(null_mut(), handle), LGRECO_OK));
            self.tasks.iter_mut().for_each(|handle| assert_eq!(lgreco_plan_task_destroy(handle), LGRECO_OK));
            self.cuts.iter_mut().for_each(|handle| assert_eq!(lgreco_cut_destroy(handle), LGRECO_OK));
            let destroy = |handle| assert_eq!(lgreco_cuda_bucket_destroy(handle), LGRECO_OK);
            self.cuda_buckets.iter_mut().for_each(|handle| destroy(handle));
            self.cudas.iter_mut().for_each(|handle| assert_eq!(lgreco_cuda_destroy(handle), LGRECO_OK));
        }
    }
}

/// Makes the calls that `bytes` encode, including NULLs, handles of other kinds, destroyed handles, truncated payloads and
/// unknown constants. Returns the numbers of successful calls on contexts, tables and plans, compressors, controllers,
/// cuts and CUDA devices, and the number of completed bucket exchanges.
///
/// # Panics
/// When a call returns a status without a name, panics inside, or leaves a handle after a failure. When a message is not
/// text. When a payload that was just made does not decode to finite values.
pub fn check(bytes: &[u8]) -> [usize; 7] {
    let (mut bytes, mut state, mut done) = (Bytes(bytes), State::new(), [0; 7]);
    for _ in 0..64 {
        let which = usize::from(bytes.below(2));
        let (noun, call): (usize, Call) = match bytes.below(8) {
            0 if bytes.below(2) == 1 => (5, cuda::call),
            0 => (0, context),
            1 | 2 => (1, plan::call),
            3 | 4 => (2, compress::call),
            5 if bytes.below(3) == 2 => (6, buckets::call),
            5 => (3, train::call),
            _ => (4, cut::call),
        };
        let status = call(&mut bytes, &mut state, which);
        assert_ne!(status, LGRECO_PANIC);
        done[noun] += usize::from(status == LGRECO_OK);
        // SAFETY: the text is static.
        let name = unsafe { CStr::from_ptr(lgreco_status_name(status)) };
        assert_ne!(name, c"unknown status", "{status}");
        check_message();
        if bytes.0.is_empty() {
            break;
        }
    }
    done
}

type Call = fn(&mut Bytes, &mut State, usize) -> lgreco_status;

fn context(bytes: &mut Bytes, state: &mut State, which: usize) -> lgreco_status {
    let devices = [c"cpu", c"cpu", c"cpu", c"cpu:0", c"cpu:1", c"cuda:9999999999", c"gpu", c"\xff"];
    let device = devices[usize::from(bytes.below(8))].as_ptr();
    let device = bytes.maybe(device);
    // SAFETY: the handle is live or NULL, and the text outlives the call.
    unsafe {
        match bytes.below(8) {
            0 => lgreco_context_destroy(&raw mut state.contexts[which]),
            1 => lgreco_context_create(device, null_mut()),
            _ => renew(&mut state.contexts[which], lgreco_context_destroy, |to| lgreco_context_create(device, to)),
        }
    }
}

/// A random gradient of the test layer.
fn gradient(bytes: &mut Bytes) -> [f32; ELEMENTS] {
    core::array::from_fn(|_| bytes.value())
}

fn layer(bytes: &mut Bytes, gradient: &[f32; ELEMENTS]) -> lgreco_layer {
    lgreco_layer {
        name: bytes.maybe(c"fc1".as_ptr()),
        dims: bytes.maybe(DIMS.as_ptr()),
        dims_len: 2,
        values: bytes.maybe(gradient.as_ptr().cast::<c_void>()),
        dtype: u32::from(bytes.below(16) == 15) * 3,
        ..Default::default()
    }
}

/// Settings of every method, and texts that are not settings. A random digit, which may be out of range, replaces each
/// `#`.
const SETTINGS: [&str; 20] = [
    "dense",
    "qsgd #",
    "qsgd # bucket #",
    "qsgd 4 bucket # min-max nearest",
    "eden # least-squares",
    "topk #",
    "topk 2# f16",
    "topk # bits #",
    "powersgd #",
    "powersgd 2 iterations #",
    "clt-k #",
    "hard-threshold 0.#",
    "hard-threshold inf",
    "adacomp #",
    "loco #",
    "sidco 0.# stages #",
    "sidco # pareto",
    "sidco 0.5 gamma-pareto bf16",
    "qsdg #",
    "",
];

/// Returns one of the settings, sometimes with a byte replaced, or without a NUL.
fn setting(bytes: &mut Bytes) -> lgreco_setting {
    let template = SETTINGS[usize::from(bytes.next()) % SETTINGS.len()];
    let mut text =
        template.bytes().map(|byte| if byte == b'#' { b'0' + bytes.below(10) } else { byte }).collect::<Vec<_>>();
    match bytes.below(32) {
        30 => text.resize(LGRECO_SETTING_TEXT_BYTES, b' '),
        31 => {
            text.resize(LGRECO_SETTING_TEXT_BYTES, 0);
            text[usize::from(bytes.below(16))] = bytes.next();
        }
        _ => (),
    }
    let mut setting = lgreco_setting::default();
    setting.text.iter_mut().zip(text).for_each(|(to, byte)| *to = byte.cast_signed() as c_char);
    setting
}

/// Values of the search option `method`.
const METHODS: [&str; 7] = ["hybrid", "qsgd", "topk", "powersgd, eden", "adacomp", "topk,,", "qsgd"];

fn search(bytes: &mut Bytes) -> List {
    let method = METHODS[usize::from(bytes.below(METHODS.len() as u8))];
    let least = bytes.below(40);
    List::new(bytes, &[("method", &method), ("min_elements", &least)])
}

/// Returns one of the texts.
fn pick(bytes: &mut Bytes, texts: &[&'static str]) -> &'static str {
    texts[usize::from(bytes.below(texts.len() as u8))]
}

const DTYPES: [&str; 4] = ["float32", "bfloat16", "int8", "float64"];
const TRUTHS: [&str; 3] = ["true", "false", "yes"];

/// Replaces a handle by a new handle from `create`. A failed creation must leave NULL.
fn renew<T>(
    handle: &mut *mut T,
    destroy: unsafe extern "C" fn(*mut *mut T) -> lgreco_status,
    create: impl FnOnce(*mut *mut T) -> lgreco_status,
) -> lgreco_status {
    // SAFETY: the handle is live or NULL.
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
        let (mut state, mut done) = (1u64, [0; 7]);
        for _ in 0..3000 {
            let bytes: Vec<u8> = (0..6000)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (state >> 56) as u8
                })
                .collect();
            done.iter_mut().zip(super::check(&bytes)).for_each(|(all, more)| *all += more);
        }
        assert!(done.iter().all(|&calls| calls > 1000), "only {done:?} calls did something");
    }
}
