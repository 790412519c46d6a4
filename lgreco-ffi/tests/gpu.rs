//! GPU contexts give the same rows, tables, payloads and residuals as the CPU. `LGRECO_GPU` is cuda or wgpu, the
//! default. Without this kind of GPU, or a driver that imitates a GPU on the CPU, tests are skipped with a message. If
//! `LGRECO_GPU` or `LGRECO_REQUIRE=wgpu` is set, the tests fail instead.

mod common;

use common::List;
use lgreco_c::*;
use lgreco_train::compress::Setting;
use std::ffi::{CStr, CString};
use std::io::Write as _;
use std::ptr::{null, null_mut};
use std::sync::Once;

const ROWS: usize = 64;
const COLS: usize = 48;
const ELEMENTS: usize = ROWS * COLS;

/// Pseudo-random numbers in [-1, 1). As a matrix they have full rank.
fn gradient(step: u32, count: usize) -> Vec<f32> {
    let mut state = step;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state as i32 as f32 / 2_147_483_648.0
    };
    (0..count).map(|_| next()).collect()
}

fn gpu() -> &'static CStr {
    match std::env::var("LGRECO_GPU").as_deref() {
        Ok("cuda") => c"cuda",
        Ok("wgpu") | Err(_) => c"wgpu",
        Ok(other) => panic!("LGRECO_GPU is {other}"),
    }
}

/// Two contexts: one of the CPU and one of a GPU.
struct Contexts([*mut lgreco_context; 2]);

impl Contexts {
    fn new() -> Option<Contexts> {
        let [cpu, gpu] = [c"cpu", gpu()].map(|device| {
            let mut context = null_mut();
            // SAFETY: the text and the output are valid.
            (unsafe { lgreco_context_create(device.as_ptr(), &raw mut context) }, context)
        });
        assert_eq!(cpu.0, LGRECO_OK);
        let contexts = Contexts([cpu.1, gpu.1]);
        if gpu.0 == LGRECO_UNAVAILABLE && std::env::var_os("LGRECO_GPU").is_none() {
            let required = std::env::var("LGRECO_REQUIRE").unwrap_or_default();
            assert!(!required.split(',').any(|name| name == "wgpu"), "no GPU through wgpu, but LGRECO_REQUIRE");
            static SAID: Once = Once::new();
            // Writes to standard error directly, because libtest captures `eprintln!`.
            SAID.call_once(|| writeln!(std::io::stderr(), "SKIP: no GPU through wgpu").expect("standard error"));
            return None;
        }
        assert_eq!(gpu.0, LGRECO_OK);
        Some(contexts)
    }
}

impl Drop for Contexts {
    fn drop(&mut self) {
        // SAFETY: the handles are live.
        self.0.iter_mut().for_each(|context| assert_eq!(unsafe { lgreco_context_destroy(context) }, LGRECO_OK));
    }
}

const SETTINGS: [&str; 10] = [
    "dense",
    "qsgd 4",
    "topk 100",
    "topk 100 bits 4",
    "powersgd 4",
    "adacomp 64",
    "loco 512",
    "clt-k 100",
    "hard-threshold 0.9",
    "sidco 0.05",
];

fn settings() -> [lgreco_setting; 10] {
    SETTINGS.map(|text| text.parse::<Setting>().unwrap().into())
}

fn layer(name: &'static CStr, dims: &[usize; 2], values: &[f32]) -> lgreco_layer {
    let (name, dims, values) = (name.as_ptr(), dims.as_ptr(), values.as_ptr().cast());
    lgreco_layer { name, dims, dims_len: 2, values, ..Default::default() }
}

/// Returns the payloads of a compressor on `context` over several steps, with the decoded values and the residuals.
fn trace(context: *mut lgreco_context, setting: &lgreco_setting, feedback: &str) -> Vec<(Vec<u8>, Vec<f32>)> {
    let layer = layer(c"fc1", &[ROWS, COLS], &[]);
    let options = List::new([("random_seed", "3"), ("error_feedback", feedback)]);
    let (mut compressor, mut bound) = (null_mut(), 0);
    // SAFETY: all pointers are valid, with the stated lengths.
    unsafe {
        let status =
            lgreco_compressor_create(context, &layer, setting.text.as_ptr(), options.pointer(), &raw mut compressor);
        assert_eq!(status, LGRECO_OK);
        assert_eq!(lgreco_compressor_bound(compressor, &raw mut bound), LGRECO_OK);
        let steps = (0..3).map(|step| {
            let (mut payload, mut length) = (vec![0; bound], 0);
            let (values, mut decoded) = (gradient(step, ELEMENTS), vec![0.0; 2 * ELEMENTS]);
            let (from, to) = (values.as_ptr().cast(), payload.as_mut_ptr());
            let status = lgreco_compressor_encode(compressor, step, from, to, bound, &raw mut length);
            assert_eq!(status, LGRECO_OK);
            payload.truncate(length);
            let to = decoded.as_mut_ptr();
            let status = lgreco_compressor_decode(compressor, payload.as_ptr(), length, to, ELEMENTS);
            assert_eq!(status, LGRECO_OK);
            if feedback == "true" {
                assert_eq!(lgreco_compressor_memory(compressor, to.add(ELEMENTS), ELEMENTS), LGRECO_OK);
            }
            (payload, decoded)
        });
        let steps = steps.collect();
        assert_eq!(lgreco_compressor_destroy(&raw mut compressor), LGRECO_OK);
        steps
    }
}

/// A GPU adds in another order, so PowerSGD's results on GPU and CPU are only close to each other.
#[test]
#[cfg_attr(not(all(feature = "cuda", feature = "wgpu")), ignore = "needs --features cuda,wgpu")]
fn payloads_and_memories_are_those_of_the_cpu() {
    let Some(Contexts([cpu, gpu])) = &Contexts::new() else { return };
    for (setting, text) in settings().iter().zip(SETTINGS) {
        for feedback in ["false", "true"] {
            let (expected, found) = (trace(*cpu, setting, feedback), trace(*gpu, setting, feedback));
            for ((payload, decoded), (other, values)) in expected.iter().zip(&found) {
                if text == "powersgd 4" {
                    assert_eq!((payload.len(), &payload[..16]), (other.len(), &other[..16]));
                    let near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-4;
                    assert!(decoded.iter().zip(values).all(near), "PowerSGD, feedback {feedback}");
                } else {
                    assert!(payload == other && decoded == values, "{text}, feedback {feedback}");
                }
            }
        }
    }
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-4 * a.abs()
}

#[test]
#[cfg_attr(not(all(feature = "cuda", feature = "wgpu")), ignore = "needs --features cuda,wgpu")]
fn rows_are_those_of_the_cpu() {
    let (values, settings) = (gradient(1, ELEMENTS), settings());
    let (layer, count) = (layer(c"fc1", &[ROWS, COLS], &values), settings.len());
    let Some(Contexts(contexts)) = &Contexts::new() else { return };
    let [(errors, sizes), (others, same)] = contexts.map(|context| {
        let (mut errors, mut sizes) = ([0.0; 10], [0; 10]);
        assert_eq!(errors.len(), count);
        let (from, to, bits) = (settings.as_ptr(), errors.as_mut_ptr(), sizes.as_mut_ptr());
        // SAFETY: all pointers are valid, with the stated lengths.
        let status = unsafe { lgreco_measure(context, &layer, from, count, 1, 0, to, bits) };
        assert_eq!(status, LGRECO_OK);
        (errors, sizes)
    });
    assert_eq!(sizes, same);
    assert!(errors.iter().zip(&others).all(|(&a, &b)| near(a, b)), "{errors:?}, {others:?}");
    // The CPU measures rows without GPU kernels, so both contexts give equal rows. Rows that the GPU measures differ in
    // the last bits.
    assert_eq!((errors[0], &errors[5..]), (others[0], &others[5..]));
    assert_ne!(errors[1..5], others[1..5], "the GPU has not been used");
}

#[test]
#[cfg_attr(not(all(feature = "cuda", feature = "wgpu")), ignore = "needs --features cuda,wgpu")]
fn tables_are_those_of_the_cpu() {
    let (one, two) = (gradient(1, ELEMENTS), gradient(2, ELEMENTS));
    let layers = [layer(c"fc1", &[ROWS, COLS], &one), layer(c"fc2", &[COLS, ROWS], &two)];
    for method in ["qsgd", "topk", "powersgd", "hybrid"] {
        let search = List::new([("method", method)]);
        let Some(Contexts(contexts)) = &Contexts::new() else { return };
        let [expected, found] = contexts.map(|context| {
            let (mut table, mut view) = (null_mut(), lgreco_table_view::default());
            // SAFETY: all pointers are valid. The view's arrays have the stated lengths until the table is destroyed.
            unsafe {
                let place = &raw mut table;
                let status = lgreco_table_measure(context, layers.as_ptr(), 2, search.pointer(), place);
                assert_eq!(status, LGRECO_OK);
                assert_eq!(lgreco_table_get(table, &raw mut view), LGRECO_OK);
                let ends = std::slice::from_raw_parts(view.ends, view.layers).to_vec();
                let choices = std::slice::from_raw_parts(view.choices, ends[1]).to_vec();
                assert_eq!(lgreco_table_destroy(&raw mut table), LGRECO_OK);
                (ends, choices)
            }
        });
        assert_eq!(expected.0, found.0);
        for (a, b) in expected.1.iter().zip(&found.1) {
            assert!(a.size == b.size && near(a.error, b.error), "{method}: {} and {}", a.error, b.error);
        }
    }
}

unsafe extern "C" fn perform(_: *mut std::ffi::c_void, _: *const lgreco_request) -> i32 {
    0
}

/// A controller decides from rows that the GPU measures, even after the context is destroyed.
#[test]
#[cfg_attr(not(all(feature = "cuda", feature = "wgpu")), ignore = "needs --features cuda,wgpu")]
fn decisions_are_those_of_the_cpu() {
    let collective = lgreco_collective { perform: Some(perform), ..Default::default() };
    // QSGD's rows differ between the devices in the last bits.
    let options = List::new([("method", "qsgd"), ("start_iter", "2"), ("period", "3")]);
    let layers = [layer(c"fc1", &[ROWS, COLS], &[]), layer(c"fc2", &[COLS, ROWS], &[])];
    let Some(contexts) = Contexts::new() else { return };
    let mut controllers = contexts.0.map(|context| {
        let mut controller = null_mut();
        // SAFETY: all handles and outputs are valid.
        let status = unsafe {
            let place = &raw mut controller;
            lgreco_controller_create(context, &collective, layers.as_ptr(), 2, null(), options.pointer(), place)
        };
        assert_eq!(status, LGRECO_OK);
        controller
    });
    drop(contexts);
    let decisions = controllers.each_mut().map(|controller| {
        let mut decision = lgreco_decision::default();
        // SAFETY: the handle is live, and the arrays of values have the lengths of its layers.
        unsafe {
            for step in 0..3 {
                let mut values = [gradient(step, ELEMENTS), gradient(step + 9, ELEMENTS)];
                let pointers = values.each_mut().map(|values| values.as_mut_ptr().cast());
                let from = pointers.as_ptr();
                let report = null_mut();
                let status = lgreco_controller_step(*controller, &collective, from, 2, 0.1, report);
                assert_eq!(status, LGRECO_OK);
            }
            assert_eq!(lgreco_controller_decision(*controller, &raw mut decision), LGRECO_OK);
            assert_eq!(lgreco_controller_destroy(controller), LGRECO_OK);
        }
        decision
    });
    let [cpu, gpu] = decisions;
    assert_eq!((cpu.planned, cpu.size, cpu.uncompressed_size), (gpu.planned, gpu.size, gpu.uncompressed_size));
    assert!(cpu.size_limit == gpu.size_limit && near(cpu.error, gpu.error));
    assert_ne!(cpu.error, gpu.error, "the GPU has not been used");
}

#[test]
#[cfg_attr(not(all(feature = "cuda", feature = "wgpu")), ignore = "needs --features cuda,wgpu")]
fn a_machine_has_so_many_devices() {
    let mut context = null_mut();
    let kind = gpu().to_str().unwrap();
    for (device, status) in [(format!("{kind}:1000"), LGRECO_UNAVAILABLE), ("gpu".into(), LGRECO_UNKNOWN_NAME)] {
        let device = CString::new(device).unwrap();
        // SAFETY: the text and the output are valid, and no call changes the message meanwhile.
        let reason = unsafe {
            assert_eq!(lgreco_context_create(device.as_ptr(), &raw mut context), status);
            CStr::from_ptr(lgreco_message()).to_str().unwrap()
        };
        assert!(context.is_null() && reason.len() > 10, "{reason}");
    }
}
