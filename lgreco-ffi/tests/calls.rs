//! Calls through the C functions from Rust: the golden payloads, rows, and what a step allocates.

mod common;

use common::{allocations, gradient};
use lgreco_c::*;
use lgreco_train::Error;
use lgreco_train::compress::adacomp::AdaComp;
use lgreco_train::compress::clt::CltK;
use lgreco_train::compress::eden::{self, Eden};
use lgreco_train::compress::hard_threshold::HardThreshold;
use lgreco_train::compress::loco::LoCo;
use lgreco_train::compress::powersgd::PowerSgd;
use lgreco_train::compress::quantised_topk::QuantisedTopK;
use lgreco_train::compress::sidco::{Fit, Sidco};
use lgreco_train::compress::topk::TopK;
use lgreco_train::compress::{Compressor, Setting};
use lgreco_train::feedback::{Memory, Residual, contraction, contraction_workspace_len};
use lgreco_train::gradient::{Dtype, Gradient, Shape, Values};
use lgreco_train::rng::Stream;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::ptr::{null, null_mut};

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

    fn bound(&self) -> usize {
        let mut bytes = 0;
        // SAFETY: a live handle and a place.
        assert_eq!(unsafe { lgreco_compressor_bound(self.compressor, &raw mut bytes) }, LGRECO_OK);
        bytes
    }

    fn encode(&self, step: u32, values: *const u8, payload: &mut [u8]) -> usize {
        let mut length = 0;
        let (to, capacity) = (payload.as_mut_ptr(), payload.len());
        // SAFETY: the tests' values are as many as the layer has.
        let status =
            unsafe { lgreco_compressor_encode(self.compressor, step, values.cast(), to, capacity, &mut length) };
        assert_eq!(status, LGRECO_OK);
        length
    }

    fn decode(&self, payload: &[u8], values: &mut [f32]) {
        let (from, to) = (payload.as_ptr(), values.as_mut_ptr());
        // SAFETY: slices with their lengths.
        let status = unsafe { lgreco_compressor_decode(self.compressor, from, payload.len(), to, values.len()) };
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

/// Methods whose values decide a payload's length.
const VARIABLE: [lgreco_method; 3] = [LGRECO_METHOD_ADACOMP, LGRECO_METHOD_HARD_THRESHOLD, LGRECO_METHOD_SIDCO];

/// A case of tests/golden/v0.1/payloads.json.
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

fn setting_of(case: &serde_json::Value) -> lgreco_setting {
    let number = |field: &str| case[field].as_u64().unwrap() as u32;
    let other = lgreco_setting::default();
    match case["method"].as_str().unwrap() {
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
        "cltk" => lgreco_setting { method: LGRECO_METHOD_CLT_K, keep: number("keep"), ..other },
        "hardthreshold" => lgreco_setting {
            method: LGRECO_METHOD_HARD_THRESHOLD,
            lambda: case["lambda"].as_f64().unwrap() as f32,
            values: dtype_of(case["values"].as_str().unwrap()),
            ..other
        },
        "sidco" => lgreco_setting {
            method: LGRECO_METHOD_SIDCO,
            density: case["density"].as_f64().unwrap(),
            fit: match case["fit"].as_str().unwrap() {
                "exponential" => LGRECO_SIDCO_FIT_EXPONENTIAL,
                "gamma-pareto" => LGRECO_SIDCO_FIT_GAMMA_PARETO,
                "pareto" => LGRECO_SIDCO_FIT_PARETO,
                found => panic!("fit {found}"),
            },
            stages: number("stages"),
            values: dtype_of(case["values"].as_str().unwrap()),
            ..other
        },
        "adacomp" => lgreco_setting { method: LGRECO_METHOD_ADACOMP, bin: number("bin"), ..other },
        "quantisedtopk" => {
            lgreco_setting { method: LGRECO_METHOD_QUANTISED_TOPK, keep: number("keep"), bits: number("bits"), ..other }
        }
        "eden" => lgreco_setting {
            method: LGRECO_METHOD_EDEN,
            bits: number("bits"),
            scale: u32::from(case["scale"] == "least-squares"),
            ..other
        },
        "loco" => lgreco_setting { method: LGRECO_METHOD_LOCO, group: number("group"), ..other },
        found => panic!("method {found}"),
    }
}

fn hex(digits: &str) -> Vec<u8> {
    digits.as_bytes().chunks(2).map(|two| u8::from_str_radix(str::from_utf8(two).unwrap(), 16).unwrap()).collect()
}

/// PowerSGD's sums may be taken in any order; elsewhere every bit is settled.
#[test]
fn payloads_are_the_golden_ones() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("../../tests/golden/v0.1/payloads.json")).unwrap();
    let mut methods = BTreeMap::new();
    for case in &cases {
        let setting = setting_of(&case.setting);
        *methods.entry(setting.method).or_insert(0) += 1;
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
        let mut payload = vec![0; handles.bound()];
        let length = handles.encode(step, bytes.as_ptr(), &mut payload);
        assert_eq!(length, expected.len(), "{}", case.name);
        assert!(length == payload.len() || VARIABLE.contains(&setting.method), "{}", case.name);
        payload.truncate(length);
        let mut decoded = vec![0.0; case.values.len()];
        handles.decode(&expected, &mut decoded);
        let bits: Vec<String> = decoded.iter().map(|value| format!("{:08x}", value.to_bits())).collect();
        assert_eq!(bits, case.decoded, "{}", case.name);
        if setting.method != LGRECO_METHOD_POWERSGD {
            assert_eq!(payload, expected, "{}", case.name);
        }
    }
    assert_eq!(methods.len(), 11, "{methods:?}");
}

fn bytes_of(words: &mut [u64]) -> &mut [u8] {
    // SAFETY: bytes of integers.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), 8 * words.len()) }
}

const STEPS: u32 = 5;

/// One setting of each method, in C's words and in Rust's.
fn settings() -> [(lgreco_setting, Setting); 11] {
    let of = |method| lgreco_setting { method, ..Default::default() };
    let half = |method| lgreco_setting { method, values: LGRECO_DTYPE_F16, ..Default::default() };
    let sidco = Sidco { density: 0.05, fit: Fit::Pareto, stages: 2, values: Dtype::F16 };
    [
        (of(LGRECO_METHOD_DENSE), Setting::Dense),
        (of(LGRECO_METHOD_QSGD), Setting::Qsgd(Default::default())),
        (
            lgreco_setting { keep: 100, ..half(LGRECO_METHOD_TOPK) },
            Setting::TopK(TopK { keep: 100, values: Dtype::F16 }),
        ),
        (of(LGRECO_METHOD_POWERSGD), Setting::PowerSgd(PowerSgd { rank: 4, iterations: 1 })),
        (lgreco_setting { keep: 100, ..of(LGRECO_METHOD_CLT_K) }, Setting::CltK(CltK { keep: 100 })),
        (
            lgreco_setting { lambda: 0.9, ..half(LGRECO_METHOD_HARD_THRESHOLD) },
            Setting::HardThreshold(HardThreshold { lambda: 0.9, values: Dtype::F16 }),
        ),
        (
            lgreco_setting { density: 0.05, fit: LGRECO_SIDCO_FIT_PARETO, stages: 2, ..half(LGRECO_METHOD_SIDCO) },
            Setting::Sidco(sidco),
        ),
        (lgreco_setting { bin: 64, ..of(LGRECO_METHOD_ADACOMP) }, Setting::AdaComp(AdaComp { bin: 64 })),
        (
            lgreco_setting { bits: 2, scale: LGRECO_SCALE_LEAST_SQUARES, ..of(LGRECO_METHOD_EDEN) },
            Setting::Eden(Eden { bits: 2, scale: eden::Scale::LeastSquares }),
        ),
        (lgreco_setting { group: 128, ..of(LGRECO_METHOD_LOCO) }, Setting::LoCo(LoCo { group: 128 })),
        (
            lgreco_setting { keep: 100, bits: 3, ..of(LGRECO_METHOD_QUANTISED_TOPK) },
            Setting::QuantisedTopK(QuantisedTopK { keep: 100, bits: 3 }),
        ),
    ]
}

/// Payloads with error feedback are Rust's, whatever PowerSGD's products are made with, and steps allocate no more than
/// Rust's: nothing, but for those products with the feature `gemm`.
#[test]
fn steps_do_what_rust_does_and_allocate_as_little() {
    for (setting, rust) in settings() {
        let options = lgreco_compressor_options { seed: 7, feedback: LGRECO_FEEDBACK_RESIDUAL, ..Default::default() };
        let handles = Handles::new(&[64, 48], LGRECO_DTYPE_F32, setting, options);
        let shape = Shape::new(64, 48).unwrap();
        let mut memory = Memory::owned(Residual::CLASSIC, shape).unwrap();
        let mut workspace = vec![0; memory.workspace_len(&rust, Dtype::F32)];
        let mut expected = vec![0; rust.payload_len(shape, Dtype::F32).unwrap()];
        assert_eq!(handles.bound(), expected.len(), "{rust}");
        let (mut payload, mut decoded, mut values) = (expected.clone(), vec![0.0; 64 * 48], vec![0.0; 64 * 48]);
        for step in 0..STEPS {
            let values_of_step = gradient(step, 64 * 48);
            let (mut length, mut length_of_c) = (0, 0);
            let of_rust = allocations(|| {
                let gradient = Gradient::new(Values::F32(&values_of_step), shape).unwrap();
                let stream = Stream { seed: 7, step, layer: 0, rank: 0 };
                let taken = memory.step(&rust, &gradient, stream, &mut workspace, &mut expected, &mut decoded);
                length = taken.unwrap();
            });
            let of_c = allocations(|| {
                length_of_c = handles.encode(step, values_of_step.as_ptr().cast(), &mut payload);
                handles.decode(&payload[..length_of_c], &mut values);
            });
            assert_eq!(payload[..length_of_c], expected[..length], "{rust}");
            assert!((length == expected.len()) == rust.has_fixed_len(), "{rust} sends {length} bytes");
            assert_eq!(values, decoded, "{rust}");
            assert_eq!(of_c, of_rust, "{rust} at step {step}");
            assert!(of_c == 0 || matches!(rust, Setting::PowerSgd(_)), "{rust} at step {step} allocates {of_c} times");
        }
    }
}

/// One call for all methods, some of them in rows, gives what the core measures of each setting by itself.
#[test]
fn rows_are_rusts() {
    let mut list: Vec<(lgreco_setting, Setting)> = settings().to_vec();
    let (c, rust) = list[5];
    for lambda in [0.5, 0.75] {
        let Setting::HardThreshold(hard) = rust else { panic!("{rust}") };
        list.insert(6, (lgreco_setting { lambda, ..c }, Setting::HardThreshold(HardThreshold { lambda, ..hard })));
    }
    let (values, dims) = (gradient(3, 64 * 48), [64, 48]);
    let settings: Vec<lgreco_setting> = list.iter().map(|(setting, _)| *setting).collect();
    let (mut errors, mut sizes, mut context) = (vec![0.0; list.len()], vec![0; list.len()], null_mut());
    let layer = lgreco_layer {
        name: c"fc1".as_ptr(),
        dims: dims.as_ptr(),
        dims_len: 2,
        values: values.as_ptr().cast(),
        ..Default::default()
    };
    // SAFETY: all point to values that live, arrays with their lengths.
    unsafe {
        assert_eq!(lgreco_context_create(null(), &raw mut context), LGRECO_OK);
        let (from, to, count) = (settings.as_ptr(), errors.as_mut_ptr(), settings.len());
        let status = lgreco_measure(context, &layer, from, count, 5, 2, to, sizes.as_mut_ptr());
        assert_eq!(status, LGRECO_OK);
        assert_eq!(lgreco_context_destroy(&raw mut context), LGRECO_OK);
    }
    let gradient = Gradient::new(Values::F32(&values), Shape::new(64, 48).unwrap()).unwrap();
    let stream = Stream { seed: 5, step: 0, layer: 2, rank: 0 };
    for (index, (_, rust)) in list.iter().enumerate() {
        let mut workspace = vec![0; contraction_workspace_len(rust, gradient.shape(), Dtype::F32)];
        let relative = contraction(rust, &gradient, stream, &mut workspace).unwrap();
        let norm: f64 = values.iter().map(|&value| f64::from(value) * f64::from(value)).sum();
        assert!((errors[index] - relative * norm).abs() <= 1e-9 * norm, "{rust}: {} of {norm}", errors[index]);
        let mut workspace = vec![0; rust.encode_workspace_len(gradient.shape(), Dtype::F32)];
        let mut payload = vec![0; rust.payload_len(gradient.shape(), Dtype::F32).unwrap()];
        let length = rust.encode(&gradient, stream, &mut workspace, &mut payload).unwrap();
        assert_eq!(sizes[index], 8 * length as u64, "{rust}");
    }
}

/// The codes in the sources of core and training, so that a new one cannot be forgotten here.
#[test]
fn every_code_of_core_and_training_has_a_constant() {
    let sources = [include_str!("../../lgreco-core/src/error.rs"), include_str!("../../lgreco-train/src/error.rs")];
    let codes: Vec<(&str, u32)> = sources
        .into_iter()
        .flat_map(str::lines)
        .filter_map(|line| {
            let (variant, code) = line.trim().strip_prefix("Error::")?.split_once("=>")?;
            let code = match code.trim().strip_suffix(',')? {
                "Error::NON_FINITE_GRADIENT" => LGRECO_NON_FINITE_GRADIENT,
                code => code.parse().ok()?,
            };
            Some((variant.split([' ', '{']).next()?, code))
        })
        .collect();
    let of_gradient = Error::NonFiniteGradient { layer: 0, index: 0, value: f32::NAN }.code();
    assert_eq!(of_gradient, LGRECO_NON_FINITE_GRADIENT);
    assert!(codes.len() >= 37, "{codes:?}");
    let mut named = std::collections::HashSet::new();
    // Of errors with one code the first gives its name.
    for (variant, code) in codes.into_iter().filter(|&(_, code)| named.insert(code)) {
        let words = variant.char_indices().map(|(at, c)| match c.is_uppercase() && at > 0 {
            true => format!("_{c}"),
            false => c.to_uppercase().to_string(),
        });
        let expected = format!("LGRECO_{}", words.collect::<String>());
        // SAFETY: the name of a known status is a constant.
        let name = unsafe { CStr::from_ptr(lgreco_status_name(code)) };
        assert_eq!(name.to_str(), Ok(expected.as_str()), "code {code}");
        assert!(code < 200, "codes from 200 on are the C API's own");
    }
}
