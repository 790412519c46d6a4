//! Measures the error and the size of a hard threshold.

use super::HardThreshold;
use crate::gradient::{Element, Gradient, Shape, with_elements};
use crate::select::{check_finite, magnitude_bits};
use crate::topk;
use crate::value::{WireValue, with_wire_type};
use crate::{Error, Result};

/// Returns the squared error of sending all magnitudes that reach λ, and the payload's length in bytes.
///
/// Under error feedback, error and length should be measured on the compressor's input: gradient plus residual. The
/// long-run traffic depends on how fast residuals reach λ, not on one gradient.
///
/// # Complexity
/// O(elements): a pass that searches for NaN and infinity, and a pass that measures.
pub(crate) fn measure(hard: &HardThreshold, gradient: &Gradient<'_>) -> Result<(f64, usize)> {
    hard.check()?;
    with_elements!(gradient.values(), v => with_wire_type!(hard.values, V => {
        of_values::<_, V>(hard, v, gradient.shape())
    }))
}

fn of_values<T: Element, V: WireValue>(hard: &HardThreshold, values: &[T], shape: Shape) -> Result<(f64, usize)> {
    check_finite(values)?;
    let (least, mut kept) = (hard.lambda.to_bits(), 0);
    // `of_kept` is the squared error of sending the elements that reach the threshold. `of_dropped` is the squared
    // error of dropping the elements below the threshold. `of_others` is the squared error of sending the elements
    // below the threshold.
    let (mut of_kept, mut of_dropped, mut of_others) = (0.0, 0.0, 0.0);
    for (index, &x) in values.iter().enumerate() {
        let (value, is_kept) = (x.to_f32(), magnitude_bits(x) >= least);
        let sent = V::rounded(value);
        if is_kept && !sent.is_finite() {
            return Err(Error::ElementOverflow { index, value });
        }
        let rounding = value as f64 - sent as f64;
        if is_kept {
            kept += 1;
            of_kept += rounding * rounding;
        } else {
            of_dropped += value as f64 * value as f64;
            of_others += rounding * rounding;
        }
    }
    let sent = topk::sent(kept, values.len() as u32, hard.values);
    let error = if sent == kept { of_dropped + of_kept } else { of_others + of_kept };
    Ok((error, topk::payload_len(sent, shape, hard.values)?))
}
