//! Where the k largest of a layer end: what `topk_cut.wgsl` is told, and the memory that it needs.

use crate::gpu::PER_GROUP;

/// Words of a layer's tables, which are cleared once the sample has told what it tells, and of its counters.
pub(crate) const TABLES: usize = 3 * 4096;
pub(crate) const COUNTERS: usize = 4512;
/// Levels by which a lost cut is settled.
pub(crate) const LEVELS: u32 = 3;
/// Words of a block's record.
pub(crate) const RECORD: usize = 4;
/// Blocks whose counts are added up, in two words.
const TOGETHER: usize = 256;

/// The sample by which the k-th largest magnitude of a layer is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    /// The logarithm of how many values there are for each that is drawn.
    pub(crate) stratum: u32,
    /// How many of the sample reach the k-th largest magnitude: at most, and at least. Of a layer that is kept whole, both are 0.
    pub(crate) most: u32,
    pub(crate) least: u32,
}

impl Sample {
    /// The sample for the `keep` largest of so many values: of up to 4096 all, of up to 2^18 a sixteenth or more, of up to 2^22 down to a
    /// 64th, and of more between 2^15 and 2^16, or one of each workgroup's.
    pub(crate) fn new(keep: u32, elements: u32) -> Sample {
        const MOST: u32 = PER_GROUP.ilog2();
        if keep >= elements {
            return Sample { stratum: MOST, most: 0, least: 0 };
        }
        let bits = u32::BITS - (elements - 1).leading_zeros();
        let stratum =
            bits.saturating_sub(12).min(4).max(bits.saturating_sub(14).min(6)).max(bits.saturating_sub(16)).min(MOST);
        if stratum == 0 {
            return Sample { stratum, most: keep, least: keep };
        }
        let part = f64::from(keep) / f64::from(elements);
        let expected = f64::from(keep) / f64::from(1u32 << stratum);
        // Six standard deviations, and some more, because few are not distributed normally.
        let apart = 6.0 * (expected * (1.0 - part)).sqrt() + 10.0;
        Sample { stratum, most: (expected + apart).ceil() as u32, least: (expected - apart).max(0.0) as u32 }
    }
}

/// Magnitudes that are gathered of so many values at most. More than enough, but where many are within a sixteenth of an octave.
pub(crate) fn entries(elements: usize) -> usize {
    if elements <= 1 << 18 { elements.div_ceil(2) } else { elements / 6 }
}

/// Words of the sums of a layer's blocks.
pub(crate) fn sums(blocks: usize) -> usize {
    2 * blocks.div_ceil(TOGETHER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_as_large_as_said() {
        for (elements, stratum) in [
            (2, 0),
            (4096, 0),
            (4097, 1),
            (8192, 1),
            (8193, 2),
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
        assert_eq!(Sample::new(7, 4096), Sample { stratum: 0, most: 7, least: 7 });
        assert_eq!(Sample::new(4096, 4096), Sample { stratum: 11, most: 0, least: 0 });
        // 65,536 of 2^22 are drawn: 6,554 of them are expected among a tenth, give or take 76.8.
        assert_eq!(Sample::new(419_430, 1 << 22), Sample { stratum: 6, most: 7025, least: 6082 });
        assert_eq!(Sample::new(40, 1 << 22), Sample { stratum: 6, most: 16, least: 0 });
    }
}
