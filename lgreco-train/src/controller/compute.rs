//! What compressing costs, learnt from trials on the planning thread and from the steps themselves.
//!
//! Methods cost what their [`work`] says times two numbers: that of a trial (encoding and decoding a layer of this model on this
//! machine, before anybody uses the method), and what real steps took over that (residuals, other ranks' processors, buffers).
//! A method that no step has used yet takes over the others' second number.

use crate::compress::{Compressor, Cost, Setting};
use crate::gradient::Shape;

/// The family of uncompressed layers.
pub(super) const DENSE: usize = 0;

/// Seconds that compressing a layer and decompressing `payloads` of it takes a slow core: how families' times grow with shapes
/// and parameters, and a guess of how long they are.
pub(super) fn work(setting: &Setting, shape: Shape, payloads: f64) -> f64 {
    const LAYER: f64 = 2e3;
    let cost = setting.traits().cost;
    let overhead = if cost.family == DENSE { 0.0 } else { LAYER };
    1e-9 * (overhead + cost.nanoseconds(shape.elements(), payloads))
}

/// Two numbers per family.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Compute {
    /// Seconds of a trial over its work.
    trials: [Option<f64>; Cost::FAMILIES],
    /// Seconds of steps over work times trial.
    overheads: [Option<f64>; Cost::FAMILIES],
}

impl Default for Compute {
    fn default() -> Self {
        Compute { trials: [None; Cost::FAMILIES], overheads: [None; Cost::FAMILIES] }
    }
}

/// A trial that differs by less changes nothing.
const SAME_TRIAL: f64 = 0.25;
/// A family that is less of a step's work than this is not judged by it.
const SHARE: f64 = 0.1;

impl Compute {
    /// Takes note of how many seconds a trial took.
    pub(super) fn try_out(&mut self, family: usize, work: f64, seconds: f64) {
        let found = seconds / work;
        if !(found > 0.0 && found.is_finite()) {
            return; // a clock that is too coarse
        }
        let trial = &mut self.trials[family];
        if trial.is_none_or(|trial| (found - trial).abs() > SAME_TRIAL * trial) {
            *trial = Some(found);
        }
    }

    /// Takes note of how many seconds a step's layers took, of which this is the work by family.
    pub(super) fn note(&mut self, work: [f64; Cost::FAMILIES], seconds: f64) {
        let mut expected: [f64; Cost::FAMILIES] = core::array::from_fn(|family| work[family] * self.factor(family));
        let mut left = seconds;
        if expected[DENSE + 1..].iter().any(|&part| part > 0.0) {
            // What layers cost that stay uncompressed, steps without compressed ones tell.
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

    /// Seconds of a layer.
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

    /// All numbers, for saved states; 0 for none.
    pub(super) fn numbers(&self) -> impl Iterator<Item = f64> {
        self.trials.into_iter().chain(self.overheads).map(Option::unwrap_or_default)
    }

    /// What has these numbers; `None` unless they are all of one.
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
        // Of several families the sum is right.
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
        compute.note(work_of(&[QSGD, Setting::Dense]), dense / 2.0); // there is nothing left for what is compressed
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
