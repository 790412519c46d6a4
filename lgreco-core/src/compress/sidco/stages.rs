//! How many stages: adapted to what they send.

use super::{MOST_STAGES, TopK};
use crate::Error;
use crate::checksum;
use crate::error::expect_len;
use crate::gradient::Dtype;
use crate::num::ln;

/// Observations between two decisions.
const WINDOW: u32 = 5;
/// How far the sent may be from the wanted density, as a share of it.
const TOLERANCE: f64 = 0.2;
/// Bytes of a saved [`Stages`].
pub const SAVED_LEN: usize = 40 + checksum::LEN;
const MAGIC: u16 = u16::from_le_bytes(*b"LS");
const VERSION: u8 = 2;

/// The number of stages of one layer on one worker, from 2 on.
///
/// After every five steps it moves by one, if the mean of sent over wanted density was off by more than 0.2: up, when too
/// little was sent. That sense turns when the last move made the ratio worse, and at a limit that the number cannot pass:
/// 1, and as many stages as halvings reach the density.
///
/// ```
/// use lgreco_core::compress::sidco::Stages;
/// let mut stages = Stages::new(0.01)?;
/// (0..5).for_each(|_| stages.observe(50, 10_000)); // half of what was wanted
/// assert_eq!(stages.get(), 3);
/// (0..5).for_each(|_| stages.observe(95, 10_000)); // good enough
/// assert_eq!(stages.get(), 3);
/// let saved = stages.save();
/// assert_eq!(Stages::restore(&saved), Ok(stages));
/// # Ok::<(), lgreco_core::Error>(())
/// ```
///
/// # Source
/// The rule "-2" of the authors' code; there one number serves all tensors, starts at 1, and cannot leave 1 with heavy tails.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stages {
    density: f64,
    stages: u32,
    /// Whether more stages are expected to send more.
    rising: bool,
    observed: u32,
    /// Of sent over wanted densities.
    sum: f64,
    /// How far the ratio was from 1 when the number last moved.
    last: f64,
}

impl Stages {
    /// For this density, in (0, 1].
    ///
    /// # Errors
    /// [`Error::Parameter`].
    pub fn new(density: f64) -> Result<Self, Error> {
        TopK::with_density(density, 1, Dtype::F32)?;
        let stages = Stages { density, stages: 1, rising: true, observed: 0, sum: 0.0, last: f64::INFINITY };
        Ok(Stages { stages: stages.most().min(2), ..stages })
    }

    /// The number to use at the next step.
    pub const fn get(&self) -> u32 {
        self.stages
    }

    /// The most stages: those that halve down to the density.
    fn most(&self) -> u32 {
        let halvings = -ln(self.density) / core::f64::consts::LN_2;
        // Rounded up, but for the rounding of the logarithms; densities reach 2^-1074.
        (1..MOST_STAGES).find(|&most| most as f64 >= halvings - 1e-9).unwrap_or(MOST_STAGES)
    }

    /// Takes note of a step: `sent` of `elements`, which is k in the payload's header. Nothing is learnt from tensors
    /// without elements.
    ///
    /// ```
    /// # use lgreco_core::compress::sidco::Stages;
    /// let mut stages = Stages::new(0.01)?;
    /// (0..5).for_each(|_| stages.observe(200, 10_000)); // twice what was wanted
    /// assert_eq!(stages.get(), 1);
    /// # Ok::<(), lgreco_core::Error>(())
    /// ```
    pub fn observe(&mut self, sent: u32, elements: usize) {
        if elements == 0 {
            return;
        }
        self.sum += sent as f64 / (self.density * elements as f64);
        self.observed += 1;
        if self.observed < WINDOW {
            return;
        }
        let ratio = self.sum / WINDOW as f64;
        (self.observed, self.sum) = (0, 0.0);
        let off = (ratio - 1.0).abs();
        if off <= TOLERANCE {
            return;
        }
        if off > self.last {
            self.rising = !self.rising;
        }
        self.last = off;
        match (ratio < 1.0) == self.rising {
            true if self.stages < self.most() => self.stages += 1,
            false if self.stages > 1 => self.stages -= 1,
            _ => {
                self.rising = !self.rising;
                self.last = f64::INFINITY;
            }
        }
    }

    /// The state as bytes, little-endian: `LS`, version 2, the sense, stages, observations, four zeros, density, sum of
    /// ratios, last distance, a checksum.
    pub fn save(&self) -> [u8; SAVED_LEN] {
        let mut bytes = [0; SAVED_LEN];
        bytes[..2].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[2..4].copy_from_slice(&[VERSION, self.rising as u8]);
        bytes[4..8].copy_from_slice(&self.stages.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.observed.to_le_bytes());
        for (at, x) in [(16, self.density), (24, self.sum), (32, self.last)] {
            bytes[at..at + 8].copy_from_slice(&x.to_le_bytes());
        }
        checksum::seal(&mut bytes);
        bytes
    }

    /// The state that [`save`](Stages::save) wrote.
    ///
    /// ```
    /// # use lgreco_core::compress::sidco::Stages;
    /// let stages = Stages::new(0.01)?;
    /// assert_eq!(Stages::restore(&stages.save()), Ok(stages));
    /// assert!(Stages::restore(&[0; 48]).is_err());
    /// # Ok::<(), lgreco_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Length`]; [`Error::Checksum`] when a state is not as it was saved; [`Error::SavedState`] names what no
    /// state has; [`Error::Parameter`] for the density.
    pub fn restore(bytes: &[u8]) -> Result<Self, Error> {
        expect_len("saved state bytes", SAVED_LEN, bytes.len())?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let float = |at: usize| f64::from_bits(word(at) as u64 | (word(at + 4) as u64) << 32);
        let expect = |what, holds: bool, found: u64| {
            if holds { Ok(()) } else { Err(Error::SavedState { what, found }) }
        };
        expect("magic", bytes[..2] == MAGIC.to_le_bytes(), word(0) as u64 & 0xffff)?;
        expect("version", bytes[2] == VERSION, bytes[2] as u64)?;
        checksum::open(bytes)?;
        expect("sense", bytes[3] <= 1, bytes[3] as u64)?;
        expect("reserved field", word(12) == 0, word(12) as u64)?;
        let stages = Stages {
            stages: word(4),
            rising: bytes[3] == 1,
            observed: word(8),
            sum: float(24),
            last: float(32),
            ..Stages::new(float(16))?
        };
        expect("number of stages", (1..=stages.most()).contains(&stages.stages), word(4) as u64)?;
        expect("number of observations", stages.observed < WINDOW, word(8) as u64)?;
        expect("sum of ratios", stages.sum >= 0.0 && stages.sum.is_finite(), stages.sum.to_bits())?;
        expect("last distance", stages.last >= 0.0, stages.last.to_bits())?;
        Ok(stages)
    }
}
