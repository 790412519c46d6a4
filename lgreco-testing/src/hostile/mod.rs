//! What comes from outside and may be anything: payloads and saved states of which bits have changed, and bytes of other
//! workers.
//!
//! All of it is damaged copies of what was right, because random bytes are refused at the first field.

mod damage;
pub mod ends;
pub mod memories;
mod payloads;
pub mod peer;
mod runs;
pub mod state;

pub use damage::Choices;
pub use payloads::{Products, check_decoding, payload};

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
    crate::reseal(&mut saved);
    saved
}
