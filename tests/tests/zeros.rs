//! Zero tensors, empty ones among them, come back as exact zeros from every compressor, in payloads of the stated size.

use lgreco_core::compress::powersgd::PowerSgd;
use lgreco_core::compress::qsgd::{Qsgd, Rounding, Scale};
use lgreco_core::compress::topk::TopK;
use lgreco_core::compress::{Compressor, Setting, decode};
use lgreco_core::gradient::{Bf16, Dtype, F16, Gradient, Shape, Values};
use lgreco_core::rng::Stream;

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
    settings
        .extend([(1, 1), (3, 2), (40, 5)].map(|(rank, iterations)| Setting::PowerSgd(PowerSgd { rank, iterations })));
    settings
}

fn check(setting: Setting, gradient: &Gradient<'_>) {
    let (shape, dtype) = (gradient.shape(), gradient.values().dtype());
    let mut workspace = vec![!0; setting.encode_workspace_len(shape, dtype)];
    let mut payload = vec![0xff; setting.payload_len(shape, dtype).unwrap()];
    assert_eq!(setting.encode(gradient, Stream::default(), &mut workspace, &mut payload), Ok(payload.len()));
    let mut decoded = vec![f32::NAN; shape.elements()];
    decode(&payload, &mut decoded).unwrap();
    assert!(decoded.iter().all(|&value| value == 0.0), "{setting} on {shape:?}: {decoded:?}");
}

#[test]
fn zeros_come_back_as_zeros() {
    for (rows, cols) in [(0, 0), (0, 5), (7, 0), (1, 1), (1, 9), (13, 1), (5, 7), (33, 20)] {
        let shape = Shape::new(rows, cols).unwrap();
        let elements = shape.elements();
        // Zeros of both signs.
        let single: Vec<f32> = (0..elements).map(|i| if i % 3 == 0 { -0.0 } else { 0.0 }).collect();
        let (half, brain) = (vec![F16(0x8000); elements], vec![Bf16(0); elements]);
        for values in [Values::F32(&single), Values::F16(&half), Values::Bf16(&brain)] {
            let gradient = Gradient::new(values, shape).unwrap();
            settings(elements as u32).into_iter().for_each(|setting| check(setting, &gradient));
        }
    }
}
