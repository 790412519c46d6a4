//! Tests a payload byte by byte, and the decoder on bytes that no encoder writes.

use super::*;
use proptest::prelude::*;

#[test]
fn golden_payload() {
    let values = [1.0, -2.0, 0.5, 0.25, 3.0, -0.125, 0.0, 1.5, -1.0, 4.0];
    let gradient = Gradient::new(Values::F32(&values), Shape::new(2, 5).unwrap()).unwrap();
    let expected = [
        76, 1, 10, 0, 3, 0, 0, 0, 2, 0, 0, 0, 5, 0, 0, 0, // header
        220, 78, 68, 11, 42, 145, 43, 122, // seed
        100, 154, 181, 63, 6, 51, 43, 64, // scales of 8 and of 2 values
        67, 194, 194, 21, // codes
    ];
    assert_eq!(encoded(&gradient, Eden::default(), stream(1)).unwrap(), expected);
}

#[test]
fn lengths_are_as_documented() {
    for (elements, blocks) in [(0, 0), (1, 1), (7, 3), (1000, 6), (4095, 12), (4096, 1), (8192 + 10, 4)] {
        for bits in 1..=8u8 {
            let len = Eden { bits, ..Eden::default() }.payload_len(Shape::new(elements, 1).unwrap(), Dtype::Bf16);
            assert_eq!(len, Ok(16 + 8 + 4 * blocks + (elements * bits as usize).div_ceil(8)));
        }
    }
}

#[test]
fn headers_and_scales_that_no_encoder_writes_are_refused() {
    let payload = encoded(&column(&gaussian(37, 0)), Eden::default(), stream(0)).unwrap();
    let with = |at: usize, bytes: &[u8]| {
        let mut payload = payload.clone();
        payload[at..at + bytes.len()].copy_from_slice(bytes);
        decoded(&payload)
    };
    assert!(matches!(with(2, &[9]), Err(Error::PayloadField { what: "method", .. })));
    assert!(matches!(with(3, &[1]), Err(Error::PayloadHeader { what: "variant", .. })));
    for bits in [0u32, 9, 256 + 3, u32::MAX] {
        assert!(matches!(with(4, &bits.to_le_bytes()), Err(Error::Parameter { what: "bits", .. })), "{bits}");
    }
    assert!(matches!(with(4, &[4]), Err(Error::Length { .. })));
    for (block, scale) in (0..3).flat_map(|block| [-1.0, -0.0, f32::INFINITY, f32::NAN].map(|scale| (block, scale))) {
        assert!(matches!(with(24 + 4 * block, &scale.to_le_bytes()), Err(Error::PayloadBody { .. })), "{scale}");
    }
    for block in 0..3 {
        let found = with(24 + 4 * block, &f32::MAX.to_le_bytes());
        assert!(matches!(found, Err(Error::Overflow { .. }) | Ok(_)), "{block}");
    }
    assert!(matches!(with(24, &f32::MAX.to_le_bytes()), Err(Error::Overflow { .. })));
    // 37 codes of 3 bits leave one bit unused.
    assert!(matches!(with(payload.len() - 1, &[0x80]), Err(Error::PayloadBody { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn damaged_payloads_decode_to_finite_values_or_not_at_all(
        elements in prop_oneof![0usize..200, 4000usize..4300],
        bits in 1u8..=8,
        rank: u32,
        flipped: prop::sample::Index,
        cut: prop::sample::Index,
    ) {
        let eden = Eden { bits, ..Eden::default() };
        let payload = encoded(&column(&gaussian(elements, rank)), eden, stream(rank)).unwrap();
        prop_assert!(decoded(&payload[..cut.index(payload.len())]).is_err());
        let mut damaged = payload.clone();
        let bit = flipped.index(8 * payload.len());
        damaged[bit / 8] ^= 1 << (bit % 8);
        // A damaged header may state a huge tensor.
        let len = Payload::parse(&damaged).map_or(0, |payload| payload.header.shape.elements());
        if len < 1 << 20 && let Ok(values) = decoded(&damaged) {
            prop_assert!(values.iter().all(|x| x.is_finite()));
        }
    }
}

#[test]
fn every_bit_may_be_flipped_and_every_byte_cut_off() {
    let payload = encoded(&column(&gaussian(77, 0)), Eden { bits: 2, ..Eden::default() }, stream(0)).unwrap();
    for len in 0..payload.len() {
        assert!(decoded(&payload[..len]).is_err(), "{len} bytes");
    }
    let mut values = [0.0; 77];
    for bit in 0..8 * payload.len() {
        let mut damaged = payload.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        if decode(&damaged, &mut values).is_ok() {
            assert!(bit >= 8 * HEADER_LEN && values.iter().all(|x| x.is_finite()), "bit {bit}");
        }
    }
}
