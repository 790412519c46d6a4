//! Calls the C functions from Rust. Tests golden payloads, rows of errors, and the number of allocations in a step.

mod common;

use common::{List, allocations, gradient, setting};
use lgreco_c::*;
use lgreco_train::Error;
use lgreco_train::compress::{Compressor, Setting};
use lgreco_train::feedback::{Memory, Residual, contraction, contraction_workspace_len};
use lgreco_train::gradient::{Dtype, Gradient, Shape, Values};
use lgreco_train::rng::Stream;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::ptr::{null, null_mut};

struct Handles {
    compressor: *mut lgreco_compressor,
}

impl Handles {
    fn new(dims: &[usize], dtype: lgreco_dtype, setting: Setting, options: &[(&str, &str)]) -> Handles {
        let mut handles = Handles { compressor: null_mut() };
        let options = List::new(options.iter().copied());
        let (name, dims_len) = (c"fc1".as_ptr(), dims.len());
        let layer = lgreco_layer { name, dims: dims.as_ptr(), dims_len, dtype, ..lgreco_layer::default() };
        // SAFETY: all pointers point to values that outlive the call.
        unsafe {
            let (setting, place) = (lgreco_setting::from(setting), &raw mut handles.compressor);
            let (text, options) = (setting.text.as_ptr(), options.pointer());
            let status = lgreco_compressor_create(null(), &layer, text, options, place);
            assert_eq!(status, LGRECO_OK);
        }
        handles
    }

    fn bound(&self) -> usize {
        let mut bytes = 0;
        // SAFETY: the handle is live, and the output is valid.
        assert_eq!(unsafe { lgreco_compressor_bound(self.compressor, &raw mut bytes) }, LGRECO_OK);
        bytes
    }

    fn encode(&self, step: u32, values: *const u8, payload: &mut [u8]) -> usize {
        let mut length = 0;
        let (to, capacity) = (payload.as_mut_ptr(), payload.len());
        // SAFETY: the tests pass the layer's number of values.
        let status =
            unsafe { lgreco_compressor_encode(self.compressor, step, values.cast(), to, capacity, &mut length) };
        assert_eq!(status, LGRECO_OK);
        length
    }

    fn decode(&self, payload: &[u8], values: &mut [f32]) {
        let (from, to) = (payload.as_ptr(), values.as_mut_ptr());
        // SAFETY: the passed lengths equal the lengths of the slices.
        let status = unsafe { lgreco_compressor_decode(self.compressor, from, payload.len(), to, values.len()) };
        assert_eq!(status, LGRECO_OK);
    }
}

impl Drop for Handles {
    fn drop(&mut self) {
        // SAFETY: the handle is live.
        unsafe { lgreco_compressor_destroy(&raw mut self.compressor) };
    }
}

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

/// The setting of a case as text, with all parameters.
fn setting_of(case: &serde_json::Value) -> String {
    let all = |name: &str, fields: &[&str]| {
        let words = fields.iter().map(|&field| match case[field].as_str() {
            Some(word) => format!(" {word}"),
            None => format!(" {}", case[field]),
        });
        name.to_string() + &words.collect::<String>()
    };
    match case["method"].as_str().unwrap() {
        "qsgd" => format!("{} bucket{}", all("qsgd", &["bits"]), all("", &["bucket", "scale", "rounding"])),
        "topk" => all("topk", &["keep", "values"]),
        "powersgd" => format!("{} iterations{}", all("powersgd", &["rank"]), all("", &["iterations"])),
        "cltk" => all("clt-k", &["keep"]),
        "hardthreshold" => all("hard-threshold", &["lambda", "values"]),
        "sidco" => format!("{} stages{}", all("sidco", &["density", "fit", "values"]), all("", &["stages"])),
        "adacomp" => all("adacomp", &["bin"]),
        "quantisedtopk" => format!("{} bits{}", all("topk", &["keep"]), all("", &["bits"])),
        "eden" => all("eden", &["bits", "scale"]),
        "loco" => all("loco", &["group"]),
        other => other.into(),
    }
}

fn hex(digits: &str) -> Vec<u8> {
    digits.as_bytes().chunks(2).map(|two| u8::from_str_radix(str::from_utf8(two).unwrap(), 16).unwrap()).collect()
}

/// PowerSGD may add in any order, so its payload bytes are not compared. Other methods must produce the same bits.
#[test]
fn payloads_are_the_golden_ones() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("../../tests/golden/v0.1/payloads.json")).unwrap();
    let mut methods = BTreeMap::new();
    for case in &cases {
        let setting: Setting = setting_of(&case.setting).parse().unwrap();
        *methods.entry(setting.data().0).or_insert(0) += 1;
        let CaseStream { seed, step, layer: layer_index, rank } = case.stream;
        let [seed, layer_index, rank] = [seed, layer_index.into(), rank.into()].map(|number: u64| number.to_string());
        let options = [("random_seed", &*seed), ("layer_index", &layer_index), ("rank", &rank)];
        let handles = Handles::new(&[case.rows, case.cols], dtype_of(&case.dtype), setting, &options);
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
        assert!(length == payload.len() || !setting.has_fixed_len(), "{}", case.name);
        payload.truncate(length);
        let mut decoded = vec![0.0; case.values.len()];
        handles.decode(&expected, &mut decoded);
        let bits: Vec<String> = decoded.iter().map(|value| format!("{:08x}", value.to_bits())).collect();
        assert_eq!(bits, case.decoded, "{}", case.name);
        if !matches!(setting, Setting::PowerSgd(_)) {
            assert_eq!(payload, expected, "{}", case.name);
        }
    }
    assert_eq!(methods.len(), 11, "{methods:?}");
}

fn bytes_of(words: &mut [u64]) -> &mut [u8] {
    // SAFETY: the slice has exactly the bytes of these integers.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), 8 * words.len()) }
}

const STEPS: u32 = 5;

/// One setting of each method.
const SETTINGS: [&str; 11] = [
    "dense",
    "qsgd 4",
    "topk 100 f16",
    "powersgd 4",
    "clt-k 100",
    "hard-threshold 0.9 f16",
    "sidco 0.05 pareto stages 2 f16",
    "adacomp 64",
    "eden 2 least-squares",
    "loco 128",
    "topk 100 bits 3",
];

/// With error feedback, C and Rust produce the same payloads and allocate equally often. Only PowerSGD allocates, with
/// the feature `gemm`.
#[test]
fn steps_do_what_rust_does_and_allocate_as_little() {
    for rust in SETTINGS.map(|text| text.parse::<Setting>().unwrap()) {
        let options = [("random_seed", "7"), ("error_feedback", "true")];
        let handles = Handles::new(&[64, 48], LGRECO_DTYPE_F32, rust, &options);
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

/// One call of lgreco_measure with settings of all methods gives the same errors and sizes as Rust for each single
/// setting.
#[test]
fn rows_are_rusts() {
    let mut list = SETTINGS.to_vec();
    list.splice(6..6, ["hard-threshold 0.5 f16", "hard-threshold 0.75 f16"]);
    let (values, dims) = (gradient(3, 64 * 48), [64, 48]);
    let settings: Vec<lgreco_setting> = list.iter().map(|text| setting(text)).collect();
    let (mut errors, mut sizes) = (vec![0.0; list.len()], vec![0; list.len()]);
    let layer = lgreco_layer {
        name: c"fc1".as_ptr(),
        dims: dims.as_ptr(),
        dims_len: 2,
        values: values.as_ptr().cast(),
        ..Default::default()
    };
    // SAFETY: all pointers point to values that outlive the call, and arrays have the stated lengths.
    unsafe {
        let (from, to, count) = (settings.as_ptr(), errors.as_mut_ptr(), settings.len());
        let status = lgreco_measure(null(), &layer, from, count, 5, 2, to, sizes.as_mut_ptr());
        assert_eq!(status, LGRECO_OK);
    }
    let gradient = Gradient::new(Values::F32(&values), Shape::new(64, 48).unwrap()).unwrap();
    let stream = Stream { seed: 5, step: 0, layer: 2, rank: 0 };
    for (index, text) in list.iter().enumerate() {
        let rust = &text.parse::<Setting>().unwrap();
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

/// Reads the error codes from the sources of lgreco-core and lgreco-train, so that the test covers new codes.
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
    // If several errors share a code, the constant is named after the first error.
    for (variant, code) in codes.into_iter().filter(|&(_, code)| named.insert(code)) {
        let words = variant.char_indices().map(|(at, c)| match c.is_uppercase() && at > 0 {
            true => format!("_{c}"),
            false => c.to_uppercase().to_string(),
        });
        let expected = format!("LGRECO_{}", words.collect::<String>());
        // SAFETY: the returned text is static and ends with a NUL.
        let name = unsafe { CStr::from_ptr(lgreco_status_name(code)) };
        assert_eq!(name.to_str(), Ok(expected.as_str()), "code {code}");
        assert!(code < 200, "codes from 200 on are the C API's own");
    }
}
