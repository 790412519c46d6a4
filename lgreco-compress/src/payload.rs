//! Operations on payloads of any method besides [decoding](crate::decode): adding, subtracting, reading in stretches.

pub use crate::combine::{Combine, combine_values};
pub use crate::registry::decode_parsed;
pub use crate::setting::combine;
pub use crate::stretch::{STRETCH, combine_stretch, place_of, reads_stretches};
