//! What comes from outside and may be anything: saved states of which bits have changed, and bytes of other workers.
//!
//! All of it is damaged copies of what was right, because random bytes are refused at the first field.

mod ends;
mod memories;
mod peer;
mod runs;
mod state;

pub use lgreco_core::testing::hostile::{Choices, Products, check_decoding, payload};

use alloc::vec::Vec;

/// Training on after a damaged state was loaded: a controller's, a memory's, or those of the two ends of a cut. What was
/// loaded takes steps or says why not; nothing that is not finite comes back as good, and ranks fare alike.
///
/// # Panics
/// When a property does not hold.
pub fn check_resume(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    match choices.byte() % 8 {
        0..=4 => state::check(&mut choices),
        5 => memories::check(&mut choices),
        _ => ends::check(&mut choices),
    };
}

/// Steps of one worker whose peers' greetings, agreements, plans, payloads and sums are damaged. Every step gives finite
/// means or an error; a step that may be repeated has changed nothing; and with the state from before, the sound run goes
/// on bit for bit.
///
/// # Panics
/// When a property does not hold.
pub fn check_peer(bytes: &[u8]) {
    let _ = peer::check(Choices::new(bytes));
}

/// Brings what readers check before they look at anything else, but which tells nothing about the rest, into
/// agreement with damaged bytes.
fn repair(mut saved: Vec<u8>) -> Vec<u8> {
    super::reseal(&mut saved);
    saved
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Stream;
    use crate::{CoreError, Error};

    /// Runs `check` on 40 random bytes, `runs` times.
    fn random<T>(runs: u32, mut check: impl FnMut(Choices<'_>) -> T) -> Vec<T> {
        let bytes = |step| {
            let stream = Stream { seed: 11, step, ..Stream::default() };
            (0..40).map(|i| (stream.word(i) >> 24) as u8).collect::<Vec<_>>()
        };
        (0..runs).map(|step| check(Choices::new(&bytes(step)))).collect()
    }

    #[test]
    fn damaged_controllers_train_on_or_say_why_not() {
        let taken = random(4000, |mut choices| state::check(&mut choices));
        let trained = taken.iter().filter(|&&steps| steps > 0).count();
        assert!((400..3900).contains(&trained), "{trained} of 4000 damaged states trained on");
    }

    #[test]
    fn damaged_memories_go_on_or_say_why_not() {
        let taken = random(4000, |mut choices| memories::check(&mut choices));
        let went_on = taken.iter().filter(|&&steps| steps > 0).count();
        assert!((400..3900).contains(&went_on), "{went_on} of 4000 damaged memories went on");
    }

    #[test]
    fn damaged_ends_of_a_cut_go_on_or_say_why_not() {
        let taken = random(4000, |mut choices| ends::check(&mut choices));
        let went_on = taken.iter().filter(|&&passes| passes > 0).count();
        assert!((400..3900).contains(&went_on), "{went_on} of 4000 damaged ends went on");
    }

    #[test]
    fn peers_may_send_anything() {
        let given: Vec<_> = random(4000, peer::check).into_iter().flatten().collect();
        let count = |of: fn(&Result<(), Error>) -> bool| given.iter().filter(|given| of(given)).count();
        assert!(count(|given| given.is_ok()) > 1000);
        assert!(count(|given| matches!(given, Err(Error::Peer { .. }))) > 50);
        assert!(count(|given| matches!(given, Err(Error::PeerPlan { .. }))) > 50);
        assert!(count(|given| matches!(given, Err(Error::PeerMessage { .. }))) > 50);
        assert!(count(|given| matches!(given, Err(Error::Core(CoreError::Overflow { .. })))) > 50);
    }
}
