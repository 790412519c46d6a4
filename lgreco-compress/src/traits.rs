//! What exchanges, error feedback and cost estimates ask of a setting instead of which method it is.

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
    /// Values are summed on the wire.
    AllReduce,
    /// Two all-reduces, one per factor, the second of which needs the result of the first.
    FactorAllReduce,
    /// The positions of one leader's largest values by broadcast; everybody's values there are summed on the wire.
    SharedPositions,
    /// Payloads travel whole or in pieces and are summed where they arrive.
    Payloads,
    /// Payloads travel whole, by all-gather on every route, and are summed where they arrive: their lengths depend on the
    /// values, or the method is from outside lgreco.
    WholePayloads,
}

/// Which residual a setting has unless the trainer asks for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResidualKind {
    /// None: nothing is lost.
    Lossless,
    /// None: QSGD, and outside methods that are unbiased.
    Optional,
    /// A moving average of what is lost.
    Average,
    /// All that is lost, sent later.
    Classic,
}

/// What a setting costs, for estimates: nanoseconds on a slow core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Settings of one family cost alike: measured seconds correct all of them. Below [`FAMILIES`](Cost::FAMILIES).
    pub family: usize,
    /// Per element of the layer: to encode, and to decode one payload.
    pub element: [f64; 2],
    /// How many values are kept, where the setting says it.
    pub kept: u32,
    /// Per value kept: to encode, and to decode one payload.
    pub value: [f64; 2],
}

impl Cost {
    /// How many families there are: lgreco's, and one for each id of outside methods.
    pub const FAMILIES: usize = Cost::FIRST_OUTSIDE + 1 + (u8::MAX - FIRST_ID) as usize;
    /// The family of the outside method whose id is [`FIRST_ID`].
    pub(crate) const FIRST_OUTSIDE: usize = 6;

    /// Of settings whose cost is that of their elements.
    pub const fn of_elements(family: usize, encode: f64, decode: f64) -> Cost {
        Cost { family, element: [encode, decode], kept: 0, value: [0.0; 2] }
    }

    /// Of encoding a layer and decoding `payloads` of it, in nanoseconds.
    pub fn nanoseconds(&self, elements: usize, payloads: f64) -> f64 {
        let of = |[encode, decode]: [f64; 2]| encode + decode * payloads;
        elements as f64 * of(self.element) + f64::from(self.kept) * of(self.value)
    }
}

/// What is said of a setting beside its payloads; [`Compressor::traits`](crate::Compressor::traits).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traits {
    /// How the outputs of all workers are combined.
    pub aggregation: Aggregation,
    /// Whether payloads decode to the gradient in expectation, with errors that are independent from worker to worker.
    pub unbiased: bool,
    /// Tensors can be cut at multiples of this many elements, each piece being compressed as a tensor of its own. At least 1;
    /// `None` where the setting does not travel as pieces.
    pub piece: Option<usize>,
    /// Which residual there is by default.
    pub residual: ResidualKind,
    /// Whether a residual stays bounded although the error may be larger than the gradient.
    pub bounded: bool,
    /// Whether the encoder looks at the gradient beside the sum of gradient and residual
    /// ([`encode_with_gradient`](crate::Compressor::encode_with_gradient)).
    pub sees_gradient: bool,
    /// Whether what is left has at no position a larger magnitude than what was offered.
    pub shrinks: bool,
    /// What it costs.
    pub cost: Cost,
}

impl Traits {
    /// Of payloads that are summed where they arrive, with classic error feedback.
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

    /// Of payloads that cannot be cut.
    pub(crate) const fn whole(cost: Cost) -> Traits {
        Traits { aggregation: Aggregation::WholePayloads, ..Traits::payloads(cost) }
    }
}
