//! Checks AdaComp against its textbook form, which computes one bin after the other and decodes payloads like TopK's.

use super::hard_threshold::squared_error;
use super::topk::{bits, decode_bit_by_bit, same_error, widened};
use lgreco::Error;
use lgreco::compress::adacomp::{self, AdaComp};
use lgreco::compress::wire::{HEADER_LEN, Method, Payload};
use lgreco::compress::{Compressor, Setting, decode, stated_len};
use lgreco::gradient::{Bf16, F16, Gradient, Shape, Values};
use lgreco::rng::Stream;

/// The expected decoded values. `w` is the fresh gradient, and `p` is its sum with the residual.
pub fn expected(bin: usize, p: &[f32], w: &[f32]) -> Vec<f32> {
    let largest = |bin: &[f32]| bin.iter().fold(0.0f32, |a, x| a.max(x.abs()));
    let thresholds: Vec<f32> = p.chunks(bin).map(largest).collect();
    let scale = (thresholds.iter().map(|&x| x as f64).sum::<f64>() / thresholds.len().max(1) as f64) as f32;
    let value = |i: usize| {
        let threshold = thresholds[i / bin];
        let sent = threshold > 0.0 && p[i] != 0.0 && (p[i] + w[i]).abs() >= threshold;
        if sent && scale > 0.0 { scale.copysign(p[i]) } else { 0.0 }
    };
    (0..p.len()).map(value).collect()
}

/// Asserts that AdaComp in bins of `bin` sends the same elements of `compensated` and `fresh` as the textbook form, in
/// at most the predicted bytes. If both gradients are equal, the measured row must have the payload's error and length.
///
/// # Panics
/// Panics if a check fails.
pub fn check(bin: u32, compensated: &Gradient<'_>, fresh: &Gradient<'_>) {
    let ada = AdaComp { bin };
    let (p, w, shape) = (widened(compensated), widened(fresh), compensated.shape());
    let most = ada.payload_len(shape, compensated.values().dtype()).unwrap();
    let mut payload = vec![0xc3; most + 5];
    let written = ada.encode_compensated(compensated, fresh, &mut payload[..most]);
    let offender = |values: &[f32]| values.iter().position(|x| !x.is_finite()).map(|i| (i, values[i]));
    if let Some((index, value)) = offender(&p).or(offender(&w)) {
        return assert!(same_error(written.unwrap_err(), Error::NonFinite { index, value }));
    }
    let len = written.unwrap();
    assert!(payload[len..].iter().all(|&byte| byte == 0xc3), "bytes beyond the payload are written");
    assert_eq!(stated_len(&payload), Ok(len), "the header states the length");
    let mut decoded = vec![f32::NAN; p.len()];
    decode(&payload[..len], &mut decoded).unwrap();
    let expected = expected(bin as usize, &p, &w);
    assert_eq!(bits(&decoded), bits(&expected), "bins of {bin}, {p:?}");
    check_payload(&payload[..len]);
    if bits(&p) == bits(&w) {
        let setting = Setting::AdaComp(AdaComp { bin });
        let (measured, found_len) = setting.measure(compensated, Stream::default(), &mut []).unwrap();
        let error = squared_error(&p, &expected);
        assert!((measured - error).abs() <= 1e-11 * error, "measured {measured}, decoded {error}");
        assert_eq!(found_len, len);
    }
}

/// Asserts that decoding `bytes` does not panic, and agrees with reading positions and signs bit by bit: both give the
/// same values, or both refuse the bytes. Payloads of other methods and of more than 2^20 elements are skipped.
///
/// # Panics
/// Panics if a check fails.
pub fn check_payload(bytes: &[u8]) {
    let Ok(payload) = Payload::parse(bytes) else { return };
    let elements = payload.header.shape.elements();
    if payload.header.method != Method::AdaComp || elements > 1 << 20 {
        return;
    }
    let mut decoded = vec![f32::NAN; elements];
    match (adacomp::decode(&payload, &mut decoded), decode_as_topk(bytes)) {
        (Ok(()), Some(expected)) => assert_eq!(bits(&decoded), bits(&expected), "decoded values"),
        (Err(_), None) => {}
        (result, expected) => panic!("decode gives {result:?}, bit by bit {expected:?}"),
    }
}

/// Rewrites an AdaComp payload as a TopK payload with values ±1, decodes that payload bit by bit, and applies AdaComp's
/// magnitude. Tries the three layouts of positions until decoding succeeds.
fn decode_as_topk(bytes: &[u8]) -> Option<Vec<f32>> {
    let count = u32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize;
    let (header, body) = bytes.split_at(HEADER_LEN);
    let (magnitude, rest) = body.split_first_chunk::<4>()?;
    let (positions, signs) = rest.split_at(rest.len().checked_sub(count.div_ceil(8))?);
    let negative = |i: usize| signs[i / 8] >> (i % 8) & 1 == 1;
    let scale = f32::from_le_bytes(*magnitude);
    let sound = if count == 0 { *magnitude == [0; 4] } else { scale > 0.0 && scale < f32::INFINITY };
    if header[3] != 0 || !sound || (count..signs.len() * 8).any(negative) {
        return None;
    }
    let read = |layout: u8| {
        let mut twin = header.to_vec();
        (twin[2], twin[3]) = (Method::TopK.id(), 2 | layout << 2);
        twin.extend((0..count).flat_map(|i| [0x80, if negative(i) { 0xbf } else { 0x3f }]));
        twin.extend_from_slice(positions);
        decode_bit_by_bit(&twin)
    };
    let units = (0..3).find_map(read)?;
    Some(units.into_iter().map(|unit| if unit == 0.0 { 0.0 } else { scale.copysign(unit) }).collect())
}

/// Runs [`check`] on instances made from arbitrary bytes. The first byte chooses the bin; the other bytes are values.
/// Each element type is checked twice: the fresh gradient is the values themselves, or a shifted f32 copy of them.
///
/// # Panics
/// Panics if a check fails.
pub fn check_bytes(bytes: &[u8]) {
    let Some((&choice, rest)) = bytes.split_first() else { return };
    let bin = 1 + choice as u32 % 40;
    let words: Vec<u32> = rest.as_chunks::<4>().0.iter().take(200).map(|&word| u32::from_le_bytes(word)).collect();
    let shape = Shape::new(words.len(), 1).unwrap();
    let single: Vec<f32> = words.iter().map(|&b| f32::from_bits(b)).collect();
    let half: Vec<F16> = words.iter().map(|&b| F16((b >> 16) as u16)).collect();
    let brain: Vec<Bf16> = words.iter().map(|&b| Bf16((b >> 16) as u16)).collect();
    let mut shifted = single.clone();
    shifted.rotate_left(words.len().min(1));
    let shifted = Gradient::new(Values::F32(&shifted), shape).unwrap();
    for values in [Values::F32(&single), Values::F16(&half), Values::Bf16(&brain)] {
        let gradient = Gradient::new(values, shape).unwrap();
        check(bin, &gradient, &gradient);
        check(bin, &gradient, &shifted);
    }
}
