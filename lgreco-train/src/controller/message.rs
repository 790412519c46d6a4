//! How a decision reaches the ranks that did not measure.
//!
//! Words of 64 bits, little-endian, as many whatever they say: 0, the code of an error or [`NOT_YET`]; the fingerprint of
//! who decides when; the decision and its timing; three words per layer.

use super::codes::{self, Choice};
use super::decide::Decided;
use super::{Decision, Timing};
use crate::Error;
use crate::compress::method::Methods;
use alloc::vec;
use alloc::vec::Vec;

/// Instead of an error's code, of which none has as many digits: nothing has been decided yet.
const NOT_YET: u64 = u64::MAX;

/// Words of a message about so many layers.
pub(super) const fn words(layers: usize) -> usize {
    2 + Decision::WORDS + Timing::WORDS + codes::WORDS * layers
}

/// What the measuring rank broadcasts.
pub(super) fn write(layers: usize, fingerprint: u64, decided: Option<&Result<Decided, Error>>) -> Vec<u64> {
    let mut words = vec![0; words(layers)];
    words[1] = fingerprint;
    match decided {
        None => words[0] = NOT_YET,
        Some(Err(error)) => words[0] = error.code() as u64,
        Some(Ok(decided)) => {
            let (decision, rest) = words[2..].split_at_mut(Decision::WORDS);
            let (timing, rest) = rest.split_at_mut(Timing::WORDS);
            decision.copy_from_slice(&decided.decision.encode());
            timing.copy_from_slice(&Timing::encode(decided.decision.timing.as_ref()));
            let rest = rest.as_chunks_mut::<{ codes::WORDS }>().0;
            rest.iter_mut().zip(&decided.choices).for_each(|(to, choice)| *to = choice.encode());
        }
    }
    words.iter_mut().for_each(|word| *word = word.to_le());
    words
}

/// What rank `rank` broadcast; `None` if nothing has been decided yet.
///
/// # Errors
/// [`Error::Peer`] with the code of its error; [`Error::PeerPlan`] when it is about another decision;
/// [`Error::PeerMessage`].
pub(super) fn read(rank: u32, fingerprint: u64, words: &[u64], methods: &Methods) -> Result<Option<Decided>, Error> {
    let refused = |error: Error| Error::PeerMessage { rank, code: error.code() };
    let short = Error::PeerMessage { rank, code: 1 };
    let words: Vec<u64> = words.iter().map(|&word| u64::from_le(word)).collect();
    let ([code, told], rest) = words.split_first_chunk().ok_or(short)?;
    if !matches!(*code, 0 | NOT_YET) {
        return Err(Error::of_peer(rank, *code));
    }
    if *told != fingerprint {
        return Err(Error::PeerPlan { rank });
    }
    if *code == NOT_YET {
        return Ok(None);
    }
    let (decision, rest) = rest.split_first_chunk().ok_or(short)?;
    let (timing, choices) = rest.split_first_chunk().ok_or(short)?;
    let timing = Timing::decode(timing).map_err(refused)?;
    let decision = Decision { timing, ..Decision::decode(decision).map_err(refused)? };
    let choices = choices.as_chunks::<{ codes::WORDS }>().0.iter().map(|&words| Choice::decode(words, methods));
    let choices = choices.collect::<Result<_, _>>().map_err(refused)?;
    Ok(Some(Decided { decision, choices, norms: vec![] }))
}
