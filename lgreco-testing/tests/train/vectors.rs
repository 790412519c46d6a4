//! Golden payloads: `tests/golden/v0.1/payloads.json` has inputs, settings, payload bytes and decoded values, for
//! implementations in any language. Numbers are the hex digits of their bits. Payloads and values must be equal bit for
//! bit, except for PowerSGD, whose sums may be in any order. For PowerSGD, only the header and the length must be equal,
//! and decoded values may differ by 1e-5 of the largest input.
//!
//! In SIDCo's cases, no value is near a threshold, because the last bits of logarithms differ between machines.
//!
//! With `LGRECO_BLESS=1`, the test fills in the cases with an empty payload. Payload formats are permanent, so other cases
//! never change.

use lgreco_train::compress::adacomp::AdaComp;
use lgreco_train::compress::clt::CltK;
use lgreco_train::compress::eden::{self, Eden};
use lgreco_train::compress::hard_threshold::HardThreshold;
use lgreco_train::compress::loco::LoCo;
use lgreco_train::compress::powersgd::PowerSgd;
use lgreco_train::compress::qsgd::{Qsgd, Rounding, Scale};
use lgreco_train::compress::quantised_topk::QuantisedTopK;
use lgreco_train::compress::sidco::{Fit, Sidco};
use lgreco_train::compress::topk::TopK;
use lgreco_train::compress::wire::HEADER_LEN;
use lgreco_train::compress::{Compressor, Setting, decode};
use lgreco_train::gradient::{Bf16, Dtype, F16, Gradient, Shape, Values};
use lgreco_train::rng::Stream;
use serde::{Deserialize, Serialize};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/v0.1/payloads.json");

#[derive(Deserialize, Serialize)]
struct Case {
    name: String,
    dtype: String,
    rows: usize,
    cols: usize,
    values: Vec<String>,
    setting: SettingForm,
    stream: StreamForm,
    payload: String,
    decoded: Vec<String>,
}

#[derive(Deserialize, Serialize)]
#[serde(tag = "method", rename_all = "lowercase")]
enum SettingForm {
    Dense,
    Qsgd { bits: u8, bucket: u32, scale: String, rounding: String },
    Eden { bits: u8, scale: String },
    TopK { keep: u32, values: String },
    QuantisedTopK { keep: u32, bits: u8 },
    PowerSgd { rank: u32, iterations: u32 },
    CltK { keep: u32 },
    HardThreshold { lambda: f32, values: String },
    AdaComp { bin: u32 },
    LoCo { group: u32 },
    Sidco { density: f64, fit: String, stages: u32, values: String },
}

#[derive(Deserialize, Serialize)]
struct StreamForm {
    seed: u64,
    step: u32,
    layer: u32,
    rank: u32,
}

fn dtype(name: &str) -> Dtype {
    match name {
        "f32" => Dtype::F32,
        "f16" => Dtype::F16,
        "bf16" => Dtype::Bf16,
        other => panic!("{other}"),
    }
}

fn setting(form: &SettingForm) -> Setting {
    match form {
        SettingForm::Dense => Setting::Dense,
        SettingForm::Qsgd { bits, bucket, scale, rounding } => Setting::Qsgd(Qsgd {
            bits: *bits,
            bucket: *bucket,
            scale: if scale == "min-max" { Scale::MinMax } else { Scale::MaxNorm },
            rounding: if rounding == "nearest" { Rounding::Nearest } else { Rounding::Stochastic },
        }),
        SettingForm::Eden { bits, scale } => Setting::Eden(Eden {
            bits: *bits,
            scale: if scale == "least-squares" { eden::Scale::LeastSquares } else { eden::Scale::Unbiased },
        }),
        SettingForm::TopK { keep, values } => Setting::TopK(TopK { keep: *keep, values: dtype(values) }),
        SettingForm::QuantisedTopK { keep, bits } => Setting::QuantisedTopK(QuantisedTopK { keep: *keep, bits: *bits }),
        SettingForm::PowerSgd { rank, iterations } => {
            Setting::PowerSgd(PowerSgd { rank: *rank, iterations: *iterations })
        }
        SettingForm::CltK { keep } => Setting::CltK(CltK { keep: *keep }),
        SettingForm::HardThreshold { lambda, values } => {
            Setting::HardThreshold(HardThreshold { lambda: *lambda, values: dtype(values) })
        }
        SettingForm::AdaComp { bin } => Setting::AdaComp(AdaComp { bin: *bin }),
        SettingForm::LoCo { group } => Setting::LoCo(LoCo { group: *group }),
        SettingForm::Sidco { density, fit, stages, values } => Setting::Sidco(Sidco {
            density: *density,
            fit: match fit.as_str() {
                "gamma-pareto" => Fit::GammaPareto,
                "pareto" => Fit::Pareto,
                _ => Fit::Exponential,
            },
            stages: *stages,
            values: dtype(values),
        }),
    }
}

/// Returns the payload and the bits of the decoded values, as hex digits.
fn outcome(case: &Case) -> (String, Vec<String>) {
    let words: Vec<u32> = case.values.iter().map(|hex| u32::from_str_radix(hex, 16).unwrap()).collect();
    let single: Vec<f32> = words.iter().map(|&word| f32::from_bits(word)).collect();
    let half: Vec<F16> = words.iter().map(|&word| F16(word as u16)).collect();
    let brain: Vec<Bf16> = words.iter().map(|&word| Bf16(word as u16)).collect();
    let values = match dtype(&case.dtype) {
        Dtype::F32 => Values::F32(&single),
        Dtype::F16 => Values::F16(&half),
        Dtype::Bf16 => Values::Bf16(&brain),
    };
    let gradient = Gradient::new(values, Shape::new(case.rows, case.cols).unwrap()).unwrap();
    let (shape, dtype, setting) = (gradient.shape(), values.dtype(), setting(&case.setting));
    let StreamForm { seed, step, layer, rank } = case.stream;
    let mut workspace = vec![!0; setting.encode_workspace_len(shape, dtype)];
    let mut payload = vec![0xff; setting.payload_len(shape, dtype).unwrap()];
    let stream = Stream { seed, step, layer, rank };
    let len = setting.encode(&gradient, stream, &mut workspace, &mut payload).unwrap();
    assert!(len == payload.len() || !setting.has_fixed_len());
    payload.truncate(len);
    let mut decoded = vec![f32::NAN; shape.elements()];
    decode(&payload, &mut decoded).unwrap();
    let bits = decoded.iter().map(|value| format!("{:08x}", value.to_bits())).collect();
    (payload.iter().map(|byte| format!("{byte:02x}")).collect(), bits)
}

#[test]
fn payloads_are_what_they_always_were() {
    let mut cases: Vec<Case> = serde_json::from_slice(&std::fs::read(FILE).unwrap()).unwrap();
    assert!(cases.len() >= 30);
    if std::env::var("LGRECO_BLESS").is_ok_and(|value| value == "1") {
        let added = cases.iter_mut().filter(|case| case.payload.is_empty());
        added.for_each(|case| (case.payload, case.decoded) = outcome(case));
        let lines: Vec<String> = cases.iter().map(|case| serde_json::to_string(case).unwrap()).collect();
        return std::fs::write(FILE, format!("[\n{}\n]\n", lines.join(",\n"))).unwrap();
    }
    for case in &cases {
        let (payload, decoded) = outcome(case);
        if matches!(case.setting, SettingForm::PowerSgd { .. }) {
            assert_eq!(payload[..2 * HEADER_LEN], case.payload[..2 * HEADER_LEN], "header of {}", case.name);
            assert_eq!(payload.len(), case.payload.len(), "length of {}", case.name);
            assert_near(case, &decoded);
        } else {
            assert_eq!(payload, case.payload, "payload of {}", case.name);
            assert_eq!(decoded, case.decoded, "decoded values of {}", case.name);
        }
    }
}

fn assert_near(case: &Case, decoded: &[String]) {
    let bits = |hex: &String| u32::from_str_radix(hex, 16).unwrap();
    let float = |hex: &String| f32::from_bits(bits(hex));
    let input = |hex: &String| if case.dtype == "bf16" { f32::from_bits(bits(hex) << 16) } else { float(hex) };
    let largest = case.values.iter().map(input).fold(0.0, |a: f32, b| a.max(b.abs()));
    assert_eq!(decoded.len(), case.decoded.len());
    for (found, expected) in decoded.iter().zip(&case.decoded) {
        let distance = (float(found) - float(expected)).abs();
        assert!(distance <= 1e-5 * largest, "{}: {found} is not {expected}", case.name);
    }
}
