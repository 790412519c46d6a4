use lgreco::compress::Setting;
use lgreco::compress::adacomp::AdaComp;
use lgreco::compress::clt::CltK;
use lgreco::compress::eden::{self, Eden};
use lgreco::compress::hard_threshold::HardThreshold;
use lgreco::compress::loco::LoCo;
use lgreco::compress::powersgd::PowerSgd;
use lgreco::compress::qsgd::{Qsgd, Rounding, Scale};
use lgreco::compress::quantised_topk::QuantisedTopK;
use lgreco::compress::sidco::{Fit, Sidco};
use lgreco::compress::topk::TopK;
use lgreco::gradient::Dtype;
use lgreco_testing::settings::{SETTINGS, check_text};
use proptest::prelude::*;

fn values() -> impl Strategy<Value = Dtype> {
    prop::sample::select(&[Dtype::F32, Dtype::F16, Dtype::Bf16][..])
}

/// Small numbers, the default 512, the largest number of the type, and any other numbers.
fn number(smallest: u32) -> impl Strategy<Value = u32> {
    prop_oneof![smallest..20, Just(512), Just(u32::MAX), smallest..=u32::MAX]
}

/// Any setting whose parameters are in range.
fn setting() -> impl Strategy<Value = Setting> {
    let scale = prop::sample::select(&[Scale::MaxNorm, Scale::MinMax][..]);
    let rounding = prop::sample::select(&[Rounding::Stochastic, Rounding::Nearest][..]);
    let qsgd = (1u8..=8, number(1), scale, rounding);
    let fit = prop::sample::select(&[Fit::Exponential, Fit::GammaPareto, Fit::Pareto][..]);
    let lambda = (1..0x7f80_0000u32).prop_map(f32::from_bits);
    let density = (1..=1f64.to_bits()).prop_map(f64::from_bits);
    let sidco = (density, fit, prop_oneof![Just(1u32), 1..=1100u32], values());
    prop_oneof![
        Just(Setting::Dense),
        qsgd.prop_map(|(bits, bucket, scale, rounding)| Setting::Qsgd(Qsgd { bits, bucket, scale, rounding })),
        (number(0), values()).prop_map(|(keep, values)| Setting::TopK(TopK { keep, values })),
        (number(0), 2u8..=8).prop_map(|(keep, bits)| Setting::QuantisedTopK(QuantisedTopK { keep, bits })),
        (number(1), prop_oneof![Just(1u32), 1..=1000u32])
            .prop_map(|(rank, iterations)| Setting::PowerSgd(PowerSgd { rank, iterations })),
        number(0).prop_map(|keep| Setting::CltK(CltK { keep })),
        (lambda, values()).prop_map(|(lambda, values)| Setting::HardThreshold(HardThreshold { lambda, values })),
        (1u8..=8, any::<bool>()).prop_map(|(bits, least)| {
            let scale = if least { eden::Scale::LeastSquares } else { eden::Scale::Unbiased };
            Setting::Eden(Eden { bits, scale })
        }),
        number(1).prop_map(|bin| Setting::AdaComp(AdaComp { bin })),
        number(1).prop_map(|group| Setting::LoCo(LoCo { group })),
        sidco.prop_map(|(density, fit, stages, values)| Setting::Sidco(Sidco { density, fit, stages, values })),
    ]
}

proptest! {
    #[test]
    fn every_setting_comes_back(setting in setting()) {
        let text = setting.to_string();
        prop_assert_eq!(text.parse(), Ok(setting), "{}", text);
        prop_assert!(text.len() < 64, "{} does not fit the room that the C API promises", text);
    }

    #[test]
    fn words_in_any_order_are_read_or_refused(words in prop::collection::vec(0usize..WORDS.len(), 0..7)) {
        let text: String = words.into_iter().map(|word| format!("{} ", WORDS[word])).collect();
        check_text(&text);
    }

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,40}") {
        check_text(&text);
    }
}

const WORDS: [&str; 33] = [
    "bits",
    "dense",
    "qsgd",
    "topk",
    "powersgd",
    "clt-k",
    "hard-threshold",
    "adacomp",
    "loco",
    "sidco",
    "bucket",
    "max-norm",
    "min-max",
    "stochastic",
    "nearest",
    "iterations",
    "stages",
    "exponential",
    "gamma-pareto",
    "pareto",
    "f32",
    "f16",
    "bf16",
    "0",
    "1",
    "4",
    "512",
    "4294967295",
    "4294967296",
    "0.5",
    "1e-40",
    "nan",
    "-1",
];

#[test]
fn texts_are_as_documented() {
    let texts = [
        "dense",
        "qsgd 4 bucket 16",
        "topk 3",
        "topk 3 bits 4",
        "powersgd 2 iterations 5",
        "clt-k 3",
        "hard-threshold 0.75 f16",
        "sidco 0.1 pareto stages 2 bf16",
        "adacomp 16",
        "loco 32",
        "qsgd 1 min-max nearest",
        "hard-threshold 1e-40",
        "eden 2",
        "eden 1 least-squares",
    ];
    assert_eq!(SETTINGS.map(|setting| setting.to_string()), texts);
}

#[test]
fn defaults_may_be_spelt_out_in_any_order() {
    for (long, short) in [
        ("qsgd 4 stochastic max-norm bucket 512", "qsgd 4"),
        ("  topk\t786 f32 ", "topk 786"),
        ("powersgd 4 iterations 1", "powersgd 4"),
        ("eden 3 unbiased", "eden 3"),
        ("hard-threshold 0.50 f32", "hard-threshold 0.5"),
        ("sidco 1e-2 f32 stages 1 exponential", "sidco 0.01"),
        ("sidco 0.01 bf16 stages 3 gamma-pareto", "sidco 0.01 gamma-pareto stages 3 bf16"),
    ] {
        assert_eq!(long.parse::<Setting>().unwrap().to_string(), short);
    }
}

#[test]
fn what_is_not_understood_is_named() {
    macro_rules! methods {
        () => {
            ", expected dense or qsgd or eden or topk or powersgd or clt-k or hard-threshold or adacomp or loco or sidco"
        };
    }
    for (text, message) in [
        ("", "setting: found nothing, expected a method, such as dense or qsgd"),
        ("qsdg 4", "setting: `qsdg` is unknown: is `qsgd` meant?"),
        ("threshold 0.5", "setting: `threshold` is unknown: is `hard-threshold` meant?"),
        ("qsgd", "setting: found nothing, expected bits, 1 to 8"),
        ("qsgd four", "setting: found `four`, expected bits, 1 to 8"),
        ("qsgd 300", "setting: found `300`, expected bits, 1 to 8"),
        ("qsgd 9", "bits is 9, expected 1 to 8"),
        ("qsgd 4 8", "setting: found `8`, expected no further number"),
        ("qsgd 4 bucket", "setting: found nothing, expected a number of elements per bucket"),
        ("qsgd 4 bucket 0", "bucket size is 0, expected at least 1"),
        ("qsgd 4 near", "setting: `near` is unknown: is `nearest` meant?"),
        ("qsgd 4 min-max max-norm", "setting: found `max-norm`, expected each parameter once"),
        ("topk k=786", "setting: found `k=786`, expected a number of elements"),
        ("topk 786 bits 9", "bits per kept value is 9, expected 1 to 8"),
        ("topk 786 4", "setting: found `4`, expected no further number"),
        ("topk 786 f16 bits 4", "setting: found `bits`, expected a type or bits, not both"),
        ("topk 786 fp16", "setting: `fp16` is unknown: is `f16` meant?"),
        ("topk 1%", "setting: found `1%`, expected a number of elements"),
        ("powersgd 4 iterations 1001", "power iterations is 1001, expected 1 to 1000"),
        ("dense 4", "setting: found `4`, expected the end"),
        ("loco 256 nearest", "setting: found `nearest`, expected the end"),
        ("hard-threshold inf", "lambda is inf, expected positive and finite"),
        ("sidco nan", "density is NaN, expected in (0, 1]"),
        ("sidco 0.01 stages 0", "stages is 0, expected 1 to 1100"),
        ("QSGD 4", "setting: `QSGD` is unknown: is `qsgd` meant?"),
        ("tokp 4", "setting: `tokp` is unknown: is `topk` meant?"),
        ("foo 3", concat!("setting: `foo` is unknown", methods!())),
        ("QSGD-with-a-very-long-name 4", concat!("setting: `QSGD-with-a-very-long-…` is unknown", methods!())),
        ("topk 5 f64", "setting: `f64` is unknown, expected bits or f32 or f16 or bf16"),
        ("powersgd 4 f16", "setting: `f16` is unknown, expected iterations"),
    ] {
        assert_eq!(text.parse::<Setting>().unwrap_err().to_string(), message, "{text}");
    }
}
