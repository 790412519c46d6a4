//! Untrusted input: payloads and saved states with changed bits, and bytes from other workers.
//!
//! All inputs are damaged copies of valid data, because random bytes are refused at the first field.

mod damage;
pub mod ends;
pub mod memories;
mod payloads;
pub mod peer;
mod runs;
pub mod state;

pub use damage::Choices;
pub use payloads::{Products, check_decoding, payload};

/// Continues training after a damaged state was loaded: the state of a controller, of a memory, or of both ends of a
/// cut. The loaded object must take steps or return an error. Values that are returned without an error must be finite,
/// and all ranks must have the same result.
///
/// # Panics
/// Panics if a check fails.
pub fn check_resume(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    match choices.byte() % 8 {
        0..=4 => state::check(&mut choices),
        5 => memories::check(&mut choices),
        _ => ends::check(&mut choices),
    };
}

/// Takes steps of one worker whose peers send damaged messages: greetings of new buckets, agreements, plans, payloads
/// and sums. Every step must give finite means or an error. An error after which the step may be repeated must have
/// changed nothing. If the state from before the damage is loaded, the run must continue bit for bit like a run without
/// damage.
///
/// # Panics
/// Panics if a check fails.
pub fn check_peer(bytes: &[u8]) {
    let _ = peer::check(Choices::new(bytes));
}

/// Corrects the checksum of damaged bytes, because readers check it first.
fn repair(mut saved: Vec<u8>) -> Vec<u8> {
    crate::reseal(&mut saved);
    saved
}
