//! Checks TopK in few bits against its textbook form: a full sort, sums in 128 bits, and a decoder that reads bit by
//! bit.

use super::topk::{STALE, bits, order, same_error, widened};
use lgreco::Error;
use lgreco::compress::quantised_topk::{self, QuantisedTopK};
use lgreco::compress::wire::{HEADER_LEN, Method, Payload};
use lgreco::compress::{Compressor, decode};
use lgreco::gradient::Gradient;
use lgreco::num::Sum;
use lgreco::rng::Stream;

/// A magnitude in units of 2^(exponent − 158), rounded down. `exponent` is an exponent field of f32.
fn digits(magnitude: u32, exponent: u32) -> u128 {
    let (field, mantissa) = (magnitude >> 23, (magnitude & 0x007f_ffff) as u128);
    let (own, digits) = if field == 0 { (1, mantissa) } else { (field, mantissa | 1 << 23) };
    (digits << 8) >> (exponent - own).min(127)
}

/// The expected decoded values of finite values. Each value that a full sort keeps decodes to the mean of its bin.
pub fn expected(values: &[f32], top: QuantisedTopK) -> Vec<f32> {
    let mut kept: Vec<usize> = order(values)[..top.keep as usize].to_vec();
    kept.sort_unstable();
    let magnitude = |index: usize| values[index].abs().to_bits();
    let high = kept.iter().map(|&i| magnitude(i)).max().unwrap_or(0);
    let low = kept.iter().map(|&i| magnitude(i)).filter(|&m| m > 0).min().unwrap_or(high);
    let (count, span) = (1u128 << (top.bits - 1), (high - low + 1) as u128);
    let bin = |m: u32| (m.max(low) - low) as u128 * count / span;
    let mut among = vec![Vec::new(); count as usize];
    kept.iter().for_each(|&i| among[bin(magnitude(i)) as usize].push(magnitude(i)));
    let means: Vec<f32> = among.iter().map(|among| mean(among)).collect();
    let mut decoded = vec![0.0; values.len()];
    for &index in &kept {
        let mean = means[bin(magnitude(index)) as usize];
        decoded[index] = if values[index].is_sign_negative() { -mean } else { mean };
    }
    decoded
}

fn mean(among: &[u32]) -> f32 {
    let Some(&largest) = among.iter().max() else { return 0.0 };
    let exponent = (largest >> 23).max(1);
    let mean = among.iter().map(|&m| digits(m, exponent)).sum::<u128>() / among.len() as u128;
    // An f64 holds the 32 bits of the mean exactly. Then the mean is rounded down to an f32.
    let exact = mean as f64 * f64::from_bits((1023 + exponent as u64 - 158) << 52);
    let near = exact as f32;
    if near as f64 > exact { f32::from_bits(near.to_bits() - 1) } else { near }
}

/// Asserts that `top` decodes to the textbook's values, in exactly the predicted number of bytes. Stale workspaces and
/// payloads must not matter, and nothing may be written beyond the payload. The row must be the error of the decoded
/// values, and at most the error of sending nothing.
///
/// # Panics
/// Panics if a check fails.
pub fn check_round_trip(gradient: &Gradient<'_>, top: QuantisedTopK) {
    let values = widened(gradient);
    let (shape, dtype) = (gradient.shape(), gradient.values().dtype());
    let len = top.payload_len(shape, dtype).unwrap();
    let mut workspace = vec![STALE; top.encode_workspace_len(shape, dtype)];
    let mut payload = vec![0xc3; len + 5];
    let written = top.encode(gradient, Stream::default(), &mut workspace, &mut payload);
    let mut room = vec![STALE; quantised_topk::measure_workspace_len(shape, &[top.keep])];
    let mut row = [f64::NAN];
    let measured = quantised_topk::measure(gradient, &[top.keep], &[top.bits], &mut room, &mut row);
    if let Some(index) = values.iter().position(|x| !x.is_finite()) {
        let error = Error::NonFinite { index, value: values[index] };
        assert!(same_error(written.unwrap_err(), error) && same_error(measured.unwrap_err(), error));
        return;
    }
    assert_eq!((written, measured), (Ok(len), Ok(())));
    assert_eq!(payload.split_off(len), [0xc3; 5], "bytes beyond the payload are written");
    let mut decoded = vec![f32::NAN; values.len()];
    decode(&payload, &mut decoded).unwrap();
    assert_eq!(bits(&decoded), bits(&expected(&values, top)), "{top:?}");
    check_payload(&payload);
    let energy = |difference: &dyn Fn(usize) -> f64| {
        let mut squares: Vec<f64> = (0..values.len()).map(|i| difference(i) * difference(i)).collect();
        squares.sort_unstable_by(f64::total_cmp);
        squares.into_iter().collect::<Sum>().value()
    };
    let error = energy(&|i| values[i] as f64 - decoded[i] as f64);
    assert!((row[0] - error).abs() <= 1e-5 * error, "{top:?}: row {:e}, decoded {error:e}", row[0]);
    assert!(error <= energy(&|i| values[i] as f64), "{top:?} is no contraction");
}

/// Asserts that a row of many candidates agrees with the rows of each candidate alone, within 1e-9.
///
/// # Panics
/// Panics if a check fails.
pub fn check_row(gradient: &Gradient<'_>, keeps: &[u32], widths: &[u8]) {
    let measured = |keeps: &[u32], widths: &[u8]| {
        let mut workspace = vec![STALE; quantised_topk::measure_workspace_len(gradient.shape(), keeps)];
        let mut row = vec![f64::NAN; keeps.len() * widths.len()];
        quantised_topk::measure(gradient, keeps, widths, &mut workspace, &mut row).map(|()| row)
    };
    let row = measured(keeps, widths).unwrap();
    for (i, &keep) in keeps.iter().enumerate() {
        for (j, &bits) in widths.iter().enumerate() {
            let (found, alone) = (row[i * widths.len() + j], measured(&[keep], &[bits]).unwrap()[0]);
            assert!((found - alone).abs() <= 1e-9 * alone, "k = {keep}, {bits} bits: {found:e}, alone {alone:e}");
        }
    }
}

/// Asserts that decoding `bytes` does not panic, and agrees with a decoder that reads them bit by bit: both give the
/// same values, or both refuse the bytes. Payloads of other methods and of more than 2^20 elements are skipped.
///
/// # Panics
/// Panics if a check fails.
pub fn check_payload(bytes: &[u8]) {
    let Ok(payload) = Payload::parse(bytes) else { return };
    let elements = payload.header.shape.elements();
    if payload.header.method != Method::QuantisedTopK || elements > 1 << 20 {
        return;
    }
    let mut decoded = vec![f32::NAN; elements];
    match (decode(bytes, &mut decoded), read(bytes, elements)) {
        (Ok(_), Some(expected)) => assert_eq!(bits(&decoded), bits(&expected)),
        (Err(_), None) => {}
        (found, expected) => panic!("decoding gives {found:?}, reading bit by bit {}", expected.is_some()),
    }
}

/// Reads the values. Returns `None` for bytes that no encoder writes.
fn read(bytes: &[u8], elements: usize) -> Option<Vec<f32>> {
    let (header, body) = bytes.split_at(HEADER_LEN);
    let keep = u32::from_le_bytes(header[4..8].try_into().unwrap()) as usize;
    let (width, coding) = ((header[3] & 15) as usize, header[3] >> 4);
    if !(1..=8).contains(&width) || keep > elements || (keep == 0) != (elements == 0) {
        return None;
    }
    let (means, rest) = body.split_at_checked(4 << (width - 1))?;
    let (codes, positions) = rest.split_at_checked((keep * width).div_ceil(8))?;
    let bit = |bytes: &[u8], at: usize| (bytes[at / 8] >> (at % 8) & 1) as usize;
    let number = |bytes: &[u8], at: usize, len: usize| (0..len).map(|i| bit(bytes, at + i) << i).sum::<usize>();
    if (keep * width..8 * codes.len()).any(|at| bit(codes, at) != 0) {
        return None;
    }
    let mean = |bin: usize| f32::from_bits(u32::from_le_bytes(means[4 * bin..4 * bin + 4].try_into().unwrap()));
    if (0..means.len() / 4).any(|bin| !mean(bin).is_finite() || mean(bin).is_sign_negative()) {
        return None;
    }
    // The core's code reads the positions. The checks of TopK's payloads test this code.
    let top = lgreco::compress::topk::TopK { keep: keep as u32, values: lgreco::gradient::Dtype::F32 };
    let layout = top.layout(elements as u32).ok()?;
    if layout.coding as u8 != coding {
        return None;
    }
    let mut found = Vec::new();
    let visit = |position: u32| {
        found.push(position as usize);
        Ok(())
    };
    if positions.len() as u64 != layout.bytes() {
        return None;
    }
    lgreco::compress::topk::for_each_position(keep as u32, elements, positions, visit).ok()?;
    if found.len() != keep {
        return None;
    }
    let mut values = vec![0.0; elements];
    for (i, &position) in found.iter().enumerate() {
        let code = number(codes, i * width, width);
        let value = mean(code % (1 << (width - 1)));
        values[position] = if code >> (width - 1) == 1 { -value } else { value };
    }
    Some(values)
}
