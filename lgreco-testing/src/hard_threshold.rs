//! Checks hard thresholds against their textbook form, which compares each element with λ.

use super::topk::{DTYPES, STALE, bits, check_payload, rounded, same_error, widened, with_values};
use lgreco::Error;
use lgreco::compress::hard_threshold::HardThreshold;
use lgreco::compress::topk::TopK;
use lgreco::compress::{Compressor, Setting, decode, stated_len};
use lgreco::gradient::{Dtype, Gradient, Shape};
use lgreco::num::Sum;
use lgreco::rng::Stream;

/// Bytes of a payload that sends `count` of `elements` values. A payload of TopK with the same count has the same
/// length.
pub(super) fn payload_len(count: usize, elements: usize, dtype: Dtype) -> usize {
    if count == 0 {
        return 16;
    }
    let top = TopK { keep: count as u32, values: dtype };
    top.payload_len(Shape::new(elements, 1).unwrap(), dtype).unwrap()
}

/// The expected decoded values and the payload's length, or the expected error of encoding.
pub fn expected(values: &[f32], hard: HardThreshold) -> Result<(Vec<f32>, usize), Error> {
    if let Some(index) = values.iter().position(|x| !x.is_finite()) {
        return Err(Error::NonFinite { index, value: values[index] });
    }
    let mut sent: Vec<bool> = values.iter().map(|x| x.abs() >= hard.lambda).collect();
    let count = sent.iter().filter(|&&sent| sent).count();
    let mut len = payload_len(count, values.len(), hard.values);
    let all = 16 + values.len() * hard.values.bytes();
    if len > all {
        sent.fill(true);
        len = all;
    }
    let mut decoded = vec![0.0; values.len()];
    for index in (0..values.len()).filter(|&i| sent[i]) {
        decoded[index] = rounded(values[index], hard.values);
        if decoded[index].is_infinite() {
            return Err(Error::ElementOverflow { index, value: values[index] });
        }
    }
    Ok((decoded, len))
}

/// ‖values − decoded‖², summed from the smallest to the largest term.
pub(super) fn squared_error(values: &[f32], decoded: &[f32]) -> f64 {
    let mut squares: Vec<f64> = values.iter().zip(decoded).map(|(&x, &y)| x as f64 - y as f64).map(|d| d * d).collect();
    squares.sort_unstable_by(f64::total_cmp);
    squares.into_iter().collect::<Sum>().value()
}

/// Asserts that `hard` sends exactly the values that reach its λ, or all values if that payload is shorter, in at most
/// the predicted bytes. Previous contents of workspace and payload must not matter. The row of `lambdas` must have the
/// error and length of each payload.
///
/// # Panics
/// Panics if a check fails.
pub fn check(gradient: &Gradient<'_>, dtype: Dtype, lambdas: &[f32]) {
    let values = widened(gradient);
    let (shape, own) = (gradient.shape(), gradient.values().dtype());
    let mut wanted = Vec::new();
    for &lambda in lambdas {
        let hard = HardThreshold { lambda, values: dtype };
        let most = hard.payload_len(shape, own).unwrap();
        let mut workspace = vec![STALE; hard.encode_workspace_len(shape, own)];
        let mut payload = vec![0xc3; most + 5];
        let written = hard.encode(gradient, Stream::default(), &mut workspace, &mut payload[..most]);
        let (len, decoded) = match (written, expected(&values, hard)) {
            (Ok(written), Ok((decoded, len))) => {
                assert_eq!(written, len, "payload bytes, {hard:?}");
                (len, decoded)
            }
            (Err(found), Err(expected)) => {
                assert!(same_error(found, expected), "{found}, expected {expected}");
                continue;
            }
            (found, expected) => panic!("encode gives {found:?}, expected {expected:?}"),
        };
        assert!(payload[len..].iter().all(|&byte| byte == 0xc3), "bytes beyond the payload are written");
        assert_eq!(stated_len(&payload), Ok(len), "the header states the length");
        let mut found = vec![f32::NAN; values.len()];
        decode(&payload[..len], &mut found).unwrap();
        assert_eq!(bits(&found), bits(&decoded), "decoded values");
        check_payload(&payload[..len]);
        wanted.push((lambda, squared_error(&values, &decoded), len));
    }
    let finite = values.iter().all(|x| x.is_finite());
    for &lambda in lambdas {
        let setting = Setting::HardThreshold(HardThreshold { lambda, values: dtype });
        let measured = setting.measure(gradient, Stream::default(), &mut []);
        let expected = wanted.iter().find(|(sent, ..)| sent.to_bits() == lambda.to_bits());
        assert_eq!(measured.is_ok(), finite && expected.is_some(), "lambda {lambda}: {measured:?}");
        let (Ok((found, found_len)), Some(&(_, error, len))) = (measured, expected) else { continue };
        assert!((found - error).abs() <= 1e-11 * error, "lambda {lambda}: measured {found}, decoded {error}");
        assert_eq!(found_len, len, "lambda {lambda}");
    }
}

/// Runs [`check`] for each value type on `bits` read as f32, f16 and bf16.
///
/// # Panics
/// Panics if a check fails.
pub fn check_all_types(bits: &[u32], lambdas: &[f32]) {
    (0..9).for_each(|types| check_types(bits, lambdas, types));
}

/// Runs [`check`] on the values with these `bits`. `types / 3` selects their type (f32, f16 or bf16), and `types % 3`
/// the type in which they are sent.
fn check_types(bits: &[u32], lambdas: &[f32], types: usize) {
    with_values(bits, DTYPES[types / 3], |gradient| check(gradient, DTYPES[types % 3], lambdas));
}

/// Runs [`check`] on an instance made from arbitrary bytes. The first words are thresholds, and the other words are
/// values. The first byte also chooses the types.
///
/// # Panics
/// Panics if a check fails.
pub fn check_bytes(bytes: &[u8]) {
    let words: Vec<u32> = bytes.as_chunks::<4>().0.iter().take(300).map(|&word| u32::from_le_bytes(word)).collect();
    let (first, values) = words.split_at(words.len().min(3));
    let lambdas = first.iter().map(|word| f32::from_bits(word & 0x7fff_ffff));
    // One value is also a threshold, so that there is a tie.
    let tie = values.last().map(|word| f32::from_bits(word & 0x7fff_ffff));
    let lambdas: Vec<f32> = lambdas.chain(tie).filter(|lambda| *lambda > 0.0 && lambda.is_finite()).collect();
    check_types(values, &lambdas, bytes.first().map_or(0, |&byte| usize::from(byte % 9)));
}
