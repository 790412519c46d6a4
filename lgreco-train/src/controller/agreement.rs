//! The short messages by which ranks agree on a step before they exchange anything.
//!
//! A message has 32 bytes. These are an error code, a fingerprint (of options, settings and schedule), a flag for gradients that
//! are not finite, and the measured seconds of the rank's steps. Under every policy, all ranks exchange this message at the first
//! step, after a state was loaded, before a probe of the link, when a decision is due, and before settings switch. The same message is exchanged after a bucket
//! in which ranks differed, and before every blocking step. If fingerprints differ, all ranks exchange the fields from which
//! fingerprints are computed, so that every rank can name the difference.
//!
//! At other steps, the messages of buckets contain the fingerprint. A rank that finds an error after the exchange, such as a
//! residual that does not fit its format, reports it in its next message.

use super::buffers::workspace;
use super::identity::{Field, checksum, value_of, version};
use crate::Error;
use crate::exchange::{Collective, Place};
use alloc::vec::Vec;

/// Number of words in one rank's message: error code or 0, fingerprint, flags, and measured seconds.
const WORDS: usize = 4;

/// Words of the messages of `world` ranks.
pub(super) const fn words(world: usize) -> usize {
    WORDS * world
}

/// Writes this rank's message to `words`, which has the messages of all ranks in order.
pub(super) fn put(rank: u32, local: Result<u64, Error>, fingerprint: u64, measured: u64, words: &mut [u64]) {
    words[WORDS * rank as usize..][..WORDS].copy_from_slice(&message(local, fingerprint, measured));
}

fn message(local: Result<u64, Error>, fingerprint: u64, measured: u64) -> [u64; WORDS] {
    let own = match local {
        Ok(answers) => [0, fingerprint, answers, measured],
        Err(error) => [error.code() as u64, fingerprint, 0, measured],
    };
    own.map(u64::to_le)
}

/// Largest number of ranks accepted from a collective, unless the controller has more. The messages of 2^32 ranks would
/// take 137 GB.
const MOST_RANKS: u32 = 1 << 20;

/// The number of ranks that a collective reports or, if that is implausibly large, this controller's own number.
pub(super) fn believed(stated: u32, own: u32) -> u32 {
    if stated <= own.max(MOST_RANKS) { stated } else { own }
}

/// Reports to all ranks that this rank has failed. Returns `failure`, or an error that prevented the message. The controller has
/// `own_world` ranks, but the collective may report another number.
pub(super) fn tell<C: Collective + ?Sized>(collective: &mut C, own_world: u32, failure: Error) -> Error {
    let told = failed(believed(collective.world_size(), own_world), failure).and_then(|mut words| {
        let bytes = bytemuck::cast_slice_mut(&mut words);
        collective.all_gather(bytes).map_err(Error::from)
    });
    told.err().unwrap_or(failure)
}

/// Compares the fields of all ranks. `local` has this rank's fields or its error, which is reported to all ranks. Every rank has
/// the same number of fields.
///
/// # Errors
/// This rank's own error; [`Error::Peer`] with the first rank that failed; [`Error::PeerOption`] with the first field that differs;
/// [`Error::NoMessage`]; [`Error::Collective`]; [`CoreError::OutOfMemory`](crate::CoreError::OutOfMemory).
pub(crate) fn compare<C: Collective + ?Sized>(
    collective: &mut C,
    local: Result<Vec<Field>, Error>,
) -> Result<(), Error> {
    let (Place { rank, world }, fields) = match Place::of(collective).and_then(|place| Ok((place, local?))) {
        Ok(found) => found,
        Err(error) => return Err(tell(collective, 1, error)),
    };
    let mut all = workspace(words(world as usize))?;
    put(rank, Ok(0), checksum(&fields), 0, &mut all);
    collective.all_gather(bytemuck::cast_slice_mut(&mut all))?;
    let Heard::Differs(differs) = read(None, &all)? else { return Ok(()) };
    let mut all = put_fields(rank, world, &fields)?;
    collective.all_gather(bytemuck::cast_slice_mut(&mut all))?;
    Err(difference(differs, &fields, &all))
}

/// A buffer for the messages of `world` ranks. Every message in the buffer reports this rank's failure, because a rank that has
/// failed may not know its position.
pub(super) fn failed(world: u32, failure: Error) -> Result<Vec<u64>, Error> {
    repeated(world, message(Err(failure), 0, 0))
}

/// A buffer for the messages of `world` ranks, filled with the same message.
pub(super) fn repeated(world: u32, message: [u64; words(1)]) -> Result<Vec<u64>, Error> {
    let mut all = workspace(words(world as usize))?;
    all.as_chunks_mut().0.fill(message);
    Ok(all)
}

/// The result of an agreement.
#[derive(Debug, PartialEq)]
pub(super) enum Heard {
    /// Bitwise or of the flags in all ranks' messages.
    Answers(u64),
    /// The first rank whose fingerprint differs from rank 0's.
    Differs(u32),
}

/// Reads the messages of all ranks.
///
/// # Errors
/// The error of this rank, if `own` has one; else [`Error::Peer`] with the first rank that failed.
pub(super) fn read(own: Option<Error>, words: &[u64]) -> Result<Heard, Error> {
    let messages = words.as_chunks::<WORDS>().0.iter().map(|message| message.map(u64::from_le));
    own.map_or(Ok(()), Err)?;
    for (rank, [code, ..]) in messages.clone().enumerate() {
        if code != 0 {
            return Err(Error::of_peer(rank as u32, code));
        }
    }
    let first = messages.clone().next().map(|[_, fingerprint, ..]| fingerprint);
    let differs = messages.clone().position(|[_, fingerprint, ..]| Some(fingerprint) != first);
    Ok(match differs {
        Some(rank) => Heard::Differs(rank as u32),
        None => Heard::Answers(messages.fold(0, |all, [_, _, answers, _]| all | answers)),
    })
}

/// The measured seconds of all ranks.
pub(super) fn measured(words: &[u64]) -> impl Iterator<Item = u64> + Clone {
    words.as_chunks::<WORDS>().0.iter().map(|&[.., measured]| u64::from_le(measured))
}

/// Number of words in the message with a rank's fields. All versions of lgreco use this number, so that even ranks whose versions
/// have other fields can exchange these messages.
const FIELDS: usize = 1024;

/// A buffer for the versions and fields of `world` ranks, which already has this rank's version and fields.
///
/// # Errors
/// [`CoreError::OutOfMemory`](crate::CoreError::OutOfMemory).
pub(super) fn put_fields(rank: u32, world: u32, fields: &[Field]) -> Result<Vec<u64>, Error> {
    let mut words = workspace(FIELDS * world as usize)?;
    let own = &mut words[FIELDS * rank as usize..][..FIELDS];
    own.iter_mut().zip(with_version(fields)).for_each(|(word, field)| *word = field.word.to_le());
    Ok(words)
}

/// Other versions may have other fields, so the version comes first.
fn with_version(fields: &[Field]) -> Vec<Field> {
    version().chain(fields.iter().copied()).collect()
}

/// [`Error::PeerOption`] with the first field that differs from rank 0's; else [`Error::NoMessage`] with the first rank whose part
/// has no version; else [`Error::PeerPlan`] with `rank`.
pub(super) fn difference(rank: u32, fields: &[Field], words: &[u64]) -> Error {
    let fields = with_version(fields);
    let (first, others) = words.split_at(FIELDS.min(words.len()));
    // Every version begins with a digit, so a part that begins with zeros was never filled.
    let silent = words.chunks_exact(FIELDS).position(|message| message[0] == 0);
    for (rank, other) in (1..).zip(others.chunks_exact(FIELDS)).filter(|(_, other)| first[0] > 0 && other[0] > 0) {
        for (at, field) in fields.iter().enumerate().take(FIELDS) {
            if other[at] != first[at] {
                let [found, expected] = [other, first].map(|words| value_of(&fields, at, words));
                return Error::PeerOption { rank, what: field.name, found, expected };
            }
        }
    }
    silent.map_or(Error::PeerPlan { rank }, |rank| Error::NoMessage { rank: rank as u32 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn other_versions_are_named_although_they_have_other_fields() {
        let fields = [Field::whole("seed", 7)];
        let mut all = put_fields(0, 2, &fields).unwrap();
        let other = put_fields(1, 2, &[Field::whole("first", 1), Field::whole("seed", 7)]).unwrap();
        assert_eq!(all.len(), other.len());
        all[FIELDS..].copy_from_slice(&other[FIELDS..]);
        all[FIELDS] = u64::from_le_bytes(*b"0.99.1\0\0").to_le();
        let Error::PeerOption { rank, what, found, expected } = difference(1, &fields, &all) else { panic!() };
        let expects = (1, "version of lgreco", "0.99.1".to_string(), env!("CARGO_PKG_VERSION").to_string());
        assert_eq!((rank, what, found.to_string(), expected.to_string()), expects);
    }

    #[test]
    fn a_network_that_drops_a_message_is_not_another_version() {
        let fields = [Field::whole("seed", 7)];
        for silent in 0..2 {
            let received = put_fields(1 - silent, 2, &fields).unwrap();
            assert_eq!(difference(1, &fields, &received), Error::NoMessage { rank: silent });
        }
    }
}
