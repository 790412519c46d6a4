//! The time that compression takes, learnt from trials on the planning thread and from steps.
//!
//! The seconds of a method are its [`work`] times two factors. The first factor comes from a trial, which encodes and decodes a
//! layer of this model on this machine before the method is used. The second factor is the overhead of real steps over the trial.
//! The overhead comes from residuals, buffers, and slower processors of other ranks. A method that no step has used yet gets the
//! mean overhead of the other methods.

use crate::compress::{Compressor, Cost, Setting};
use crate::gradient::Shape;

/// The cost family of uncompressed layers.
pub(super) const DENSE: usize = 0;

/// A rough estimate of the seconds that a slow core needs to compress a layer and to decompress `payloads` payloads of it. The
/// estimate models how the times of a cost family grow with shapes and parameters.
pub(super) fn work(setting: &Setting, shape: Shape, payloads: f64) -> f64 {
    const LAYER: f64 = 2e3;
    let cost = setting.traits().cost;
    let overhead = if cost.family == DENSE { 0.0 } else { LAYER };
    1e-9 * (overhead + cost.nanoseconds(shape.elements(), payloads))
}

/// For each cost family, two factors that convert estimated work into measured seconds.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Compute {
    /// Seconds of a trial, divided by the trial's estimated work.
    trials: [Option<f64>; Cost::FAMILIES],
    /// Seconds of steps, divided by their estimated work and by the trial's factor.
    overheads: [Option<f64>; Cost::FAMILIES],
}

impl Default for Compute {
    fn default() -> Self {
        Compute { trials: [None; Cost::FAMILIES], overheads: [None; Cost::FAMILIES] }
    }
}

/// A trial replaces the earlier trial only if their results differ by more than this fraction.
const SAME_TRIAL: f64 = 0.25;
/// Smallest share of a step's work at which the step changes the overhead of a cost family.
const SHARE: f64 = 0.1;

impl Compute {
    /// Records the seconds of a trial.
    pub(super) fn try_out(&mut self, family: usize, work: f64, seconds: f64) {
        let found = seconds / work;
        if !(found > 0.0 && found.is_finite()) {
            return; // the clock is too coarse
        }
        let trial = &mut self.trials[family];
        if trial.is_none_or(|trial| (found - trial).abs() > SAME_TRIAL * trial) {
            *trial = Some(found);
        }
    }

    /// Records the seconds of a step. `work` has the work of the step's layers, by cost family.
    pub(super) fn note(&mut self, work: [f64; Cost::FAMILIES], seconds: f64) {
        let mut expected: [f64; Cost::FAMILIES] = core::array::from_fn(|family| work[family] * self.factor(family));
        let mut left = seconds;
        if expected[DENSE + 1..].iter().any(|&part| part > 0.0) {
            // Only steps without compressed layers show the cost of uncompressed layers.
            left -= core::mem::take(&mut expected[DENSE]);
        }
        let total: f64 = expected.iter().sum();
        let ratio = left / total;
        if !(ratio > 0.0 && ratio.is_finite()) {
            return;
        }
        let judged = expected.map(|part| part > 0.0 && part >= SHARE * total);
        let new: [_; Cost::FAMILIES] = core::array::from_fn(|family| match judged[family] {
            true => Some(self.overhead(family) * ratio),
            false => self.overheads[family],
        });
        self.overheads = new;
    }

    /// Seconds of a layer under a setting.
    pub(super) fn seconds(&self, setting: &Setting, shape: Shape, payloads: f64) -> f64 {
        work(setting, shape, payloads) * self.factor(setting.traits().cost.family)
    }

    fn factor(&self, family: usize) -> f64 {
        self.trials[family].unwrap_or(1.0) * self.overhead(family)
    }

    fn overhead(&self, family: usize) -> f64 {
        let others = || {
            let known = self.overheads[DENSE + 1..].iter().flatten();
            let count = known.clone().count();
            if family == DENSE || count == 0 { 1.0 } else { known.sum::<f64>() / count as f64 }
        };
        self.overheads[family].unwrap_or_else(others)
    }

    /// All factors, for saved states; 0 for an unknown factor.
    pub(super) fn numbers(&self) -> impl Iterator<Item = f64> {
        self.trials.into_iter().chain(self.overheads).map(Option::unwrap_or_default)
    }

    /// Restores the factors from their numbers; `None` if the numbers are not valid.
    pub(super) fn from_numbers(numbers: &[f64; 2 * Cost::FAMILIES]) -> Option<Compute> {
        let sound = numbers.iter().all(|&number| number.is_finite() && number.is_sign_positive());
        let known = |at: usize| Some(numbers[at]).filter(|&number| number > 0.0);
        sound.then(|| Compute {
            trials: core::array::from_fn(known),
            overheads: core::array::from_fn(|family| known(Cost::FAMILIES + family)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::powersgd::PowerSgd;
    use crate::compress::qsgd::{Qsgd, Rounding, Scale};
    use std::vec::Vec;

    const QSGD: Setting =
        Setting::Qsgd(Qsgd { bits: 4, bucket: 512, scale: Scale::MaxNorm, rounding: Rounding::Stochastic });
    const POWER: Setting = Setting::PowerSgd(PowerSgd { rank: 4, iterations: 1 });

    fn shape() -> Shape {
        Shape::new(100, 100).unwrap()
    }

    fn work_of(settings: &[Setting]) -> [f64; Cost::FAMILIES] {
        let mut all = [0.0; Cost::FAMILIES];
        settings.iter().for_each(|setting| all[setting.traits().cost.family] += work(setting, shape(), 2.0));
        all
    }

    #[test]
    fn steps_correct_what_trials_say_and_others_take_it_over() {
        let mut compute = Compute::default();
        let seconds = |compute: &Compute, setting| compute.seconds(&setting, shape(), 2.0);
        let guess = seconds(&compute, POWER);
        compute.try_out(POWER.traits().cost.family, guess, 3.0 * guess);
        compute.try_out(QSGD.traits().cost.family, work(&QSGD, shape(), 2.0), 1e-3);
        assert_eq!((seconds(&compute, POWER), seconds(&compute, QSGD)), (3.0 * guess, 1e-3));
        compute.note(work_of(&[QSGD, QSGD]), 4e-3);
        assert!((seconds(&compute, QSGD) - 2e-3).abs() < 1e-12);
        assert!((seconds(&compute, POWER) - 6.0 * guess).abs() < 1e-12, "a neighbour's overhead");
        // After a step with two cost families, their predicted seconds add up to the step's measured seconds.
        compute.note(work_of(&[QSGD, POWER]), 5e-3);
        assert!((seconds(&compute, QSGD) + seconds(&compute, POWER) - 5e-3).abs() < 1e-12);
    }

    #[test]
    fn uncompressed_steps_say_nothing_of_compressors() {
        let mut compute = Compute::default();
        let before = compute.seconds(&QSGD, shape(), 2.0);
        compute.note(work_of(&[Setting::Dense]), 1.0);
        assert_eq!(compute.seconds(&QSGD, shape(), 2.0), before);
        assert!((compute.seconds(&Setting::Dense, shape(), 2.0) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn compressed_steps_say_nothing_of_uncompressed_layers() {
        let mut compute = Compute::default();
        let seconds = |compute: &Compute, setting| compute.seconds(&setting, shape(), 2.0);
        let dense = seconds(&compute, Setting::Dense);
        compute.note(work_of(&[QSGD, Setting::Dense]), dense + 1.0);
        assert_eq!(seconds(&compute, Setting::Dense), dense);
        assert!((seconds(&compute, QSGD) - 1.0).abs() < 1e-12);
        compute.note(work_of(&[QSGD, Setting::Dense]), dense / 2.0); // no time is left for the compressed layer
        assert!((seconds(&compute, QSGD) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn clocks_that_stand_still_change_nothing() {
        let mut compute = Compute::default();
        compute.try_out(1, 1e-3, 0.0);
        compute.note(work_of(&[QSGD]), 0.0);
        compute.note([0.0; Cost::FAMILIES], 1.0);
        assert_eq!(compute, Compute::default());
        compute.try_out(1, 1e-3, 1e-3);
        compute.try_out(1, 1e-3, 1.2e-3);
        assert_eq!(compute.trials[1], Some(1.0), "noise");
    }

    #[test]
    fn numbers_survive() {
        let mut compute = Compute::default();
        compute.try_out(2, 1e-3, 2e-3);
        compute.note(work_of(&[POWER]), 5e-3);
        let mut numbers: Vec<f64> = compute.numbers().collect();
        let all = |numbers: &[f64]| Compute::from_numbers(numbers.try_into().unwrap());
        assert_eq!(all(&numbers), Some(compute));
        numbers[3] = f64::NAN;
        assert_eq!(all(&numbers), None);
    }
}
