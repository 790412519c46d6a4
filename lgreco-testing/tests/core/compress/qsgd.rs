use lgreco::Error;
use lgreco::backend::Portable;
use lgreco::compress::Compressor;
use lgreco::compress::qsgd::*;
use lgreco::compress::wire::Payload;
use lgreco::gradient::{Bf16, Dtype, Element, F16, Gradient, Shape, Values};
use lgreco::rng::Stream;
use lgreco_testing::golden;
use lgreco_testing::qsgd::{check_averages, check_gradient, check_payload, check_round_trip, squared_error};
use proptest::prelude::*;

const STREAM: Stream = Stream { seed: 0x1234_5678_9abc, step: 17, layer: 3, rank: 2 };

fn settings() -> impl Iterator<Item = Qsgd> {
    [Scale::MaxNorm, Scale::MinMax].into_iter().flat_map(|scale| {
        [Rounding::Nearest, Rounding::Stochastic]
            .into_iter()
            .flat_map(move |rounding| (1..=8).map(move |bits| Qsgd { bits, bucket: 512, scale, rounding }))
    })
}

/// Bell-shaped values whose spread changes every 100 values.
fn bells(count: usize, spread: f32) -> Vec<f32> {
    let value = |i: usize| {
        let bytes = STREAM.word(i as u64).to_le_bytes().map(|byte| byte as f32 - 127.5);
        bytes.iter().sum::<f32>() * spread * (1 + i / 100 % 7) as f32
    };
    (0..count).map(value).collect()
}

fn check(values: &[f32], qsgd: Qsgd) {
    let shape = Shape::new(values.len(), 1).unwrap();
    check_gradient(&Gradient::new(Values::F32(values), shape).unwrap(), qsgd, STREAM);
}

fn encoded(values: &[f32], qsgd: Qsgd) -> Vec<u8> {
    let shape = Shape::new(values.len(), 1).unwrap();
    let gradient = Gradient::new(Values::F32(values), shape).unwrap();
    let mut payload = vec![0; qsgd.payload_len(shape, Dtype::F32).unwrap()];
    qsgd.encode(&gradient, Stream::default(), &mut [], &mut payload).unwrap();
    payload
}

/// The payloads were computed by hand. The random words of the default stream are Philox's published result for
/// zeros.
#[test]
fn golden_payloads() {
    golden::check_qsgd(&mut Portable);
}

#[test]
fn every_setting_element_type_and_bucket_size() {
    let values = bells(1601, 1e-3);
    let halves: Vec<F16> = values.iter().map(|&value| F16::from_f32(value)).collect();
    let brains: Vec<Bf16> = values.iter().map(|&value| Bf16::from_f32(value)).collect();
    for setting in settings() {
        for bucket in [1, 3, 64, 512, 1000, u32::MAX] {
            let qsgd = Qsgd { bucket, ..setting };
            for values in [Values::F32(&values), Values::F16(&halves), Values::Bf16(&brains)] {
                check_gradient(&Gradient::new(values, Shape::new(1, 1601).unwrap()).unwrap(), qsgd, STREAM);
            }
        }
    }
}

#[test]
fn no_elements_zeros_constants_and_the_ends_of_f32() {
    let tiny = f32::from_bits(1);
    let ladder: Vec<f32> = (-149..128).flat_map(|e| [2f64.powi(e) as f32, -1.5 * 2f64.powi(e) as f32]).collect();
    for qsgd in settings() {
        check(&[], qsgd);
        check(&[0.0, -0.0, 0.0], qsgd);
        check(&[-0.0; 600], qsgd);
        check(&[-3.7; 77], qsgd);
        check(&[f32::MAX, f32::MIN, 1.0, -0.5 * f32::MAX, 0.0], qsgd);
        check(&[f32::MAX; 5], qsgd);
        check(&[tiny, -tiny, 0.0, 3.0 * tiny, -100.0 * tiny], qsgd);
        check(&[f32::MIN_POSITIVE, -0.3 * f32::MIN_POSITIVE, tiny], qsgd);
        check(&[1.0, 1.0 + f32::EPSILON, 1.0 + 5.0 * f32::EPSILON], qsgd);
        check(&ladder, qsgd);
        check(&ladder, Qsgd { bucket: 4, ..qsgd });
        assert!(decoded(&[0.0, -0.0, 0.0], qsgd).iter().all(|value| value.to_bits() == 0), "{qsgd:?}");
    }
}

/// All values are small multiples of the smallest subnormal number. Levels between these values also decode to such
/// multiples.
#[test]
fn rows_of_subnormal_numbers_are_those_of_decoded_values() {
    let unit = f32::from_bits(1);
    let values: Vec<f32> = (-3..=4).map(|i| i as f32 * unit).collect();
    let gradient = Gradient::new(Values::F32(&values), Shape::new(8, 1).unwrap()).unwrap();
    for qsgd in settings().filter(|qsgd| qsgd.rounding == Rounding::Nearest) {
        let squares = values.iter().zip(decoded(&values, qsgd)).map(|(&x, y)| ((x - y) / unit) as f64).map(|d| d * d);
        let expected = squares.sum::<f64>() * (unit as f64).powi(2);
        let mut row = [f64::NAN];
        measure(&gradient, qsgd, &[qsgd.bits], &mut row).unwrap();
        assert!((row[0] - expected).abs() <= 1e-5 * expected, "{qsgd:?}: {:e}, expected {expected:e}", row[0]);
    }
}

fn decoded(values: &[f32], qsgd: Qsgd) -> Vec<f32> {
    let payload = encoded(values, qsgd);
    let mut decoded = vec![f32::NAN; values.len()];
    decode(&Payload::parse(&payload).unwrap(), &mut decoded).unwrap();
    decoded
}

/// If the distance between two levels is below 1e-10, CGX sends only the bucket's minimum. lgreco's QSGD has no limit
/// of this kind. Sixteen evenly spaced values arrive almost unchanged at any magnitude, even if they are adjacent f32
/// numbers.
#[test]
fn units_are_not_too_small_to_matter() {
    let cgx = Qsgd { bits: 4, bucket: 16, scale: Scale::MinMax, rounding: Rounding::Nearest };
    for unit in [1e-9f32, 1e-12, 1e-30, 1e-37, 2e37] {
        let values: Vec<f32> = (-8..8).map(|i| i as f32 * unit).collect();
        for (x, y) in values.iter().zip(decoded(&values, cgx)) {
            assert!((x - y).abs() <= unit * 1e-4, "unit {unit:e}: {x:e} arrives as {y:e}");
        }
    }
    for first in [1.0f32, -1.0 - 15.0 * f32::EPSILON, 2f32.powi(-100)] {
        let ulp = (first.abs().next_up() - first.abs()).max(f32::MIN_POSITIVE * f32::EPSILON);
        let values: Vec<f32> = (0..16).map(|i| first + i as f32 * ulp).collect();
        for (x, y) in values.iter().zip(decoded(&values, cgx)) {
            assert!((x - y).abs() <= ulp, "from {first:e} on: {x:e} arrives as {y:e}");
        }
    }
}

/// Checks the bound that `measure` documents for tensors with more than a few values: a relative difference below 1e-5.
/// `check_gradient` allows a larger difference, because it also checks tensors with few values.
#[test]
fn rows_are_within_1e_5() {
    for spread in [1e-9, 1.0] {
        let values = bells(20_000, spread);
        let gradient = Gradient::new(Values::F32(&values), Shape::new(200, 100).unwrap()).unwrap();
        for qsgd in settings() {
            for bucket in [32, 512, 20_000] {
                let qsgd = Qsgd { bucket, ..qsgd };
                let mut row = [0.0];
                measure(&gradient, qsgd, &[qsgd.bits], &mut row).unwrap();
                let (error, _) = squared_error(&values, qsgd);
                assert!((row[0] / error - 1.0).abs() < 1e-5, "{qsgd:?}: {} for {error}", row[0]);
            }
        }
    }
}

#[test]
fn stochastic_rounding_is_unbiased_with_the_measured_error() {
    let values = bells(700, 0.01);
    for qsgd in settings().filter(|qsgd| qsgd.rounding == Rounding::Stochastic) {
        check_averages(&values, Qsgd { bucket: 128, ..qsgd }, 1000);
    }
}

#[test]
fn bad_parameters_and_lengths_are_errors() {
    let gradient = Gradient::new(Values::F32(&[1.0; 4]), Shape::new(4, 1).unwrap()).unwrap();
    for (bits, bucket) in [(0, 512), (9, 512), (4, 0)] {
        let qsgd = Qsgd { bits, bucket, ..Qsgd::default() };
        let parameter = |found| assert!(matches!(found, Err(Error::Parameter { .. })));
        parameter(qsgd.payload_len(gradient.shape(), Dtype::F32).map(|_| ()));
        parameter(qsgd.encode(&gradient, STREAM, &mut [], &mut [0; 64]).map(|_| ()));
        parameter(measure(&gradient, qsgd, &[4, bits], &mut [0.0; 2]));
    }
    let row = measure(&gradient, Qsgd::default(), &[2, 3], &mut [0.0]);
    assert!(matches!(row, Err(Error::Length { expected: 2, found: 1, .. })));
}

#[test]
fn a_row_without_places_still_names_the_offender() {
    let gradient = Gradient::new(Values::F32(&[1.0, f32::NEG_INFINITY, 2.0]), Shape::new(3, 1).unwrap()).unwrap();
    let offender = Error::NonFinite { index: 1, value: f32::NEG_INFINITY };
    assert_eq!(measure(&gradient, Qsgd::default(), &[], &mut []), Err(offender));
}

#[test]
fn hostile_payloads_are_errors() {
    let values = bells(37, 1.0);
    for qsgd in settings() {
        let qsgd = Qsgd { bucket: 10, ..qsgd };
        let payload = encoded(&values, qsgd);
        let refused = |bytes: &[u8]| {
            Payload::parse(bytes).and_then(|payload| decode(&payload, &mut [0.0; 37])).expect_err("should be refused")
        };
        for length in 0..payload.len() {
            assert!(matches!(refused(&payload[..length]), Error::Length { .. }));
        }
        assert!(matches!(refused(&[&payload[..], &[0]].concat()), Error::Length { .. }));
        let mut short = [0.0; 36];
        assert!(decode(&Payload::parse(&payload).unwrap(), &mut short).is_err());
        let with = |at: usize, bytes: &[u8]| {
            let mut wrong = payload.clone();
            wrong[at..at + bytes.len()].copy_from_slice(bytes);
            wrong
        };
        for scale in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(matches!(refused(&with(16, &scale.to_le_bytes())), Error::PayloadBody { .. }));
        }
        if qsgd.scale == Scale::MaxNorm {
            assert!(matches!(refused(&with(20, &(-1f32).to_le_bytes())), Error::PayloadBody { .. }));
        } else {
            assert!(matches!(refused(&with(16, &1e9f32.to_le_bytes())), Error::PayloadBody { .. }));
        }
        assert!(matches!(refused(&with(2, &[2])), Error::PayloadHeader { what: "method", .. }));
        assert!(matches!(refused(&with(3, &[0x10])), Error::PayloadHeader { what: "variant", .. }));
        assert!(matches!(refused(&with(4, &[0; 4])), Error::Parameter { .. }));
        if qsgd.bits != 8 {
            let last = payload[payload.len() - 1] | 0x80;
            assert!(matches!(refused(&with(payload.len() - 1, &[last])), Error::PayloadBody { .. }));
        }
    }
}

#[test]
fn the_first_offender_is_named() {
    for (bad, at) in [(f32::NAN, 0), (f32::INFINITY, 999), (f32::NEG_INFINITY, 600), (-f32::NAN, 512)] {
        let mut values = bells(1000, 1.0);
        values[at..].fill(bad);
        for qsgd in settings() {
            let gradient = Gradient::new(Values::F32(&values), Shape::new(1000, 1).unwrap()).unwrap();
            let refused = [
                qsgd.encode(&gradient, STREAM, &mut [], &mut [0; 2000]).map(|_| ()),
                measure(&gradient, qsgd, &[2, 1], &mut [0.0; 2]),
            ];
            for refused in refused {
                assert!(matches!(refused, Err(Error::NonFinite { index, .. }) if index == at), "{refused:?}");
            }
        }
    }
}

fn any_setting() -> impl Strategy<Value = Qsgd> {
    let bucket = prop_oneof![1..20u32, 500..520u32, 1..5000u32];
    (1..=8u8, bucket, any::<bool>(), any::<bool>()).prop_map(|(bits, bucket, min_max, nearest)| Qsgd {
        bits,
        bucket,
        scale: if min_max { Scale::MinMax } else { Scale::MaxNorm },
        rounding: if nearest { Rounding::Nearest } else { Rounding::Stochastic },
    })
}

fn any_values() -> impl Strategy<Value = Vec<f32>> {
    let finite = any::<u32>().prop_map(|bits| f32::from_bits(bits & 0xff7f_ffff));
    let ordinary = (-1f32..1.0, -20..20i32).prop_map(|(x, e)| x * 2f32.powi(e));
    let offset = (0..1000u32).prop_map(|k| 1000.0 + k as f32 * 1e-3);
    let few = prop_oneof![Just(0f32), Just(-1.0), Just(1.0), Just(0.3)];
    prop_oneof![
        prop::collection::vec(finite, 0..1200),
        prop::collection::vec(ordinary, 0..1200),
        prop::collection::vec(offset, 0..1200),
        prop::collection::vec(few, 0..1200),
    ]
}

proptest! {
    #[test]
    fn any_gradient(values in any_values(), qsgd in any_setting(), seed: u64, step: u32) {
        let gradient = Gradient::new(Values::F32(&values), Shape::new(values.len(), 1).unwrap()).unwrap();
        check_gradient(&gradient, qsgd, Stream { seed, step, layer: 1, rank: 7 });
    }

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..700)) {
        check_round_trip(&bytes);
        check_payload(&bytes);
    }

    #[test]
    fn any_change_of_a_payload(qsgd in any_setting(), at: prop::sample::Index, byte: u8, count in 1..300usize) {
        let mut payload = encoded(&bells(count, 1.0), qsgd);
        *at.get_mut(&mut payload) = byte;
        check_payload(&payload);
    }
}
