//! Counter-based random bits: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
//!
//! A random word depends only on seed, step, layer, rank and element. Scheduling, block size, instruction set and
//! backend do not change the word.

pub mod block;

/// A sequence of random words, named by seed, step, layer and rank.
///
/// ```
/// use lgreco_core::rng::Stream;
/// let stream = Stream { seed: 7, step: 3, layer: 1, rank: 0 };
/// assert_eq!(stream.word(5), stream.block(1)[1]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Stream {
    /// Seed of the run; the same on every rank.
    pub seed: u64,
    /// Optimiser step.
    pub step: u32,
    /// Index of the layer in the model.
    pub layer: u32,
    /// Rank of the worker, different for every worker. With equal ranks, the workers' rounding errors would correlate
    /// and not average out.
    pub rank: u32,
}

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

impl Stream {
    /// Words `4 * index .. 4 * index + 4` of the sequence.
    ///
    /// ```
    /// # use lgreco_core::rng::Stream;
    /// let stream = Stream { seed: 7, ..Stream::default() };
    /// assert_eq!(stream.block(2), [8, 9, 10, 11].map(|index| stream.word(index)));
    /// ```
    #[inline(always)]
    pub const fn block(&self, index: u32) -> [u32; 4] {
        philox([index, self.step, self.layer, self.rank], [self.seed as u32, (self.seed >> 32) as u32])
    }

    /// Word `index` of the sequence. The sequence repeats after 2^34 words.
    ///
    /// ```
    /// # use lgreco_core::rng::Stream;
    /// let worker = |rank| Stream { seed: 7, step: 3, layer: 1, rank };
    /// assert_eq!(worker(0).word(99), worker(0).word(99));
    /// assert_ne!(worker(0).word(99), worker(1).word(99));
    /// ```
    #[inline(always)]
    pub const fn word(&self, index: u64) -> u32 {
        self.block((index / 4) as u32)[(index % 4) as usize]
    }
}

/// Ten rounds of Philox4x32 on `counter` under `key`.
///
/// ```
/// # use lgreco_core::rng::philox;
/// // The first known answer of the Random123 library.
/// assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
/// ```
#[inline(always)]
pub const fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let (mut c, mut k) = (counter, key);
    let mut round = 0;
    while round < 10 {
        let p0 = MULTIPLIERS[0] as u64 * c[0] as u64;
        let p1 = MULTIPLIERS[1] as u64 * c[2] as u64;
        c = [(p1 >> 32) as u32 ^ c[1] ^ k[0], p1 as u32, (p0 >> 32) as u32 ^ c[3] ^ k[1], p0 as u32];
        k = [k[0].wrapping_add(WEYL[0]), k[1].wrapping_add(WEYL[1])];
        round += 1;
    }
    c
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers published with the Random123 library (kat_vectors, philox4x32 10).
    #[test]
    fn known_answers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }
}
