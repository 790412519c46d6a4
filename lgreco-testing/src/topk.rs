//! Checks TopK against its textbook form: a full sort, and a decoder that reads bit by bit.

use lgreco::Error;
use lgreco::compress::topk::{self, TopK};
use lgreco::compress::wire::{HEADER_LEN, Method, Payload};
use lgreco::compress::{Compressor, wire};
use lgreco::gradient::{Bf16, Dtype, Element, F16, Gradient, Shape, Values, with_elements};
use lgreco::num::Sum;
use lgreco::rng::Stream;

/// Initial content of workspaces, on which results must not depend.
pub(super) const STALE: u64 = 0xa5a5_5a5a_7f80_ffff;

/// The exact f32 values of a gradient.
pub(super) fn widened(gradient: &Gradient<'_>) -> Vec<f32> {
    with_elements!(gradient.values(), v => v.iter().map(|x| x.to_f32()).collect())
}

/// The value that a receiver gets if `value` is sent as `dtype`.
pub(super) fn rounded(value: f32, dtype: Dtype) -> f32 {
    match dtype {
        Dtype::F32 => value,
        Dtype::F16 => F16::from_f32(value).to_f32(),
        Dtype::Bf16 => Bf16::from_f32(value).to_f32(),
    }
}

/// Positions sorted by magnitude, largest first. Among equal magnitudes, the lowest position is first.
///
/// ```
/// # use lgreco_testing::topk::order;
/// assert_eq!(order(&[0.5, -3.0, 3.0, 2.0]), [1, 2, 3, 0]);
/// ```
pub fn order(values: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[b].abs().total_cmp(&values[a].abs()).then(a.cmp(&b)));
    order
}

/// The expected decoded values, or the expected error of encoding.
fn expected(values: &[f32], keep: usize, dtype: Dtype) -> Result<Vec<f32>, Error> {
    if let Some(index) = values.iter().position(|x| !x.is_finite()) {
        return Err(Error::NonFinite { index, value: values[index] });
    }
    let mut kept: Vec<usize> = order(values)[..keep].to_vec();
    kept.sort_unstable();
    let mut decoded = vec![0.0; values.len()];
    for index in kept {
        decoded[index] = rounded(values[index], dtype);
        if decoded[index].is_infinite() {
            return Err(Error::ElementOverflow { index, value: values[index] });
        }
    }
    Ok(decoded)
}

pub(super) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Whether two errors are the same. NaN equals NaN here.
pub(super) fn same_error(a: Error, b: Error) -> bool {
    match (a, b) {
        (Error::NonFinite { index: i, value: x }, Error::NonFinite { index: j, value: y }) => {
            i == j && x.to_bits() == y.to_bits()
        }
        _ => a == b,
    }
}

/// Asserts that `top` sends exactly the elements that a full sort selects, in exactly the predicted number of bytes.
/// Stale workspaces and payloads must not matter, and nothing may be written beyond the payload. [`topk::measure`] must
/// give the error of the decoded values.
///
/// # Panics
/// Panics if a check fails.
pub fn check_round_trip(gradient: &Gradient<'_>, top: TopK) {
    let values = widened(gradient);
    let (shape, dtype) = (gradient.shape(), gradient.values().dtype());
    let len = top.payload_len(shape, dtype).unwrap();
    let mut workspace = vec![STALE; top.encode_workspace_len(shape, dtype)];
    let mut payload = vec![0xc3; len + 5];
    let written = top.encode(gradient, Stream::default(), &mut workspace, &mut payload);
    let expected = match (written, expected(&values, top.keep as usize, top.values)) {
        (Ok(written), Ok(expected)) => {
            assert_eq!(written, len, "payload bytes");
            expected
        }
        (Err(found), Err(expected)) => return assert!(same_error(found, expected), "{found}, expected {expected}"),
        (found, expected) => panic!("encode gives {found:?}, expected {expected:?}"),
    };
    assert!(payload[len..].iter().all(|&byte| byte == 0xc3), "bytes beyond the payload are written");
    payload.truncate(len);

    let mut decoded = vec![f32::NAN; values.len()];
    topk::decode(&Payload::parse(&payload).unwrap(), &mut decoded).unwrap();
    assert_eq!(bits(&decoded), bits(&expected), "decoded values");
    check_payload(&payload);

    let squares = values.iter().zip(&decoded).map(|(&x, &y)| x as f64 - y as f64).map(|d| d * d);
    let mut squares: Vec<f64> = squares.collect();
    squares.sort_unstable_by(f64::total_cmp);
    let error = squares.into_iter().collect::<Sum>().value();
    let mut workspace = vec![STALE; topk::measure_workspace_len(shape, 1)];
    let mut row = [f64::NAN];
    topk::measure(gradient, top.values, &[top.keep], &mut workspace, &mut row).unwrap();
    assert!((row[0] - error).abs() <= 1e-11 * error, "k = {}: row {}, decoded {error}", top.keep, row[0]);
}

/// Asserts that [`topk::measure`] gives, for each of `keeps`, the squared error that results if exactly the elements
/// that a full sort selects are sent. If a value is not finite, the error must name the first one. If the largest value
/// is too large for `dtype`, the error must name that value.
///
/// # Panics
/// Panics if a check fails.
pub fn check_row(gradient: &Gradient<'_>, dtype: Dtype, keeps: &[u32]) {
    let values = widened(gradient);
    let mut workspace = vec![STALE; topk::measure_workspace_len(gradient.shape(), keeps.len())];
    let mut row = vec![f64::NAN; keeps.len()];
    let measured = topk::measure(gradient, dtype, keeps, &mut workspace, &mut row);
    let refused =
        values.iter().position(|x| !x.is_finite()).map(|index| Error::NonFinite { index, value: values[index] });
    if let Some(expected) = refused {
        return assert!(same_error(measured.unwrap_err(), expected), "expected {expected}");
    }
    let order = order(&values);
    if let Some(&index) = order.first().filter(|&&i| !keeps.is_empty() && rounded(values[i], dtype).is_infinite()) {
        return assert_eq!(measured, Err(Error::ElementOverflow { index, value: values[index] }));
    }
    measured.unwrap();
    let square = |x: f64| x * x;
    for (&keep, &found) in keeps.iter().zip(&row) {
        let (kept, dropped) = order.split_at(keep as usize);
        let mut terms: Vec<f64> = dropped.iter().map(|&i| square(values[i] as f64)).collect();
        terms.extend(kept.iter().map(|&i| square(values[i] as f64 - rounded(values[i], dtype) as f64)));
        terms.sort_unstable_by(f64::total_cmp);
        let expected = terms.into_iter().collect::<Sum>().value();
        assert!((found - expected).abs() <= 1e-11 * expected, "k = {keep}: {found}, expected {expected}");
    }
}

/// Asserts that decoding `bytes` does not panic, and agrees with a decoder that reads them bit by bit: both give the
/// same values, or both refuse the bytes. Payloads of more than 2^20 elements are skipped.
///
/// # Panics
/// Panics if a check fails.
pub fn check_payload(bytes: &[u8]) {
    let Ok(payload) = Payload::parse(bytes) else { return };
    let elements = payload.header.shape.elements();
    if elements > 1 << 20 {
        return;
    }
    let mut decoded = vec![f32::NAN; elements];
    let result = topk::decode(&payload, &mut decoded);
    match (result, decode_bit_by_bit(bytes)) {
        (Ok(()), Some(expected)) => assert_eq!(bits(&decoded), bits(&expected), "decoded values"),
        (Err(_), None) => {}
        (result, expected) => panic!("decode gives {result:?}, bit by bit {expected:?}"),
    }
}

/// Reads a payload bit by bit, as its format is documented. Returns `None` for bytes that no encoder writes.
pub(super) fn decode_bit_by_bit(bytes: &[u8]) -> Option<Vec<f32>> {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let (keep, elements) = (word(4), word(8) * word(12));
    let value_bytes = *[4, 2, 2].get(bytes[3] as usize & 3)?;
    if bytes[..3] != [wire::MAGIC, wire::VERSION, Method::TopK.id()] || keep > elements {
        return None;
    }
    let kept = bytes[HEADER_LEN..].get(..keep * value_bytes)?;
    let positions = &bytes[HEADER_LEN + kept.len()..];
    let bit = |at: usize| positions[at / 8] as usize >> (at % 8) & 1;
    let clear = |from: usize, to: usize| (from..to).all(|at| bit(at) == 0);

    let low_bytes = |l: usize| (keep * l).div_ceil(8);
    let fano_bytes = |l: usize| low_bytes(l) + (keep + ((elements.max(1) - 1) >> l)).div_ceil(8);
    let l = (0..=31).fold(0, |best, l| if fano_bytes(l) < fano_bytes(best) { l } else { best });
    let (low_bytes, fano_bytes) = (low_bytes(l), fano_bytes(l));
    let bitmap_bytes = elements.div_ceil(8);
    let layout = if keep == elements { 0 } else { 1 + (fano_bytes < bitmap_bytes) as u8 };
    if bytes[3] >> 2 != layout || positions.len() != [0, bitmap_bytes, fano_bytes][layout as usize] {
        return None;
    }
    let indices: Vec<usize> = match layout {
        0 => (0..elements).collect(),
        1 => (0..bitmap_bytes * 8).filter(|&i| bit(i) == 1).collect(),
        _ => {
            let ones = (0..positions.len() * 8 - low_bytes * 8).filter(|&i| bit(low_bytes * 8 + i) == 1);
            let ones: Vec<usize> = ones.take(keep + 1).collect();
            if ones.len() > keep || !clear(keep * l, low_bytes * 8) {
                return None;
            }
            let low = |i: usize| (0..l).map(|b| bit(i * l + b) << b).sum::<usize>();
            ones.iter().enumerate().map(|(i, &one)| (one - i) << l | low(i)).collect()
        }
    };
    if indices.len() != keep || !indices.is_sorted_by(|a, b| a < b) || indices.last().is_some_and(|&i| i >= elements) {
        return None;
    }
    let mut decoded = vec![0.0; elements];
    for (at, value) in indices.into_iter().zip(kept.chunks(value_bytes)) {
        decoded[at] = match bytes[3] & 3 {
            0 => f32::from_le_bytes(value.try_into().unwrap()),
            1 => F16(u16::from_le_bytes(value.try_into().unwrap())).to_f32(),
            _ => Bf16(u16::from_le_bytes(value.try_into().unwrap())).to_f32(),
        };
        if !decoded[at].is_finite() {
            return None;
        }
    }
    Some(decoded)
}

/// Runs [`check_types`] for all element and value types.
///
/// # Panics
/// Panics if a check fails.
pub fn check_all_types(bits: &[u32], keeps: &[u32]) {
    (0..9).for_each(|types| check_types(bits, keeps, types));
}

/// Runs [`check_round_trip`] for each of `keeps`, and [`check_row`] for all of them at once. `types / 3` selects
/// whether `bits` are read as f32, f16 or bf16. `types % 3` selects the type in which values are sent.
///
/// # Panics
/// Panics if a check fails, or `types` is 9 or more.
pub fn check_types(bits: &[u32], keeps: &[u32], types: usize) {
    let dtype = DTYPES[types % 3];
    with_values(bits, DTYPES[types / 3], |gradient| {
        check_row(gradient, dtype, keeps);
        keeps.iter().for_each(|&keep| check_round_trip(gradient, TopK { keep, values: dtype }));
    });
}

/// The types of values.
pub(super) const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

/// Calls `check` with a vector of `bits` read as f32, or with their upper halves read as f16 or bf16.
pub(super) fn with_values(bits: &[u32], dtype: Dtype, check: impl FnOnce(&Gradient<'_>)) {
    let shape = Shape::new(bits.len(), 1).unwrap();
    let single: Vec<f32> = bits.iter().map(|&b| f32::from_bits(b)).collect();
    let half: Vec<F16> = bits.iter().map(|&b| F16((b >> 16) as u16)).collect();
    let brain: Vec<Bf16> = bits.iter().map(|&b| Bf16((b >> 16) as u16)).collect();
    let values = match dtype {
        Dtype::F32 => Values::F32(&single),
        Dtype::F16 => Values::F16(&half),
        Dtype::Bf16 => Values::Bf16(&brain),
    };
    check(&Gradient::new(values, shape).unwrap());
}

/// Runs [`check_all_types`] on an instance made from arbitrary bytes. Two bytes choose k; the other bytes are values.
///
/// # Panics
/// Panics if a check fails.
pub fn check_bytes(bytes: &[u8]) {
    let Some((choice, values)) = bytes.split_first_chunk::<2>() else { return };
    let bits: Vec<u32> = values.as_chunks::<4>().0.iter().map(|&word| u32::from_le_bytes(word)).collect();
    if !bits.is_empty() {
        check_all_types(&bits, &[1 + u16::from_le_bytes(*choice) as u32 % bits.len() as u32]);
    }
}
