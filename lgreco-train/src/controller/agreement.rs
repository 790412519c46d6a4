//! The short message by which ranks find out, before anything is exchanged, whether all of them can take the step and
//! want the same one.
//!
//! One rank decides, and all ranks check. The measuring rank broadcasts its plan, or its error, in a message of fixed
//! length. Where a decision is due, before a switch takes effect, and before every blocking step, ranks exchange this
//! message of 32 bytes: an error code, a fingerprint of settings and schedule, whether gradients are finite, and how long the
//! rank's steps take.
//! Otherwise the fingerprint is part of every bucket's. What a rank can only find out after the exchange (a residual that
//! does not fit its format), its next message tells.

use crate::Error;

/// Words of one rank's message: error code or 0, fingerprint, answers, and what it has measured.
const WORDS: usize = 4;

/// Words of room for the messages of `world` ranks.
pub(super) const fn words(world: usize) -> usize {
    WORDS * world
}

/// Puts what this rank has to say among the messages of all.
pub(super) fn put(rank: u32, local: Result<u64, Error>, fingerprint: u64, measured: u64, words: &mut [u64]) {
    let own = match local {
        Ok(answers) => [0, fingerprint, answers, measured],
        Err(error) => [error.code() as u64, fingerprint, 0, measured],
    };
    words[WORDS * rank as usize..][..WORDS].copy_from_slice(&own.map(u64::to_le));
}

/// From all ranks' messages, which questions, a bit each, any rank has answered with yes.
///
/// # Errors
/// `own`, this rank's; else [`Error::Peer`] with the first rank that failed, [`Error::PeerPlan`] with the first whose
/// fingerprint is not rank 0's.
pub(super) fn read(own: Option<Error>, words: &[u64]) -> Result<u64, Error> {
    let messages = words.as_chunks::<WORDS>().0.iter().map(|message| message.map(u64::from_le));
    own.map_or(Ok(()), Err)?;
    for (rank, [code, ..]) in messages.clone().enumerate() {
        if code != 0 {
            return Err(Error::of_peer(rank as u32, code));
        }
    }
    let first = messages.clone().next().map(|[_, fingerprint, ..]| fingerprint);
    if let Some((rank, _)) = messages.clone().enumerate().find(|(_, [_, fingerprint, ..])| Some(*fingerprint) != first)
    {
        return Err(Error::PeerPlan { rank: rank as u32 });
    }
    Ok(messages.fold(0, |all, [_, _, answers, _]| all | answers))
}

/// What all ranks have measured.
pub(super) fn measured(words: &[u64]) -> impl Iterator<Item = u64> + Clone {
    words.as_chunks::<WORDS>().0.iter().map(|&[.., measured]| u64::from_le(measured))
}
