//! What lgreco's other crates are built with, and nobody else should be: it may change with any version.

/// Lengths, names and numbers of errors.
pub mod error {
    #[cfg(feature = "alloc")]
    pub use crate::error::expect_distinct;
    pub use crate::error::{Number, expect_len, expect_room};
}

/// Checksums of saved states and of what ranks agree upon.
pub mod checksum {
    pub use crate::checksum::{Hash, LEN, open, seal};
}

/// Double-double sums, and functions of f64 that `core` has not.
pub mod num {
    pub use crate::num::{Sum, sqrt};
}

/// Selection by magnitude.
pub mod select {
    pub use crate::select::{check_finite, kth_largest_magnitude, magnitude_bits, sampled_position, workspace_len};
}

/// Random words for a block of elements.
pub mod rng {
    pub use crate::rng::block::{BLOCK, fill_block};
}

/// Codes of a fixed width.
pub mod bits {
    pub use crate::compress::bits::{pack, packed_len, unpack};
}

/// Bodies of TopK's payloads without their header, and which values their types cannot hold.
pub mod topk {
    pub use crate::compress::topk::body::{body_len, check_keep, for_each_position, overflow, positions_len};
    pub use crate::compress::topk::decode::decode_body;
    pub use crate::compress::topk::encode::encode_body;
}

/// Payloads of TopK in few bits: what goes before their values.
pub mod quantised_topk {
    pub use crate::compress::quantised_topk::whole::{Body, Keep, header, of_payload};
}

/// Loops on several cores.
pub mod spread {
    pub use crate::spread::{Divide, WORTHWHILE, join, spread, spread_parts};
}

/// Payloads of any kind.
pub mod payload {
    pub use crate::compress::combine::{Combine, combine_values};
    pub use crate::compress::setting::{combine, decode_parsed};
    pub use crate::compress::stretch::{STRETCH, combine_stretch, place_of, reads_stretches};
}

/// What PowerSGD's kernels on all GPUs agree upon.
pub mod powersgd {
    /// The bits of the magnitude from which on products of factors may leave the range of f32.
    pub const NEAR_OVERFLOW: u32 = (127 + 90) << 23;

    /// The different ranks in effect, ascending.
    #[cfg(feature = "alloc")]
    pub fn distinct_ranks(shape: crate::gradient::Shape, ranks: &[u32]) -> alloc::vec::Vec<u32> {
        let effective = |&rank: &u32| crate::compress::powersgd::effective_rank(shape, rank) as u32;
        let mut distinct: alloc::vec::Vec<u32> = ranks.iter().map(effective).collect();
        distinct.sort_unstable();
        distinct.dedup();
        distinct
    }
}
