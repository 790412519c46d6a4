//! Properties of settings that depend on their kind of aggregation.

use super::moment::Route;
use crate::compress::powersgd::{PowerSgd, effective_rank};
use crate::compress::{Aggregation, Compressor, Setting};
use crate::gradient::Shape;

/// Whether all ranks gather whole payloads of `setting`.
pub(crate) fn is_gathered(setting: &Setting, route: Route) -> bool {
    match setting.traits().aggregation {
        Aggregation::Payloads => route == Route::AllGather,
        Aggregation::WholePayloads => true,
        Aggregation::AllReduce | Aggregation::FactorAllReduce | Aggregation::SharedPositions => false,
    }
}

/// Columns of PowerSGD's factors; 0 for other settings.
pub(crate) fn factor_rank(setting: &Setting, shape: Shape) -> usize {
    match setting {
        Setting::PowerSgd(PowerSgd { rank, .. }) => effective_rank(shape, *rank),
        _ => 0,
    }
}
