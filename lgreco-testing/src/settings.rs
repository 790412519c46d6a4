//! Properties of settings as text.

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
use lgreco::compress::{Compressor, Setting};
use lgreco::gradient::{Dtype, Shape};

/// Settings of every compressor. Together, their texts contain every word that is not a default.
pub const SETTINGS: [Setting; 14] = [
    Setting::Dense,
    Setting::Qsgd(Qsgd { bits: 4, bucket: 16, scale: Scale::MaxNorm, rounding: Rounding::Stochastic }),
    Setting::TopK(TopK { keep: 3, values: Dtype::F32 }),
    Setting::QuantisedTopK(QuantisedTopK { keep: 3, bits: 4 }),
    Setting::PowerSgd(PowerSgd { rank: 2, iterations: 5 }),
    Setting::CltK(CltK { keep: 3 }),
    Setting::HardThreshold(HardThreshold { lambda: 0.75, values: Dtype::F16 }),
    Setting::Sidco(Sidco { density: 0.1, fit: Fit::Pareto, stages: 2, values: Dtype::Bf16 }),
    Setting::AdaComp(AdaComp { bin: 16 }),
    Setting::LoCo(LoCo { group: 32 }),
    Setting::Qsgd(Qsgd { bits: 1, bucket: 512, scale: Scale::MinMax, rounding: Rounding::Nearest }),
    Setting::HardThreshold(HardThreshold { lambda: 1e-40, values: Dtype::F32 }),
    Setting::Eden(Eden { bits: 2, scale: eden::Scale::Unbiased }),
    Setting::Eden(Eden { bits: 1, scale: eden::Scale::LeastSquares }),
];

/// Reads a text as a setting. The text must be refused with a reason, or the setting must be written and read back
/// unchanged. A setting that was read must compress some tensor.
///
/// # Panics
/// Panics if a check fails.
pub fn check_text(text: &str) {
    match text.parse::<Setting>() {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(setting) => {
            assert_eq!(setting.to_string().parse(), Ok(setting), "{text}");
            let elements = match setting {
                Setting::TopK(TopK { keep, .. })
                | Setting::QuantisedTopK(QuantisedTopK { keep, .. })
                | Setting::CltK(CltK { keep }) => keep as usize,
                _ => 1000,
            };
            let shape = Shape::new(1, elements).expect("below 2^32 elements");
            setting.payload_len(shape, Dtype::F32).unwrap_or_else(|error| panic!("{text}: {error}"));
        }
    }
}
