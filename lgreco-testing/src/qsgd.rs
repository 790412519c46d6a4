//! An implementation of QSGD that follows its documentation, one element at a time. Checks
//! [`compress::qsgd`](lgreco::compress::qsgd) against it.

use lgreco::Error;
use lgreco::compress::qsgd::{self, Qsgd, Rounding, Scale};
use lgreco::compress::{Compressor, wire::Payload};
use lgreco::gradient::{Bf16, Element, F16, Gradient, Shape, Values};
use lgreco::rng::Stream;

/// 2^23, the fixed-point representation of 1.
const UNIT: f64 = 8388608.0;

/// 2^`exponent`, for a normal number.
pub const fn power_of_two(exponent: i64) -> f64 {
    f64::from_bits(((1023 + exponent) as u64) << 52)
}

fn square(x: f64) -> f64 {
    x * x
}

/// A bucket: its ends, and the grid positions of its values in units of 2^-23 grid lengths.
struct Bucket {
    low: f32,
    high: f32,
    positions: Vec<u64>,
}

fn sign_magnitude(qsgd: Qsgd) -> bool {
    qsgd.scale == Scale::MaxNorm && qsgd.bits > 1
}

/// `s`, the last level.
fn last_level(qsgd: Qsgd) -> u64 {
    let bits = if sign_magnitude(qsgd) { qsgd.bits - 1 } else { qsgd.bits };
    (1 << bits) - 1
}

/// Steps 1 and 2 of the numerics in the documentation of [`qsgd`].
fn bucket(values: &[f32], qsgd: Qsgd) -> Bucket {
    let norm = values.iter().fold(0f32, |a, b| a.max(b.abs()));
    let (low, high) = match qsgd.scale {
        Scale::MaxNorm if sign_magnitude(qsgd) => (0.0, norm),
        Scale::MaxNorm => (-norm, norm),
        Scale::MinMax => (
            values.iter().fold(f32::INFINITY, |a, &b| a.min(b)) + 0.0,
            values.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b)) + 0.0,
        ),
    };
    let mut power = 1f64;
    while norm as f64 * power >= 2.0 && power > power_of_two(-126) {
        power /= 2.0;
    }
    while (norm as f64 * power) < 1.0 && power < power_of_two(127) {
        power *= 2.0;
    }
    let scaled = |x: f32| (x as f64 * power) as f32;
    let length = scaled(high) - scaled(low);
    let reciprocal = if length == 0.0 { 0.0 } else { (1.0 / length as f64) as f32 };
    let positions = values.iter().map(|&value| {
        let value = if sign_magnitude(qsgd) { value.abs() } else { value };
        let part = (scaled(value) - scaled(low)) * reciprocal;
        // In this range, adjacent f64 numbers are 1 apart, so the sum is rounded to an integer, ties to even.
        (part as f64 * UNIT + power_of_two(52) - power_of_two(52)) as u64
    });
    Bucket { low, high, positions: positions.collect() }
}

/// The payload of finite `values`, bit by bit.
///
/// ```
/// use lgreco::compress::{Compressor, qsgd::Qsgd};
/// use lgreco::gradient::{Gradient, Shape, Values};
/// use lgreco::rng::Stream;
/// use lgreco_testing::qsgd::encode;
/// let (values, shape) = ([0.5, -1.0, 0.0, 0.25], Shape::new(2, 2)?);
/// let mut payload = [0; 22];
/// let gradient = Gradient::new(Values::F32(&values), shape)?;
/// Qsgd::default().encode(&gradient, Stream::default(), &mut [], &mut payload)?;
/// assert_eq!(encode(&values, shape, Qsgd::default(), Stream::default()), payload);
/// # Ok::<(), lgreco::Error>(())
/// ```
pub fn encode(values: &[f32], shape: Shape, qsgd: Qsgd, stream: Stream) -> Vec<u8> {
    let mut bytes = Vec::from([b'L', 1, 1, (qsgd.bits - 1) + if qsgd.scale == Scale::MinMax { 8 } else { 0 }]);
    for word in [qsgd.bucket, shape.rows() as u32, shape.cols() as u32] {
        bytes.extend(word.to_le_bytes());
    }
    let mut code_bits = Vec::new();
    for (index, chunk) in values.chunks(qsgd.bucket as usize).enumerate() {
        let bucket = bucket(chunk, qsgd);
        if qsgd.scale == Scale::MinMax {
            bytes.extend(bucket.low.to_le_bytes());
        }
        bytes.extend(bucket.high.to_le_bytes());
        for (i, (&value, &position)) in chunk.iter().zip(&bucket.positions).enumerate() {
            let addend = match qsgd.rounding {
                Rounding::Nearest => 1 << 22,
                Rounding::Stochastic => stream.word(index as u64 * qsgd.bucket as u64 + i as u64) as u64 / 512,
            };
            let mut code = (position * last_level(qsgd) + addend) / (1 << 23);
            if sign_magnitude(qsgd) && value.is_sign_negative() {
                code += 1 << (qsgd.bits - 1);
            }
            code_bits.extend((0..qsgd.bits).map(|bit| (code >> bit) as u8 & 1));
        }
    }
    bytes.extend(code_bits.chunks(8).map(|bits| bits.iter().enumerate().map(|(i, bit)| bit << i).sum::<u8>()));
    bytes
}

/// The value that level `level` of a bucket represents, or its magnitude if signs are sent separately.
fn point(level: u64, low: f32, high: f32, qsgd: Qsgd) -> f32 {
    let part = level as f32 * (1.0 / last_level(qsgd) as f32);
    if sign_magnitude(qsgd) { part * high } else { low * (1.0 - part) + high * part }
}

/// The values that the codes of a well-formed payload represent.
///
/// ```
/// use lgreco::{compress::qsgd::{Qsgd, Scale}, gradient::Shape, rng::Stream};
/// use lgreco_testing::qsgd;
/// let one_bit = Qsgd { bits: 1, scale: Scale::MinMax, ..Qsgd::default() };
/// let payload = qsgd::encode(&[3.0, -1.0], Shape::new(2, 1)?, one_bit, Stream::default());
/// assert_eq!(qsgd::decode(&payload, 2, one_bit), [3.0, -1.0]);
/// # Ok::<(), lgreco::Error>(())
/// ```
pub fn decode(bytes: &[u8], elements: usize, qsgd: Qsgd) -> Vec<f32> {
    let float = |at: usize| f32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let per_bucket = if qsgd.scale == Scale::MinMax { 8 } else { 4 };
    let codes_at = 16 + elements.div_ceil(qsgd.bucket as usize) * per_bucket;
    let code = |i: usize| {
        let bit = |at: usize| (bytes[codes_at + at / 8] >> (at % 8)) as u64 & 1;
        (0..qsgd.bits as usize).map(|b| bit(i * qsgd.bits as usize + b) << b).sum::<u64>()
    };
    let values = (0..elements).map(|i| {
        let scale_at = 16 + i / qsgd.bucket as usize * per_bucket;
        let (low, high) = match qsgd.scale {
            Scale::MinMax => (float(scale_at), float(scale_at + 4)),
            Scale::MaxNorm => (-float(scale_at), float(scale_at)),
        };
        let magnitude_codes = last_level(qsgd) + 1;
        if sign_magnitude(qsgd) && code(i) >= magnitude_codes {
            -point(code(i) - magnitude_codes, low, high, qsgd)
        } else {
            point(code(i), low, high, qsgd)
        }
    });
    values.collect()
}

/// The expected squared error of encoding and decoding, and a tolerance. The tolerance bounds how far f32 arithmetic
/// may move the measured row. The tolerance covers the decoder's rounding, relative to the distance of two levels, and
/// the encoder's position on the grid.
///
/// ```
/// use lgreco::compress::qsgd::Qsgd;
/// use lgreco_testing::qsgd::squared_error;
/// let (error, tolerance) = squared_error(&[1.0, 0.25], Qsgd { bits: 2, ..Qsgd::default() });
/// assert!((error - 0.25 * 0.75).abs() <= tolerance && tolerance < 1e-5);
/// ```
pub fn squared_error(values: &[f32], qsgd: Qsgd) -> (f64, f64) {
    let (mut error, mut tolerance) = (0.0, 0.0);
    let s = last_level(qsgd);
    for chunk in values.chunks(qsgd.bucket as usize) {
        let bucket = bucket(chunk, qsgd);
        let length = bucket.high as f64 - bucket.low as f64;
        for (&value, &position) in chunk.iter().zip(&bucket.positions) {
            let value = (if sign_magnitude(qsgd) { value.abs() } else { value }) as f64;
            let residual = |level| square(point(level, bucket.low, bucket.high, qsgd) as f64 - value);
            error += match qsgd.rounding {
                Rounding::Nearest => residual((position * s + (1 << 22)) >> 23),
                Rounding::Stochastic => {
                    let part = ((position * s) % (1 << 23)) as f64 / UNIT;
                    let above = if part > 0.0 { part * residual(((position * s) >> 23) + 1) } else { 0.0 };
                    (1.0 - part) * residual((position * s) >> 23) + above
                }
            };
            tolerance += square(length * power_of_two(-22));
        }
    }
    let relative = match qsgd.rounding {
        Rounding::Nearest => 2e-6,
        Rounding::Stochastic => 2e-6 + s as f64 * power_of_two(-21),
    };
    (error, tolerance + relative * error)
}

/// Bound on the error of a row that ignores the rounding of decoded values to subnormal numbers.
///
/// ```
/// use lgreco::compress::qsgd::Qsgd;
/// use lgreco_testing::qsgd::subnormal_rounding;
/// assert!(subnormal_rounding(&[1.0, 0.25], Qsgd::default()) < 1e-44);
/// ```
pub fn subnormal_rounding(values: &[f32], qsgd: Qsgd) -> f64 {
    let buckets = values.chunks(qsgd.bucket as usize).map(|chunk| {
        let Bucket { low, high, .. } = bucket(chunk, qsgd);
        let step = (high as f64 - low as f64) / last_level(qsgd) as f64;
        chunk.len() as f64 * (step * power_of_two(-148) + power_of_two(-298))
    });
    buckets.sum()
}

/// Checks a gradient of finite values against the functions above: payload bytes and their number, decoded values, and
/// the row of all eight widths. Bytes after the payload must stay unchanged.
///
/// # Panics
/// Panics if a check fails.
pub fn check_gradient(gradient: &Gradient<'_>, qsgd: Qsgd, stream: Stream) {
    let values = widened(gradient.values());
    let shape = gradient.shape();
    let length = qsgd.payload_len(shape, gradient.values().dtype()).unwrap();
    let mut payload = vec![0xa5; length + 9];
    assert_eq!(qsgd.encode(gradient, stream, &mut [], &mut payload), Ok(length));
    assert!(payload[length..].iter().all(|&byte| byte == 0xa5), "wrote past the payload");
    payload.truncate(length);
    assert_eq!(payload, encode(&values, shape, qsgd, stream), "{qsgd:?}");
    let short = qsgd.encode(gradient, stream, &mut [], &mut payload.clone()[..length - 1]);
    assert!(matches!(short, Err(Error::Length { .. })), "{short:?}");

    let parsed = Payload::parse(&payload).unwrap();
    assert_eq!(qsgd::of_payload(&parsed), Ok(Qsgd { rounding: Rounding::Nearest, ..qsgd }));
    let mut decoded = vec![f32::NAN; values.len()];
    qsgd::decode(&parsed, &mut decoded).unwrap();
    assert_eq!(decoded, decode(&payload, values.len(), qsgd), "{qsgd:?}");
    check_ends(&values, &decoded, qsgd);

    let widths = [8, 7, 6, 5, 4, 3, 2, 1];
    let mut row = [f64::NAN; 8];
    qsgd::measure(gradient, Qsgd { bits: 0, ..qsgd }, &widths, &mut row).unwrap();
    for (bits, measured) in widths.into_iter().zip(row) {
        let (error, tolerance) = squared_error(&values, Qsgd { bits, ..qsgd });
        assert!((measured - error).abs() <= tolerance, "{bits} bits of {qsgd:?}: {measured:e}, not {error:e}");
    }
}

/// Checks that values at the ends of their bucket's interval decode exactly. Apart from rounding in f32, no other value
/// may move by more than one step of the grid, or half a step with rounding to nearest.
fn check_ends(values: &[f32], decoded: &[f32], qsgd: Qsgd) {
    for (values, decoded) in values.chunks(qsgd.bucket as usize).zip(decoded.chunks(qsgd.bucket as usize)) {
        let bucket = bucket(values, qsgd);
        let step = (bucket.high as f64 - bucket.low as f64) / last_level(qsgd) as f64;
        let largest = bucket.high.max(-bucket.low) as f64;
        let reach = step * if qsgd.rounding == Rounding::Nearest { 0.5 } else { 1.0 };
        for (&value, &decoded) in values.iter().zip(decoded) {
            let is_end = match qsgd.scale {
                Scale::MaxNorm => value.abs() == bucket.high,
                Scale::MinMax => value == bucket.low || value == bucket.high,
            };
            let limit =
                if is_end { 0.0 } else { reach * (1.0 + 1e-4) + largest * power_of_two(-22) + power_of_two(-149) };
            let moved = (value as f64 - decoded as f64).abs();
            assert!(moved <= limit, "{value:e} became {decoded:e}, {qsgd:?}");
        }
    }
}

/// Checks averages over `trials` random streams. The average squared error of encoding and decoding must be the
/// measured one, and the average error must be zero, both within five standard deviations.
///
/// # Panics
/// Panics if a check fails.
pub fn check_averages(values: &[f32], qsgd: Qsgd, trials: u32) {
    let shape = Shape::new(values.len(), 1).unwrap();
    let gradient = Gradient::new(Values::F32(values), shape).unwrap();
    let mut expected = [0.0];
    qsgd::measure(&gradient, qsgd, &[qsgd.bits], &mut expected).unwrap();
    let mut payload = vec![0; qsgd.payload_len(shape, gradient.values().dtype()).unwrap()];
    let mut decoded = vec![0.0; values.len()];
    // Per trial: squared error, error, and error weighted by the value, which reveals a shrinking or growing bias.
    let mut samples: [Vec<f64>; 3] = Default::default();
    for step in 0..trials {
        qsgd.encode(&gradient, Stream { seed: 99, step, layer: 3, rank: 1 }, &mut [], &mut payload).unwrap();
        qsgd::decode(&Payload::parse(&payload).unwrap(), &mut decoded).unwrap();
        let errors = || values.iter().zip(&decoded).map(|(&a, &b)| (a as f64, b as f64 - a as f64));
        samples[0].push(errors().map(|(_, error)| error * error).sum());
        samples[1].push(errors().map(|(_, error)| error).sum());
        samples[2].push(errors().map(|(value, error)| value * error).sum());
    }
    for (samples, (what, expected)) in
        samples.iter().zip([("squared error", expected[0]), ("error", 0.0), ("weighted error", 0.0)])
    {
        let n = samples.len() as f64;
        let mean = samples.iter().sum::<f64>() / n;
        let variance = samples.iter().map(|x| square(x - mean)).sum::<f64>() / (n - 1.0);
        let sigmas = (mean - expected) / f64::sqrt(variance / n);
        assert!(sigmas.abs() < 5.0, "{what} of {qsgd:?}: mean {mean:e}, expected {expected:e}, {sigmas} sigma");
    }
}

/// Decodes arbitrary bytes: the result must be an error or finite values, never a panic. [`qsgd::of_payload`] must
/// agree.
///
/// # Panics
/// Panics if a check fails.
pub fn check_payload(bytes: &[u8]) {
    let Ok(payload) = Payload::parse(bytes) else { return };
    // A code takes at least one bit, so a valid payload has at most 8 elements per byte. So the check never allocates
    // memory for more elements, whatever the header says.
    let elements = payload.header.shape.elements().min(8 * payload.body.len());
    let mut values = vec![0.0; elements];
    let decoded = qsgd::decode(&payload, &mut values);
    let described = qsgd::of_payload(&payload).map(|_| ());
    if elements == payload.header.shape.elements() {
        assert_eq!(described, decoded);
    } else {
        assert!(described.is_err() && decoded.is_err(), "{described:?}, {decoded:?}");
    }
    if decoded.is_ok() {
        assert!(values.iter().all(|value| value.is_finite()));
    }
}

/// Takes parameters and values from arbitrary bytes and runs [`check_gradient`]. If the values contain NaN or infinity,
/// encoding must name the first one instead.
///
/// # Panics
/// Panics if a check fails.
pub fn check_round_trip(bytes: &[u8]) {
    let Some((&[a, b, c, d], rest)) = bytes.split_first_chunk::<4>() else { return };
    let qsgd = Qsgd {
        bits: a % 8 + 1,
        bucket: u32::from_le_bytes([b, c & 7, 0, 0]).max(1),
        scale: if a & 8 == 0 { Scale::MaxNorm } else { Scale::MinMax },
        rounding: if a & 16 == 0 { Rounding::Nearest } else { Rounding::Stochastic },
    };
    let stream = Stream { seed: c as u64, step: d as u32, layer: b as u32, rank: 0 };
    let words = || rest.as_chunks::<2>().0.iter().map(|&bytes| u16::from_le_bytes(bytes));
    match d % 3 {
        0 => {
            let values: Vec<f32> = rest.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
            check_any(Values::F32(&values), qsgd, stream);
        }
        1 => check_any(Values::F16(&words().map(F16).collect::<Vec<_>>()), qsgd, stream),
        _ => check_any(Values::Bf16(&words().map(Bf16).collect::<Vec<_>>()), qsgd, stream),
    }
}

fn check_any(values: Values<'_>, qsgd: Qsgd, stream: Stream) {
    let gradient = Gradient::new(values, Shape::new(1, values.len()).unwrap()).unwrap();
    let Some(offender) = widened(values).iter().position(|value| !value.is_finite()) else {
        return check_gradient(&gradient, qsgd, stream);
    };
    let mut payload = vec![0; qsgd.payload_len(gradient.shape(), values.dtype()).unwrap()];
    for found in [
        qsgd.encode(&gradient, stream, &mut [], &mut payload).map(|_| ()),
        qsgd::measure(&gradient, qsgd, &[1, 4], &mut [0.0; 2]),
    ] {
        assert!(matches!(found, Err(Error::NonFinite { index, value }) if index == offender && !value.is_finite()));
    }
}

pub(crate) fn widened(values: Values<'_>) -> Vec<f32> {
    match values {
        Values::F32(values) => values.to_vec(),
        Values::F16(values) => values.iter().map(|value| value.to_f32()).collect(),
        Values::Bf16(values) => values.iter().map(|value| value.to_f32()).collect(),
    }
}
