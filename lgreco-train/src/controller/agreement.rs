//! The short message by which ranks find out, before anything is exchanged, whether all of them can take the step and
//! want the same one.

use crate::Error;
use crate::exchange::Collective;

/// Words of one rank's message: error code or 0, fingerprint, and answers.
const WORDS: usize = 3;

/// Words of room for the messages of `world` ranks and their lengths.
pub(super) const fn words(world: usize) -> usize {
    (WORDS + 1) * world
}

/// Tells all ranks how this one fared, and returns which questions, a bit each, any rank answered with yes.
///
/// # Errors
/// This rank's own; else [`Error::Peer`] with the first rank that failed, [`Error::PeerPlan`] with the first whose
/// fingerprint is not rank 0's; [`Error::Collective`].
pub(super) fn agree<C: Collective + ?Sized>(
    collective: &mut C,
    local: Result<u64, Error>,
    fingerprint: u64,
    words: &mut [u64],
) -> Result<u64, Error> {
    let world = words.len() / (WORDS + 1);
    let (messages, lens) = words.split_at_mut(WORDS * world);
    lens.fill(8 * WORDS as u64);
    let own = match local {
        Ok(answers) => [0, fingerprint, answers],
        Err(error) => [error.code() as u64, fingerprint, 0],
    };
    collective.all_gather(bytemuck::bytes_of(&own.map(u64::to_le)), lens, bytemuck::cast_slice_mut(messages))?;
    let messages = messages.as_chunks::<WORDS>().0.iter().map(|message| message.map(u64::from_le));
    local?;
    for (rank, [code, ..]) in messages.clone().enumerate() {
        if code != 0 {
            return Err(Error::of_peer(rank as u32, code));
        }
    }
    let first = messages.clone().next().map(|[_, fingerprint, _]| fingerprint);
    if let Some((rank, _)) = messages.clone().enumerate().find(|(_, [_, fingerprint, _])| Some(*fingerprint) != first) {
        return Err(Error::PeerPlan { rank: rank as u32 });
    }
    Ok(messages.fold(0, |all, [.., answers]| all | answers))
}
