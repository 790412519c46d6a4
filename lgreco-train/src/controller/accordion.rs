//! Accordion's two detectors: gradient norms per layer, and the learning rate.

use super::Accordion;

/// Which layers are critical, from their gradients' norms now and at the decision before (`None`: there was none).
pub(super) fn critical(accordion: &Accordion, before: Option<f64>, now: f64) -> bool {
    match before {
        None | Some(0.0) => true,
        Some(before) => (before - now).abs() / before >= accordion.eta,
    }
}

/// The highest learning rate since the last decision; 0 before the first one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Highest(pub f64);

impl Highest {
    /// Takes note of a step's learning rate; whether it has fallen far enough.
    pub(super) fn falls(&mut self, accordion: &Accordion, rate: f64) -> bool {
        self.0 = self.0.max(rate);
        rate * accordion.drop < self.0
    }
}
