//! What all ranks must agree on before their messages fit together.

use super::bucket::{Layer, Moment};
use crate::checksum::Hash;
use crate::compress::Setting;

/// Equal on different machines; changes with anything that changes the exchange.
pub(super) fn fingerprint(moment: Moment, layers: &[Layer<'_>]) -> u64 {
    let Moment { world_size, route, seed, step, terms, .. } = moment;
    let words = [world_size as u64, route as u64, seed, step as u64, terms, layers.len() as u64];
    let mut hash = words.into_iter().fold(Hash::START, Hash::add);
    for layer in layers {
        let shape = layer.gradient.shape();
        let setting = match layer.setting {
            Setting::Dense => [0; 5],
            Setting::Qsgd(c) => [1, c.bits as u64, c.bucket as u64, c.scale as u64, c.rounding as u64],
            Setting::TopK(c) => [2, c.keep as u64, c.values as u64, 0, 0],
            Setting::PowerSgd(c) => [3, c.rank as u64, 0, 0, 0],
            Setting::CltK(c) => [4, c.keep as u64, 0, 0, 0],
            Setting::AdaComp(c) => [6, c.bin as u64, 0, 0, 0],
            // Of the stages each rank has its own number.
            Setting::Sidco(c) => [8, c.density.to_bits(), c.fit as u64, c.values as u64, 0],
            Setting::LoCo(c) => [7, c.group as u64, 0, 0, 0],
            Setting::HardThreshold(c) => [5, c.lambda.to_bits() as u64, c.values as u64, 0, 0],
        };
        let place = [layer.index as u64, shape.rows() as u64, shape.cols() as u64];
        hash = place.into_iter().chain(setting).fold(hash, Hash::add);
        let pairs = layer.factor.chunks(2).map(|pair| pair.iter().fold(0, |word, x| word << 32 | x.to_bits() as u64));
        hash = pairs.fold(hash, Hash::add);
    }
    hash.0
}
