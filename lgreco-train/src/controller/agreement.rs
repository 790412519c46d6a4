//! The short message by which ranks find out, before anything is exchanged, whether all of them can take the step and
//! want the same one.
//!
//! One rank decides, and all ranks check. The measuring rank broadcasts its plan, or its error, in a message of fixed
//! length. Ranks exchange this message of 32 bytes whatever their policies: at the first step, after a state was loaded,
//! where a decision is due, before a switch takes effect, after a bucket in which ranks differed, and before every
//! blocking step. It holds an error code, a fingerprint of options, settings and schedule, whether gradients are finite,
//! and how long the rank's steps take. Where fingerprints differ, all ranks exchange the fields behind them, so that
//! every rank names the one that differs.
//!
//! At other steps the fingerprint is part of every bucket's message. What a rank can only find out after the exchange (a
//! residual that does not fit its format), its next message tells.

use super::identity::{Field, value_of};
use crate::Error;
use alloc::vec;
use alloc::vec::Vec;

/// Words of one rank's message: error code or 0, fingerprint, answers, and what it has measured.
const WORDS: usize = 4;

/// Words of room for the messages of `world` ranks.
pub(super) const fn words(world: usize) -> usize {
    WORDS * world
}

/// Puts what this rank has to say among the messages of all.
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

/// The messages of `world` ranks where this one has failed and may not know its place: its own in every place.
pub(super) fn failed(world: u32, failure: Error) -> Vec<u64> {
    message(Err(failure), 0, 0).repeat(world as usize)
}

/// What the ranks' messages say.
#[derive(Debug, PartialEq)]
pub(super) enum Heard {
    /// Which questions, a bit each, any rank has answered with yes.
    Answers(u64),
    /// This is the first rank whose fingerprint is not rank 0's.
    Differs(u32),
}

/// Reads the messages of all ranks.
///
/// # Errors
/// `own`, this rank's; else [`Error::Peer`] with the first rank that failed.
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

/// What all ranks have measured.
pub(super) fn measured(words: &[u64]) -> impl Iterator<Item = u64> + Clone {
    words.as_chunks::<WORDS>().0.iter().map(|&[.., measured]| u64::from_le(measured))
}

/// Room for the fields of `world` ranks, with those of this one in their place.
pub(super) fn put_fields(rank: u32, world: u32, fields: &[Field]) -> Vec<u64> {
    let mut words = vec![0; fields.len() * world as usize];
    let own = &mut words[fields.len() * rank as usize..][..fields.len()];
    own.iter_mut().zip(fields).for_each(|(word, field)| *word = field.word.to_le());
    words
}

/// The first field of the first rank that is not as rank 0 has it: [`Error::PeerOption`]; [`Error::PeerPlan`] of `rank`
/// where there is none.
pub(super) fn difference(rank: u32, fields: &[Field], words: &[u64]) -> Error {
    let (first, others) = words.split_at(fields.len().min(words.len()));
    for (rank, other) in (1..).zip(others.chunks_exact(fields.len().max(1))) {
        for (at, field) in fields.iter().enumerate() {
            if other[at] != first[at] {
                let [found, expected] = [other, first].map(|words| value_of(fields, at, words));
                return Error::PeerOption { rank, what: field.name, found, expected };
            }
        }
    }
    Error::PeerPlan { rank }
}
