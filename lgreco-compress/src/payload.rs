//! What is done with payloads of any method, beside [decoding](crate::decode) them: added up, taken off, a stretch at a time.

pub use crate::combine::{Combine, combine_values};
pub use crate::setting::{combine, decode_parsed};
pub use crate::stretch::{STRETCH, combine_stretch, place_of, reads_stretches};
