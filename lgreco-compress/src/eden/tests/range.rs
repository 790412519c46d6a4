//! Tests zeros, magnitudes at the ends of f32, element types, NaN and infinity.

use super::*;
use crate::combine::Combine;
use crate::gradient::{Bf16, Element, F16};

#[test]
fn zero_blocks_decode_to_zeros() {
    let mut values = gaussian(2 * BLOCK + 96, 0);
    values[BLOCK..2 * BLOCK + 64].fill(-0.0);
    for eden in all() {
        let decoded = round_trip(&values, eden, 0);
        assert!(decoded[BLOCK..2 * BLOCK + 64].iter().all(|x| x.to_bits() == 0), "{eden:?}");
        assert!(decoded[..BLOCK].iter().chain(&decoded[2 * BLOCK + 64..]).any(|&x| x != 0.0));
        let nothing = round_trip(&[], eden, 0);
        assert!(nothing.is_empty());
    }
    let mut row = [f64::NAN; 2];
    measure(&column(&[0.0; 5000]), Scale::Unbiased, &[1, 8], stream(0), &mut row).unwrap();
    assert_eq!(row, [0.0; 2]);
}

/// Multiplying by a power of two changes only the scales.
#[test]
fn all_magnitudes_have_the_same_error() {
    let values = gaussian(BLOCK + 1000, 0);
    for (eden, exponent) in all().flat_map(|eden| [124, 110, 50, -50, -110, -120].map(|exponent| (eden, exponent))) {
        let power = 2f64.powi(exponent) as f32;
        let scaled: Vec<f32> = values.iter().map(|x| x * power).collect();
        let expected = squared_distance(&values, &round_trip(&values, eden, 0)).sqrt();
        let found = squared_distance(&scaled, &round_trip(&scaled, eden, 0)).sqrt() / power as f64;
        assert!((found / expected - 1.0).abs() < 1e-3, "{eden:?}, 2^{exponent}: {found} {expected}");
    }
}

#[test]
fn subnormal_values_keep_as_many_bits_as_they_have() {
    let values: Vec<f32> = gaussian(BLOCK + 100, 0).iter().map(|x| x * 1e-40).collect();
    for eden in all().filter(|eden| eden.bits <= 4) {
        let relative = squared_distance(&values, &round_trip(&values, eden, 0)) / product(&values, &values);
        let ordinary: Vec<f32> = values.iter().map(|x| x * 1e30).collect();
        let expected = squared_distance(&ordinary, &round_trip(&ordinary, eden, 0)) / product(&ordinary, &ordinary);
        assert!((relative / expected - 1.0).abs() < 0.02, "{eden:?}: {relative} {expected}");
    }
    for least in [f32::from_bits(1), f32::MIN_POSITIVE] {
        assert_eq!(round_trip(&[least; 1], Eden::default(), 0), [least]);
    }
}

#[test]
fn what_does_not_fit_f32_is_an_error_and_never_infinite() {
    for magnitude in [1e37, 1e38, 2e38, 3e38, f32::MAX] {
        let spread: Vec<f32> = gaussian(BLOCK, 0).iter().map(|x| magnitude * (x / 4.0).clamp(-1.0, 1.0)).collect();
        let mut single = vec![0.0; BLOCK];
        single[3] = magnitude;
        for (values, eden) in [spread, single, vec![magnitude]].iter().flat_map(|v| all().map(move |eden| (v, eden))) {
            let mut row = [f64::NAN];
            let measured = measure(&column(values), eden.scale, &[eden.bits], stream(0), &mut row);
            match encoded(&column(values), eden, stream(0)) {
                Ok(payload) => {
                    assert!(decoded(&payload).unwrap().iter().all(|x| x.is_finite()));
                    assert!(measured.is_ok() && row[0].is_finite());
                }
                Err(error) => {
                    assert!(magnitude > 1e38 && matches!(error, Error::Overflow { .. }), "{magnitude}, {eden:?}");
                    assert_eq!(measured, Err(error));
                }
            }
        }
    }
}

#[test]
fn sixteen_bit_gradients_are_read_as_what_they_are() {
    let values = gaussian(BLOCK + 555, 0);
    let shape = Shape::new(values.len(), 1).unwrap();
    let halves: Vec<F16> = values.iter().map(|&x| F16::from_f32(x)).collect();
    let brains: Vec<Bf16> = values.iter().map(|&x| Bf16::from_f32(x)).collect();
    for eden in all() {
        for values in [Values::F16(&halves), Values::Bf16(&brains)] {
            let widened: Vec<f32> = with_elements!(values, values => values.iter().map(|x| x.to_f32()).collect());
            let gradient = Gradient::new(values, shape).unwrap();
            let same = encoded(&column(&widened), eden, stream(0)).unwrap();
            assert_eq!(encoded(&gradient, eden, stream(0)).unwrap(), same);
            let (mut row, mut row_widened) = ([f64::NAN], [f64::NAN]);
            measure(&gradient, eden.scale, &[eden.bits], stream(0), &mut row).unwrap();
            measure(&column(&widened), eden.scale, &[eden.bits], stream(0), &mut row_widened).unwrap();
            assert_eq!(row, row_widened);
        }
    }
}

#[test]
fn the_first_value_that_is_not_finite_is_named() {
    for (first, second) in [(0, 1), (BLOCK - 1, BLOCK), (BLOCK + 37, BLOCK + 99), (2 * BLOCK + 2, 2 * BLOCK + 3)] {
        let mut values = gaussian(2 * BLOCK + 5, 0);
        (values[first], values[second]) = (f32::INFINITY, f32::NAN);
        let expected = Err(Error::NonFinite { index: first, value: f32::INFINITY });
        assert_eq!(encoded(&column(&values), Eden::default(), stream(0)).map(drop), expected);
        for widths in [&[][..], &[3, 4]] {
            let mut row = [0.0; 2];
            let row = &mut row[..widths.len()];
            assert_eq!(measure(&column(&values), Scale::Unbiased, widths, stream(0), row), expected);
        }
    }
}

#[test]
fn parameters_are_checked() {
    let shape = Shape::new(2, 2).unwrap();
    for bits in [0, 9, 255] {
        let eden = Eden { bits, ..Eden::default() };
        assert!(matches!(eden.payload_len(shape, Dtype::F32), Err(Error::Parameter { what: "bits", .. })));
        let measured = measure(&column(&[1.0; 4]), Scale::Unbiased, &[3, bits], stream(0), &mut [0.0; 2]);
        assert!(matches!(measured, Err(Error::Parameter { what: "bits", .. })));
    }
    assert!(matches!(
        measure(&column(&[1.0; 4]), Scale::Unbiased, &[3], stream(0), &mut [0.0; 2]),
        Err(Error::Length { .. })
    ));
    let short = Eden::default().encode(&column(&[1.0; 4]), stream(0), &mut [], &mut [0; 27]);
    assert!(matches!(short, Err(Error::Length { .. })));
    let payload = encoded(&column(&[1.0; 4]), Eden::default(), stream(0)).unwrap();
    let payload = Payload::parse(&payload).unwrap();
    assert!(matches!(super::super::combine(&payload, Combine::Add, &mut [0.0; 3]), Err(Error::Length { .. })));
}
