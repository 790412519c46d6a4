//! A checksum of everything that determines the layout of messages.

use super::layer::Spec;
use super::moment::Moment;
use crate::checksum::Hash;

/// The checksum of an exchange. It does not depend on the machine.
pub(super) fn fingerprint<'a>(moment: Moment, layers: impl Iterator<Item = Spec<'a>>, remembered: u64) -> u64 {
    let Moment { world_size, route, reduce_dtype, seed, step, terms, .. } = moment;
    let words = [world_size as u64, route as u64, reduce_dtype as u64, seed, step as u64, terms, remembered];
    let mut hash = words.into_iter().fold(Hash::START, Hash::add);
    for Spec { index, setting, shape, shards, .. } in layers {
        let (method, parameters) = setting.agreed();
        let setting = [u64::from(method)].into_iter().chain(parameters.map(u64::from));
        let place = [index as u64, shape.rows() as u64, shape.cols() as u64];
        hash = place.into_iter().chain(setting).chain(shards.iter().copied()).fold(hash, Hash::add);
    }
    hash.0
}
