//! Measures TopK's row of the error table: the squared error of every k in about one pass.

use super::check_keep;
use crate::error::{expect_len, expect_room};
use crate::gradient::{Dtype, Element, Gradient, Shape, with_elements};
use crate::select::{self, Bracket};
use crate::value::{WireValue, with_wire_type};
use crate::{Error, Result};
use core::ops::RangeInclusive;

/// Maximum number of bins for the candidates' magnitudes. Candidates are the elements that may be kept.
const BINS_MAX: usize = 1 << 14;

/// Number of bins for a tensor of `elements`. With this number, few elements share a bin, and clearing the bins is
/// cheap.
const fn bins(elements: usize) -> usize {
    let wanted = (elements / 16).next_power_of_two();
    if wanted < 64 {
        64
    } else if wanted > BINS_MAX {
        BINS_MAX
    } else {
        wanted
    }
}

/// Words of workspace that [`measure`] needs for a row of `keeps` entries. The number is half a word per element, one
/// word per entry, and at most 24,833 additional words.
pub const fn measure_workspace_len(shape: Shape, keeps: usize) -> usize {
    let bins = bins(shape.elements());
    // The parts are: sorted keeps, candidates, energy of each bin, ranks at the bins' edges, marks.
    keeps + shape.elements().div_ceil(2) + bins + bins.div_ceil(2) + 1 + bins / 64
}

/// Measures the squared error of keeping k elements, for each k in `keeps`. `values` is the type of the sent values.
/// `squared_errors[i]` belongs to `keeps[i]`; `keeps` may be in any order. The error is the energy (sum of squares)
/// outside the k largest magnitudes, plus the squared rounding error of the kept values.
///
/// Errors are f64 sums of non-negative terms, so small errors are as precise as large ones.
///
/// # Errors
/// [`Error::NonFinite`] with the first NaN or infinity. [`Error::Parameter`] when a `keep` is not between 1 and the
/// number of elements (0 if there are none). [`Error::ElementOverflow`] when the largest element is too large for
/// `values`. [`Error::Length`] when `squared_errors` is not as long as `keeps`, or `workspace` is shorter than
/// [`measure_workspace_len`].
///
/// # Complexity
/// O(n + c log c + m log m) for n elements and m keeps. The number c of candidates that share a bin with one of the m
/// thresholds is small, unless many magnitudes are nearly equal.
///
/// ```
/// use lgreco_compress::topk::{measure, measure_workspace_len};
/// use lgreco_core::gradient::{Dtype, Gradient, Shape, Values};
/// let values = [0.5f32, -3.0, 0.25, 2.0];
/// let gradient = Gradient::new(Values::F32(&values), Shape::new(2, 2)?)?;
/// let mut workspace = vec![0; measure_workspace_len(gradient.shape(), 2)];
/// let mut squared_errors = [0.0; 2];
/// measure(&gradient, Dtype::F32, &[3, 1], &mut workspace, &mut squared_errors)?;
/// assert_eq!(squared_errors, [0.0625, 0.0625 + 0.25 + 4.0]);
/// # Ok::<(), lgreco_core::Error>(())
/// ```
pub fn measure(
    gradient: &Gradient<'_>,
    values: Dtype,
    keeps: &[u32],
    workspace: &mut [u64],
    squared_errors: &mut [f64],
) -> Result<()> {
    expect_len("squared errors", keeps.len(), squared_errors.len())?;
    let room = measure_workspace_len(gradient.shape(), keeps.len());
    expect_room("workspace words", room, workspace.len())?;
    keeps.iter().try_for_each(|&keep| check_keep(keep, gradient.shape().elements()))?;
    with_elements!(gradient.values(), v => with_wire_type!(values, V => {
        row::<_, V>(v, keeps, &mut workspace[..room], squared_errors)
    }))
}

/// Squared error of one element sent as `V` if it is kept, and the additional squared error if it is dropped.
struct Cost {
    kept: f64,
    dropped: f64,
}

#[inline(always)]
fn cost<V: WireValue>(bits: u32) -> Cost {
    let value = f32::from_bits(bits);
    let rounding = value as f64 - V::rounded(value) as f64;
    let kept = rounding * rounding;
    // `dropped` is never negative: rounding to nearest changes a value by at most the value itself.
    Cost { kept, dropped: value as f64 * value as f64 - kept }
}

fn row<T: Element, V: WireValue>(
    values: &[T],
    keeps: &[u32],
    workspace: &mut [u64],
    squared_errors: &mut [f64],
) -> Result<()> {
    let (order, rest) = workspace.split_at_mut(keeps.len());
    let (candidates, bins_room) = rest.split_at_mut(values.len().div_ceil(2));
    let candidates: &mut [u32] = bytemuck::cast_slice_mut(candidates);

    let largest = keeps.iter().copied().max().unwrap_or(0);
    let mut bracket = Bracket { high: Bracket::ALL.high, ..Bracket::sampled(values, largest, candidates) };
    let mut split = select::split::<T, true>(values, bracket, candidates)?;
    let scale = bracket.bottom.max(bracket.low + 1)..=bracket.top.min(split.max);
    if split.inside + (split.tied as usize) < largest as usize {
        bracket = Bracket::ALL;
        split = select::split::<T, true>(values, bracket, candidates)?;
    }
    let max = f32::from_bits(split.max);
    if !V::rounded(max).is_finite() && largest > 0 {
        let index = values.iter().position(|&x| select::magnitude_bits(x) == split.max).unwrap_or(0);
        return Err(Error::ElementOverflow { index, value: values[index].to_f32() });
    }

    for (i, (slot, &keep)) in order.iter_mut().zip(keeps).enumerate() {
        *slot = (keep as u64) << 32 | i as u64;
    }
    order.sort_unstable();
    let candidates = &mut candidates[..split.inside];
    let mut bins = Bins::new(candidates, scale, bins(values.len()), bins_room);
    bins.mark(order);
    let (all_kept, crowded) = bins.sum_energies::<V>(candidates);

    let tie = cost::<V>(bracket.low);
    let fixed = split.energy_below + all_kept + split.tied as f64 * tie.kept;
    let mut dropped = Dropped { bin: 0, count: 0, crowded, energy: 0.0 };
    for &entry in order.iter().rev() {
        let (keep, slot) = ((entry >> 32) as usize, entry as u32 as usize);
        let kept_ties = keep.saturating_sub(split.inside);
        dropped.advance::<V>(&bins, split.inside - (keep - kept_ties));
        squared_errors[slot] = fixed + (split.tied as usize - kept_ties) as f64 * tie.dropped + dropped.energy;
    }
    Ok(())
}

/// The candidates, counted in bins by magnitude.
struct Bins<'a> {
    bottom: u32,
    shift: u32,
    /// For each bin, the number of candidates in this bin and all higher bins. A last entry is 0.
    from: &'a mut [u32],
    /// Squared error saved by keeping the bin's candidates; filled only for bins without a mark.
    energies: &'a mut [f64],
    /// Marks of bins that a threshold divides.
    marks: &'a mut [u64],
}

impl<'a> Bins<'a> {
    /// Counts `candidates` in bins that divide `scale` evenly. Candidates outside `scale` go to the first or the last
    /// bin.
    fn new(candidates: &[u32], scale: RangeInclusive<u32>, bins: usize, room: &'a mut [u64]) -> Self {
        let (energies, room) = room.split_at_mut(bins);
        let (marks, from) = room.split_at_mut(bins / 64);
        let from = &mut bytemuck::cast_slice_mut(from)[..bins + 1];
        let span = scale.end().saturating_sub(*scale.start());
        let shift = (32 - span.leading_zeros()).saturating_sub(bins.trailing_zeros());
        energies.fill(0);
        marks.fill(0);
        from.fill(0);
        let bins = Bins { bottom: *scale.start(), shift, from, energies: bytemuck::cast_slice_mut(energies), marks };
        for &bits in candidates {
            bins.from[bins.bin(bits)] += 1;
        }
        for bin in (0..bins.energies.len()).rev() {
            bins.from[bin] += bins.from[bin + 1];
        }
        bins
    }

    fn bin(&self, bits: u32) -> usize {
        ((bits.saturating_sub(self.bottom) >> self.shift) as usize).min(self.energies.len() - 1)
    }

    fn marked(&self, bin: usize) -> bool {
        self.marks[bin / 64] >> (bin % 64) & 1 != 0
    }

    /// Marks the bins that some k in `order` divides.
    fn mark(&mut self, order: &[u64]) {
        for keep in order.iter().map(|entry| (entry >> 32) as u32) {
            let whole = self.from.partition_point(|&from| from > keep);
            if whole > 0 && self.from[whole] < keep {
                self.marks[(whole - 1) / 64] |= 1 << ((whole - 1) % 64);
            }
        }
    }

    /// Sums the energies of bins without a mark, and sorts the candidates of marked bins. Returns the squared rounding
    /// error of keeping all candidates, and the sorted candidates of marked bins.
    fn sum_energies<'c, V: WireValue>(&mut self, candidates: &'c mut [u32]) -> (f64, &'c [u32]) {
        let mut kept = 0.0;
        let mut crowded = 0;
        for i in 0..candidates.len() {
            let bits = candidates[i];
            let cost = cost::<V>(bits);
            kept += cost.kept;
            let bin = self.bin(bits);
            if self.marked(bin) {
                candidates[crowded] = bits;
                crowded += 1;
            } else {
                self.energies[bin] += cost.dropped;
            }
        }
        let crowded = &mut candidates[..crowded];
        crowded.sort_unstable();
        (kept, crowded)
    }
}

/// The dropped candidates, which are the smallest ones. Their number grows.
struct Dropped<'a> {
    /// First bin that is not completely dropped.
    bin: usize,
    /// Number of dropped candidates.
    count: usize,
    /// The remaining candidates of marked bins, ascending.
    crowded: &'a [u32],
    /// Squared error caused by dropping.
    energy: f64,
}

impl Dropped<'_> {
    /// Drops further candidates until `count` candidates are dropped.
    fn advance<V: WireValue>(&mut self, bins: &Bins<'_>, count: usize) {
        while self.count < count {
            let end = (bins.from[0] - bins.from[self.bin + 1]) as usize;
            if bins.marked(self.bin) {
                let (now, later) = self.crowded.split_at(end.min(count) - self.count);
                self.energy = now.iter().fold(self.energy, |sum, &bits| sum + cost::<V>(bits).dropped);
                (self.crowded, self.count) = (later, end.min(count));
            } else {
                self.energy += bins.energies[self.bin];
                self.count = end;
            }
            self.bin += (self.count == end) as usize;
        }
    }
}
