//! The short message every aggregation begins with: ranks that failed or disagree are found before anybody waits.

use super::collective::{Collective, Place};
use super::{Layer, Route};
use crate::checksum::Hash;
use crate::compress::Setting;
use crate::{CoreError, Error};

/// Words of one greeting: error code or 0, fingerprint, message length.
const WORDS: usize = 3;

/// Words of workspace: everybody's greeting and their lengths.
pub(super) const fn words(world: usize) -> usize {
    (WORDS + 1) * world
}

/// Tells everybody how this rank fared (`local`: the length of its message, and the most that any may have) and what it
/// is about to do. Returns words that are free again, and the lengths of all messages.
///
/// All ranks decide alike. [`Error::Peer`] names the first rank that failed, [`Error::PeerPlan`] the first one that
/// disagrees with rank 0, [`Error::PeerMessage`] the first that announces too long a message; a rank that failed itself
/// gets its own error.
pub(super) fn exchange<'w, C: Collective + ?Sized>(
    collective: &mut C,
    local: Result<(usize, usize), Error>,
    fingerprint: u64,
    words: &'w mut [u64],
) -> Result<(&'w mut [u64], &'w mut [u64]), Error> {
    let world = words.len() / (WORDS + 1);
    let (greetings, lens) = words.split_at_mut(WORDS * world);
    lens.fill(8 * WORDS as u64);
    let own = match local {
        Ok((len, _)) => [0, fingerprint, len as u64],
        Err(error) => [error.code() as u64, fingerprint, 0],
    };
    collective.all_gather(bytemuck::bytes_of(&own.map(u64::to_le)), lens, bytemuck::cast_slice_mut(greetings))?;
    let (_, most) = local?;
    let told = greetings.as_chunks::<WORDS>().0.iter().map(|greeting| greeting.map(u64::from_le));
    for (rank, [code, ..]) in (0..).zip(told.clone()) {
        if code != 0 {
            return Err(Error::of_peer(rank, code));
        }
    }
    let first = told.clone().next().map(|[_, fingerprint, _]| fingerprint);
    for ((rank, [_, fingerprint, len]), to) in (0..).zip(told).zip(&mut *lens) {
        if Some(fingerprint) != first {
            return Err(Error::PeerPlan { rank });
        }
        *to = len;
    }
    if let Some((rank, &len)) = (0..).zip(&*lens).find(|(_, len)| **len > most as u64) {
        let error = Error::Core(CoreError::Length { what: "message bytes", expected: most, found: len as usize });
        return Err(Error::PeerMessage { rank, code: error.code() });
    }
    Ok((greetings, lens))
}

/// What all ranks must agree on. Equal on different machines; changes with anything that changes the exchange.
pub(super) fn fingerprint(place: Place, layers: &[Layer<'_>], route: Route, seed: u64, step: u32) -> u64 {
    let words = [place.world as u64, route as u64, seed, step as u64, layers.len() as u64];
    let mut hash = words.into_iter().fold(Hash::START, Hash::add);
    for layer in layers {
        let shape = layer.gradient.shape();
        let setting = match layer.setting {
            Setting::Dense => [0; 5],
            Setting::Qsgd(c) => [1, c.bits as u64, c.bucket as u64, c.scale as u64, c.rounding as u64],
            Setting::TopK(c) => [2, c.keep as u64, c.values as u64, 0, 0],
            Setting::PowerSgd(c) => [3, c.rank as u64, 0, 0, 0],
            Setting::CltK(c) => [4, c.keep as u64, 0, 0, 0],
            Setting::AdaComp(c) => [6, c.bin as u64, layer.fresh.is_some() as u64, 0, 0],
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
