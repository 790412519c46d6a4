//! The row of the error table: error and size of every λ in one pass.

use super::HardThreshold;
use crate::Error;
use crate::compress::topk;
use crate::compress::value::{WireValue, with_wire_type};
use crate::error::{expect_len, expect_room};
use crate::gradient::{Dtype, Element, Gradient, Shape, with_elements};
use crate::select::{check_finite, magnitude_bits};

/// Words of workspace that [`measure`] needs for a row of `lambdas` entries.
pub const fn measure_workspace_len(lambdas: usize) -> usize {
    lambdas + 3 * (lambdas + 1)
}

/// The squared error of sending what reaches each of `lambdas` (in any order), values as `values`, and the length of the
/// payload in bytes. Entry `i` of both belongs to `lambdas[i]`.
///
/// Under error feedback both are to be measured on what is compressed, the gradient with the memory: how much is sent in
/// the long run is decided by how fast memories reach λ, not by one gradient.
///
/// # Errors
/// [`Error::NonFinite`] with the first offender; [`Error::Parameter`] when a λ is not positive and finite;
/// [`Error::ElementOverflow`] when an element that some λ sends is too large for `values`; [`Error::Length`].
///
/// # Complexity
/// O(n log m) time for m thresholds: two passes, one of which only looks for what is not finite.
///
/// ```
/// use lgreco_core::compress::hard_threshold::{measure, measure_workspace_len};
/// use lgreco_core::gradient::{Dtype, Gradient, Shape, Values};
/// let mut values = [0.5f32; 64];
/// values[9] = 3.0;
/// let gradient = Gradient::new(Values::F32(&values), Shape::new(64, 1)?)?;
/// let mut workspace = [0; measure_workspace_len(2)];
/// let (mut squared_errors, mut lens) = ([0.0; 2], [0; 2]);
/// measure(&gradient, Dtype::F32, &[1.0, 9.0], &mut workspace, &mut squared_errors, &mut lens)?;
/// assert_eq!((squared_errors, lens), ([15.75, 24.75], [16 + 4 + 2, 16]));
/// # Ok::<(), lgreco_core::Error>(())
/// ```
pub fn measure(
    gradient: &Gradient<'_>,
    values: Dtype,
    lambdas: &[f32],
    workspace: &mut [u64],
    squared_errors: &mut [f64],
    payload_lens: &mut [usize],
) -> Result<(), Error> {
    expect_len("squared errors", lambdas.len(), squared_errors.len())?;
    expect_len("payload lengths", lambdas.len(), payload_lens.len())?;
    each(gradient, values, lambdas, workspace, |index, squared_error, len| {
        (squared_errors[index], payload_lens[index]) = (squared_error, len);
    })
}

/// [`measure`], handing each entry's index, squared error and length to `found`.
pub(in crate::compress) fn each(
    gradient: &Gradient<'_>,
    values: Dtype,
    lambdas: &[f32],
    workspace: &mut [u64],
    found: impl FnMut(usize, f64, usize),
) -> Result<(), Error> {
    let room = measure_workspace_len(lambdas.len());
    expect_room("workspace words", room, workspace.len())?;
    lambdas.iter().try_for_each(|&lambda| HardThreshold { lambda, values }.check())?;
    let (order, bins) = workspace[..room].split_at_mut(lambdas.len());
    for (i, (slot, lambda)) in order.iter_mut().zip(lambdas).enumerate() {
        *slot = (lambda.to_bits() as u64) << 32 | i as u64;
    }
    order.sort_unstable();
    with_elements!(gradient.values(), v => with_wire_type!(values, V => {
        row::<_, V>(v, gradient.shape(), values, order, bins, found)
    }))
}

fn row<T: Element, V: WireValue>(
    values: &[T],
    shape: Shape,
    dtype: Dtype,
    order: &[u64],
    bins: &mut [u64],
    mut found: impl FnMut(usize, f64, usize),
) -> Result<(), Error> {
    check_finite(values)?;
    let bits = |entry: &u64| (entry >> 32) as u32;
    bins.fill(0);
    // Bin b: the elements that the b smallest thresholds send, and no other.
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
        let error = if sent as u64 == kept { dropped + roundings[bin + 1] } else { roundings[0] };
        found(*entry as u32 as usize, error, topk::payload_len(sent, shape, dtype)?);
    }
    Ok(())
}
