//! Computes the mean magnitude of each bin with integers.

use super::bins::{BINS_MAX, BLOCK, Bins, Edges, FEW};

/// Exponent field of a magnitude. Subnormal numbers count as numbers with the smallest normal exponent.
#[inline(always)]
fn exponent(magnitude: u32) -> u32 {
    (magnitude >> 23).max(1)
}

/// A magnitude in units of 2^-31 times the power of two of `exponent_of_unit`, rounded down. The result is 0 if the
/// magnitude's exponent is larger.
#[inline(always)]
fn digits(magnitude: u32, exponent_of_unit: u32) -> u32 {
    let implied = if magnitude >> 23 > 0 { 1 << 23 } else { 0 };
    let shift = exponent_of_unit.wrapping_sub(exponent(magnitude));
    if shift < 32 { ((magnitude & 0x007f_ffff | implied) << 8) >> shift } else { 0 }
}

/// Sums of the magnitudes in each bin, in a unit that follows from the bin's largest magnitude. `look` must see all
/// magnitudes before `add`.
pub(super) struct Sums {
    edges: Edges,
    bins: usize,
    largest: [u32; BINS_MAX],
    counts: [u32; BINS_MAX],
    sums: [u64; BINS_MAX],
}

impl Sums {
    /// Empty sums.
    pub(super) fn new(bins: Bins) -> Sums {
        Sums {
            edges: Edges::new(bins),
            bins: bins.count(),
            largest: [0; BINS_MAX],
            counts: [0; BINS_MAX],
            sums: [0; BINS_MAX],
        }
    }

    /// Records the largest magnitude of each bin. No magnitude may be above the bins. The magnitudes may include zeros
    /// that are not added later.
    #[inline(always)]
    pub(super) fn look(&mut self, magnitudes: &[u32; BLOCK]) {
        let bins = self.edges.bins_of(magnitudes);
        if self.bins > FEW {
            for i in 0..BLOCK {
                let largest = &mut self.largest[bins[i] as usize % BINS_MAX];
                *largest = magnitudes[i].max(*largest);
            }
            return;
        }
        for (own, place) in (0..).zip(&mut self.largest[..self.bins]) {
            let mut largest = *place;
            for i in 0..BLOCK {
                largest = largest.max(if bins[i] == own { magnitudes[i] } else { 0 });
            }
            *place = largest;
        }
    }

    /// Adds the first `count` magnitudes, which `look` has seen. Returns the bins of all magnitudes.
    #[inline(always)]
    pub(super) fn add(&mut self, magnitudes: &[u32; BLOCK], count: usize) -> [u32; BLOCK] {
        let bins = self.edges.bins_of(magnitudes);
        if self.bins <= FEW {
            let mut added = bins;
            added[count..].fill(u32::MAX);
            self.add_to_few(magnitudes, &added);
        } else {
            for i in 0..BLOCK.min(count) {
                let bin = bins[i] as usize % BINS_MAX;
                self.sums[bin] += digits(magnitudes[i], exponent(self.largest[bin])) as u64;
                self.counts[bin] += 1;
            }
        }
        bins
    }

    /// Adds magnitudes to the given bins, and skips those with an invalid bin.
    #[inline(always)]
    fn add_to_few(&mut self, magnitudes: &[u32; BLOCK], bins: &[u32; BLOCK]) {
        let mut parts = [0; BLOCK];
        for (own, &largest) in (0..).zip(&self.largest[..self.bins]) {
            let exponent = exponent(largest);
            for i in 0..BLOCK {
                parts[i] |= if bins[i] == own { exponent } else { 0 };
            }
        }
        for i in 0..BLOCK {
            parts[i] = digits(magnitudes[i], parts[i]);
        }
        for (own, (place, places)) in (0..).zip(self.sums.iter_mut().zip(&mut self.counts).take(self.bins)) {
            let (mut sum, mut count) = (0, 0);
            for i in 0..BLOCK {
                sum += if bins[i] == own { parts[i] } else { 0 } as u64;
                count += (bins[i] == own) as u32;
            }
            (*place, *places) = (*place + sum, *places + count);
        }
    }

    /// Bits of the means as f32; 0 for empty bins.
    pub(super) fn means(&self) -> impl Iterator<Item = u32> {
        (0..self.bins).map(|bin| match self.counts[bin] {
            0 => 0,
            count => float((self.sums[bin] / count as u64) as u32, exponent(self.largest[bin])),
        })
    }
}

/// Bits of `digits` · 2^(exponent − 158) as f32, rounded down.
fn float(digits: u32, exponent: u32) -> u32 {
    if digits == 0 {
        return 0;
    }
    let highest = 31 - digits.leading_zeros();
    match (exponent + highest).checked_sub(31) {
        Some(field @ 1..) => {
            let mantissa = if highest >= 23 { digits >> (highest - 23) } else { digits << (23 - highest) };
            field << 23 | mantissa & 0x007f_ffff
        }
        _ if exponent <= 9 => digits >> (9 - exponent),
        _ => digits << (exponent - 9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_of_equal_magnitudes_is_that_magnitude() {
        let magnitudes = [0, 1, 2, 3, 0x007f_ffff, 0x0080_0000, 0x0080_0001, 0x04ff_ffff, 0x3f80_0001, 0x7f7f_ffff];
        for magnitude in magnitudes {
            for bits in 1..=8 {
                let (mut sums, block) = (Sums::new(Bins::new(bits, magnitude, magnitude)), [magnitude; BLOCK]);
                sums.look(&block);
                assert_eq!((sums.add(&block, 3), sums.counts[0]), ([0; BLOCK], 3));
                assert_eq!(sums.means().next(), Some(magnitude), "{magnitude:x}");
            }
        }
    }

    #[test]
    fn a_mean_is_that_of_the_magnitudes() {
        let stream = crate::rng::Stream::default();
        for (seed, low, width, bits) in
            [(0, 0x3f00_0000, 0x0200_0000, 3), (1, 0, 0x0180_0000, 4), (2, 1, 0x0000_0400, 5), (3, 1 << 25, 1 << 28, 6)]
        {
            let bins = Bins::new(bits, low, low + width - 1);
            let magnitudes: [u32; 1024] = core::array::from_fn(|i| low + stream.word(1024 * seed + i as u64) % width);
            let (mut sums, mut exact) = (Sums::new(bins), [(0u32, 0f64); 32]);
            let blocks = magnitudes.as_chunks().0;
            blocks.iter().for_each(|block| sums.look(block));
            for block in blocks {
                // The last three magnitudes of a block are not added.
                for (&magnitude, bin) in block.iter().zip(sums.add(block, BLOCK - 3)).take(BLOCK - 3) {
                    let of = &mut exact[bin as usize];
                    *of = (of.0 + 1, of.1 + f32::from_bits(magnitude) as f64);
                }
            }
            for (bin, (mean, (count, sum))) in sums.means().zip(exact).enumerate() {
                let (mean, expected) = (f32::from_bits(mean) as f64, sum / count as f64);
                let unit = f32::from_bits(bins.edge(bin + 1)) as f64 / (1u64 << 30) as f64;
                let slack = unit + expected / (1 << 23) as f64 + f32::from_bits(1) as f64;
                assert!(mean <= expected && expected - mean <= slack, "bin {bin}: {mean:e}, not {expected:e}");
            }
        }
    }
}
