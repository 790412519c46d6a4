//! The parameters of `topk_cut.wgsl`, which finds the cut of a layer (its k-th largest magnitude), and the memory that
//! this shader needs.

use crate::gpu::PER_GROUP;

/// Number of words of a layer's tables, as in `topk_counters.wgsl`. The host clears the tables after `gather_values`
/// has evaluated the sample.
pub(crate) const TABLES: usize = 3 * 4096;
/// Number of words of a layer's counters, which lie after the tables, as in `topk_counters.wgsl`.
pub(crate) const COUNTERS: usize = 4512;
/// Number of levels of the full search, which is needed if the sample has missed the k-th largest magnitude.
pub(crate) const LEVELS: u32 = 3;
/// Number of words of a block's record.
pub(crate) const RECORD: usize = 4;
/// Number of blocks whose counts are added to the same partial sum, which takes two words.
const TOGETHER: usize = 256;

/// The sample from which the k-th largest magnitude of a layer is estimated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Base-2 logarithm of the number of values from which one is drawn.
    pub(crate) stratum: u32,
    /// Upper bound of the number of sampled values that are at least the k-th largest magnitude. 0 if all values are
    /// kept.
    pub(crate) most: u32,
    /// Lower bound of the number of sampled values that are at least the k-th largest magnitude. 0 if all values are
    /// kept.
    pub(crate) least: u32,
}

impl Sample {
    /// Returns the sample for the `keep` largest of `elements` values. The drawn share is a sixteenth for up to 2^18
    /// values, and falls to a 64th for up to 2^22 values. From more values, between 2^15 and 2^16 are drawn, but at
    /// least one per workgroup.
    pub(crate) fn new(keep: u32, elements: u32) -> Sample {
        const MOST: u32 = PER_GROUP.ilog2();
        if keep >= elements {
            return Sample { stratum: MOST, most: 0, least: 0 };
        }
        let bits = u32::BITS - (elements - 1).leading_zeros();
        let stratum = bits.saturating_sub(14).clamp(4, 6).max(bits.saturating_sub(16)).min(MOST);
        let part = f64::from(keep) / f64::from(elements);
        let expected = f64::from(keep) / f64::from(1u32 << stratum);
        // Six standard deviations and a margin. The margin is needed because small counts are not normally distributed.
        let apart = 6.0 * (expected * (1.0 - part)).sqrt() + 10.0;
        Sample { stratum, most: (expected + apart).ceil() as u32, least: (expected - apart).max(0.0) as u32 }
    }
}

/// Returns the largest number of magnitudes that are gathered from `elements` values. From tensors of up to 32,768
/// values, all values are gathered, because a sample would be too small. For larger tensors, the returned number
/// suffices unless many values lie within a sixteenth of an octave.
pub(crate) fn entries(elements: usize) -> usize {
    const ALL: usize = 1 << 15;
    if elements <= 1 << 18 { elements.div_ceil(2).max(elements.min(ALL)) } else { elements / 6 }
}

/// Number of words of the sums of a layer's blocks.
pub(crate) fn sums(blocks: usize) -> usize {
    2 * blocks.div_ceil(TOGETHER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_as_large_as_said() {
        for (elements, stratum) in [
            (1, 11),
            (2, 4),
            (100, 4),
            (4096, 4),
            (8193, 4),
            (65_536, 4),
            (1 << 18, 4),
            (1 << 19, 5),
            (1 << 20, 6),
            (1 << 22, 6),
            ((1 << 22) + 1, 7),
            (1 << 27, 11),
            (u32::MAX, 11),
        ] {
            assert_eq!(Sample::new(1, elements).stratum, stratum, "{elements}");
        }
        // The sample has at most one of the 16 values, so the bounds are as wide as possible.
        assert_eq!(Sample::new(8, 16), Sample { stratum: 4, most: 14, least: 0 });
        assert_eq!(Sample::new(4096, 4096), Sample { stratum: 11, most: 0, least: 0 });
        // 65,536 of 2^22 values are drawn. Among a tenth of the values, 6,554 ± 76.8 draws are expected.
        assert_eq!(Sample::new(419_430, 1 << 22), Sample { stratum: 6, most: 7025, least: 6082 });
        assert_eq!(Sample::new(40, 1 << 22), Sample { stratum: 6, most: 16, least: 0 });
    }

    /// Checks that the gathered values fit. Gathered values lie between the ends of the sample's interval, or in the
    /// same bins as the ends. The bound on the number of values in the interval allows for six standard deviations. In
    /// this test, a bin is a sixteenth of an octave. Of normally distributed values, 4.5 % lie in the two bins of the
    /// ends.
    #[test]
    fn what_is_gathered_of_up_to_a_quarter_million_values_has_room() {
        for elements in ((1 << 15) + 1..=1 << 18).step_by(1009) {
            for keep in (1..64).map(|part| elements * part / 64).chain([1, 7, 40, elements - 1]) {
                let Sample { stratum, most, least } = Sample::new(keep, elements);
                let drawn = (elements >> stratum) as f64;
                let draws = f64::from(most).min(drawn) - f64::from(least);
                let ends = 0.045 * f64::from(elements);
                let gathered = f64::from(1u32 << stratum) * (draws + 6.0 * draws.sqrt()) + ends;
                let room = entries(elements as usize) as f64;
                assert!(gathered <= room, "{keep} of {elements}: {gathered} in {room}");
            }
        }
        assert_eq!([1, 32_768, 32_769, 65_536, 65_537].map(entries), [1, 32_768, 32_768, 32_768, 32_769]);
        assert!((65_537..1 << 19).all(|elements| entries(elements) > 1 << 15), "`LOOKED_THROUGH`");
    }
}
