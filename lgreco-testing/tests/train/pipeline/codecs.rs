//! Compares codecs with textbook versions and with values that others have published.

use super::*;
use lgreco_pipeline::{CoreError, Error};
use lgreco_testing::topk::order;
use lgreco_train::compress::decode;
use lgreco_train::compress::wire::{Method, Payload};
use lgreco_train::gradient::{Bf16, Element, F16, Shape};
use proptest::prelude::*;

const VECTOR: [f32; 6] = [1.0, -1.0, 0.3, -0.26, 0.0, 0.74];

fn encode(codec: Codec, values: &[f32], features: usize) -> Result<Vec<u8>, Error> {
    let mut body = vec![0xa5; codec.body_len(values.len() / features, features)?];
    let mut workspace = vec![!0; codec.workspace_len(features)];
    codec.encode(values, features, &[], &mut workspace, &mut body).map(|()| body)
}

fn round_trip(codec: Codec, values: &[f32], features: usize) -> Vec<f32> {
    let body = encode(codec, values, features).unwrap();
    let mut decoded = vec![f32::NAN; values.len()];
    codec.decode(&body, features, &[], &mut decoded).unwrap();
    decoded
}

fn symmetric(bits: u8, scope: Scope, scale: Dtype) -> Codec {
    Codec::Symmetric { bits, scope, scale }
}

#[test]
fn symmetric_by_published_numbers() {
    for scale in [Dtype::F32, Dtype::Bf16] {
        let codec = |bits| symmetric(bits, Scope::Sample, scale);
        assert_eq!(round_trip(codec(2), &VECTOR, 6), [0.5, -1.0, 0.5, -0.5, 0.0, 0.5]);
        assert_eq!(round_trip(codec(4), &VECTOR, 6), [0.875, -1.0, 0.25, -0.25, 0.0, 0.75]);
        let at = scale.bytes();
        assert_eq!(encode(codec(2), &VECTOR, 6).unwrap()[at..], [0b01_11_00_11, 0b11_10]);
        assert_eq!(encode(codec(4), &VECTOR, 6).unwrap()[at..], [0x0f, 0x6a, 0xe8]);
        assert_eq!(encode(codec(8), &VECTOR, 6).unwrap()[at..], [255, 0, 166, 95, 128, 223]);
    }
}

#[test]
fn min_max_by_published_numbers() {
    let codec = Codec::MinMax { bits: 2, tile: Tile::Batch };
    let third = 1.0f32 / 3.0;
    let decoded = round_trip(codec, &VECTOR, 6);
    let expected = [1.0, -1.0, third, -third, third, 1.0];
    assert!(decoded.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{decoded:?}");
    assert_eq!(encode(codec, &VECTOR, 6).unwrap()[8..], [0b01_10_00_11, 0b11_10]);
    // A constant batch has a grid of length 0, and is exact.
    for constant in [0.0, 0.1, -7e30] {
        assert_eq!(round_trip(codec, &[constant; 6], 3), [constant; 6]);
    }
}

#[test]
fn kept_counts_by_published_numbers() {
    for (features, density, keep) in [(10, 0.1, 1), (10, 0.3, 3), (100, 0.02, 2), (7, 0.5, 4), (65536, 0.05, 3277)] {
        assert_eq!(Codec::top_k(density, features, Dtype::F32), Ok(Codec::TopK { keep, values: Dtype::F32 }));
    }
    // The difference 1 − 1e-20 is rounded to 1.
    assert_eq!(Codec::top_k(1e-20, 7, Dtype::F32), Ok(Codec::TopK { keep: 1, values: Dtype::F32 }));
    assert_eq!(Codec::top_k(1e-9, 7, Dtype::F32), Ok(Codec::TopK { keep: 1, values: Dtype::F32 }));
    assert_eq!(Codec::top_k(1.0, 7, Dtype::F32), Ok(Codec::TopK { keep: 7, values: Dtype::F32 }));
    for density in [0.0, -1.0, 1.1, f64::NAN] {
        assert!(matches!(
            Codec::top_k(density, 7, Dtype::F32),
            Err(Error::Core(CoreError::Parameter { what: "density", .. }))
        ));
    }
}

/// TopK with a density of 1 changes no value. A grid with a level for each different value also changes none.
#[test]
fn everything_kept_is_the_identity() {
    let values = noise(60, 1);
    assert_eq!(round_trip(Codec::top_k(1.0, 20, Dtype::F32).unwrap(), &values, 20), values);
    assert_eq!(round_trip(Codec::Dense { values: Dtype::F32 }, &values, 20), values);
    let levels: Vec<f32> = (0..16).map(|i| i as f32).collect();
    let decoded = round_trip(Codec::MinMax { bits: 4, tile: Tile::Batch }, &levels, 16);
    assert!(decoded.iter().zip(&levels).all(|(y, x)| (y - x).abs() <= 2e-6), "{decoded:?}");
}

#[test]
fn zeros_are_sent_as_zeros() {
    for features in [1u32, 7, 520] {
        for codec in codecs(features) {
            let zeros = vec![0.0; 3 * features as usize];
            let decoded = round_trip(codec, &zeros, features as usize);
            assert!(decoded.iter().all(|x| x.to_bits() == 0), "{codec:?}");
        }
    }
}

/// Q-sym as in its authors' code, without the constant that they add to the scale.
fn textbook_symmetric(values: &[f32], features: usize, bits: u8, scope: Scope, scale: Dtype) -> Vec<f32> {
    let half = 2f32.powi(bits as i32 - 1);
    let group = |i: usize| match scope {
        Scope::Sample => i / features,
        Scope::Channel { channels } => i % features % channels as usize,
    };
    let decoded = (0..values.len()).map(|i| {
        let members = (0..values.len()).filter(|&j| group(j) == group(i));
        let largest = members.map(|j| values[j].abs()).fold(0.0, f32::max);
        let s = if scale == Dtype::F32 { largest } else { ::half::bf16::from_f32(largest).to_f32() };
        let s = s.min(if scale == Dtype::F32 { f32::MAX } else { ::half::bf16::MAX.to_f32() });
        let code = if s == 0.0 { 0.0 } else { (values[i] / s * half).round_ties_even() };
        code.clamp(-half, half - 1.0) / half * s
    });
    decoded.collect()
}

/// TopK in each sample, by a full sort.
fn textbook_top(values: &[f32], features: usize, keep: usize) -> Vec<f32> {
    let samples = values.chunks(features).flat_map(|sample| {
        let kept = &order(sample)[..keep];
        let decoded: Vec<f32> =
            sample.iter().enumerate().map(|(i, &x)| if kept.contains(&i) { x } else { 0.0 }).collect();
        decoded
    });
    samples.collect()
}

/// Asserts that every decoded value is on the tile's grid, at the level that is nearest to its input.
fn check_min_max(values: &[f32], decoded: &[f32], bits: u8) {
    let low = values.iter().copied().fold(f32::INFINITY, f32::min) as f64;
    let high = values.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
    let step = (high - low) / (2f64.powi(bits as i32) - 1.0);
    let slack = 1e-6 * low.abs().max(high.abs());
    for (&x, &y) in values.iter().zip(decoded) {
        let (x, y) = (x as f64, y as f64);
        assert!((x - y).abs() <= step * 0.500001 + slack, "{x} became {y} with steps of {step}");
        if step > 0.0 {
            let level = (y - low) / step;
            assert!((level - level.round()).abs() * step <= slack + 1e-9 * step, "{y} is not on the grid");
        }
        if x == low || x == high {
            assert_eq!(x, y);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(lgreco_testing::cases(200)))]

    #[test]
    fn textbook_codecs(
        samples in 1usize..5, features in 1usize..40, seed: u64, bits in 2u8..=8, exponent in -120i32..120,
        channels in 1u32..40, keep in 1usize..40, tile in 1u32..50,
    ) {
        let scale = 2f32.powi(exponent);
        let mut values = noise(samples * features, seed);
        values.iter_mut().for_each(|x| *x *= scale);
        for scale in [Dtype::F32, Dtype::Bf16] {
            let channels = (1..=channels).rev().find(|&c| features.is_multiple_of(c as usize)).unwrap();
            for scope in [Scope::Sample, Scope::Channel { channels }] {
                let expected = textbook_symmetric(&values, features, bits, scope, scale);
                let decoded = round_trip(symmetric(bits, scope, scale), &values, features);
                prop_assert!(decoded == expected, "{:?} {:?}: {:?}, {:?}", scope, scale, decoded, expected);
            }
        }
        let keep = keep.min(features);
        let top = Codec::TopK { keep: keep as u32, values: Dtype::F32 };
        prop_assert_eq!(round_trip(top, &values, features), textbook_top(&values, features, keep));
        check_min_max(&values, &round_trip(Codec::MinMax { bits, tile: Tile::Batch }, &values, features), bits);
        let tiles = round_trip(Codec::MinMax { bits, tile: Tile::Elements(tile) }, &values, features);
        for (sample, decoded) in values.chunks(features).zip(tiles.chunks(features)) {
            for (tile, decoded) in sample.chunks(tile as usize).zip(decoded.chunks(tile as usize)) {
                check_min_max(tile, decoded, bits);
            }
        }
    }

    /// If a codec compresses each sample independently, separate samples give the same values as a batch.
    #[test]
    fn samples_do_not_depend_on_each_other(features in 1usize..30, seed: u64) {
        let values = noise(3 * features, seed);
        for codec in codecs(features as u32) {
            if matches!(codec, Codec::MinMax { tile: Tile::Batch, .. } | Codec::Eden { .. })
                || matches!(codec, Codec::Symmetric { scope: Scope::Channel { .. }, .. }) {
                continue;
            }
            let apart: Vec<f32> = values.chunks(features).flat_map(|x| round_trip(codec, x, features)).collect();
            prop_assert_eq!(round_trip(codec, &values, features), apart);
        }
    }

    #[test]
    fn eight_bytes_name_a_codec(bytes: [u8; 8]) {
        let bytes = [bytes[0] % 7, bytes[1] % 10, bytes[2] % 4, bytes[3] % 3, bytes[4], bytes[5], bytes[6], bytes[7]];
        if let Some(codec) = Codec::from_bytes(bytes) {
            prop_assert_eq!(codec.to_bytes(), bytes);
        }
    }
}

#[test]
fn sixteen_bit_values_are_rounded_to_nearest() {
    let values = noise(40, 3);
    let halves: Vec<f32> = values.iter().map(|&x| F16::from_f32(x).to_f32()).collect();
    let brains: Vec<f32> = values.iter().map(|&x| Bf16::from_f32(x).to_f32()).collect();
    assert_eq!(round_trip(Codec::Dense { values: Dtype::F16 }, &values, 10), halves);
    assert_eq!(round_trip(Codec::Dense { values: Dtype::Bf16 }, &values, 10), brains);
    assert_eq!(round_trip(Codec::TopK { keep: 10, values: Dtype::Bf16 }, &values, 10), brains);
    // The error for a value that exceeds the largest f16 value names its position in the batch.
    for codec in [Codec::Dense { values: Dtype::F16 }, Codec::TopK { keep: 1, values: Dtype::F16 }] {
        let found = encode(codec, &[1.0, 2.0, 3.0, 4.0, 70000.0, 5.0], 3);
        assert_eq!(found, Err(Error::Core(CoreError::ElementOverflow { index: 4, value: 70000.0 })));
    }
}

#[test]
fn the_largest_and_the_smallest_numbers() {
    for codec in codecs(4) {
        if matches!(codec, Codec::TopK { values: Dtype::F16, .. } | Codec::Eden { .. }) {
            continue;
        }
        let large = [f32::MAX, -f32::MAX, 1.0, f32::MAX / 3.0];
        let small = large.map(|x| x * 1e-38 * 1e-38 * 4.0);
        for values in [large, small] {
            let decoded = round_trip(codec, &values, 4);
            let largest = values.iter().fold(0.0, |a: f32, x| a.max(x.abs()));
            assert!(decoded.iter().all(|x| x.abs() <= largest * 1.01 || x.abs() <= 1e-40), "{codec:?}: {decoded:?}");
        }
    }
}

/// A batch is sent as EDEN's payload of one tensor. The payload's seed is derived from the values.
#[test]
fn eden_sends_its_payload() {
    let (values, codec) = (noise(3 * 2000, 7), Codec::Eden { bits: 3 });
    let body = encode(codec, &values, 2000).unwrap();
    let payload = Payload::parse(&body).unwrap();
    assert_eq!((payload.header.method, payload.header.shape), (Method::Eden, Shape::new(3, 2000).unwrap()));
    let mut decoded = vec![0.0; 6000];
    decode(&body, &mut decoded).unwrap();
    assert_eq!(decoded, round_trip(codec, &values, 2000));
    let energy = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x * x)).sum::<f64>();
    let error = energy(&mut values.iter().zip(&decoded).map(|(a, b)| a - b)) / energy(&mut values.iter().copied());
    assert!((0.03..0.04).contains(&error), "{error}");
    let others: Vec<f32> = values.iter().map(|x| -x).collect();
    assert_ne!(encode(codec, &others, 2000).unwrap()[16..24], body[16..24], "other values, other signs");

    let (mut values, two) = ([0.0; 6], Codec::Eden { bits: 2 });
    let mut other_shape = encode(two, &[1.0; 6], 3).unwrap();
    let more_bits = encode(Codec::Eden { bits: 1 }, &[1.0; 6], 3).unwrap();
    let found = two.decode(&other_shape, 2, &[], &mut values);
    assert!(matches!(found, Err(Error::Core(CoreError::PayloadBody { .. }))), "{found:?}");
    other_shape[..16].copy_from_slice(&more_bits[..16]);
    let found = two.decode(&other_shape, 3, &[], &mut values);
    assert!(matches!(found, Err(Error::Core(CoreError::PayloadBody { .. }))), "{found:?}");
    let large = encode(two, &[f32::MAX; 4096], 4096);
    assert!(matches!(large, Err(Error::Core(CoreError::Overflow { .. }))), "{large:?}");
}

#[test]
fn what_is_not_finite_is_named() {
    for codec in codecs(3) {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let found = encode(codec, &[0.0, 1.0, 2.0, 3.0, bad, f32::NAN], 3);
            assert!(matches!(found, Err(Error::Core(CoreError::NonFinite { index: 4, .. }))), "{codec:?}: {found:?}");
        }
    }
}

#[test]
fn parameters_out_of_range_are_named() {
    let refused = |codec: Codec, what: &str| {
        let found = codec.body_len(2, 6);
        assert!(
            matches!(found, Err(Error::Core(CoreError::Parameter { what: found, .. })) if found == what),
            "{codec:?}: {found:?}"
        );
    };
    refused(symmetric(1, Scope::Sample, Dtype::F32), "bits of a symmetric quantiser");
    refused(symmetric(9, Scope::Sample, Dtype::F32), "bits of a symmetric quantiser");
    refused(symmetric(4, Scope::Sample, Dtype::F16), "type of the scales");
    refused(symmetric(4, Scope::Channel { channels: 4 }, Dtype::F32), "channels");
    refused(symmetric(4, Scope::Channel { channels: 0 }, Dtype::F32), "channels");
    refused(Codec::MinMax { bits: 0, tile: Tile::Batch }, "bits");
    refused(Codec::MinMax { bits: 9, tile: Tile::Elements(3) }, "bits");
    refused(Codec::MinMax { bits: 4, tile: Tile::Elements(0) }, "bucket size");
    refused(Codec::Eden { bits: 9 }, "bits");
    refused(Codec::TopK { keep: 7, values: Dtype::F32 }, "kept elements");
    refused(Codec::TopK { keep: 0, values: Dtype::F32 }, "kept elements");
    refused(Codec::SharedIndex { keep: 7, values: Dtype::F32 }, "kept elements");
    let none = Codec::Dense { values: Dtype::F32 }.check(0);
    assert!(matches!(none, Err(Error::Core(CoreError::Parameter { what: "features", .. }))));
}

#[test]
fn strange_bodies_are_refused() {
    let per_sample = symmetric(3, Scope::Sample, Dtype::F32);
    let mut values = [0.0; 3];
    let mut refused = |codec: Codec, at: usize, bytes: &[u8]| {
        let mut body = encode(codec, &[1.0, 2.0, -3.0], 3).unwrap();
        codec.decode(&body, 3, &[], &mut values).unwrap();
        body[at..at + bytes.len()].copy_from_slice(bytes);
        let found = codec.decode(&body, 3, &[], &mut values);
        assert!(matches!(found, Err(Error::Core(CoreError::PayloadBody { .. }))), "{codec:?} byte {at}: {found:?}");
    };
    refused(per_sample, 0, &f32::NAN.to_le_bytes());
    refused(per_sample, 0, &f32::INFINITY.to_le_bytes());
    refused(per_sample, 0, &(-1f32).to_le_bytes());
    refused(per_sample, 0, &(-0f32).to_le_bytes());
    refused(per_sample, 5, &[0x02 | 0x80]);
    refused(symmetric(3, Scope::Sample, Dtype::Bf16), 0, &[0x80, 0x7f]);
    refused(Codec::MinMax { bits: 3, tile: Tile::Batch }, 9, &[0x80]);
    refused(Codec::Dense { values: Dtype::F32 }, 4, &f32::NAN.to_le_bytes());
    refused(Codec::TopK { keep: 2, values: Dtype::F32 }, 8, &[0b111]);
    for codec in codecs(3) {
        let body = encode(codec, &[1.0, 2.0, -3.0], 3).unwrap();
        for len in 0..body.len() {
            assert!(matches!(
                codec.decode(&body[..len], 3, &[], &mut [0.0; 3]),
                Err(Error::Core(CoreError::Length { .. }))
            ));
        }
    }
}
