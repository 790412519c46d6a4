//! What must be the same on all ranks from the beginning, as a number.

use super::decide::chosen;
use super::{Config, Feedback, Policy, RampUp, Schedule, Tensor};
use crate::checksum::Hash;
use crate::feedback::Residual;

/// What must be the same on all ranks from the beginning.
pub(super) fn identity(config: &Config, tensors: &[Tensor], world: u32) -> u64 {
    let Schedule { warmup, period, window, lead } = config.schedule;
    let numbers = [warmup, period, window, lead, config.search.seed, config.bucket_bytes as u64];
    let kinds = [world as u64, config.route as u64, config.non_finite as u64, config.measuring_rank as u64];
    let measures = [u64::from(config.measures_seconds()), config.search.reduce_dtype as u64];
    let tensors = tensors.iter().flat_map(|tensor| {
        let name = tensor.name.bytes().map(u64::from);
        let shape = [tensor.shape.rows() as u64, tensor.shape.cols() as u64, tensor.dtype as u64];
        name.chain(shape).chain(tensor.shards.iter().copied())
    });
    let levels = config.accordion().map_or([0; 2], |accordion| [accordion.low, accordion.drop].map(f64::to_bits));
    let ramp = config.ramp_up.map_or([0; 2], |RampUp { first, steps }| [first.to_bits(), steps]);
    let fixed = match &config.policy {
        Policy::Fixed(settings) => &settings[..],
        _ => &[],
    };
    let legacy = match &config.policy {
        Policy::Legacy(legacy) => Some(legacy.words()),
        _ => None,
    };
    let fixed = fixed.iter().flat_map(|&setting| chosen(setting).encode());
    let Feedback { qsgd, loco, others } = config.feedback;
    let residual = |Residual { gain, reset_every, storage }: Residual| {
        [1 + storage as u64, gain.to_bits() as u64, reset_every as u64]
    };
    let feedback = [qsgd, loco, others].into_iter().flat_map(|rule| rule.map_or([0; 3], residual));
    let words = numbers
        .into_iter()
        .chain(kinds)
        .chain(measures)
        .chain(levels)
        .chain(ramp)
        .chain(feedback)
        .chain(fixed)
        .chain(legacy.into_iter().flatten())
        .chain(tensors);
    words.fold(Hash::START, Hash::add).0
}
