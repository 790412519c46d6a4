//! Where the k largest of a layer end: what `topk_cut.wgsl` is told, and the memory that it needs.

use crate::gpu::PER_GROUP;

/// Words of a layer's tables, which are cleared after the sample has been evaluated, and of the counters behind them: as in
/// `topk_counters.wgsl`.
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
    /// The sample for the `keep` largest of so many values: of up to 2^18 a sixteenth, of up to 2^22 down to a 64th, and of more between
    /// 2^15 and 2^16, or one of each workgroup's.
    pub(crate) fn new(keep: u32, elements: u32) -> Sample {
        const MOST: u32 = PER_GROUP.ilog2();
        if keep >= elements {
            return Sample { stratum: MOST, most: 0, least: 0 };
        }
        let bits = u32::BITS - (elements - 1).leading_zeros();
        let stratum = bits.saturating_sub(14).clamp(4, 6).max(bits.saturating_sub(16)).min(MOST);
        let part = f64::from(keep) / f64::from(elements);
        let expected = f64::from(keep) / f64::from(1u32 << stratum);
        // Six standard deviations, and some more, because few are not distributed normally.
        let apart = 6.0 * (expected * (1.0 - part)).sqrt() + 10.0;
        Sample { stratum, most: (expected + apart).ceil() as u32, least: (expected - apart).max(0.0) as u32 }
    }
}

/// Magnitudes that are gathered of so many values at most: of up to 32,768 all, of some of which little or nothing is drawn. Of more that
/// is more than enough, but where many are within a sixteenth of an octave.
pub(crate) fn entries(elements: usize) -> usize {
    const ALL: usize = 1 << 15;
    if elements <= 1 << 18 { elements.div_ceil(2).max(elements.min(ALL)) } else { elements / 6 }
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
        // Of 16 values one may be drawn or none: nothing is known.
        assert_eq!(Sample::new(8, 16), Sample { stratum: 4, most: 14, least: 0 });
        assert_eq!(Sample::new(4096, 4096), Sample { stratum: 11, most: 0, least: 0 });
        // 65,536 of 2^22 are drawn: 6,554 of them are expected among a tenth, give or take 76.8.
        assert_eq!(Sample::new(419_430, 1 << 22), Sample { stratum: 6, most: 7025, least: 6082 });
        assert_eq!(Sample::new(40, 1 << 22), Sample { stratum: 6, most: 16, least: 0 });
    }

    /// What lies between both ends, with six standard deviations of how many values there are between as many draws, and the bins of the
    /// sample in which the ends are: a sixteenth of an octave, which of a normal distribution are 45 of 1000 together.
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
