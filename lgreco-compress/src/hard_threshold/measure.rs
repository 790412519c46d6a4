//! Measures the hard threshold's row of the error table: error and size for every λ in one pass.

use super::HardThreshold;
use crate::error::expect_room;
use crate::gradient::{Dtype, Element, Gradient, Shape, with_elements};
use crate::select::{check_finite, magnitude_bits};
use crate::topk;
use crate::value::{WireValue, with_wire_type};
use crate::{Error, Result};

/// Words of workspace that measuring a row of `lambdas` entries needs.
pub const fn measure_workspace_len(lambdas: usize) -> usize {
    lambdas + 3 * (lambdas + 1)
}

/// Measures the squared error of sending all magnitudes that reach λ, for each of `lambdas` (in any order). Values are
/// sent as `values`. Calls `found` with the index and the length in bytes of each payload.
///
/// Under error feedback, error and length should be measured on the compressor's input: gradient plus residual. The
/// long-run traffic depends on how fast residuals reach λ, not on one gradient.
///
/// # Complexity
/// O(n log m) for n elements and m thresholds: two passes, one of which only searches for NaN and infinity.
pub(crate) fn measure(
    gradient: &Gradient<'_>,
    values: Dtype,
    lambdas: &[f32],
    workspace: &mut [u64],
    squared_errors: &mut [f64],
    found: impl FnMut(usize, usize),
) -> Result<()> {
    let room = measure_workspace_len(lambdas.len());
    expect_room("workspace words", room, workspace.len())?;
    lambdas.iter().try_for_each(|&lambda| HardThreshold { lambda, values }.check())?;
    let (order, bins) = workspace[..room].split_at_mut(lambdas.len());
    for (i, (slot, lambda)) in order.iter_mut().zip(lambdas).enumerate() {
        *slot = (lambda.to_bits() as u64) << 32 | i as u64;
    }
    order.sort_unstable();
    with_elements!(gradient.values(), v => with_wire_type!(values, V => {
        row::<_, V>(v, gradient.shape(), values, (order, bins), squared_errors, found)
    }))
}

fn row<T: Element, V: WireValue>(
    values: &[T],
    shape: Shape,
    dtype: Dtype,
    (order, bins): (&[u64], &mut [u64]),
    squared_errors: &mut [f64],
    mut found: impl FnMut(usize, usize),
) -> Result<()> {
    check_finite(values)?;
    let bits = |entry: &u64| (entry >> 32) as u32;
    bins.fill(0);
    // Bin b holds the elements that are sent under exactly the b smallest thresholds.
    let (counts, bins) = bins.split_at_mut(order.len() + 1);
    let (energies, roundings) = bytemuck::cast_slice_mut::<u64, f64>(bins).split_at_mut(order.len() + 1);
    for (index, &x) in values.iter().enumerate() {
        let bin = order.partition_point(|entry| bits(entry) <= magnitude_bits(x));
        let value = x.to_f32();
        let sent = V::rounded(value);
        if bin > 0 && !sent.is_finite() {
            return Err(Error::ElementOverflow { index, value });
        }
        let rounding = value as f64 - sent as f64;
        counts[bin] += 1;
        energies[bin] += value as f64 * value as f64;
        roundings[bin] += rounding * rounding;
    }
    for bin in (0..order.len()).rev() {
        roundings[bin] += roundings[bin + 1];
    }
    let (mut kept, mut dropped) = (values.len() as u64, 0.0);
    for (bin, entry) in order.iter().enumerate() {
        kept -= counts[bin];
        dropped += energies[bin];
        let sent = topk::sent(kept as u32, values.len() as u32, dtype);
        let index = *entry as u32 as usize;
        squared_errors[index] = if sent as u64 == kept { dropped + roundings[bin + 1] } else { roundings[0] };
        found(index, topk::payload_len(sent, shape, dtype)?);
    }
    Ok(())
}
