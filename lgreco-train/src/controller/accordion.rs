//! The parameters of Accordion and its two detectors. One detector watches each layer's gradient norm, the other the learning rate.

/// Parameters of Accordion (Agarwal et al., MLSys 2021): two compression levels, and thresholds of its detectors.
///
/// The levels are parameters of the search's first method: bits, densities or ranks. A layer is *critical* at a decision when the
/// norm of its window's gradient changed by a fraction of at least `eta` since the last decision. A layer is also critical at the
/// first decision, and after a norm of 0. Critical layers get `low` compression. If the learning rate falls by more than the factor
/// `drop` below its highest value since the last decision, all layers get `low` compression until the next decision.
///
/// These rules deviate from the paper in two points. First, the norm is computed from the window's mean gradient, not from the sum
/// over an epoch. Second, the authors react to any decrease of the learning rate. A schedule that decays at every step would then
/// keep all layers at `low` compression, so this implementation has the threshold `drop`.
///
/// ```
/// use lgreco_train::controller::{Accordion, Policy};
/// let any_decrease = Accordion { drop: 1.0, ..Accordion::new(4.0, 1.0) };
/// let policy = Policy::Accordion(any_decrease);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Accordion {
    /// The parameter of critical layers: many bits, a high density or rank.
    pub low: f64,
    /// The parameter of layers that are not critical; smaller than `low`.
    pub high: f64,
    /// Smallest relative change of the norm that makes a layer critical.
    pub eta: f64,
    /// All layers get `low` compression if the learning rate falls by more than this factor between two decisions. At least 1. With
    /// 1, any decrease is enough.
    pub drop: f64,
}

impl Accordion {
    /// Parameters with the published threshold `eta` of 0.5 and a `drop` of 1.5.
    ///
    /// ```
    /// use lgreco_train::controller::Accordion;
    /// assert_eq!(Accordion::new(2.0, 1.0).eta, 0.5); // PowerSGD ranks 2 and 1
    /// ```
    pub const fn new(low: f64, high: f64) -> Self {
        Accordion { low, high, eta: 0.5, drop: 1.5 }
    }
}

/// Whether a layer is critical. `before` is the layer's gradient norm at the previous decision (`None` at the first), and `now` the
/// present norm.
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
    /// Records a step's learning rate. Returns whether the learning rate has fallen by more than the factor [`Accordion::drop`].
    pub(super) fn falls(&mut self, accordion: &Accordion, rate: f64) -> bool {
        self.0 = self.0.max(rate);
        rate * accordion.drop < self.0
    }
}
