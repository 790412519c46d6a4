//! One check per fuzz target: it makes an instance from arbitrary bytes, and asserts properties of this instance.
//!
//! Plain tests replay committed bytes through the same functions.

use super::tables::Instance;
use super::{adacomp, loco, oracle, plans, powersgd, qsgd, quantised_topk, topk};
use lgreco::Error;
use lgreco::compress::dense::Dense;
use lgreco::compress::powersgd::PowerSgd;
use lgreco::compress::wire::Payload;
use lgreco::compress::{Compressor, decode, stated_len};
use lgreco::gradient::{Bf16, Element, F16, Gradient, Shape, Values};
use lgreco::plan::exact::Limits;
use lgreco::rng::Stream;

/// Checks the solvers on one table. The number of bytes selects the check: properties of all solvers, properties of
/// dynamic programming, or the exact plan against an exhaustive search.
///
/// # Panics
/// Panics if the check fails.
pub fn planner(bytes: &[u8]) {
    let instance = Instance::from_bytes(bytes, 5, 5);
    let against_all = |states| {
        let table = instance.table();
        for limit in instance.limits() {
            oracle::check_against(&table, limit, Limits { states }, oracle::exhaustive(&table, limit));
        }
    };
    match bytes.len() % 8 {
        0 => plans::check_solvers(&instance),
        1 => plans::check_dp(&instance, 1),
        2 => plans::check_dp(&instance, 2 + bytes.len() as u32 % 100),
        3 => against_all(1 << 12),
        4 | 5 => against_all(16),
        _ => against_all(0),
    }
}

/// Largest number of elements of a payload that is decoded.
const MOST_ELEMENTS: usize = 1 << 12;

/// Checks the payload parsers. Arbitrary bytes must decode to finite values or be refused. Decoding must succeed only
/// into the number of values that the header states.
///
/// # Panics
/// Panics if a check fails.
pub fn payload(bytes: &[u8]) {
    if Payload::parse(bytes).is_ok_and(|payload| payload.header.shape.elements() > MOST_ELEMENTS) {
        return assert!(decode(bytes, &mut []).is_err());
    }
    qsgd::check_payload(bytes);
    topk::check_payload(bytes);
    adacomp::check_payload(bytes);
    loco::check_payload(bytes);
    quantised_topk::check_payload(bytes);
    powersgd::check_hostile(bytes);
    let Ok(payload) = Payload::parse(bytes) else {
        return assert!(decode(bytes, &mut []).is_err());
    };
    let mut values = vec![f32::NAN; payload.header.shape.elements()];
    if let Ok(header) = decode(bytes, &mut values) {
        assert_eq!(header, payload.header);
        assert_eq!(stated_len(bytes), Ok(bytes.len()), "the header states the length");
        assert!(values.iter().all(|value| value.is_finite()));
        assert!(matches!(decode(&bytes[..bytes.len() - 1], &mut values), Err(Error::Length { .. })));
    }
    values.push(0.0);
    assert!(decode(bytes, &mut values).is_err());
}

/// Checks dense payloads of any bit patterns in each element type. Decoding must return the exact values, or encoding
/// must name the first value that is not finite.
///
/// # Panics
/// Panics if a check fails.
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

/// Checks TopK on any bit patterns against a full sort, in one element type and one value type, at several k.
///
/// # Panics
/// Panics if a check fails.
pub fn topk(bytes: &[u8]) {
    let Some((&[a, b], rest)) = bytes.split_first_chunk::<2>() else { return };
    let bits: Vec<u32> = rest.as_chunks::<4>().0.iter().take(300).map(|&bytes| u32::from_le_bytes(bytes)).collect();
    let len = bits.len() as u32;
    match len {
        0 => topk::check_all_types(&bits, &[0]),
        _ => {
            let types = (usize::from(a) / 3 + 3 * (usize::from(b) % 3)) % 9;
            topk::check_types(&bits, &[1 + u32::from(a) % len, 1 + u32::from(b) % len, len], types);
        }
    }
}

/// Checks PowerSGD on small integer matrices, scaled by any power of two from 2^-100 to 2^100. After the last byte,
/// values are zeros, so columns may be zero or dependent. The bytes choose one of these four checks. The measured row
/// equals the errors of encoded payloads. A smaller rank's factors are the first factors of a larger rank. The public
/// steps give the values of the payload. Only a matrix of zeros decodes to zeros.
///
/// # Panics
/// Panics if the check fails.
pub fn powersgd(bytes: &[u8]) {
    let Some((&[rows, cols, exponent, options], rest)) = bytes.split_first_chunk::<4>() else { return };
    let shape = Shape::new(usize::from(rows % 14), usize::from(cols % 14)).expect("a small matrix");
    let scale = f32::from_bits((27 + u32::from(exponent) % 201) << 23);
    let mut bytes = rest.iter().copied();
    let values: Vec<f32> = (0..shape.elements()).map(|_| f32::from(bytes.next().unwrap_or(0) as i8) * scale).collect();
    let gradient = powersgd::gradient(&values, shape);
    let (iterations, rank) = (1 + u32::from(options) % 5, 1 + u32::from(options / 5) % 16);
    let stream = Stream { seed: u64::from(options), ..Stream::default() };
    match rows / 14 % 4 {
        0 => powersgd::check_row(&gradient, &[rank, 1 + rank / 2], iterations, stream),
        1 => powersgd::check_nested(&gradient, 1 + rank / 2, rank, iterations, stream),
        2 => powersgd::check_steps(&gradient, rank, stream),
        _ => {
            let trip = powersgd::round_trip(&gradient, PowerSgd { rank, iterations }, stream);
            let decoded = trip.expect("a finite gradient").decoded;
            assert!(decoded.iter().all(|value| value.is_finite()));
            let is_zero = |values: &[f32]| values.iter().all(|&value| value == 0.0);
            assert_eq!(is_zero(&decoded), is_zero(&values));
        }
    }
}
