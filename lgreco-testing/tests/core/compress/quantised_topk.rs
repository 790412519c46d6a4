use lgreco::Error;
use lgreco::backend::Portable;
use lgreco::compress::quantised_topk::QuantisedTopK;
use lgreco::compress::{Candidates, Compressor, Setting, decode, stated_len};
use lgreco::gradient::{Dtype, Gradient, Shape, Values};
use lgreco::rng::Stream;
use lgreco_testing::backend::tensors;
use lgreco_testing::golden;
use lgreco_testing::quantised_topk::{check_payload, check_round_trip, check_row};
use proptest::prelude::*;

fn vector(values: &[f32]) -> Gradient<'_> {
    Gradient::new(Values::F32(values), Shape::new(values.len(), 1).unwrap()).unwrap()
}

fn encoded(values: &[f32], top: QuantisedTopK) -> Result<Vec<u8>, Error> {
    let gradient = vector(values);
    let mut workspace = vec![0; top.encode_workspace_len(gradient.shape(), Dtype::F32)];
    let mut payload = vec![0; top.payload_len(gradient.shape(), Dtype::F32)?];
    top.encode(&gradient, Stream::default(), &mut workspace, &mut payload)?;
    Ok(payload)
}

fn decoded(values: &[f32], keep: u32, bits: u8) -> Vec<f32> {
    let mut decoded = vec![f32::NAN; values.len()];
    decode(&encoded(values, QuantisedTopK { keep, bits }).unwrap(), &mut decoded).unwrap();
    decoded
}

#[test]
fn payload_bytes_are_fixed() {
    golden::check_quantised_topk(&mut Portable);
}

#[test]
fn tensors_of_all_kinds() {
    for tensor in tensors() {
        for gradient in tensor.gradients() {
            let elements = gradient.shape().elements();
            let finite = lgreco::compress::check_finite(&gradient).is_ok();
            let keeps = [1, elements / 100, elements / 10, elements - elements / 3, elements];
            let keeps = keeps.map(|keep| keep.clamp(1, elements) as u32);
            for bits in [1, 2, 5, 8] {
                keeps.iter().for_each(|&keep| check_round_trip(&gradient, QuantisedTopK { keep, bits }));
            }
            if finite {
                check_row(&gradient, &keeps, &[8, 2, 4, 7]);
            }
        }
    }
}

#[test]
fn what_cannot_be_told_apart_comes_back_as_it_was() {
    for value in [1.1f32, 1e-45, 1e-40, f32::MIN_POSITIVE, f32::MAX] {
        assert_eq!(decoded(&[value, -value, value, 0.0], 3, 2), [value, -value, value, 0.0]);
    }
    // Each magnitude has its own bin.
    let values = [3.0, -3.0, 1.0, 0.5, -0.25];
    assert_eq!(decoded(&values, 5, 8), values);
    assert_eq!(decoded(&[0.0, -0.0, 0.0], 2, 4), [0.0; 3]);
    assert_eq!(decoded(&[7.5], 1, 2), [7.5]);
    assert!(decoded(&[], 0, 2).is_empty());
}

/// Zeros are kept if there are too few other values. Zeros are in the lowest bin, so they lower the bin's mean.
#[test]
fn zeros_are_in_the_lowest_bin() {
    let third = f32::from_bits((1.0f32 / 3.0).to_bits() - 1); // rounded down
    assert_eq!(decoded(&[0.0, 4.0, 0.0, -1.0], 4, 2), [third, 4.0, third, -third]);
}

#[test]
fn one_bit_is_a_sign_and_the_mean_of_all() {
    assert_eq!(decoded(&[3.0, 0.5, -1.0, -8.0, 0.25], 3, 1), [4.0, 0.0, -4.0, -4.0, 0.0]);
}

#[test]
fn sizes_are_exact() {
    let shape = Shape::new(1000, 1000).unwrap();
    let len = |keep, bits| QuantisedTopK { keep, bits }.payload_len(shape, Dtype::F32).unwrap();
    assert_eq!(len(10_000, 4), 16 + 4 * 8 + 5000 + 10_703);
    assert_eq!(len(10_000, 2), 16 + 4 * 2 + 2500 + 10_703);
    assert_eq!(len(10_000, 1), 16 + 4 + 1250 + 10_703);
    assert_eq!(len(1, 8), 16 + 4 * 128 + 1 + 4);
    assert_eq!(len(1_000_000, 3), 16 + 4 * 4 + 375_000);
}

#[test]
fn what_does_not_fit_is_refused() {
    for bits in [0, 9, 255] {
        let top = QuantisedTopK { keep: 1, bits };
        let refused = top.payload_len(Shape::new(3, 1).unwrap(), Dtype::F32);
        assert!(matches!(refused, Err(Error::Parameter { what: "bits per kept value", .. })));
        assert!(encoded(&[1.0], top).is_err());
    }
    for keep in [0, 3] {
        let refused = encoded(&[1.0, 2.0], QuantisedTopK { keep, bits: 4 });
        assert!(matches!(refused, Err(Error::Parameter { what: "kept elements", .. })));
    }
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for keep in [1, 3] {
            check_round_trip(&vector(&[1.0, value, 2.0]), QuantisedTopK { keep, bits: 3 });
        }
    }
    let top = QuantisedTopK { keep: 2, bits: 4 };
    let mut room = vec![0; top.encode_workspace_len(Shape::new(3, 1).unwrap(), Dtype::F32)];
    let short = room.len() - 1;
    let mut payload = [0; 100];
    assert!(matches!(
        top.encode(&vector(&[1.0; 3]), Stream::default(), &mut room[..short], &mut payload),
        Err(Error::Length { .. })
    ));
    assert!(matches!(
        top.encode(&vector(&[1.0; 3]), Stream::default(), &mut room, &mut payload[..40]),
        Err(Error::Length { .. })
    ));
}

#[test]
fn what_no_encoder_writes_is_refused() {
    let values: Vec<f32> = (1..=100).map(|i| i as f32).collect();
    let good = encoded(&values, QuantisedTopK { keep: 3, bits: 3 }).unwrap();
    check_payload(&good);
    assert_eq!(stated_len(&good), Ok(good.len()));
    let refused = |at: usize, byte: u8| {
        let mut bad = good.clone();
        bad[at] = byte;
        check_payload(&bad);
        decode(&bad, &mut [0.0; 100]).unwrap_err()
    };
    assert!(matches!(refused(3, 2 << 4), Error::Parameter { .. })); // no bits
    assert!(matches!(refused(3, 3 | 1 << 4), Error::PayloadHeader { what: "variant", .. })); // another layout
    assert!(matches!(refused(4, 101), Error::Parameter { .. }));
    assert!(matches!(refused(4, 0), Error::Parameter { .. }));
    assert!(matches!(refused(19, 0x80), Error::PayloadBody { what: "a mean is not finite and positive" }));
    assert!(matches!(refused(33, good[33] | 2), Error::PayloadBody { what: "padding is not zero" }));
    for len in 0..good.len() {
        assert!(decode(&good[..len], &mut [0.0; 100]).is_err(), "{len} bytes");
    }
}

/// Candidates are numbered in the order of their rows.
#[test]
fn candidates_are_settings() {
    let candidates = Candidates::QuantisedTopK { keeps: &[3, 1], bits: &[8, 2] };
    let settings: Vec<_> = (0..5).map_while(|i| candidates.setting(i)).collect();
    let of = |keep, bits| Setting::QuantisedTopK(QuantisedTopK { keep, bits });
    assert_eq!((settings, candidates.len()), (vec![of(3, 8), of(3, 2), of(1, 8), of(1, 2)], 4));
    assert_eq!(Candidates::QuantisedTopK { keeps: &[3, 1], bits: &[] }.setting(0), None);
    assert_eq!("topk 3 bits 8".parse(), Ok(of(3, 8)));
    for wrong in ["topk 3 bits", "topk 3 bits 9", "topk 3 bits 0", "topk 3 8", "topk 3 bits 4 f16", "topk 3 f16 bits 4"]
    {
        assert!(wrong.parse::<Setting>().is_err(), "{wrong}");
    }
    assert!("clt-k 3 bits 4".parse::<Setting>().is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(lgreco_testing::cases(100)))]
    #[test]
    fn any_magnitudes(
        words in prop::collection::vec(prop_oneof![any::<u32>(), 0x3f00_0000u32..0x4100_0000, Just(0), 0u32..100], 1..300),
        keep in any::<prop::sample::Index>(),
        bits in 1u8..=8,
    ) {
        let values: Vec<f32> = words.iter().map(|&word| f32::from_bits(word)).collect();
        check_round_trip(&vector(&values), QuantisedTopK { keep: keep.index(values.len()) as u32 + 1, bits });
    }

    #[test]
    fn any_damage(
        elements in 1usize..200,
        keep in any::<prop::sample::Index>(),
        bits in 1u8..=8,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let values: Vec<f32> = (0..elements).map(|i| (i as f32).sin()).collect();
        let mut bytes = encoded(&values, QuantisedTopK { keep: keep.index(elements) as u32 + 1, bits }).unwrap();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        check_payload(&bytes);
    }
}
