//! Measures the row of the error table: every k at every bit width, from one sorted list of the kept magnitudes.

use super::QuantisedTopK;
use super::bins::{BINS_MAX, Bins};
use super::stat::{Runs, Stat};
use crate::Error;
use crate::error::{expect_len, expect_room};
use crate::gradient::{Dtype, Gradient, Shape, with_elements};
use crate::positions::{Layout, Writer};
use crate::select;
use crate::topk::{self, write_positions};

/// Words of workspace that [`measure`] needs. The number is half a word per element, two words per entry of `keeps`,
/// and at most 24,833 words. In addition, each element that the largest entry keeps takes a little more than half a
/// word.
pub fn measure_workspace_len(shape: Shape, keeps: &[u32]) -> usize {
    let elements = shape.elements();
    let most = keeps.iter().copied().max().unwrap_or(0).min(elements as u32) as usize;
    let kept = select::workspace_len(elements) + most.div_ceil(2) + Runs::room(most);
    keeps.len() + kept.max(topk::measure_workspace_len(shape, keeps.len()))
}

/// Measures the squared error of keeping each of `keeps` elements with values in each of `bits` bits. Both lists may be in
/// any order. The error for `keeps[i]` and `bits[j]` goes to `squared_errors[i * bits.len() + j]`.
///
/// The result is within 1e-5 of the error of decoded values.
///
/// # Errors
/// [`Error::NonFinite`] with the first NaN or infinity. [`Error::Parameter`] when a `keep` is not between 1 and the
/// number of elements (0 if there are none), or when bits are not 1 to 8. [`Error::Length`] when `squared_errors` does
/// not have one value per candidate, or `workspace` is shorter than [`measure_workspace_len`].
///
/// # Complexity
/// The time of [`topk::measure`], plus O(n + k log k) to select and sort the k largest magnitudes, where k is the
/// largest of `keeps`. In addition, each entry of `keeps` takes one step per 64 kept elements and 64 steps per bin.
///
/// ```
/// use lgreco_compress::quantised_topk::{measure, measure_workspace_len};
/// use lgreco_core::gradient::{Gradient, Shape, Values};
/// let gradient = Gradient::new(Values::F32(&[0.5, -8.0, 0.25, 2.0, 1.5]), Shape::new(5, 1)?)?;
/// let mut workspace = vec![0; measure_workspace_len(gradient.shape(), &[3, 1])];
/// let mut squared_errors = [0.0; 4];
/// measure(&gradient, &[3, 1], &[2, 8], &mut workspace, &mut squared_errors)?;
/// assert_eq!(squared_errors, [0.3125 + 2.0 * 0.0625, 0.3125, 6.5625, 6.5625]); // 2.0 and 1.5 become 1.75
/// # Ok::<(), lgreco_core::Error>(())
/// ```
pub fn measure(
    gradient: &Gradient<'_>,
    keeps: &[u32],
    bits: &[u8],
    workspace: &mut [u64],
    squared_errors: &mut [f64],
) -> Result<(), Error> {
    let shape = gradient.shape();
    expect_len("squared errors", keeps.len() * bits.len(), squared_errors.len())?;
    expect_room("workspace words", measure_workspace_len(shape, keeps), workspace.len())?;
    bits.iter().try_for_each(|&bits| QuantisedTopK { keep: 1, bits }.check())?;
    let (dropped, workspace) = workspace.split_at_mut(keeps.len());
    let dropped: &mut [f64] = bytemuck::cast_slice_mut(dropped);
    topk::measure(gradient, Dtype::F32, keeps, workspace, dropped)?;
    let Some(most) = keeps.iter().copied().max() else { return Ok(()) };
    errors_of_sorted(&sorted(gradient, most, workspace)?, keeps, bits, dropped, squared_errors);
    Ok(())
}

/// Computes the row from the sorted kept magnitudes, and from the errors of dropping all other elements.
fn errors_of_sorted(kept: &Runs<'_>, keeps: &[u32], bits: &[u8], dropped: &[f64], squared_errors: &mut [f64]) {
    for ((&keep, &dropped), errors) in keeps.iter().zip(dropped).zip(squared_errors.chunks_mut(bits.len().max(1))) {
        let quantised = quantised(kept, keep as usize);
        for (&bits, error) in bits.iter().zip(errors) {
            *error = dropped + quantised[bits as usize];
        }
    }
}

/// Selects and sorts the `most` largest magnitudes.
fn sorted<'a>(gradient: &Gradient<'_>, most: u32, workspace: &'a mut [u64]) -> Result<Runs<'a>, Error> {
    let (select, rest) = workspace.split_at_mut(select::workspace_len(gradient.shape().elements()));
    let (kept, room) = rest.split_at_mut((most as usize).div_ceil(2));
    let kept: &mut [u32] = &mut bytemuck::cast_slice_mut(kept)[..most as usize];
    if most > 0 {
        let mut places = &mut *kept;
        let layout = Layout::new(gradient.shape().elements() as u32, most);
        with_elements!(gradient.values(), v => write_positions(v, layout, most, select, Writer::All, |bits| {
            let (here, rest) = core::mem::take(&mut places).split_at_mut(bits.len());
            here.iter_mut().zip(bits).for_each(|(place, bits)| *place = bits & 0x7fff_ffff);
            places = rest;
        }))?;
        kept.sort_unstable();
    }
    Ok(Runs::new(kept, room))
}

/// Squared error of quantising the `keep` largest magnitudes, indexed by the number of bits.
fn quantised(runs: &Runs<'_>, keep: usize) -> [f64; 9] {
    let sorted = runs.sorted();
    let first = sorted.len() - keep;
    let high = sorted.last().copied().unwrap_or(0);
    let zeros = sorted[first..].partition_point(|&magnitude| magnitude == 0);
    let low = sorted.get(first + zeros).copied().unwrap_or(high);
    let bins = Bins::new(8, low, high);
    let (mut stats, mut start) = ([Stat::default(); BINS_MAX], first);
    for (bin, stat) in stats.iter_mut().enumerate() {
        let edge = bins.edge(bin + 1);
        let end = start + sorted[start..].partition_point(|&magnitude| magnitude < edge);
        *stat = runs.stat(start, end);
        start = end;
    }
    let mut errors = [0.0; 9];
    for bits in (1..=8).rev() {
        let count = 1 << (bits - 1);
        errors[bits] = stats[..count].iter().map(Stat::squared_error).sum();
        for bin in 0..count / 2 {
            stats[bin] = stats[2 * bin].merged(stats[2 * bin + 1]);
        }
    }
    errors
}
