//! Traits of a setting. Exchanges, error feedback and cost estimates read these traits instead of matching on the
//! method.

use lgreco_core::method::FIRST_ID;

/// How the outputs of all workers are combined.
///
/// ```
/// use lgreco_compress::{Aggregation, Compressor, Setting, clt::CltK, powersgd::PowerSgd, qsgd::Qsgd};
/// let of = |setting: Setting| setting.traits().aggregation;
/// assert_eq!(of(Setting::Dense), Aggregation::AllReduce);
/// assert_eq!(of(Setting::Qsgd(Qsgd::default())), Aggregation::Payloads);
/// assert_eq!(of(Setting::PowerSgd(PowerSgd { rank: 4, iterations: 1 })), Aggregation::FactorAllReduce);
/// assert_eq!(of(Setting::CltK(CltK { keep: 10 })), Aggregation::SharedPositions);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Aggregation {
    /// The network sums the values.
    AllReduce,
    /// Two all-reduces, one per factor. The second needs the result of the first.
    FactorAllReduce,
    /// A leader broadcasts the positions of its largest values. The network sums all workers' values at these
    /// positions.
    SharedPositions,
    /// Payloads travel whole or in pieces. Receivers decode and sum the payloads.
    Payloads,
    /// Payloads travel whole, by all-gather on every route. Receivers decode and sum the payloads. Used for outside
    /// methods, and for methods with a payload length that depends on the values.
    WholePayloads,
}

/// The kind of residual that a setting has by default. The trainer may choose another kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResidualKind {
    /// No residual, because compression has no error.
    Lossless,
    /// No residual by default, but one is possible. Applies to QSGD, EDEN with the unbiased scale, and unbiased outside
    /// methods.
    Optional,
    /// A moving average of the compression error.
    Average,
    /// The whole compression error, added to the next gradient.
    Classic,
}

/// Estimated cost of a setting, in nanoseconds on a slow core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Index of the cost family, below [`FAMILIES`](Cost::FAMILIES). Measured times correct the estimates of a whole
    /// family.
    pub family: usize,
    /// Nanoseconds per element of the layer: to encode, and to decode one payload.
    pub element: [f64; 2],
    /// Number of values kept if the setting fixes it, else 0.
    pub kept: u32,
    /// Nanoseconds per value kept: to encode, and to decode one payload.
    pub value: [f64; 2],
}

impl Cost {
    /// Number of families: lgreco's families, and one for each possible id of an outside method.
    pub const FAMILIES: usize = Cost::FIRST_OUTSIDE + 1 + (u8::MAX - FIRST_ID) as usize;
    /// Family of the outside method with the id [`FIRST_ID`].
    pub(crate) const FIRST_OUTSIDE: usize = 6;

    /// Cost of a setting that depends only on the number of elements.
    pub const fn of_elements(family: usize, encode: f64, decode: f64) -> Cost {
        Cost { family, element: [encode, decode], kept: 0, value: [0.0; 2] }
    }

    /// Nanoseconds to encode a layer of `elements` elements and to decode `payloads` payloads of it.
    pub fn nanoseconds(&self, elements: usize, payloads: f64) -> f64 {
        let of = |[encode, decode]: [f64; 2]| encode + decode * payloads;
        elements as f64 * of(self.element) + f64::from(self.kept) * of(self.value)
    }
}

/// Properties of a setting that do not depend on its payload format. [`Compressor::traits`](crate::Compressor::traits)
/// returns them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traits {
    /// How the outputs of all workers are combined.
    pub aggregation: Aggregation,
    /// Whether payloads decode to the gradient in expectation, with errors that are independent between workers.
    pub unbiased: bool,
    /// Tensors can be cut at multiples of this many elements. Each piece is then compressed as a separate tensor. At
    /// least 1; `None` if the setting's payloads do not travel in pieces.
    pub piece: Option<usize>,
    /// The default kind of residual.
    pub residual: ResidualKind,
    /// Whether the residual stays bounded even when the error is larger than the gradient.
    pub bounded: bool,
    /// Whether the encoder reads the gradient as well as the sum of gradient and residual
    /// ([`encode_with_gradient`](crate::Compressor::encode_with_gradient)).
    pub sees_gradient: bool,
    /// Whether no element's error is larger in magnitude than the element itself.
    pub shrinks: bool,
    /// Estimated cost.
    pub cost: Cost,
}

impl Traits {
    /// Traits of a method with payloads, classic error feedback and a biased error.
    pub(crate) const fn payloads(cost: Cost) -> Traits {
        Traits {
            aggregation: Aggregation::Payloads,
            unbiased: false,
            piece: None,
            residual: ResidualKind::Classic,
            bounded: false,
            sees_gradient: false,
            shrinks: false,
            cost,
        }
    }

    /// Traits of a method whose payloads cannot be cut.
    pub(crate) const fn whole(cost: Cost) -> Traits {
        Traits { aggregation: Aggregation::WholePayloads, ..Traits::payloads(cost) }
    }
}
