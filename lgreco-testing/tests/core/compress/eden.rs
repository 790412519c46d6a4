use lgreco::compress::eden::{Eden, Scale};
use lgreco::gradient::{Bf16, Element, F16, Gradient, Shape, Values};
use lgreco::rng::Stream;
use lgreco_testing::eden::{check_gradient, check_round_trip};
use proptest::prelude::*;

const STREAM: Stream = Stream { seed: 0x1234_5678_9abc, step: 17, layer: 3, rank: 2 };

/// Bell-shaped values whose spread changes every 100 values.
fn bells(count: usize) -> Vec<f32> {
    let value = |i: usize| {
        let bytes = STREAM.word(i as u64).to_le_bytes().map(|byte| byte as f32 - 127.5);
        bytes.iter().sum::<f32>() * 1e-3 * (1 + i / 100 % 7) as f32
    };
    (0..count).map(value).collect()
}

#[test]
fn every_setting_element_type_and_length() {
    for count in [1, 2, 7, 129, 4095, 4096, 4097, 10_001] {
        let values = bells(count);
        let halves: Vec<F16> = values.iter().map(|&value| F16::from_f32(value)).collect();
        let brains: Vec<Bf16> = values.iter().map(|&value| Bf16::from_f32(value)).collect();
        for bits in 1..=8 {
            for scale in [Scale::Unbiased, Scale::LeastSquares] {
                for values in [Values::F32(&values), Values::F16(&halves), Values::Bf16(&brains)] {
                    let gradient = Gradient::new(values, Shape::new(1, count).unwrap()).unwrap();
                    check_gradient(&gradient, Eden { bits, scale }, STREAM);
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        check_round_trip(&bytes);
    }
}
