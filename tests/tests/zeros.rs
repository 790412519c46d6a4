//! Every compressor must decode zero tensors and empty tensors to exact zeros, from payloads of the stated size.

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
use lgreco_train::compress::{Compressor, Setting, decode};
use lgreco_train::gradient::{Bf16, Dtype, F16, Gradient, Shape, Values};
use lgreco_train::rng::Stream;

fn settings(elements: u32) -> Vec<Setting> {
    let mut settings = vec![Setting::Dense];
    for scale in [Scale::MaxNorm, Scale::MinMax] {
        for rounding in [Rounding::Nearest, Rounding::Stochastic] {
            settings.extend((1..=8).map(|bits| Setting::Qsgd(Qsgd { bits, bucket: 5, scale, rounding })));
        }
    }
    for values in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        for keep in [elements.min(1), elements / 2, elements] {
            settings.push(Setting::TopK(TopK { keep: keep.max(elements.min(1)), values }));
        }
    }
    settings.push(Setting::CltK(CltK { keep: elements.div_ceil(3) }));
    settings.push(Setting::HardThreshold(HardThreshold { lambda: 1e-3, values: Dtype::F16 }));
    settings.extend([1, 4, 99].map(|bin| Setting::AdaComp(AdaComp { bin })));
    settings.extend([2, 5, 8].map(|bits| Setting::QuantisedTopK(QuantisedTopK { keep: elements.min(3), bits })));
    settings.extend([1, 4, 99].map(|group| Setting::LoCo(LoCo { group })));
    for scale in [eden::Scale::Unbiased, eden::Scale::LeastSquares] {
        settings.extend((1..=8).map(|bits| Setting::Eden(Eden { bits, scale })));
    }
    for fit in [Fit::Exponential, Fit::GammaPareto, Fit::Pareto] {
        settings.push(Setting::Sidco(Sidco { density: 0.01, fit, stages: 3, values: Dtype::F32 }));
    }
    settings
        .extend([(1, 1), (3, 2), (40, 5)].map(|(rank, iterations)| Setting::PowerSgd(PowerSgd { rank, iterations })));
    settings
}

fn check(setting: Setting, gradient: &Gradient<'_>) {
    let (shape, dtype) = (gradient.shape(), gradient.values().dtype());
    let mut workspace = vec![!0; setting.encode_workspace_len(shape, dtype)];
    let mut payload = vec![0xff; setting.payload_len(shape, dtype).unwrap()];
    let len = setting.encode(gradient, Stream::default(), &mut workspace, &mut payload).unwrap();
    assert!(len == payload.len() || !setting.has_fixed_len(), "{setting}: {len} of {} bytes", payload.len());
    payload.truncate(len);
    let mut decoded = vec![f32::NAN; shape.elements()];
    decode(&payload, &mut decoded).unwrap();
    assert!(decoded.iter().all(|&value| value == 0.0), "{setting} on {shape:?}: {decoded:?}");
}

#[test]
fn zeros_come_back_as_zeros() {
    for (rows, cols) in [(0, 0), (0, 5), (7, 0), (1, 1), (1, 9), (13, 1), (5, 7), (33, 20), (33, 40)] {
        let shape = Shape::new(rows, cols).unwrap();
        let elements = shape.elements();
        // The f32 values are zeros of both signs.
        let single: Vec<f32> = (0..elements).map(|i| if i % 3 == 0 { -0.0 } else { 0.0 }).collect();
        let (half, brain) = (vec![F16(0x8000); elements], vec![Bf16(0); elements]);
        for values in [Values::F32(&single), Values::F16(&half), Values::Bf16(&brain)] {
            let gradient = Gradient::new(values, shape).unwrap();
            settings(elements as u32).into_iter().for_each(|setting| check(setting, &gradient));
        }
    }
}
