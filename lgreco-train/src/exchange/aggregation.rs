//! What aggregates the payloads of each setting.

use super::moment::Route;
use crate::compress::Setting;
use crate::compress::powersgd::effective_rank;
use crate::gradient::Shape;

/// How a compressor's outputs are combined.
///
/// ```
/// use lgreco_train::compress::{Setting, clt::CltK, powersgd::PowerSgd};
/// use lgreco_train::exchange::Aggregation;
/// let power = Setting::PowerSgd(PowerSgd { rank: 4, iterations: 1 });
/// assert_eq!(Aggregation::of(&power), Aggregation::FactorAllReduce);
/// assert_eq!(Aggregation::of(&Setting::CltK(CltK { keep: 10 })), Aggregation::SharedPositions);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Aggregation {
    /// Values are summed on the wire.
    AllReduce,
    /// Two all-reduces, one per factor, the second of which needs the result of the first.
    FactorAllReduce,
    /// The positions of one leader's largest values by broadcast; everybody's values there are summed on the wire.
    SharedPositions,
    /// Payloads travel by a [`Route`] and are summed where they arrive.
    Payloads,
    /// Payloads whose length depends on the values travel by all-gather and are summed where they arrive.
    VariablePayloads,
}

impl Aggregation {
    /// The one that `setting` needs.
    ///
    /// ```
    /// use lgreco_train::compress::{Setting, qsgd::Qsgd};
    /// use lgreco_train::exchange::Aggregation;
    /// assert_eq!(Aggregation::of(&Setting::Dense), Aggregation::AllReduce);
    /// assert_eq!(Aggregation::of(&Setting::Qsgd(Qsgd::default())), Aggregation::Payloads);
    /// ```
    pub fn of(setting: &Setting) -> Aggregation {
        match setting {
            Setting::Dense => Aggregation::AllReduce,
            Setting::PowerSgd(_) => Aggregation::FactorAllReduce,
            Setting::CltK(_) => Aggregation::SharedPositions,
            Setting::Qsgd(_) | Setting::TopK(_) | Setting::QuantisedTopK(_) | Setting::LoCo(_) => Aggregation::Payloads,
            // Those of outside methods cannot be cut into pieces: by all-gather, too.
            Setting::HardThreshold(_) | Setting::AdaComp(_) | Setting::Sidco(_) | Setting::Own(_) => {
                Aggregation::VariablePayloads
            }
        }
    }
}

/// Whether payloads of `setting` are gathered whole.
pub(crate) fn is_gathered(setting: &Setting, route: Route) -> bool {
    match Aggregation::of(setting) {
        Aggregation::Payloads => route == Route::AllGather,
        Aggregation::VariablePayloads => true,
        Aggregation::AllReduce | Aggregation::FactorAllReduce | Aggregation::SharedPositions => false,
    }
}

/// Columns of PowerSGD's factors; 0 for other settings.
pub(crate) fn factor_rank(setting: &Setting, shape: Shape) -> usize {
    match setting {
        Setting::PowerSgd(c) => effective_rank(shape, c.rank),
        _ => 0,
    }
}
