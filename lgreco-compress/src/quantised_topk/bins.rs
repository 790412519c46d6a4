//! Divides the kept magnitudes into bins.

/// Maximum number of bins, reached with 8 bits per value.
pub(super) const BINS_MAX: usize = 128;

/// A range of magnitudes, divided evenly into bins by the bits of f32 without the sign.
#[derive(Clone, Copy)]
pub(super) struct Bins {
    low: u32,
    span: u32,
    count: u32,
}

impl Bins {
    /// The bins of `bits` bits per value, for magnitudes from `low` to `high`; `high` is at least `low`.
    pub(super) fn new(bits: u8, low: u32, high: u32) -> Bins {
        Bins { low, span: high - low + 1, count: 1 << (bits - 1) }
    }

    pub(super) fn count(&self) -> usize {
        self.count as usize
    }

    /// The bin of a magnitude, computed from the definition. No magnitude may be above the range. [`Edges`] finds the
    /// bins of many magnitudes.
    #[cfg(test)]
    pub(super) fn of(&self, magnitude: u32) -> usize {
        (magnitude.saturating_sub(self.low) as u64 * self.count as u64 / self.span as u64) as usize
    }

    /// Smallest magnitude of a bin other than the first. The bin after the last begins with the magnitude just above
    /// the range.
    pub(super) fn edge(&self, bin: usize) -> u32 {
        self.low + (bin as u64 * self.span as u64).div_ceil(self.count as u64) as u32
    }
}

/// Number of magnitudes whose bins are found together.
pub(super) const BLOCK: usize = 64;
/// Up to this number of bins (4 bits per value), each magnitude is compared with the ends of all bins.
pub(super) const FEW: usize = 8;

/// The ends of the bins, for finding the bins of many magnitudes.
pub(super) struct Edges {
    bins: Bins,
    /// The magnitude just above each bin.
    ends: [u32; BINS_MAX],
    /// Number of bins divided by the length of the range, times 2^32, rounded down.
    inverse: u64,
}

impl Edges {
    pub(super) fn new(bins: Bins) -> Edges {
        let mut ends = [0; BINS_MAX];
        (1..).zip(&mut ends[..bins.count()]).for_each(|(bin, end)| *end = bins.edge(bin));
        Edges { bins, ends, inverse: ((bins.count as u64) << 32) / bins.span as u64 }
    }

    /// The bin of each of these magnitudes. No magnitude may be above the range.
    #[inline(always)]
    pub(super) fn bins_of(&self, magnitudes: &[u32; BLOCK]) -> [u32; BLOCK] {
        let mut bins = [0; BLOCK];
        if self.bins.count() <= FEW {
            for &end in &self.ends[..self.bins.count() - 1] {
                for i in 0..BLOCK {
                    bins[i] += (magnitudes[i] >= end) as u32;
                }
            }
            return bins;
        }
        for i in 0..BLOCK {
            // The rounded inverse leads to the magnitude's bin, or to the bin before.
            let below = (magnitudes[i].saturating_sub(self.bins.low) as u64 * self.inverse) >> 32;
            bins[i] = below as u32 + (magnitudes[i] >= self.ends[below as usize % BINS_MAX]) as u32;
        }
        bins
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_magnitudes_are_in_the_bins_that_each_is_in() {
        let stream = crate::rng::Stream::default();
        for seed in 0..400u32 {
            let word = |i| stream.word((10_000 * seed + i) as u64);
            let bits = (1 + seed % 8) as u8;
            let (a, b) = (word(0) >> (1 + word(1) % 31), word(2) >> (1 + word(3) % 31));
            let bins = Bins::new(bits, a.min(b), a.max(b));
            let edges = Edges::new(bins);
            let within = |magnitude: u32| magnitude.min(bins.edge(bins.count()) - 1);
            for first in 0..8 {
                // Takes magnitudes at edges, just below edges, 0 (below the range), and random ones.
                let magnitudes = core::array::from_fn(|i| match i % 4 {
                    0 => within(bins.edge((first * 16 + i / 4) % (bins.count() + 1))),
                    1 => within(bins.edge((first * 16 + i / 4) % (bins.count() + 1))).saturating_sub(1),
                    2 => 0,
                    _ => a.min(b) + ((word(4 + (first * 64 + i) as u32) as u64 * bins.span as u64) >> 32) as u32,
                });
                assert_eq!(edges.bins_of(&magnitudes), magnitudes.map(|magnitude| bins.of(magnitude) as u32));
            }
        }
    }

    #[test]
    fn edges_are_where_bins_begin() {
        for (low, high) in [(5, 5), (0, 1), (100, 163), (0x3f80_0000, 0x4123_4567), (1, 0x7f7f_ffff), (0, 0x7f7f_ffff)]
        {
            for bits in 1..=8 {
                let bins = Bins::new(bits, low, high);
                assert_eq!((bins.of(low), bins.edge(bins.count())), (0, high + 1));
                assert!(bins.of(high) < bins.count() && bins.of(0) == 0);
                for bin in 1..bins.count() {
                    let edge = bins.edge(bin);
                    assert!(
                        bins.of(edge - 1) < bin && (edge > high || bins.of(edge) >= bin),
                        "{low} {high} {bits} {bin}"
                    );
                }
                // With one bit less per value, each bin is a pair of these bins.
                if bits > 1 {
                    let pairs = Bins::new(bits - 1, low, high);
                    assert!((1..pairs.count()).all(|bin| pairs.edge(bin) == bins.edge(2 * bin)));
                }
            }
        }
    }
}
