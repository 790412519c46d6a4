//! Measured and expected seconds of a decision.

use crate::{CoreError, Error};
use core::fmt;

/// Seconds of a step's exchange, the basis of a decision under [`Objective::MeasuredSeconds`](super::Objective). An exchange lasts
/// from the first bucket to the last mean on the slowest rank, and includes compression.
///
/// ```
/// use lgreco_train::controller::Timing;
/// let gain = |timing: &Timing| timing.uncompressed / timing.plan;
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// Median of the measured steps since the last decision; 0 if there were none.
    pub measured: f64,
    /// The part of `measured` that was compression and decompression.
    pub computing: f64,
    /// Additional seconds for each additional byte that every rank sends.
    pub seconds_per_byte: f64,
    /// Expected seconds under the new settings.
    pub plan: f64,
    /// The part of `plan` that is compression and decompression.
    pub plan_computing: f64,
    /// Expected seconds under the default settings.
    pub default: f64,
    /// Expected seconds with all layers uncompressed.
    pub uncompressed: f64,
    /// Number of layers that are compressed now.
    pub compressed: u32,
    /// Number of layers of the model.
    pub layers: u32,
}

impl Timing {
    pub(super) const WORDS: usize = 8;

    pub(super) fn encode(timing: Option<&Timing>) -> [u64; Self::WORDS] {
        let Some(timing) = timing else { return [u64::MAX; Self::WORDS] };
        let Timing { measured, computing, seconds_per_byte, plan, plan_computing, default, uncompressed, .. } = *timing;
        let numbers = [measured, computing, seconds_per_byte, plan, plan_computing, default, uncompressed];
        let mut words = [u64::from(timing.compressed) << 32 | u64::from(timing.layers); Self::WORDS];
        words.iter_mut().zip(numbers).for_each(|(word, number)| *word = number.to_bits());
        words
    }

    pub(super) fn decode(words: &[u64; Self::WORDS]) -> Result<Option<Timing>, Error> {
        if *words == [u64::MAX; Self::WORDS] {
            return Ok(None);
        }
        let [numbers @ .., counts] = words;
        let numbers = numbers.map(f64::from_bits);
        for number in numbers {
            let sound = number.is_finite() && number >= 0.0;
            CoreError::require_saved(sound, "a time of the decision", number.to_bits())?;
        }
        let [measured, computing, seconds_per_byte, plan, plan_computing, default, uncompressed] = numbers;
        let (compressed, layers) = ((counts >> 32) as u32, *counts as u32);
        Ok(Some(Timing {
            measured,
            computing,
            seconds_per_byte,
            plan,
            plan_computing,
            default,
            uncompressed,
            compressed,
            layers,
        }))
    }
}

impl fmt::Display for Timing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Timing { compressed, layers, .. } = self;
        match compressed {
            0 => write!(f, "none of {layers} layers is compressed: ")?,
            _ => write!(f, "{compressed} of {layers} layers are compressed: ")?,
        }
        let [measured, computing, plan, plan_computing, default, uncompressed] =
            [self.measured, self.computing, self.plan, self.plan_computing, self.default, self.uncompressed]
                .map(|seconds| 1e3 * seconds);
        write!(f, "exchanging took {measured:.3} ms, compressing {computing:.3} of them")?;
        if self.seconds_per_byte > 0.0 {
            write!(f, ", and 1 MB more takes {:.3}", 1e9 * self.seconds_per_byte)?;
        }
        write!(f, "; expected {plan:.3} ms, compressing {plan_computing:.3} of them")?;
        write!(f, " (default settings {default:.3}, uncompressed {uncompressed:.3})")
    }
}
