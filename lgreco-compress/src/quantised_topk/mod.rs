//! TopK with kept values in a few bits. Each value is sent as a sign and the number of a bin of magnitudes. There are 1
//! to 128 bins.
//!
//! The bins divide the range from the smallest nonzero kept magnitude to the largest. The bins have equal widths in the
//! bits of f32. The edges of bins are nearly geometric, because the bits of an f32 are a piecewise linear logarithm. A
//! bin decodes to the mean of its magnitudes, and the payload contains these means. Bins and means are computed with
//! integers only. So the bytes do not depend on the processor or on the order of addition. Kept zeros belong to the
//! lowest bin. The mean of a bin has a smaller error than zeros would have, so the method is a contraction, like TopK.
//!
//! # Payload body
//! `parameter` is k. `variant` has the bits per value, 1 to 8, in bits 0–3, and the position layout of
//! [`topk`](super::topk) in bits 4–5. The other bits of `variant` are 0.
//!
//! | bytes | content |
//! |---|---|
//! | 4 × 2^(bits − 1) | mean of each bin, f32 little-endian, 0 for empty bins |
//! | ⌈k × bits / 8⌉ | codes in order of their positions, packed from bit 0 on: the bin, and the sign in the highest bit |
//! | remaining | positions, as in [`topk`](super::topk) |
//!
//! Padding bits are 0.
//!
//! # Encoding
//! Let `low` and `high` be the bits of the smallest and the largest magnitude. A magnitude `m` is in bin
//! `⌊(m − low) · bins / (high − low + 1)⌋`. Let `u` be the largest power of two that the bin's
//! largest magnitude reaches. The mean of a bin is computed in units of 2^-31 · `u`. Each magnitude is rounded down to
//! this unit, and the mean is ⌊sum / count⌋, rounded down to f32. So a bin of equal magnitudes decodes exactly.

mod bins;
mod decode;
mod encode;
mod measure;
mod setting;
mod stat;
mod sums;
mod whole;

pub(super) use decode::stated;
pub use decode::{Body, decode};
pub use measure::{measure, measure_workspace_len};
pub(crate) use setting::{KNOWN, READER};
pub use whole::{Keep, header, of_payload};

use super::bits::packed_len;
use super::positions::{Layout, Writer};
use super::topk::{check_keep, write_positions};
use super::wire::{self, HEADER_LEN, Header, Method};
use super::{Compressor, Cost, Traits};
use crate::error::expect_room;
use crate::gradient::{Dtype, Gradient, Shape, with_elements};
use crate::rng::Stream;
use crate::select;
use crate::{Error, Result};

/// Keeps the `keep` elements of largest magnitude, as [`TopK`](super::topk::TopK) does. Sends each value in `bits`
/// bits.
///
/// # Complexity
/// Encoding takes O(n) time, half a word of workspace per element and half a word per kept element, for n elements.
///
/// ```
/// use lgreco_compress::{Compressor, decode, quantised_topk::QuantisedTopK};
/// use lgreco_core::gradient::{Dtype, Gradient, Shape, Values};
/// use lgreco_core::rng::Stream;
/// let gradient = Gradient::new(Values::F32(&[0.5, -8.0, 0.25, 2.0, 1.5]), Shape::new(5, 1)?)?;
/// let top = QuantisedTopK { keep: 3, bits: 2 };
/// let mut workspace = vec![0; top.encode_workspace_len(gradient.shape(), Dtype::F32)];
/// let mut payload = [0; 16 + 2 * 4 + 1 + 1]; // header, means, codes, positions
/// assert_eq!(top.encode(&gradient, Stream::default(), &mut workspace, &mut payload)?, payload.len());
/// let mut decoded = [f32::NAN; 5];
/// decode(&payload, &mut decoded)?;
/// assert_eq!(decoded, [0.0, -8.0, 0.0, 1.75, 1.75]);
/// # Ok::<(), lgreco_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuantisedTopK {
    /// Number of elements kept: between 1 and the number of elements, or 0 for a tensor without elements.
    pub keep: u32,
    /// Bits per value, including the sign: 1 to 8.
    pub bits: u8,
}

/// Lengths of a body's parts in bytes, and the layout of positions.
struct Parts {
    means: usize,
    codes: usize,
    layout: Layout,
}

impl Parts {
    fn body_len(&self) -> u64 {
        (self.means + self.codes) as u64 + self.layout.bytes()
    }
}

impl QuantisedTopK {
    pub(super) fn check(&self) -> Result<()> {
        Error::require((1..=8).contains(&self.bits), "bits per kept value", self.bits.into(), "1 to 8")
    }

    fn parts(&self, elements: usize) -> Result<Parts> {
        self.check()?;
        check_keep(self.keep, elements)?;
        let codes = packed_len(self.keep.into(), self.bits) as usize;
        Ok(Parts { means: 4 << (self.bits - 1), codes, layout: Layout::new(elements as u32, self.keep) })
    }

    fn header(&self, shape: Shape, layout: Layout) -> Header {
        let variant = self.bits | (layout.coding as u8) << 4;
        Header { method: Method::QuantisedTopK, variant, parameter: self.keep, shape }
    }
}

impl Compressor for QuantisedTopK {
    fn traits(&self) -> Traits {
        let cost = Cost { family: 3, element: [3.0, 0.0], kept: self.keep, value: [20.0, 6.0] };
        Traits { piece: Some(1), shrinks: true, ..Traits::payloads(cost) }
    }

    fn payload_len(&self, shape: Shape, _: Dtype) -> Result<usize> {
        wire::payload_len(self.parts(shape.elements())?.body_len(), shape)
    }

    fn encode_workspace_len(&self, shape: Shape, _: Dtype) -> usize {
        let elements = shape.elements();
        select::workspace_len(elements) + (self.keep as usize).min(elements).div_ceil(2)
    }

    /// Encodes as described at [`Compressor::encode`]. Uses no random bits.
    fn encode(&self, gradient: &Gradient<'_>, _: Stream, workspace: &mut [u64], payload: &mut [u8]) -> Result<usize> {
        let shape = gradient.shape();
        let (parts, len) = (self.parts(shape.elements())?, self.payload_len(shape, Dtype::F32)?);
        expect_room("payload bytes", len, payload.len())?;
        expect_room("workspace words", self.encode_workspace_len(shape, Dtype::F32), workspace.len())?;
        self.header(shape, parts.layout).write(payload)?;
        let (means, rest) = payload[HEADER_LEN..len].split_at_mut(parts.means);
        let (codes, positions) = rest.split_at_mut(parts.codes);
        let (workspace, kept) = workspace.split_at_mut(select::workspace_len(shape.elements()));
        let kept: &mut [u32] = &mut bytemuck::cast_slice_mut(kept)[..self.keep as usize];
        if self.keep > 0 {
            let mut places = &mut *kept;
            let writer = Writer::new(parts.layout, positions);
            with_elements!(gradient.values(), v => {
                write_positions(v, parts.layout, self.keep, workspace, writer, |bits| {
                    let (here, rest) = core::mem::take(&mut places).split_at_mut(bits.len());
                    here.copy_from_slice(bits);
                    places = rest;
                })
            })?;
        }
        encode::quantise_kept(self.bits, kept, means, codes);
        Ok(len)
    }
}
