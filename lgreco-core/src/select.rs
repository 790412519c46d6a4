//! Selection by magnitude: the k-th largest |x| of a slice, and what lies above and below a magnitude.
//!
//! Magnitudes are compared by the bits of |x| as an f32 without its sign, which order as the magnitudes do. A sample
//! brackets the answer, one vectorised pass collects the few magnitudes inside the bracket and counts those outside,
//! and a selection among the collected ones is exact. A bracket that turns out wrong costs a second pass with
//! everything inside; the result never depends on the sample.

use crate::Error;
use crate::error::expect_room;
use crate::gradient::Element;
use crate::simd::{Kernel, dispatch};
use crate::spread::{Divide, spread};

/// Elements that are looked at together: one step of the vector loops.
const LANES: usize = 16;
/// Below this many elements a sample is not worth its while.
const SAMPLED_FROM: usize = 1 << 10;
/// Largest sample: it brackets 1 % of 16 M elements within a tenth.
const SAMPLE_MAX: usize = 1 << 15;
/// Bits of f32 infinity; the magnitude bits of finite numbers are smaller.
const INFINITY: u32 = 0x7f80_0000;

/// The bits of |x|.
#[inline(always)]
pub fn magnitude_bits<T: Element>(x: T) -> u32 {
    x.to_f32().to_bits() & 0x7fff_ffff
}

/// Where the k largest magnitudes end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Bits of the k-th largest magnitude.
    pub magnitude: u32,
    /// How many elements of exactly this magnitude are among the k largest; at least 1.
    pub ties: u32,
}

/// A bracket of magnitudes, by their bits.
#[derive(Clone, Copy, Debug)]
pub struct Bracket {
    /// Magnitudes inside are above this one,
    pub low: u32,
    /// and not above this one.
    pub high: u32,
    /// Nearly all magnitudes lie from here on,
    pub bottom: u32,
    /// and up to here.
    pub top: u32,
}

impl Bracket {
    /// All finite magnitudes except 0.
    pub const ALL: Bracket = Bracket { low: 0, high: INFINITY - 1, bottom: 0, top: INFINITY - 1 };

    /// A bracket that almost surely holds the `k`-th largest magnitude, from a sample of fixed positions.
    ///
    /// `scratch` needs room for [`SAMPLE_MAX`] numbers or one per element, whichever is less.
    pub fn sampled<T: Element>(values: &[T], k: u32, scratch: &mut [u32]) -> Bracket {
        if values.len() < SAMPLED_FROM {
            return Bracket::ALL;
        }
        let count = (values.len() / 32).clamp(SAMPLED_FROM / 4, SAMPLE_MAX);
        let stride = values.len() / count;
        let sample = &mut scratch[..count];
        for (i, slot) in sample.iter_mut().enumerate() {
            *slot = magnitude_bits(values[sampled_position(i, stride)]);
        }
        let rank = (k as u64 * count as u64 / values.len() as u64) as usize;
        // Five standard deviations of the number of sampled elements among the k largest.
        let margin = (25 * rank as u64 * (count - rank.min(count)) as u64 / count as u64).isqrt() as usize + 8;
        let mut bracket = Bracket::ALL;
        (bracket.bottom, bracket.top) = sample.iter().fold((INFINITY - 1, 0), |(a, b), &x| (a.min(x), b.max(x)));
        let mut nth_largest = |rank: usize| *sample.select_nth_unstable(count - 1 - rank).1;
        if rank + margin < count {
            bracket.low = nth_largest(rank + margin);
        }
        if rank > margin {
            bracket.high = nth_largest(rank - margin);
        }
        bracket
    }
}

/// The position the sample takes from the `i`-th `stride` elements: scattered, so that periodic data cannot hide from it.
pub fn sampled_position(i: usize, stride: usize) -> usize {
    let scatter = (i as u32).wrapping_mul(0x9E37_79B9) as u64 * stride as u64;
    i * stride + (scatter >> 32) as usize
}

/// What a pass over all elements finds out about a [`Bracket`].
#[derive(Clone, Copy, Debug)]
pub struct Split {
    /// Elements above the bracket.
    pub above: u32,
    /// Elements inside; their magnitude bits are in the caller's buffer, in order.
    pub inside: usize,
    /// Elements of magnitude `low`.
    pub tied: u32,
    /// Sum of squares of the elements below `low`; 0 unless asked for.
    pub energy_below: f64,
    /// The largest magnitude's bits.
    pub max: u32,
}

/// One pass: counts what lies outside `bracket` and collects what lies inside.
struct SplitKernel<'a, T, const ENERGY: bool> {
    values: &'a [T],
    bracket: Bracket,
    inside: &'a mut [u32],
}

#[derive(Default)]
struct Lanes {
    max: [u32; LANES],
    above: [u32; LANES],
    tied: [u32; LANES],
    energy: [f64; LANES],
}

impl<T: Element, const ENERGY: bool> Kernel for SplitKernel<'_, T, ENERGY> {
    type Output = Split;

    #[inline(always)]
    fn run(self) -> Split {
        let mut lanes = Lanes::default();
        let mut inside = 0;
        let (blocks, rest) = self.values.as_chunks::<LANES>();
        for block in blocks {
            inside += split_block::<T, ENERGY>(block, self.bracket, &mut lanes, &mut self.inside[inside..]);
        }
        let mut last = [T::zeroed(); LANES];
        last[..rest.len()].copy_from_slice(rest);
        inside += split_block::<T, ENERGY>(&last, self.bracket, &mut lanes, &mut self.inside[inside..]);
        let padding = if self.bracket.low == 0 { LANES - rest.len() } else { 0 };
        Split {
            above: lanes.above.iter().sum(),
            inside,
            tied: (lanes.tied.iter().map(|&t| t as u64).sum::<u64>() - padding as u64) as u32,
            energy_below: lanes.energy.iter().sum(),
            max: lanes.max.iter().fold(0, |a, &b| a.max(b)),
        }
    }
}

#[inline(always)]
fn split_block<T: Element, const ENERGY: bool>(
    block: &[T; LANES],
    bracket: Bracket,
    lanes: &mut Lanes,
    inside: &mut [u32],
) -> usize {
    let Bracket { low, high, .. } = bracket;
    let mut bits = [0u32; LANES];
    let mut mask = 0u32;
    for i in 0..LANES {
        bits[i] = magnitude_bits(block[i]);
        lanes.max[i] = lanes.max[i].max(bits[i]);
        lanes.above[i] += (bits[i] > high) as u32;
        lanes.tied[i] += (bits[i] == low) as u32;
        if ENERGY {
            let below = f32::from_bits(if bits[i] < low { bits[i] } else { 0 }) as f64;
            lanes.energy[i] += below * below;
        }
        mask |= ((bits[i] > low && bits[i] <= high) as u32) << i;
    }
    if mask == (1 << LANES) - 1 {
        inside[..LANES].copy_from_slice(&bits);
        return LANES;
    }
    let mut count = 0;
    while mask != 0 {
        inside[count] = bits[mask.trailing_zeros() as usize % LANES];
        count += 1;
        mask &= mask - 1;
    }
    count
}

/// Splits `values` at `bracket`; the magnitude bits inside it go to the front of `inside`.
///
/// # Errors
/// [`Error::NonFinite`] with the first offender.
pub fn split<T: Element, const ENERGY: bool>(
    values: &[T],
    bracket: Bracket,
    inside: &mut [u32],
) -> Result<Split, Error> {
    let split = dispatch(SplitKernel::<T, ENERGY> { values, bracket, inside });
    if split.max >= INFINITY {
        return Err(first_non_finite(values));
    }
    Ok(split)
}

/// Most parts of a pass that is divided.
const PARTS: usize = 64;

/// One pass in parts of `part` elements, each with its own part of `inside`, where that is not empty. Without energies,
/// whose sum would depend on the division.
struct Parts<'a, T> {
    values: &'a [T],
    part: usize,
    bracket: Bracket,
    inside: &'a mut [u32],
    splits: &'a mut [Split],
}

impl<T: Element> Kernel for Parts<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Parts { values, part, bracket, mut inside, splits } = self;
        for (values, split) in values.chunks(part).zip(splits) {
            let own;
            (own, inside) = inside.split_at_mut(inside.len().min(part));
            *split = SplitKernel::<T, false> { values, bracket, inside: own }.run();
        }
    }
}

impl<T: Element> Divide for Parts<'_, T> {
    fn elements(&self) -> usize {
        self.values.len()
    }

    fn divide(self, at: usize) -> Result<(Self, Self), Self> {
        let Parts { values, part, bracket, inside, splits } = self;
        let parts = at / part;
        let (values, others) = values.split_at(parts * part);
        let (inside, other_inside) = inside.split_at_mut(inside.len().min(parts * part));
        let (splits, other_splits) = splits.split_at_mut(parts);
        Ok((
            Parts { values, part, bracket, inside, splits },
            Parts { values: others, part, bracket, inside: other_inside, splits: other_splits },
        ))
    }

    fn join((): (), (): ()) {}
}

/// As [`split`] without energies, spread over cores. `inside` has room for one per element, or none where the bracket is
/// empty.
fn split_parts<T: Element>(values: &[T], bracket: Bracket, inside: &mut [u32]) -> Result<Split, Error> {
    let part = values.len().div_ceil(PARTS).next_multiple_of(LANES).max(1 << 12);
    let mut splits = [Split { above: 0, inside: 0, tied: 0, energy_below: 0.0, max: 0 }; PARTS];
    spread(Parts { values, part, bracket, inside: &mut *inside, splits: &mut splits });
    let mut all = splits[0];
    for (i, split) in splits.iter().enumerate().skip(1) {
        if split.inside > 0 {
            inside.copy_within(i * part..i * part + split.inside, all.inside);
        }
        all.above += split.above;
        all.inside += split.inside;
        all.tied += split.tied;
        all.max = all.max.max(split.max);
    }
    if all.max >= INFINITY {
        return Err(first_non_finite(values));
    }
    Ok(all)
}

/// `Err` with the first NaN or infinity.
pub fn check_finite<T: Element>(values: &[T]) -> Result<(), Error> {
    let nothing = Bracket { low: Bracket::ALL.high, ..Bracket::ALL };
    split_parts(values, nothing, &mut []).map(|_| ())
}

fn first_non_finite<T: Element>(values: &[T]) -> Error {
    let index = values.iter().position(|&x| magnitude_bits(x) >= INFINITY).unwrap_or(0);
    Error::NonFinite { index, value: values[index].to_f32() }
}

/// Words of workspace for [`kth_largest_magnitude`].
pub const fn workspace_len(elements: usize) -> usize {
    elements.div_ceil(2)
}

/// The `k`-th largest magnitude of `values`, 1 ≤ k ≤ their number, and how its ties divide.
///
/// # Errors
/// [`Error::NonFinite`] with the first offender; [`Error::Length`] when `workspace` is shorter than
/// [`workspace_len`].
///
/// # Complexity
/// O(n): one pass over the values, and one more when the sampled bracket misses.
pub fn kth_largest_magnitude<T: Element>(values: &[T], k: u32, workspace: &mut [u64]) -> Result<Cut, Error> {
    expect_room("workspace words", workspace_len(values.len()), workspace.len())?;
    debug_assert!(k >= 1 && k as usize <= values.len());
    let buffer: &mut [u32] = bytemuck::cast_slice_mut(workspace);
    let mut bracket = Bracket::sampled(values, k, buffer);
    let mut found = split_parts(values, bracket, buffer)?;
    if !(found.above..found.above + found.inside as u32 + found.tied).contains(&(k - 1)) {
        bracket = Bracket::ALL;
        found = split_parts(values, bracket, buffer)?;
    }
    let rank = (k - found.above) as usize;
    if rank > found.inside {
        return Ok(Cut { magnitude: bracket.low, ties: (rank - found.inside) as u32 });
    }
    let (_, &mut magnitude, larger) = buffer[..found.inside].select_nth_unstable(found.inside - rank);
    let above = larger.iter().filter(|&&bits| bits > magnitude).count();
    Ok(Cut { magnitude, ties: (rank - above) as u32 })
}

/// The number of elements whose magnitude has at least the bits `magnitude`, which is not 0.
///
/// # Errors
/// [`Error::NonFinite`] with the first offender.
pub fn count_at_least<T: Element>(values: &[T], magnitude: u32) -> Result<u32, Error> {
    let bracket = Bracket { low: magnitude - 1, high: magnitude - 1, ..Bracket::ALL };
    split_parts(values, bracket, &mut []).map(|split| split.above)
}

/// One pass: collects positions.
struct AtLeast<'a, T> {
    values: &'a [T],
    magnitude: u32,
    stretch: usize,
    indices: &'a mut [u32],
    counts: &'a mut [usize],
}

/// Writes the numbers of the one bits of `word`, counted from `first` on, and returns how many they are. What is behind them
/// is of no use.
#[inline(always)]
pub fn ones(mut word: u64, first: u32, places: &mut [u32; 64]) -> usize {
    let count = word.count_ones() as usize;
    // In fours: the processor then seldom guesses wrongly how many rounds there are.
    for four in places.as_chunks_mut::<4>().0.iter_mut().take(count.div_ceil(4)) {
        for place in four {
            *place = first.wrapping_add(word.trailing_zeros());
            word &= word.wrapping_sub(1);
        }
    }
    count
}

/// The positions of the elements of at least `magnitude`, to the front of `indices`; their number.
#[inline(always)]
fn positions<T: Element>(values: &[T], magnitude: u32, indices: &mut [u32]) -> usize {
    let (blocks, rest) = values.as_chunks::<LANES>();
    let (mut count, mut word, mut first) = (0, 0, 0);
    for (b, block) in blocks.iter().enumerate() {
        let mut mask = 0u32;
        for (i, &x) in block.iter().enumerate() {
            mask |= ((magnitude_bits(x) >= magnitude) as u32) << i;
        }
        word |= (mask as u64) << (b % 4 * LANES);
        if b % 4 == 3 {
            // No more are found than have been looked at, so that there is room.
            if let Some(places) = indices[count..].first_chunk_mut() {
                count += ones(word, first, places);
            }
            (word, first) = (0, ((b + 1) * LANES) as u32);
        }
    }
    for (i, &x) in (blocks.len() % 4 * LANES..).zip(rest) {
        word |= ((magnitude_bits(x) >= magnitude) as u64) << i;
    }
    let mut last = [0; 64];
    let more = ones(word, first, &mut last);
    indices[count..count + more].copy_from_slice(&last[..more]);
    count + more
}

impl<T: Element> Kernel for AtLeast<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let stretches = self.values.chunks(self.stretch).zip(self.indices.chunks_mut(self.stretch));
        for ((values, indices), count) in stretches.zip(self.counts) {
            *count = positions(values, self.magnitude, indices);
            if let Some((indices, bits)) = with_values(indices, *count) {
                bits.iter_mut().zip(indices).for_each(|(bits, &mut i)| *bits = values[i as usize].to_f32().to_bits());
            }
        }
    }
}

impl<T: Element> Divide for AtLeast<'_, T> {
    fn elements(&self) -> usize {
        self.values.len()
    }

    fn divide(self, at: usize) -> Result<(Self, Self), Self> {
        let AtLeast { values, magnitude, stretch, indices, counts } = self;
        let stretches = at / stretch;
        let (values, others) = values.split_at(stretches * stretch);
        let (indices, other_indices) = indices.split_at_mut(stretches * stretch);
        let (counts, other_counts) = counts.split_at_mut(stretches);
        Ok((
            AtLeast { values, magnitude, stretch, indices, counts },
            AtLeast { values: others, magnitude, stretch, indices: other_indices, counts: other_counts },
        ))
    }

    fn join((): (), (): ()) {}
}

/// A stretch's positions, and the bits of the values there as f32, where there is room for them.
pub fn with_values(indices: &mut [u32], count: usize) -> Option<(&mut [u32], &mut [u32])> {
    let (indices, bits) = indices.split_at_mut_checked(count)?;
    Some((indices, bits.get_mut(..count)?))
}

/// Writes the positions of the elements of at least `magnitude`, ascending, to `indices`, which has room for one per
/// element: of each stretch of so many elements, counted from its beginning, to the front of its part, and their number to
/// `counts`. Behind them come their values, if there are [`with_values`]: another core need not fetch them.
pub fn indices_at_least<T: Element>(
    values: &[T],
    magnitude: u32,
    stretch: usize,
    indices: &mut [u32],
    counts: &mut [usize],
) {
    spread(AtLeast { values, magnitude, stretch, indices, counts });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Stream;
    use alloc::vec;
    use alloc::vec::Vec;

    #[test]
    fn a_split_counts_every_element_once() {
        let values = [0.0f32, 1.0, -2.0, 3.0, -3.0, 3.0, -4.0, 5.0, 0.0, 0.5];
        let bits = |x: f32| x.to_bits();
        for (low, high, expected) in
            [(3.0, 4.0, (1, 1, 3, 5.25)), (0.0, 2.0, (5, 3, 2, 0.0)), (0.7, 9.0, (0, 7, 0, 0.25))]
        {
            let mut inside = [0; 10];
            let bracket = Bracket { low: bits(low), high: bits(high), ..Bracket::ALL };
            let split = split::<f32, true>(&values, bracket, &mut inside).unwrap();
            assert_eq!((split.above, split.inside, split.tied, split.energy_below), expected);
            let collected: Vec<u32> =
                values.iter().map(|x| bits(x.abs())).filter(|&b| b > bits(low) && b <= bits(high)).collect();
            assert_eq!(inside[..split.inside], collected);
            assert_eq!(split.max, bits(5.0));
        }
    }

    #[test]
    fn not_a_number_is_found_wherever_it_is() {
        let mut workspace = vec![0; 1000];
        for nans in [0..2000, 1999..2000, 1000..2000] {
            let first = nans.start;
            let mut values = vec![1f32; 2000];
            values[nans].fill(f32::NAN);
            let found = kth_largest_magnitude(&values, 2, &mut workspace);
            assert!(matches!(found, Err(Error::NonFinite { index, .. }) if index == first), "{found:?}");
            assert!(matches!(check_finite(&values), Err(Error::NonFinite { index, .. }) if index == first));
        }
    }

    #[test]
    fn cuts_are_those_of_a_sort() {
        let stream = Stream { seed: 5, ..Stream::default() };
        for (n, spread) in [(1u64, 1u32), (17, 3), (8191, 1000), (8192, 4), (8192, 1 << 30), (70_001, 1 << 20)] {
            let values: Vec<f32> = (0..n).map(|i| (stream.word(i) % spread) as f32 - 1.0).collect();
            let mut sorted: Vec<f32> = values.iter().map(|x| x.abs()).collect();
            sorted.sort_unstable_by(|a, b| b.total_cmp(a));
            let mut workspace = vec![u64::MAX; workspace_len(values.len())];
            for k in [1, 2, n / 100, n / 3, n - 1, n].map(|k| k.clamp(1, n) as u32) {
                let magnitude = sorted[k as usize - 1];
                let larger = sorted.partition_point(|&x| x > magnitude) as u32;
                let cut = kth_largest_magnitude(&values, k, &mut workspace).unwrap();
                assert_eq!(cut, Cut { magnitude: magnitude.to_bits(), ties: k - larger }, "{n} {k}");
            }
        }
    }
}
