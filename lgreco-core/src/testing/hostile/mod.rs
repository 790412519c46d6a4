//! What comes from outside and may be anything: payloads of which bytes have changed.
//!
//! All of it is damaged copies of what was right, because random bytes are refused at the first field.

mod damage;
mod payloads;

pub use damage::Choices;
pub use payloads::{Products, check_decoding, payload};
