//! Calls through the C functions from Rust: the golden payloads, and what a step allocates.

use lgreco::*;
use lgreco_core::compress::{Compressor, Setting};
use lgreco_core::feedback::{Aggregation, Memory, Residual, Rule};
use lgreco_core::gradient::{Dtype, Gradient, Shape, Values};
use lgreco_core::rng::Stream;
use serde::Deserialize;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::{null, null_mut};

/// The system's allocator, with a count of this thread's calls.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: passes everything on.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(call: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    call();
    ALLOCATIONS.get() - before
}

struct Handles {
    context: *mut lgreco_context,
    compressor: *mut lgreco_compressor,
}

impl Handles {
    fn new(
        dims: &[usize],
        dtype: lgreco_dtype,
        setting: lgreco_setting,
        options: lgreco_compressor_options,
    ) -> Handles {
        let mut handles = Handles { context: null_mut(), compressor: null_mut() };
        let (name, dims_len) = (c"fc1".as_ptr(), dims.len());
        let layer = lgreco_layer { name, dims: dims.as_ptr(), dims_len, dtype, ..lgreco_layer::default() };
        // SAFETY: all point to values that live.
        unsafe {
            assert_eq!(lgreco_context_create(null(), &raw mut handles.context), LGRECO_OK);
            let status =
                lgreco_compressor_create(handles.context, &layer, &setting, &options, &raw mut handles.compressor);
            assert_eq!(status, LGRECO_OK);
        }
        handles
    }

    fn encode(&self, step: u32, values: *const u8, payload: &mut [u8]) -> usize {
        let mut length = 0;
        let (to, capacity) = (payload.as_mut_ptr(), payload.len());
        // SAFETY: the tests' values are as many as the layer has.
        let status = unsafe {
            lgreco_compressor_encode(self.compressor, step, values.cast(), to, capacity, &mut length, null_mut())
        };
        assert_eq!(status, LGRECO_OK);
        length
    }

    fn decode(&self, payload: &[u8], values: &mut [f32]) {
        let (from, to) = (payload.as_ptr(), values.as_mut_ptr());
        // SAFETY: slices with their lengths.
        let status =
            unsafe { lgreco_compressor_decode(self.compressor, from, payload.len(), to, values.len(), null_mut()) };
        assert_eq!(status, LGRECO_OK);
    }

    fn receive(&self, message: &[u8], values: &mut [f32]) {
        let (from, to) = (message.as_ptr(), values.as_mut_ptr());
        // SAFETY: slices with their lengths.
        let status =
            unsafe { lgreco_compressor_receive(self.compressor, from, message.len(), to, values.len(), null_mut()) };
        assert_eq!(status, LGRECO_OK);
    }
}

impl Drop for Handles {
    fn drop(&mut self) {
        // SAFETY: live handles.
        unsafe {
            lgreco_compressor_destroy(&raw mut self.compressor);
            lgreco_context_destroy(&raw mut self.context);
        }
    }
}

/// A case of tests/vectors/payloads.json.
#[derive(Deserialize)]
struct Case {
    name: String,
    dtype: String,
    rows: usize,
    cols: usize,
    values: Vec<String>,
    setting: serde_json::Value,
    stream: CaseStream,
    payload: String,
    decoded: Vec<String>,
}

#[derive(Deserialize)]
struct CaseStream {
    seed: u64,
    step: u32,
    layer: u32,
    rank: u32,
}

fn dtype_of(name: &str) -> lgreco_dtype {
    match name {
        "f32" => LGRECO_DTYPE_F32,
        "f16" => LGRECO_DTYPE_F16,
        "bf16" => LGRECO_DTYPE_BF16,
        other => panic!("dtype {other}"),
    }
}

/// `None` for methods that the C API does not have.
fn setting_of(case: &serde_json::Value) -> Option<lgreco_setting> {
    let number = |field: &str| case[field].as_u64().unwrap() as u32;
    let other = lgreco_setting::default();
    Some(match case["method"].as_str().unwrap() {
        "dense" => other,
        "qsgd" => lgreco_setting {
            method: LGRECO_METHOD_QSGD,
            bits: number("bits"),
            bucket: number("bucket"),
            scale: (case["scale"] == "min-max").into(),
            rounding: (case["rounding"] == "nearest").into(),
            ..other
        },
        "topk" => lgreco_setting {
            method: LGRECO_METHOD_TOPK,
            keep: number("keep"),
            values: dtype_of(case["values"].as_str().unwrap()),
            ..other
        },
        "powersgd" => lgreco_setting {
            method: LGRECO_METHOD_POWERSGD,
            rank: number("rank"),
            iterations: number("iterations"),
            ..other
        },
        _ => return None,
    })
}

fn hex(digits: &str) -> Vec<u8> {
    digits.as_bytes().chunks(2).map(|two| u8::from_str_radix(str::from_utf8(two).unwrap(), 16).unwrap()).collect()
}

/// PowerSGD's sums may be taken in any order; elsewhere every bit is settled.
#[test]
fn payloads_are_the_golden_ones() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("../../tests/vectors/payloads.json")).unwrap();
    let mut methods = [0; 4];
    for case in &cases {
        let Some(setting) = setting_of(&case.setting) else { continue };
        methods[setting.method as usize] += 1;
        let CaseStream { seed, step, layer: layer_index, rank } = case.stream;
        let options = lgreco_compressor_options { seed, layer_index, rank, ..Default::default() };
        let handles = Handles::new(&[case.rows, case.cols], dtype_of(&case.dtype), setting, options);
        let mut values: Vec<u64> = vec![0; case.values.len().div_ceil(2)];
        let bytes = bytes_of(&mut values);
        for (index, value) in case.values.iter().enumerate() {
            let mut value = hex(value);
            value.reverse();
            bytes[index * value.len()..][..value.len()].copy_from_slice(&value);
        }
        let expected = hex(&case.payload);
        let mut payload = vec![0; expected.len()];
        let length = handles.encode(step, bytes.as_ptr(), &mut payload);
        assert_eq!(length, expected.len(), "{}", case.name);
        let mut decoded = vec![0.0; case.values.len()];
        handles.decode(&expected, &mut decoded);
        let bits: Vec<String> = decoded.iter().map(|value| format!("{:08x}", value.to_bits())).collect();
        assert_eq!(bits, case.decoded, "{}", case.name);
        if setting.method != LGRECO_METHOD_POWERSGD {
            assert_eq!(payload, expected, "{}", case.name);
        }
    }
    assert!(methods.iter().all(|&cases| cases > 2), "{methods:?}");
}

fn bytes_of(words: &mut [u64]) -> &mut [u8] {
    // SAFETY: bytes of integers.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), 8 * words.len()) }
}

const STEPS: u32 = 5;

fn gradient(step: u32) -> Vec<f32> {
    (0..64 * 48).map(|i| (i as f32 * 0.37 + step as f32).sin()).collect()
}

/// Payloads with error feedback are Rust's, whatever PowerSGD's products are made with, and steps allocate no more than
/// Rust's: nothing, but for those products with the feature `gemm`.
#[test]
fn steps_do_what_rust_does_and_allocate_as_little() {
    let qsgd = lgreco_setting { method: LGRECO_METHOD_QSGD, ..Default::default() };
    let topk = lgreco_setting { method: LGRECO_METHOD_TOPK, keep: 100, ..Default::default() };
    let power = lgreco_setting { method: LGRECO_METHOD_POWERSGD, ..Default::default() };
    let rust = [
        Setting::Dense,
        Setting::Qsgd(Default::default()),
        Setting::TopK(lgreco_core::compress::topk::TopK { keep: 100, values: Dtype::F32 }),
        Setting::PowerSgd(lgreco_core::compress::powersgd::PowerSgd { rank: 4, iterations: 1 }),
    ];
    for (setting, rust) in [lgreco_setting::default(), qsgd, topk, power].into_iter().zip(rust) {
        let options = lgreco_compressor_options { seed: 7, feedback: LGRECO_FEEDBACK_RESIDUAL, ..Default::default() };
        let handles = Handles::new(&[64, 48], LGRECO_DTYPE_F32, setting, options);
        let shape = Shape::new(64, 48).unwrap();
        let mut memory = Memory::owned(Rule::Residual(Residual::CLASSIC), Aggregation::Summed, shape).unwrap();
        let mut workspace = vec![0; memory.workspace_len(&rust, Dtype::F32).unwrap()];
        let mut expected = vec![0; rust.payload_len(shape, Dtype::F32).unwrap()];
        let (mut payload, mut decoded, mut values) = (expected.clone(), vec![0.0; 64 * 48], vec![0.0; 64 * 48]);
        for step in 0..STEPS {
            let values_of_step = gradient(step);
            let of_rust = allocations(|| {
                let gradient = Gradient::new(Values::F32(&values_of_step), shape).unwrap();
                let stream = Stream { seed: 7, step, layer: 0, rank: 0 };
                memory.step(&rust, &gradient, stream, &mut workspace, &mut expected, &mut decoded).unwrap();
            });
            let of_c = allocations(|| {
                assert_eq!(handles.encode(step, values_of_step.as_ptr().cast(), &mut payload), payload.len());
                handles.decode(&payload, &mut values);
            });
            assert_eq!(payload, expected);
            assert_eq!(values, decoded);
            assert_eq!(of_c, of_rust, "{rust} at step {step}");
            assert!(of_c == 0 || matches!(rust, Setting::PowerSgd(_)), "{rust} at step {step} allocates {of_c} times");
        }
    }
}

#[test]
fn receiving_and_planning_into_a_workspace_do_not_allocate() {
    let setting = lgreco_setting { method: LGRECO_METHOD_TOPK, keep: 100, ..Default::default() };
    let options = lgreco_compressor_options { feedback: LGRECO_FEEDBACK_EF21, ..Default::default() };
    let (sender, receiver) = (
        Handles::new(&[64, 48], LGRECO_DTYPE_F32, setting, options),
        Handles::new(&[64, 48], LGRECO_DTYPE_F32, setting, options),
    );
    let (values, mut payload, mut estimate) = (gradient(0), vec![0; 1000], vec![0.0; 64 * 48]);
    let length = sender.encode(0, values.as_ptr().cast(), &mut payload);
    assert_eq!(allocations(|| receiver.receive(&payload[..length], &mut estimate)), 0);

    let choices = [(80, 0.5), (40, 1.0), (60, 0.5), (30, 2.0)].map(|(size, error)| lgreco_choice { size, error });
    let (ends, budget) = ([2, 4], 3.0);
    let table = lgreco_table_view {
        layers: 2,
        ends: ends.as_ptr(),
        choices: choices.as_ptr(),
        budget: &raw const budget,
        ..Default::default()
    };
    for (solver, size) in [(LGRECO_SOLVER_EXACT, 70), (LGRECO_SOLVER_DP, 100)] {
        let options = lgreco_plan_options { solver, ..Default::default() };
        let (mut words, mut chosen, mut plan) = (0, [0; 2], lgreco_plan_view::default());
        // SAFETY: everything lives, with its length.
        let count = unsafe {
            assert_eq!(lgreco_plan_workspace_len(sender.context, &table, &options, &mut words), LGRECO_OK);
            let mut workspace = vec![0; words];
            allocations(|| {
                let (place, len) = (workspace.as_mut_ptr(), workspace.len());
                let (chosen, plan) = (chosen.as_mut_ptr(), &raw mut plan);
                let status = lgreco_plan_solve_into(sender.context, &table, &options, place, len, chosen, 2, plan);
                assert_eq!(status, LGRECO_OK);
            })
        };
        assert_eq!((count, plan.size), (0, size));
    }
}

unsafe extern "C" fn reduce_one(_: *mut c_void, _: *mut f32, _: usize, _: *mut c_void) -> i32 {
    0
}

unsafe extern "C" fn gather_one(
    _: *mut c_void,
    own: *const u8,
    lens: *const u64,
    received: *mut u8,
    _: *mut c_void,
) -> i32 {
    // SAFETY: a group of one: `lens` has one entry, and both arrays are as long as it says.
    unsafe { own.copy_to(received, *lens as usize) };
    0
}

unsafe extern "C" fn broadcast_one(_: *mut c_void, _: u32, _: *mut u8, _: usize, _: *mut c_void) -> i32 {
    0
}

/// A group of one trains: steps allocate when they decide, and never else.
#[test]
fn controller_steps_allocate_at_decisions_only() {
    let collective = lgreco_collective {
        all_reduce_sum: Some(reduce_one),
        all_gather: Some(gather_one),
        broadcast: Some(broadcast_one),
        ..Default::default()
    };
    let (dims, bias) = ([64usize, 48], [48usize]);
    let layer = |name: &'static std::ffi::CStr, dims: &[usize]| lgreco_layer {
        name: name.as_ptr(),
        dims: dims.as_ptr(),
        dims_len: dims.len(),
        ..Default::default()
    };
    let layers = [layer(c"fc1", &dims), layer(c"bias", &bias), layer(c"fc2", &dims)];
    for method in [LGRECO_METHOD_QSGD, LGRECO_METHOD_TOPK] {
        let search = lgreco_search_options { method, ..Default::default() };
        let options = lgreco_controller_options { search: &search, warmup: 3, period: 4, ..Default::default() };
        let (mut context, mut controller) = (null_mut(), null_mut());
        // SAFETY: all point to values that live.
        unsafe {
            assert_eq!(lgreco_context_create(null(), &raw mut context), LGRECO_OK);
            let status = lgreco_controller_create(context, &collective, layers.as_ptr(), 3, &options, &mut controller);
            assert_eq!(status, LGRECO_OK);
        }
        for step in 0..12 {
            let (mut fc1, mut bias, mut fc2) = (gradient(step), vec![0.5f32; 48], gradient(step + 100));
            let gradients = [fc1.as_mut_ptr(), bias.as_mut_ptr(), fc2.as_mut_ptr()].map(<*mut f32>::cast::<c_void>);
            let mut report = lgreco_report::default();
            let count = allocations(|| {
                // SAFETY: as many values as the layers have.
                let status = unsafe {
                    let gradients = gradients.as_ptr();
                    lgreco_controller_step(controller, &collective, gradients, 3, 0.1, &mut report, null_mut())
                };
                assert_eq!(status, LGRECO_OK);
            });
            assert_eq!(report.switched == 1, [3, 7, 11].contains(&step));
            assert_eq!(count > 0, report.switched == 1, "step {step} allocates {count} times");
        }
        // SAFETY: live handles.
        unsafe {
            assert_eq!(lgreco_controller_destroy(&raw mut controller), LGRECO_OK);
            assert_eq!(lgreco_context_destroy(&raw mut context), LGRECO_OK);
        }
    }
}
