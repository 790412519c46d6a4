//! Bins of magnitudes and their means, in integers.

/// Most bins: those of 8 bits.
pub(super) const BINS_MAX: usize = 128;

/// The range of magnitudes that bins divide evenly, by the bits of an f32 without its sign.
#[derive(Clone, Copy)]
pub(super) struct Bins {
    low: u32,
    span: u32,
    count: u32,
}

impl Bins {
    /// Those of `bits` bits per value for magnitudes from `low` to `high`, which is not less.
    pub(super) fn new(bits: u8, low: u32, high: u32) -> Bins {
        Bins { low, span: high - low + 1, count: 1 << (bits - 1) }
    }

    pub(super) fn count(&self) -> usize {
        self.count as usize
    }

    /// The bin of a magnitude that is not above the range.
    pub(super) fn of(&self, magnitude: u32) -> usize {
        (magnitude.saturating_sub(self.low) as u64 * self.count as u64 / self.span as u64) as usize
    }

    /// The smallest magnitude of a bin other than the first; of the one after the last, what is just above the range.
    pub(super) fn edge(&self, bin: usize) -> u32 {
        self.low + (bin as u64 * self.span as u64).div_ceil(self.count as u64) as u32
    }
}

/// The exponent's bits; those of numbers below the normal ones count as the least normal ones'.
fn exponent(magnitude: u32) -> u32 {
    (magnitude >> 23).max(1)
}

/// Sums of the magnitudes in each bin, in units of its largest one's.
pub(super) struct Sums {
    bins: Bins,
    exponents: [u32; BINS_MAX],
    counts: [u32; BINS_MAX],
    sums: [u64; BINS_MAX],
}

impl Sums {
    /// Sums of nothing, for `magnitudes`, none of which is above the bins.
    pub(super) fn new(bins: Bins, magnitudes: impl Iterator<Item = u32>) -> Sums {
        let mut exponents = [0; BINS_MAX];
        for magnitude in magnitudes {
            let place = &mut exponents[bins.of(magnitude)];
            *place = exponent(magnitude).max(*place);
        }
        Sums { bins, exponents, counts: [0; BINS_MAX], sums: [0; BINS_MAX] }
    }

    /// Adds one of these magnitudes, and returns its bin.
    pub(super) fn add(&mut self, magnitude: u32) -> usize {
        let bin = self.bins.of(magnitude);
        let implied = if magnitude >> 23 > 0 { 1 << 23 } else { 0 };
        let digits = (magnitude & 0x007f_ffff | implied) << 8;
        let shift = self.exponents[bin] - exponent(magnitude);
        self.sums[bin] += digits.checked_shr(shift).unwrap_or(0) as u64;
        self.counts[bin] += 1;
        bin
    }

    /// The means' bits as f32; 0 for empty bins.
    pub(super) fn means(&self) -> impl Iterator<Item = u32> {
        (0..self.bins.count()).map(|bin| match self.counts[bin] {
            0 => 0,
            count => float((self.sums[bin] / count as u64) as u32, self.exponents[bin]),
        })
    }
}

/// The bits of `digits` · 2^(exponent − 158), rounded down.
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
                // Bins of a bit less are pairs of these.
                if bits > 1 {
                    let pairs = Bins::new(bits - 1, low, high);
                    assert!((1..pairs.count()).all(|bin| pairs.edge(bin) == bins.edge(2 * bin)));
                }
            }
        }
    }

    #[test]
    fn a_mean_of_equal_magnitudes_is_that_magnitude() {
        let magnitudes = [0, 1, 2, 3, 0x007f_ffff, 0x0080_0000, 0x0080_0001, 0x04ff_ffff, 0x3f80_0001, 0x7f7f_ffff];
        for magnitude in magnitudes {
            for bits in 1..=8 {
                let mut sums = Sums::new(Bins::new(bits, magnitude, magnitude), [magnitude].into_iter());
                let bins: [usize; 3] = core::array::from_fn(|_| sums.add(magnitude));
                assert_eq!((bins, sums.means().next()), ([0; 3], Some(magnitude)), "{magnitude:x}");
            }
        }
    }

    #[test]
    fn a_mean_is_that_of_the_magnitudes() {
        let stream = crate::rng::Stream::default();
        for (seed, low, width) in [(0, 0x3f00_0000, 0x0200_0000), (1, 0, 0x0180_0000), (2, 1, 0x0000_0400)] {
            let bins = Bins::new(3, low, low + width - 1);
            let magnitudes = (0..1000).map(|i| low + stream.word(1000 * seed + i) % width);
            let (mut sums, mut exact) = (Sums::new(bins, magnitudes.clone()), [(0u32, 0f64); 4]);
            for magnitude in magnitudes {
                let of = &mut exact[sums.add(magnitude)];
                *of = (of.0 + 1, of.1 + f32::from_bits(magnitude) as f64);
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
