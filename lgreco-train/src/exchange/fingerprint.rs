//! What all ranks must agree on before their messages fit together.

use super::layer::Spec;
use super::moment::Moment;
use crate::checksum::Hash;
use crate::compress::Setting;

/// Equal on different machines; changes with anything that changes the exchange.
pub(super) fn fingerprint<'a>(moment: Moment, layers: impl Iterator<Item = Spec<'a>>, remembered: u64) -> u64 {
    let Moment { world_size, route, reduce_dtype, seed, step, terms, .. } = moment;
    let words = [world_size as u64, route as u64, reduce_dtype as u64, seed, step as u64, terms, remembered];
    let mut hash = words.into_iter().fold(Hash::START, Hash::add);
    for Spec { index, setting, shape, shards, .. } in layers {
        let setting = match setting {
            Setting::Dense => [0; 5],
            Setting::Qsgd(c) => [1, c.bits as u64, c.bucket as u64, c.scale as u64, c.rounding as u64],
            Setting::TopK(c) => [2, c.keep as u64, c.values as u64, 0, 0],
            Setting::QuantisedTopK(c) => [9, c.keep as u64, c.bits as u64, 0, 0],
            Setting::PowerSgd(c) => [3, c.rank as u64, 0, 0, 0],
            Setting::CltK(c) => [4, c.keep as u64, 0, 0, 0],
            Setting::AdaComp(c) => [6, c.bin as u64, 0, 0, 0],
            // Of the stages each rank has its own number.
            Setting::Sidco(c) => [8, c.density.to_bits(), c.fit as u64, c.values as u64, 0],
            Setting::LoCo(c) => [7, c.group as u64, 0, 0, 0],
            Setting::HardThreshold(c) => [5, c.lambda.to_bits() as u64, c.values as u64, 0, 0],
        };
        let place = [index as u64, shape.rows() as u64, shape.cols() as u64];
        hash = place.into_iter().chain(setting).chain(shards.iter().copied()).fold(hash, Hash::add);
    }
    hash.0
}
