//! Operations on payloads of any method besides [decoding](crate::decode): adding, subtracting, reading in stretches.

pub use crate::combine::{Combine, combine_values};
pub use crate::setting::{combine, decode_parsed};
pub use crate::stretch::{STRETCH, combine_stretch, place_of, reads_stretches};
