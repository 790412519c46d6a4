//! One check per fuzz target: any bytes become an instance, and its properties are asserted.
//!
//! Plain tests replay committed bytes through the same functions.

use super::tables::Instance;
use super::{adacomp, loco, oracle, plans, powersgd, qsgd, topk};
use crate::Error;
use crate::compress::dense::Dense;
use crate::compress::wire::Payload;
use crate::compress::{Compressor, decode, stated_len};
use crate::gradient::{Bf16, Element, F16, Gradient, Shape, Values};
use crate::plan::exact::Limits;
use crate::rng::Stream;
use alloc::{vec, vec::Vec};

/// Every solver on one table: what all of them promise, and for the exact one that trying every plan finds none smaller.
///
/// # Panics
/// When a property does not hold.
pub fn planner(bytes: &[u8]) {
    let instance = Instance::from_bytes(bytes, 5, 5);
    plans::check_solvers(&instance);
    for levels in [1, 2 + bytes.len() as u32 % 100] {
        plans::check_dp(&instance, levels);
    }
    let (table, budget) = (instance.table(), instance.budget);
    let optimum = oracle::exhaustive(&table, budget);
    for states in [0, 16, 1 << 12] {
        oracle::check_against(&table, budget, Limits { states }, optimum);
    }
}

/// The payload parsers: any bytes decode to finite values or are refused, and only into as many values as the header
/// states.
///
/// # Panics
/// When a property does not hold.
pub fn payload(bytes: &[u8]) {
    qsgd::check_payload(bytes);
    topk::check_payload(bytes);
    adacomp::check_payload(bytes);
    loco::check_payload(bytes);
    powersgd::check_hostile(bytes);
    let Ok(payload) = Payload::parse(bytes) else {
        return assert!(decode(bytes, &mut []).is_err());
    };
    let elements = payload.header.shape.elements();
    if elements > 1 << 16 {
        return;
    }
    let mut values = vec![f32::NAN; elements];
    if let Ok(header) = decode(bytes, &mut values) {
        assert_eq!(header, payload.header);
        assert_eq!(stated_len(bytes), Ok(bytes.len()), "the header states the length");
        assert!(values.iter().all(|value| value.is_finite()));
        assert!(matches!(decode(&bytes[..bytes.len() - 1], &mut values), Err(Error::Length { .. })));
    }
    values.push(0.0);
    assert!(decode(bytes, &mut values).is_err());
}

/// Dense payloads of any bit patterns in each element type: exact values back, or the first that is not finite named.
///
/// # Panics
/// When a property does not hold.
pub fn dense(bytes: &[u8]) {
    let single: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
    let words = || bytes.as_chunks::<2>().0.iter().map(|&bytes| u16::from_le_bytes(bytes));
    let (half, brain): (Vec<F16>, Vec<Bf16>) = (words().map(F16).collect(), words().map(Bf16).collect());
    dense_round_trip(Values::F32(&single), &single);
    dense_round_trip(Values::F16(&half), &half.iter().map(|value| value.to_f32()).collect::<Vec<_>>());
    dense_round_trip(Values::Bf16(&brain), &brain.iter().map(|value| value.to_f32()).collect::<Vec<_>>());
}

fn dense_round_trip(values: Values<'_>, expected: &[f32]) {
    let shape = Shape::new(expected.len(), 1).expect("few elements");
    let gradient = Gradient::new(values, shape).expect("as many values as elements");
    let mut payload = vec![0xa5; Dense.payload_len(shape, values.dtype()).expect("any shape has a size")];
    let result = Dense.encode(&gradient, Stream::default(), &mut [], &mut payload);
    if let Some(offender) = expected.iter().position(|value| !value.is_finite()) {
        return assert!(matches!(result, Err(Error::NonFinite { index, .. }) if index == offender));
    }
    assert_eq!(result, Ok(payload.len()));
    let mut decoded = vec![f32::NAN; expected.len()];
    decode(&payload, &mut decoded).expect("our payload");
    assert!(decoded.iter().zip(expected).all(|(found, expected)| found.to_bits() == expected.to_bits()));
}

/// TopK on any bit patterns: against a full sort, in every element type and kept type, at several k.
///
/// # Panics
/// When a property does not hold.
pub fn topk(bytes: &[u8]) {
    let Some((&[a, b], rest)) = bytes.split_first_chunk::<2>() else { return };
    let bits: Vec<u32> = rest.as_chunks::<4>().0.iter().take(300).map(|&bytes| u32::from_le_bytes(bytes)).collect();
    let len = bits.len() as u32;
    match len {
        0 => topk::check_all_types(&bits, &[0]),
        _ => topk::check_all_types(&bits, &[1 + u32::from(a) % len, 1 + u32::from(b) % len, len]),
    }
}

/// PowerSGD on small integer matrices, scaled by any power of two from 2^-100 to 2^100, with zero and dependent columns
/// where the bytes run out: the row is that of real encodes, ranks nest, the public steps make the same payload.
///
/// # Panics
/// When a property does not hold.
pub fn powersgd(bytes: &[u8]) {
    let Some((&[rows, cols, exponent, options], rest)) = bytes.split_first_chunk::<4>() else { return };
    let shape = Shape::new(usize::from(rows % 14), usize::from(cols % 14)).expect("a small matrix");
    let scale = f32::from_bits((27 + u32::from(exponent) % 201) << 23);
    let mut bytes = rest.iter().copied();
    let values: Vec<f32> = (0..shape.elements()).map(|_| f32::from(bytes.next().unwrap_or(0) as i8) * scale).collect();
    let gradient = powersgd::gradient(&values, shape);
    let iterations = 1 + u32::from(options) % 5;
    let stream = Stream { seed: u64::from(options), ..Stream::default() };
    let ranks: Vec<u32> = (1..=16).collect();
    powersgd::check_row(&gradient, &ranks, iterations, stream);
    powersgd::check_nested(&gradient, 1 + u32::from(options) % 3, 9, iterations, stream);
    powersgd::check_steps(&gradient, 1 + u32::from(options) % 16, stream);
    let zero = values.iter().all(|&value| value == 0.0);
    let trip = powersgd::round_trip(&gradient, crate::compress::powersgd::PowerSgd { rank: 3, iterations }, stream);
    let decoded = trip.expect("a finite gradient").decoded;
    assert!(!zero || decoded.iter().all(|&value| value == 0.0), "zeros round-trip to zeros");
}
