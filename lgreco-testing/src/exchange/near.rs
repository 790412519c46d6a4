//! Compares an exchange memory with the host's. Bits must be equal, except for PowerSGD's factors and their products.
//! Factors and products must only be close, because each memory sums in a different order.

use super::members::{Member, factor_lens, is_near};
use super::network::{Content, Sent};
use lgreco_train::compress::Setting;
use lgreco_train::exchange::Slip;
use lgreco_train::gradient::{Bf16, Dtype, Element, F16};

/// Largest distance between values, relative to the norm of all values.
const APART: f64 = 1e-4;
/// Like [`APART`], for values of 16 bits, which may be rounded up in one memory and down in the other.
const ROUNDED: f64 = 1.0 / 256.0;

/// Values of a type, as f32.
pub(super) fn widened(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    let halves = || bytes.as_chunks().0.iter().map(|&half| u16::from_ne_bytes(half));
    match dtype {
        Dtype::F32 => bytes.as_chunks().0.iter().map(|&value| f32::from_ne_bytes(value)).collect(),
        Dtype::F16 => halves().map(|half| F16(half).to_f32()).collect(),
        Dtype::Bf16 => halves().map(|half| Bf16(half).to_f32()).collect(),
    }
}

fn norm(values: impl Iterator<Item = f32>) -> f64 {
    f64::sqrt(values.map(|x| f64::from(x) * f64::from(x)).sum())
}

/// Asserts that values are close to the expected values. The values contain the rounding errors of `others`. So the
/// bound is relative to the norm of the expected values or of `others`, whichever is larger.
///
/// # Panics
/// Panics if the check fails.
pub(super) fn near(found: &[f32], expected: &[f32], others: &[f32], dtypes: [Dtype; 2], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let apart = norm(found.iter().zip(expected).map(|(a, b)| a - b));
    let all = norm(expected.iter().copied()).max(norm(others.iter().copied()));
    let allowed = if dtypes == [Dtype::F32; 2] { APART } else { ROUNDED };
    assert!(apart <= allowed * all, "{what}: {apart:e} of {all:e} apart");
}

/// Asserts that an exchange of a bucket with factors has sent nearly the same bytes as the host's. Fingerprints are not
/// compared, because they include the factors, whose bits differ.
///
/// # Panics
/// Panics if the check fails.
pub(super) fn near_sent(members: &[Member], found: &[Sent], expected: &[Sent], reduce_dtype: Dtype, what: &str) {
    let mut sums = 0;
    for (found, expected) in found.iter().zip(expected) {
        let (call, len) = (expected.call, expected.bytes.len());
        assert_eq!((found.call, found.bytes.len()), (call, len), "{what}: another collective");
        if call == "all-gather" {
            let code = |sent: &Sent| Slip::read(&sent.bytes).code;
            assert_eq!(code(found), code(expected), "{what}: another code");
            assert!(found.bytes[Slip::LEN..] == expected.bytes[Slip::LEN..], "{what}: other bytes, {call}");
            continue;
        }
        near_sums(members, sums, [&found.bytes, &expected.bytes], reduce_dtype, &format!("{what}, {call}"));
        sums += 1;
    }
    assert_eq!(sums, 2, "{what}: sums");
}

/// Like [`near_sent`], for contents without status and fingerprints.
///
/// # Panics
/// Panics if the check fails.
pub(super) fn near_contents(
    members: &[Member],
    found: &[Content],
    expected: &[Content],
    reduce_dtype: Dtype,
    what: &str,
) {
    let mut sums = 0;
    for (found, expected) in found.iter().zip(expected) {
        let call = expected.call;
        assert_eq!((found.call, found.fares_well), (call, expected.fares_well), "{what}: another collective");
        if call == "all-gather" {
            assert!(found.bytes == expected.bytes, "{what}: other bytes, {call}");
            continue;
        }
        near_sums(members, sums, [&found.bytes, &expected.bytes], reduce_dtype, &format!("{what}, {call}"));
        sums += 1;
    }
    assert_eq!(sums, 2, "{what}: sums");
}

/// Asserts that the values of one sum are close. `number` is 0 for the first sum and 1 for the second.
fn near_sums(members: &[Member], number: usize, sent: [&[u8]; 2], reduce_dtype: Dtype, what: &str) {
    let [found, expected] = sent.map(|bytes| widened(reduce_dtype, bytes));
    let mut at = 0;
    for member in members {
        let len = match member.setting {
            Setting::Dense if number == 0 => member.shape.elements(),
            _ => factor_lens(member)[number],
        };
        let [found, expected] = [&found, &expected].map(|values| &values[at..at + len]);
        if is_near(member) {
            near(found, expected, &[], [Dtype::F32, reduce_dtype], &format!("{what}: factor {number}"));
        } else {
            assert!(super::bits(found) == super::bits(expected), "{what}: other values");
        }
        at += len;
    }
}
