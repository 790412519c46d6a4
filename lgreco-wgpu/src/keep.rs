//! What TopK keeps and how it is sent: in full, or in few bits.

use lgreco_core::compress::quantised_topk::QuantisedTopK;
use lgreco_core::compress::topk::TopK;
use lgreco_core::internal::quantised_topk::in_full;

/// Bytes of `Bins` of `few_bits.wgsl`: what is known of the bins of one layer.
pub(crate) const BINS: u64 = 4 * (2 + 4 * 128);

/// So many values, in full or in `bits`, which are then not 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keep {
    pub(crate) top: TopK,
    pub(crate) bits: u8,
}

impl Keep {
    /// Bytes of a payload before its positions: of its bins' means, and of its values or their codes.
    pub(crate) fn bytes(self) -> [usize; 2] {
        let means = if self.bits == 0 { 0 } else { 4 << (self.bits - 1) };
        [means, (self.top.keep as usize * self.width()).div_ceil(8)]
    }

    /// Bits of a value, or of its code.
    pub(crate) fn width(self) -> usize {
        if self.bits == 0 { 8 * self.top.values.bytes() } else { self.bits.into() }
    }
}

impl From<TopK> for Keep {
    fn from(top: TopK) -> Keep {
        Keep { top, bits: 0 }
    }
}

impl From<QuantisedTopK> for Keep {
    fn from(few: QuantisedTopK) -> Keep {
        Keep { top: in_full(&few), bits: few.bits }
    }
}
