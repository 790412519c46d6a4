//! The body of a TopK payload. Messages may contain bodies without headers.

use crate::gradient::Dtype;
use crate::positions::{self, Layout};
use crate::{Error, Result};

/// Returns an error unless TopK can keep `keep` of `elements` elements.
pub fn check_keep(keep: u32, elements: usize) -> Result<()> {
    let fits = keep as usize <= elements && (keep > 0 || elements == 0);
    let expected = "between 1 and the number of elements (0 if there are none)";
    Error::require(fits, "kept elements", keep.into(), expected)
}

/// Bytes of a payload's body.
pub fn body_len(keep: u32, elements: usize, values: Dtype) -> u64 {
    keep as u64 * values.bytes() as u64 + positions_len(keep, elements)
}

/// Bytes of the positions at the end of a payload's body.
pub fn positions_len(keep: u32, elements: usize) -> u64 {
    Layout::new(elements as u32, keep).bytes()
}

/// Calls `visit` with each of the `keep` positions at the end of a payload's body.
pub fn for_each_position(keep: u32, elements: usize, bytes: &[u8], visit: impl FnMut(u32) -> Result<()>) -> Result<()> {
    positions::for_each(Layout::new(elements as u32, keep), bytes, visit)
}

/// Bits of the smallest magnitude that becomes infinite when sent as `dtype`.
pub const fn overflow(dtype: Dtype) -> u32 {
    match dtype {
        Dtype::F32 => 0x7f80_0000,
        Dtype::F16 => 0x477f_f000,
        Dtype::Bf16 => 0x7f7f_8000,
    }
}
