//! Selects by magnitude: finds the k-th largest |x| of a slice, and counts elements above and below a magnitude.
//!
//! The code compares magnitudes by the bits of |x| as f32 without the sign. These integers have the same order as the
//! magnitudes. A sample of the elements gives a bracket that almost surely contains the k-th largest magnitude. One
//! vectorised pass collects the few magnitudes inside the bracket and counts those outside. An exact selection among
//! the collected magnitudes follows; for many magnitudes, the selection samples again. If the k-th largest is outside
//! the bracket, a second pass uses a bracket of all magnitudes. The result never depends on the sample.

pub mod mark;

use crate::error::expect_room;
use crate::gradient::Element;
use crate::lanes::{Block, LANES, LaneKernel, Lanes, dispatch_lanes};
use crate::spread::{Per, spread_parts};
use crate::{Error, Result};

/// Below this many elements, a sample costs more than it saves.
const SAMPLED_FROM: usize = 1 << 10;
/// Largest size of a sample. For k = 1 % of 16 M elements, the bracket from such a sample spans about ±30 % of k.
const SAMPLE_MAX: usize = 1 << 15;
/// Bits of f32 infinity; the magnitude bits of finite numbers are smaller.
const INFINITY: u32 = 0x7f80_0000;

/// Bits of |x| as f32.
#[inline(always)]
pub fn magnitude_bits<T: Element>(x: T) -> u32 {
    x.to_f32().to_bits() & 0x7fff_ffff
}

/// Boundary of the k largest magnitudes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Bits of the k-th largest magnitude.
    pub magnitude: u32,
    /// Number of elements with exactly this magnitude among the k largest; at least 1.
    pub ties: u32,
}

/// A bracket of magnitudes, given by their bits.
#[derive(Clone, Copy, Debug)]
pub struct Bracket {
    /// Magnitudes inside the bracket are above `low`.
    pub low: u32,
    /// Magnitudes inside the bracket are at most `high`.
    pub high: u32,
    /// Smallest magnitude in the sample; nearly all magnitudes are at least `bottom`.
    pub bottom: u32,
    /// Largest magnitude in the sample; nearly all magnitudes are at most `top`.
    pub top: u32,
}

impl Bracket {
    /// All finite magnitudes except 0.
    pub const ALL: Bracket = Bracket { low: 0, high: INFINITY - 1, bottom: 0, top: INFINITY - 1 };

    /// A bracket that almost surely contains the `k`-th largest magnitude, from a sample at fixed positions.
    ///
    /// `scratch` must have at least 32,768 entries or one entry per element, whichever is less.
    pub fn sampled<T: Element>(values: &[T], k: u32, scratch: &mut [u32]) -> Bracket {
        if values.len() < SAMPLED_FROM {
            return Bracket::ALL;
        }
        let count = (values.len() / 32).clamp(SAMPLED_FROM / 4, SAMPLE_MAX);
        let stride = values.len() / count;
        let (sample, rest) = scratch.split_at_mut(count);
        for (i, slot) in sample.iter_mut().enumerate() {
            *slot = magnitude_bits(values[sampled_position(i, stride)]);
        }
        let rank = (k as u64 * count as u64 / values.len() as u64) as usize;
        // Five standard deviations of the number of sampled elements that are among the k largest.
        let margin = (25 * rank as u64 * (count - rank.min(count)) as u64 / count as u64).isqrt() as usize + 8;
        let mut bracket = Bracket::ALL;
        (bracket.bottom, bracket.top) = sample.iter().fold((INFINITY - 1, 0), |(a, b), &x| (a.min(x), b.max(x)));
        let mut nth_largest = |rank: usize| cut_of(sample, rank as u32 + 1, rest).magnitude;
        if rank + margin < count {
            bracket.low = nth_largest(rank + margin);
        }
        if rank > margin {
            bracket.high = nth_largest(rank - margin);
        }
        bracket
    }
}

/// Position of sample `i`, within the `i`-th run of `stride` elements. Positions are scattered, so that periodic data
/// does not bias the sample.
pub fn sampled_position(i: usize, stride: usize) -> usize {
    let scatter = (i as u32).wrapping_mul(0x9E37_79B9) as u64 * stride as u64;
    i * stride + (scatter >> 32) as usize
}

/// Result of a pass over all elements with a [`Bracket`].
#[derive(Clone, Copy, Debug)]
pub struct Split {
    /// Number of elements above the bracket.
    pub above: u32,
    /// Number of elements inside the bracket; their magnitude bits are in the caller's buffer, in order.
    pub inside: usize,
    /// Number of elements with magnitude `low`.
    pub tied: u32,
    /// Sum of squares of the elements below `low`; 0 unless requested.
    pub energy_below: f64,
    /// Bits of the largest magnitude.
    pub max: u32,
}

/// One pass that counts elements outside `bracket` and collects those inside.
struct SplitKernel<'a, T, const ENERGY: bool> {
    values: &'a [T],
    bracket: Bracket,
    inside: &'a mut [u32],
}

#[derive(Default)]
struct Counts {
    max: [u32; LANES],
    above: [u32; LANES],
    tied: [u32; LANES],
    energy: [f64; LANES],
}

impl<T: Element, const ENERGY: bool> LaneKernel for SplitKernel<'_, T, ENERGY> {
    type Output = Split;

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) -> Split {
        let mut counts = Counts::default();
        let mut inside = 0;
        let (blocks, rest) = self.values.as_chunks::<64>();
        for block in blocks {
            inside += split_block::<_, _, ENERGY>(lanes, block, self.bracket, &mut counts, &mut self.inside[inside..]);
        }
        let mut last = [T::zeroed(); 64];
        last[..rest.len()].copy_from_slice(rest);
        inside += split_block::<_, _, ENERGY>(lanes, &last, self.bracket, &mut counts, &mut self.inside[inside..]);
        let padding = if self.bracket.low == 0 { last.len() - rest.len() } else { 0 };
        Split {
            above: counts.above.iter().sum(),
            inside,
            tied: (counts.tied.iter().map(|&t| t as u64).sum::<u64>() - padding as u64) as u32,
            energy_below: counts.energy.iter().sum(),
            max: counts.max.iter().fold(0, |a, &b| a.max(b)),
        }
    }
}

#[inline(always)]
fn split_block<T: Element, L: Lanes, const ENERGY: bool>(
    lanes: L,
    block: &[T; 64],
    bracket: Bracket,
    counts: &mut Counts,
    inside: &mut [u32],
) -> usize {
    let Bracket { low, high, .. } = bracket;
    let (mut all, mut mask) = ([0; 64], 0);
    for (part, (values, bits)) in block.as_chunks::<LANES>().0.iter().zip(all.as_chunks_mut::<LANES>().0).enumerate() {
        let mut is_inside = [0; LANES];
        for i in 0..LANES {
            bits[i] = magnitude_bits(values[i]);
            counts.max[i] = counts.max[i].max(bits[i]);
            counts.above[i] += (bits[i] > high) as u32;
            counts.tied[i] += (bits[i] == low) as u32;
            if ENERGY {
                let below = f32::from_bits(if bits[i] < low { bits[i] } else { 0 }) as f64;
                counts.energy[i] += below * below;
            }
            is_inside[i] = (bits[i] > low && bits[i] <= high) as u32;
        }
        mask |= (lanes.mask(is_inside) as u64) << (LANES * part);
    }
    put(lanes, &all, mask, inside)
}

/// Moves the lanes whose bits in `mask` are set to the front of `places`, and returns their number. Writes nothing if
/// `places` is too short.
#[inline(always)]
fn put<L: Lanes>(lanes: L, block: &Block, mask: u64, places: &mut [u32]) -> usize {
    if let Some(places) = places.first_chunk_mut() {
        return lanes.squeeze(block, mask, places);
    }
    let mut squeezed = [0; 64];
    let count = lanes.squeeze(block, mask, &mut squeezed);
    if let Some(places) = places.get_mut(..count) {
        places.copy_from_slice(&squeezed[..count]);
    }
    count
}

/// Splits `values` at `bracket`, and writes the magnitude bits inside it to the front of `inside`.
///
/// # Errors
/// [`Error::NonFinite`] with the first NaN or infinity.
pub fn split<T: Element, const ENERGY: bool>(values: &[T], bracket: Bracket, inside: &mut [u32]) -> Result<Split> {
    let split = dispatch_lanes(SplitKernel::<T, ENERGY> { values, bracket, inside });
    if split.max >= INFINITY {
        return Err(first_non_finite(values));
    }
    Ok(split)
}

/// Maximum number of parts of a divided pass.
const PARTS: usize = 64;

/// One pass in parts of `part` elements. Each part has a separate part of `inside`, unless `inside` is empty. Computes
/// no sums of squares, because a floating-point sum would depend on the division into parts.
struct Parts<'a, T> {
    values: &'a [T],
    part: usize,
    bracket: Bracket,
    inside: &'a mut [u32],
    splits: &'a mut [Split],
}

impl<T: Element> LaneKernel for Parts<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Parts { values, part, bracket, mut inside, splits } = self;
        for (values, split) in values.chunks(part).zip(splits) {
            let own;
            (own, inside) = inside.split_at_mut(inside.len().min(part));
            *split = SplitKernel::<T, false> { values, bracket, inside: own }.run(lanes);
        }
    }
}

#[inline(always)]
fn parts<T: Element>(
    (values, Per(inside, ..), Per(splits, ..)): (&[T], Per<&mut [u32]>, Per<&mut [Split]>),
    (part, bracket): (usize, Bracket),
) {
    dispatch_lanes(Parts { values, part, bracket, inside, splits });
}

/// Works as [`split`], but computes no sum of squares, and divides the pass between cores. `inside` has one entry per
/// element, or none if the bracket is empty.
fn split_parts<T: Element>(values: &[T], bracket: Bracket, inside: &mut [u32]) -> Result<Split> {
    let part = values.len().div_ceil(PARTS).next_multiple_of(LANES).max(1 << 12);
    let mut splits = [Split { above: 0, inside: 0, tied: 0, energy_below: 0.0, max: 0 }; PARTS];
    let slices = (values, Per(&mut *inside, 1, 1), Per(&mut splits[..], 1, part));
    spread_parts!(values.len(), part, slices, (part, bracket), parts,);
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

/// Returns an error with the first NaN or infinity.
pub fn check_finite<T: Element>(values: &[T]) -> Result<()> {
    let nothing = Bracket { low: Bracket::ALL.high, ..Bracket::ALL };
    split_parts(values, nothing, &mut []).map(|_| ())
}

fn first_non_finite<T: Element>(values: &[T]) -> Error {
    let index = values.iter().position(|&x| magnitude_bits(x) >= INFINITY).unwrap_or(0);
    Error::NonFinite { index, value: values[index].to_f32() }
}

/// Words of workspace that [`kth_largest_magnitude`] needs.
pub const fn workspace_len(elements: usize) -> usize {
    elements.div_ceil(2)
}

/// The `k`-th largest magnitude of `values` and its number of ties among the k largest; 1 ≤ k ≤ number of values.
///
/// # Errors
/// [`Error::NonFinite`] with the first NaN or infinity. [`Error::Length`] when `workspace` is shorter than
/// [`workspace_len`].
///
/// # Complexity
/// O(n): one pass over the values, and a second one when the sampled bracket misses.
pub fn kth_largest_magnitude<T: Element>(values: &[T], k: u32, workspace: &mut [u64]) -> Result<Cut> {
    expect_room("workspace words", workspace_len(values.len()), workspace.len())?;
    debug_assert!(k >= 1 && k as usize <= values.len());
    cut(values, k, bytemuck::cast_slice_mut(workspace))
}

/// Finds the cut. `buffer` has at least one entry per element.
fn cut<T: Element>(values: &[T], k: u32, buffer: &mut [u32]) -> Result<Cut> {
    let mut bracket = Bracket::sampled(values, k, buffer);
    let mut found = split_parts(values, bracket, buffer)?;
    if !(found.above..found.above + found.inside as u32 + found.tied).contains(&(k - 1)) {
        bracket = Bracket::ALL;
        found = split_parts(values, bracket, buffer)?;
    }
    let rank = k - found.above;
    match rank.checked_sub(found.inside as u32) {
        Some(ties @ 1..) => Ok(Cut { magnitude: bracket.low, ties }),
        _ => {
            let (inside, rest) = buffer.split_at_mut(found.inside);
            // Does not sample again if the sample excluded less than half of the elements, because the next sample may
            // exclude no more.
            let rest = if found.inside <= values.len() / 2 { rest } else { &mut [] };
            Ok(cut_of(inside, rank, rest))
        }
    }
}

/// Finds the cut among magnitudes given by their bits. Samples again if there are many magnitudes and `scratch` is long
/// enough.
fn cut_of(magnitudes: &mut [u32], k: u32, scratch: &mut [u32]) -> Cut {
    if magnitudes.len() >= SAMPLED_FROM
        && scratch.len() >= magnitudes.len()
        && let Ok(cut) = cut::<f32>(bytemuck::cast_slice(magnitudes), k, scratch)
    {
        return cut;
    }
    let (_, &mut magnitude, larger) = magnitudes.select_nth_unstable(magnitudes.len() - k as usize);
    let above = larger.iter().filter(|&&bits| bits > magnitude).count();
    Cut { magnitude, ties: k - above as u32 }
}

/// Number of elements whose magnitude bits are at least `magnitude`, which must not be 0.
///
/// # Errors
/// [`Error::NonFinite`] with the first NaN or infinity.
pub fn count_at_least<T: Element>(values: &[T], magnitude: u32) -> Result<u32> {
    let bracket = Bracket { low: magnitude - 1, high: magnitude - 1, ..Bracket::ALL };
    split_parts(values, bracket, &mut []).map(|split| split.above)
}

/// Writes the indices of the set bits of `word`, plus `first`, and returns their number. The content of `places` after
/// these indices is unspecified.
#[inline(always)]
pub fn ones(mut word: u64, first: u32, places: &mut [u32; 64]) -> usize {
    let count = word.count_ones() as usize;
    // Works in rounds of four bits, because the branch predictor predicts the number of rounds more reliably than the
    // number of bits.
    for four in places.as_chunks_mut::<4>().0.iter_mut().take(count.div_ceil(4)) {
        for place in four {
            *place = first.wrapping_add(word.trailing_zeros());
            word &= word.wrapping_sub(1);
        }
    }
    count
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
    fn a_sample_that_misses_is_not_taken_again_and_again() {
        const N: usize = 2048;
        let mut values: Vec<f32> = (0..N).map(|i| 2.0 + i as f32 / N as f32).collect();
        (0..N / 8).for_each(|i| values[sampled_position(i, 8)] = 1.0);
        let mut sorted = values.clone();
        sorted.sort_unstable_by(|a, b| b.total_cmp(a));
        // The buffer is long enough for thousands of nested samples. The stack is too small for this many recursive
        // calls.
        let (mut buffer, k) = (vec![0; 4000 * N], N / 2);
        let small = std::thread::Builder::new().stack_size(1 << 17);
        let found = small.spawn(move || cut(&values, k as u32, &mut buffer).unwrap()).unwrap().join().unwrap();
        assert_eq!((found.magnitude, found.ties), (sorted[k - 1].to_bits(), 1));
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
