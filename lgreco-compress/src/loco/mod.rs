//! LoCo's quantiser: groups of 4-bit codes, rounded to nearest.
//!
//! A group of consecutive elements is scaled by its largest magnitude `M`. A code is `x · 8 / M`, rounded to the
//! nearest integer (ties to even) and limited to −8 to 7. A code decodes to `code / 8 · M`. So `−M` is exact, but `M`
//! decodes to 7/8 of `M`. Only error feedback corrects this error of a whole level. LoCo's residual
//! (`feedback::Residual::LOCO` of `lgreco-train`) is a moving average of errors in 8 bits, with resets.
//!
//! `x · 8 / M` is computed as `x·p·c·8` in f32, with `p` and `c` as in [`qsgd`](super::qsgd). Only `c` and one product
//! are rounded. So only values within 2^-22 of a tie may be rounded to the other side. Codes are the same on every
//! instruction set.
//!
//! # Payload body
//! `parameter` is the number of elements per group, `variant` is 0. The body has the `M` of all groups as f32
//! little-endian. Then come the codes in two's complement, with element 2i in the low half of byte i. If the last byte
//! holds only one code, its high half is 0.
//!
//! # Source
//! Xie et al., "LoCo: Low-bit communication adaptor for large-scale model training", 2024. The quantiser comes from the
//! authors' DeepSpeed code, with max-abs groups. Deviations: (1) Groups have any length; the authors have one group per
//! row or column of the matrix. (2) Scales are sent as `M`, not as `8 / M`, so that `−M` is exact and zeros need no
//! special case.

mod decode;
mod encode;
mod setting;

pub use decode::decode;
pub(super) use decode::stated;
pub(crate) use setting::{KNOWN, PLANNED, READER};

use super::bits::packed_len;
use super::wire::{HEADER_LEN, Header, Method};
use super::{Compressor, Cost, ResidualKind, Traits};
use crate::error::expect_room;
use crate::gradient::{Dtype, Gradient, Shape, with_elements};
use crate::rng::Stream;
use crate::select::check_finite;
use crate::simd::dispatch_with;
use crate::{Error, Result};

/// LoCo's quantiser: 4-bit codes in groups.
///
/// # Complexity
/// O(elements): two passes over each group. Needs no workspace.
///
/// ```
/// use lgreco_compress::{Compressor, decode, loco::LoCo};
/// use lgreco_core::gradient::{Dtype, Gradient, Shape, Values};
/// use lgreco_core::rng::Stream;
/// let gradient = Gradient::new(Values::F32(&[8.0, -8.0, 2.4, 0.5]), Shape::new(2, 2)?)?;
/// let mut payload = [0; 16 + 4 + 2];
/// LoCo { group: 4 }.encode(&gradient, Stream::default(), &mut [], &mut payload)?;
/// let mut decoded = [f32::NAN; 4];
/// decode(&payload, &mut decoded)?;
/// assert_eq!(decoded, [7.0, -8.0, 2.0, 0.0]);
/// # Ok::<(), lgreco_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LoCo {
    /// Elements per group, at least 1; the last group may be shorter.
    pub group: u32,
}

impl Default for LoCo {
    /// Default: groups of 512.
    fn default() -> Self {
        LoCo { group: 512 }
    }
}

impl LoCo {
    pub(super) fn check(&self) -> Result<()> {
        Error::require(self.group > 0, "group size", 0.0, "at least 1")
    }

    /// Bytes of the scales and bytes of the codes.
    fn body_lens(&self, elements: usize) -> Result<(usize, usize)> {
        self.check()?;
        let (n, group) = (elements as u64, self.group as u64);
        let (scales, codes) = (4 * n.div_ceil(group), packed_len(n, 4));
        let fits = HEADER_LEN as u64 + scales + codes <= isize::MAX as u64;
        Error::require(fits, "group size", group as f64, "large enough for the payload to fit memory")?;
        Ok((scales as usize, codes as usize))
    }
}

impl Compressor for LoCo {
    fn traits(&self) -> Traits {
        let piece = Some(self.group.max(1) as usize);
        Traits { piece, residual: ResidualKind::Average, ..Traits::payloads(Cost::of_elements(1, 4.0, 1.0)) }
    }

    fn payload_len(&self, shape: Shape, _: Dtype) -> Result<usize> {
        let (scales, codes) = self.body_lens(shape.elements())?;
        Ok(HEADER_LEN + scales + codes)
    }

    fn encode(&self, gradient: &Gradient<'_>, _: Stream, _: &mut [u64], payload: &mut [u8]) -> Result<usize> {
        let shape = gradient.shape();
        let len = self.payload_len(shape, Dtype::F32)?;
        expect_room("payload bytes", len, payload.len())?;
        Header { method: Method::LoCo, variant: 0, parameter: self.group, shape }.write(payload)?;
        let (scales, codes) = payload[HEADER_LEN..len].split_at_mut(self.body_lens(shape.elements())?.0);
        with_elements!(gradient.values(), values => {
            dispatch_with!((self.group as usize, values, scales.as_chunks_mut::<4>().0, codes), encode::encode)
        })?;
        Ok(len)
    }
}

/// The squared error of the decoded values, in two passes.
fn squared_error(loco: &LoCo, gradient: &Gradient<'_>) -> Result<f64> {
    loco.check()?;
    with_elements!(gradient.values(), values => {
        check_finite(values)?;
        dispatch_with!((loco.group as usize, values), encode::squared_error)
    })
}
