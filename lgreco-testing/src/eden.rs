//! An implementation of EDEN that follows its documentation, in f64 and with published grids. Checks
//! [`compress::eden`](lgreco::compress::eden) against it.

use crate::qsgd::widened;
use lgreco::Error;
use lgreco::compress::eden::{self, Eden, Scale};
use lgreco::compress::{Compressor, decode, wire::Payload};
use lgreco::gradient::{Bf16, F16, Gradient, Shape, Values};
use lgreco::rng::Stream;

/// Elements of a block.
const BLOCK: usize = 4096;

/// The positive levels for 1 to 4 bits, from Max, "Quantizing for minimum distortion", 1960.
const PUBLISHED: [&[f64]; 4] = [
    &[0.7980],
    &[0.4528, 1.510],
    &[0.2451, 0.7560, 1.344, 2.152],
    &[0.1284, 0.3881, 0.6568, 0.9424, 1.256, 1.618, 2.069, 2.733],
];

/// Bound on the rounding of published levels and of coordinates in f32.
const ROUNDING: f64 = 6e-4;

/// Start and length of each of a tensor's blocks: 4096 elements each, and powers of two for the remaining elements.
fn blocks(elements: usize) -> Vec<(usize, usize)> {
    let (mut all, mut at) = (Vec::new(), 0);
    while at < elements {
        let mut len = BLOCK;
        while len > elements - at {
            len /= 2;
        }
        all.push((at, len));
        at += len;
    }
    all
}

/// `(-1)^bit` for element `i` of the tensor.
fn sign(seed: u64, i: usize) -> f64 {
    let (block, within) = (i / BLOCK, i % BLOCK);
    let word = Stream { seed, ..Stream::default() }.word((128 * block + within % 128) as u64);
    if word >> (within / 128) & 1 == 1 { -1.0 } else { 1.0 }
}

/// `H x`, by the recursive definition in halves.
fn hadamard(x: &[f64]) -> Vec<f64> {
    if let [one] = x {
        return vec![*one];
    }
    let (low, high) = x.split_at(x.len() / 2);
    let (low, high) = (hadamard(low), hadamard(high));
    let sums = low.iter().zip(&high).map(|(a, b)| a + b);
    sums.chain(low.iter().zip(&high).map(|(a, b)| a - b)).collect()
}

/// The coordinates that a block's codes represent, in a payload of 1 to 4 bits.
fn points(codes: &[u8], bits: usize, (at, len): (usize, usize)) -> Vec<f64> {
    let levels = PUBLISHED[bits - 1];
    let bit = |i: usize, b: usize| usize::from(codes[(i * bits + b) / 8] >> ((i * bits + b) % 8) & 1);
    let point = |i: usize| {
        let level = levels[(0..bits - 1).map(|b| bit(i, b) << b).sum::<usize>()];
        if bit(i, bits - 1) == 1 { -level } else { level }
    };
    (at..at + len).map(point).collect()
}

fn product(a: impl IntoIterator<Item = f64>, b: impl IntoIterator<Item = f64>) -> f64 {
    a.into_iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Checks a gradient of finite values, none above 2^60. Codes must represent the nearest points of the grid. For 1 to 4
/// bits, decoded values must be those that the documentation defines. The decoded vector must have the length that the
/// scale prescribes. The payload's length and the measured row are checked, too.
/// # Panics
/// Panics if a check fails.
pub fn check_gradient(gradient: &Gradient<'_>, eden: Eden, stream: Stream) {
    let values = widened(gradient.values());
    let bits = usize::from(eden.bits);
    let (shape, all) = (gradient.shape(), blocks(values.len()));
    let mut payload = vec![0xa5; eden.payload_len(shape, gradient.values().dtype()).unwrap()];
    assert_eq!(eden.encode(gradient, stream, &mut [], &mut payload), Ok(payload.len()));
    let codes_at = 16 + 8 + 4 * all.len();
    assert_eq!(payload.len(), codes_at + (values.len() * bits).div_ceil(8), "{eden:?}");
    let seed = u64::from_le_bytes(payload[16..24].try_into().unwrap());
    let mut decoded = vec![f32::NAN; values.len()];
    decode(&payload, &mut decoded).unwrap();

    let mut error = 0.0;
    for (number, &(at, len)) in all.iter().enumerate() {
        let (x, found) = (&values[at..at + len], &decoded[at..at + len]);
        let scale = f32::from_le_bytes(payload[24 + 4 * number..][..4].try_into().unwrap());
        let (x, found): (Vec<f64>, Vec<f64>) =
            (x.iter().map(|&x| x.into()).collect(), found.iter().map(|&x| x.into()).collect());
        let norm = product(x.clone(), x.clone()).sqrt();
        if norm == 0.0 {
            assert!(scale == 0.0 && found.iter().all(|&x| x == 0.0), "a block of zeros");
            continue;
        }
        error += x.iter().zip(&found).map(|(x, y)| (x - y) * (x - y)).sum::<f64>();
        let length = product(found.clone(), found.clone()).sqrt();
        // Skips the comparison for subnormal values and scales, which are inexact.
        if norm < 1e-30 {
            continue;
        }
        let (along, expected) = match eden.scale {
            Scale::Unbiased => (product(x.clone(), found.clone()), norm * norm),
            Scale::LeastSquares => (product(x.clone(), found.clone()), length * length),
        };
        assert!(
            (along - expected).abs() <= 1e-4 * norm * length,
            "{eden:?}, block {number}: {along:e}, not {expected:e}"
        );
        if bits <= PUBLISHED.len() {
            let root = (len as f64).sqrt();
            let turned: Vec<f64> = x.iter().enumerate().map(|(i, x)| x * sign(seed, at + i) / norm).collect();
            let q = points(&payload[codes_at..], bits, (at, len));
            for (z, q) in hadamard(&turned).iter().zip(&q) {
                let nearest = |sign: f64| PUBLISHED[bits - 1].iter().map(move |level| (z - sign * level).abs());
                let least = nearest(1.0).chain(nearest(-1.0)).fold(f64::INFINITY, f64::min);
                assert!((z - q).abs() <= least + ROUNDING, "{eden:?}: coordinate {z} became {q}");
            }
            let back = hadamard(&q);
            for (i, (back, found)) in back.iter().zip(&found).enumerate() {
                let expected = back * sign(seed, at + i) * f64::from(scale) / root;
                let tolerance = ROUNDING * f64::from(scale) * root;
                assert!((expected - found).abs() <= tolerance, "{eden:?}: {found:e} decoded, not {expected:e}");
            }
        }
    }
    let mut row = [f64::NAN];
    eden::measure(gradient, eden.scale, &[eden.bits], stream, &mut row).unwrap();
    let squared_norm: f64 = values.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    let tolerance = 1e-4 * error + 1e-11 * squared_norm + 1e-80;
    assert!((row[0] - error).abs() <= tolerance, "{eden:?}: the row has {:e}, decoding {error:e}", row[0]);
}

/// Takes parameters and values from arbitrary bytes and runs [`check_gradient`]. If the values contain NaN or infinity,
/// encoding must name the first one instead. Values may be repeated, so that blocks are full.
///
/// # Panics
/// Panics if a check fails.
///
/// ```
/// lgreco_testing::eden::check_round_trip(&[3, 1, 0, 0, 0x80, 0x3f, 0, 0, 0, 0x40]);
/// ```
pub fn check_round_trip(bytes: &[u8]) {
    let Some((&[a, b, c, times], rest)) = bytes.split_first_chunk::<4>() else { return };
    let eden = Eden { bits: a % 8 + 1, scale: if a & 8 == 0 { Scale::Unbiased } else { Scale::LeastSquares } };
    let stream = Stream { seed: b.into(), step: c.into(), layer: 1, rank: 2 };
    let rest = rest.repeat(1 + usize::from(times % 16));
    let words = || rest.as_chunks::<2>().0.iter().map(|&bytes| u16::from_le_bytes(bytes));
    match c % 3 {
        0 => {
            let values: Vec<f32> = rest.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
            check_any(Values::F32(&values), eden, stream);
        }
        1 => check_any(Values::F16(&words().map(F16).collect::<Vec<_>>()), eden, stream),
        _ => check_any(Values::Bf16(&words().map(Bf16).collect::<Vec<_>>()), eden, stream),
    }
}

fn check_any(values: Values<'_>, eden: Eden, stream: Stream) {
    let gradient = Gradient::new(values, Shape::new(1, values.len()).unwrap()).unwrap();
    let mut payload = vec![0; eden.payload_len(gradient.shape(), values.dtype()).unwrap()];
    let widened = widened(values);
    // If decoded values would leave the range of f32, encoding must return an error.
    let is_large = widened.iter().any(|value| value.is_finite() && value.abs() > 2f32.powi(60));
    let Some(offender) = widened.iter().position(|value| !value.is_finite()) else {
        if is_large {
            return match eden.encode(&gradient, stream, &mut [], &mut payload) {
                Ok(_) => assert!(finite(&payload, widened.len())),
                found => assert!(matches!(found, Err(Error::Overflow { .. })), "{found:?}"),
            };
        }
        return check_gradient(&gradient, eden, stream);
    };
    for found in [
        eden.encode(&gradient, stream, &mut [], &mut payload).map(|_| ()),
        eden::measure(&gradient, eden.scale, &[1, 4], stream, &mut [0.0; 2]),
    ] {
        let is_told =
            matches!(found, Err(Error::NonFinite { index, value }) if index == offender && !value.is_finite());
        // A block before the first NaN or infinity may overflow. Then encoding may return the overflow instead.
        assert!(is_told || (is_large && matches!(found, Err(Error::Overflow { .. }))), "{found:?}");
    }
}

fn finite(payload: &[u8], elements: usize) -> bool {
    let mut decoded = vec![f32::NAN; elements];
    eden::decode(&Payload::parse(payload).unwrap(), &mut decoded).unwrap();
    decoded.iter().all(|value| value.is_finite())
}
