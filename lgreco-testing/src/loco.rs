//! Compares LoCo's quantiser with its textbook form in f64, and LoCo's decoder with a decoder that reads half a byte at
//! a time.

use super::hard_threshold::squared_error;
use super::topk::{bits, same_error, widened};
use lgreco::Error;
use lgreco::compress::loco::{self, LoCo};
use lgreco::compress::wire::{HEADER_LEN, Method, Payload};
use lgreco::compress::{Compressor, Setting, decode};
use lgreco::gradient::{Bf16, F16, Gradient, Shape, Values};
use lgreco::rng::Stream;

/// Asserts that every code is the integer nearest to `8 x / M`, but at most 7, where `M` is the largest magnitude in
/// the group. Halves are rounded to even. Within 1e-6 of a half, both adjacent integers are allowed. A code `c` must
/// decode to `c M / 8`. The measured row must have the error of the decoded values.
///
/// # Panics
/// Panics if a check fails.
pub fn check(group: u32, gradient: &Gradient<'_>) {
    let loco = LoCo { group };
    let (values, shape) = (widened(gradient), gradient.shape());
    let len = loco.payload_len(shape, gradient.values().dtype()).unwrap();
    let mut payload = vec![0xc3; len + 5];
    let written = loco.encode(gradient, Stream::default(), &mut [], &mut payload);
    if let Some(index) = values.iter().position(|x| !x.is_finite()) {
        return assert!(same_error(written.unwrap_err(), Error::NonFinite { index, value: values[index] }));
    }
    assert_eq!(written, Ok(len));
    assert_eq!(payload.split_off(len), [0xc3; 5], "bytes beyond the payload are written");
    let (scales, codes) = read(&payload).expect("our payload");
    for (i, (&x, &code)) in values.iter().zip(&codes).enumerate() {
        let start = i - i % group as usize;
        let end = values.len().min(start + group as usize);
        let largest = values[start..end].iter().fold(0.0f32, |a, x| a.max(x.abs()));
        assert_eq!(scales[start / group as usize].to_bits(), largest.to_bits());
        let exact = if largest > 0.0 { 8.0 * x as f64 / largest as f64 } else { 0.0 };
        let off = (exact - code as f64).abs();
        let halfway = (off - 0.5).abs() < 1e-6;
        assert!(off <= 0.5 || halfway || (code == 7 && exact > 7.0), "{x} of {largest} is sent as {code}");
        // If `M` is a power of two, `8 x / M` has no rounding error, so a half must be rounded to the even integer.
        if off == 0.5 && largest.to_bits() & 0x007f_ffff == 0 && code != 7 {
            assert_eq!(code % 2, 0, "{x} of {largest} is sent as {code}");
        }
    }
    let mut decoded = vec![f32::NAN; values.len()];
    decode(&payload, &mut decoded).unwrap();
    check_payload(&payload);
    let (measured, _) = Setting::LoCo(LoCo { group }).measure(gradient, Stream::default(), &mut []).unwrap();
    let error = squared_error(&values, &decoded);
    assert!((measured - error).abs() <= 1e-11 * error, "measured {measured}, decoded {error}");
}

/// Reads scales and codes. Returns `None` for bytes that no encoder writes.
fn read(bytes: &[u8]) -> Option<(Vec<f32>, Vec<i32>)> {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let (group, elements) = (word(4), word(8) * word(12));
    if group == 0 || bytes[3] != 0 || bytes.len() != HEADER_LEN + 4 * elements.div_ceil(group) + elements.div_ceil(2) {
        return None;
    }
    let (scales, codes) = bytes[HEADER_LEN..].split_at(4 * elements.div_ceil(group));
    let scales: Vec<f32> = scales.chunks(4).map(|scale| f32::from_le_bytes(scale.try_into().unwrap())).collect();
    let half = |i: usize| (codes[i / 2] >> (4 * (i % 2)) & 15) as i32;
    if elements % 2 == 1 && half(elements) != 0 || scales.iter().any(|x| !x.is_finite() || x.is_sign_negative()) {
        return None;
    }
    Some((scales, (0..elements).map(half).map(|code| if code > 7 { code - 16 } else { code }).collect()))
}

/// Asserts that decoding `bytes` does not panic, and agrees with reading them half a byte at a time: both give the same
/// values, or both refuse the bytes. Payloads of methods other than LoCo are skipped, and so are payloads of more than
/// 2^20 elements.
///
/// # Panics
/// Panics if a check fails.
pub fn check_payload(bytes: &[u8]) {
    let Ok(payload) = Payload::parse(bytes) else { return };
    let elements = payload.header.shape.elements();
    if payload.header.method != Method::LoCo || elements > 1 << 20 {
        return;
    }
    let mut decoded = vec![f32::NAN; elements];
    match (loco::decode(&payload, &mut decoded), read(bytes)) {
        (Ok(()), Some((scales, codes))) => {
            let group = payload.header.parameter as usize;
            let value = |i: usize| (codes[i] as f64 * scales[i / group] as f64 / 8.0) as f32;
            let expected: Vec<f32> = (0..elements).map(value).collect();
            assert!(decoded.iter().zip(&expected).all(|(a, b)| a == b), "{decoded:?}, expected {expected:?}");
            assert!(bits(&decoded).iter().zip(bits(&expected)).all(|(a, b)| a << 1 == b << 1));
        }
        (Err(_), None) => {}
        (result, expected) => panic!("decode gives {result:?}, read {expected:?}"),
    }
}

/// Runs [`check`] on instances made from arbitrary bytes. Two bytes choose the group; the other bytes are values, in
/// each type.
///
/// # Panics
/// Panics if a check fails.
pub fn check_bytes(bytes: &[u8]) {
    let Some((choice, rest)) = bytes.split_first_chunk::<2>() else { return };
    let group = 1 + u16::from_le_bytes(*choice) as u32 % 700;
    let words: Vec<u32> = rest.as_chunks::<4>().0.iter().take(1200).map(|&word| u32::from_le_bytes(word)).collect();
    let shape = Shape::new(words.len(), 1).unwrap();
    let single: Vec<f32> = words.iter().map(|&b| f32::from_bits(b)).collect();
    let half: Vec<F16> = words.iter().map(|&b| F16((b >> 16) as u16)).collect();
    let brain: Vec<Bf16> = words.iter().map(|&b| Bf16((b >> 16) as u16)).collect();
    for values in [Values::F32(&single), Values::F16(&half), Values::Bf16(&brain)] {
        check(group, &Gradient::new(values, shape).unwrap());
    }
}
