//! TopK: the k largest magnitudes of a tensor, with their positions.
//!
//! # Payload body
//! `parameter` is k. Other methods may send k = 0 elements in this format, but [`TopK`] keeps at least one element of a
//! tensor that has any. `variant` has the value type in bits 0–1 (a [`Dtype`] discriminant) and the position layout in
//! bits 2–3. The other bits of `variant` are 0.
//!
//! | bytes | content |
//! |---|---|
//! | k × value bytes | the kept values in order of their positions, little-endian |
//! | remaining | the positions |
//!
//! There are three layouts of k positions below n. The payload has the smallest layout, which depends only on n and k:
//! * layout 0, if k = n: no bytes.
//! * layout 1, a bitmap of n bits: element i is bit i mod 8 of byte i div 8.
//! * layout 2, Elias–Fano: first the low `l` bits of each position, packed from bit 0 on and padded to whole bytes.
//!   Then the high bits in unary: bit `(position >> l) + i` is set for the i-th position, in `k + ((n − 1) >> l)` bits
//!   padded to whole bytes. `l` minimises the number of bytes; ties go to the smallest `l`. The total is about k · (2 +
//!   log2(n / k)) bits.
//!
//! Padding bits are 0.
//!
//! # Source
//! Elias–Fano: P. Elias, "Efficient storage and retrieval by content and address of static files", J. ACM 21(2), 1974.

mod at_least;
mod body;
mod decode;
mod encode;
mod measure;
mod setting;

pub(super) use at_least::{AtLeast, sent, write_workspace_len};
pub use body::{body_len, check_keep, for_each_position, overflow, positions_len};
pub(super) use decode::stated;
pub use decode::{Body, decode, decode_body, of_payload};
pub use encode::encode_body;
pub(super) use encode::write_positions;
pub use measure::{measure, measure_workspace_len};

pub use super::positions::{Coding, Layout};
pub(crate) use setting::{KNOWN, PLANNED, READER};

use super::sparse::STRETCH;
use super::wire::{self, Header, Method};
use super::{Compressor, Cost, Traits};
use crate::error::expect_room;
use crate::gradient::{Dtype, Gradient, Shape, with_elements};
use crate::rng::Stream;
use crate::select;
use crate::{Error, Result};

/// Keeps the `keep` elements of largest magnitude. Ties go to the lowest positions.
///
/// # Complexity
/// Encoding takes O(n) time and half a word of workspace per element, for n elements.
///
/// ```
/// use lgreco_compress::{Compressor, topk, topk::TopK, wire::Payload};
/// use lgreco_core::gradient::{Dtype, Gradient, Shape, Values};
/// use lgreco_core::rng::Stream;
///
/// let gradient = [0.5f32, -3.0, 0.25, 2.0];
/// let gradient = Gradient::new(Values::F32(&gradient), Shape::new(2, 2)?)?;
/// let top = TopK { keep: 2, values: Dtype::F16 };
/// let mut payload = [0; 64];
/// let mut workspace = vec![0; top.encode_workspace_len(gradient.shape(), Dtype::F32)];
/// let len = top.encode(&gradient, Stream::default(), &mut workspace, &mut payload)?;
/// assert_eq!(len, 16 + 2 * 2 + 1);
///
/// let mut decoded = [f32::NAN; 4];
/// topk::decode(&Payload::parse(&payload[..len])?, &mut decoded)?;
/// assert_eq!(decoded, [0.0, -3.0, 0.0, 2.0]);
/// # Ok::<(), lgreco_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TopK {
    /// Number of elements kept: between 1 and the number of elements, or 0 for a tensor without elements.
    pub keep: u32,
    /// Type in which the kept values are sent, rounded to nearest.
    pub values: Dtype,
}

impl TopK {
    /// Keeps a fraction `density` (in (0, 1]) of `elements`, rounded to nearest; at least one element of a tensor that
    /// has any.
    ///
    /// # Errors
    /// [`Error::Parameter`] when `density` is outside (0, 1]. [`Error::TooManyElements`] for 2^32 elements or more.
    ///
    /// ```
    /// use lgreco_compress::topk::TopK;
    /// use lgreco_core::gradient::Dtype;
    /// assert_eq!(TopK::with_density(0.01, 4096, Dtype::F32)?.keep, 41);
    /// assert_eq!(TopK::with_density(0.01, 10, Dtype::F32)?.keep, 1);
    /// # Ok::<(), lgreco_core::Error>(())
    /// ```
    pub fn with_density(density: f64, elements: usize, values: Dtype) -> Result<TopK> {
        Error::require(density > 0.0 && density <= 1.0, "density", density, "in (0, 1]")?;
        let elements = Shape::new(elements, 1)?.elements() as u32;
        let keep = (density * elements as f64 + 0.5) as u32;
        Ok(TopK { keep: keep.clamp(elements.min(1), elements), values })
    }

    /// Layout of the positions of the kept elements in a payload.
    ///
    /// # Errors
    /// [`Error::Parameter`] unless [`keep`](TopK::keep) is between 1 and `elements`, or both are 0.
    pub fn layout(&self, elements: u32) -> Result<Layout> {
        check_keep(self.keep, elements as usize)?;
        Ok(Layout::new(elements, self.keep))
    }

    /// The header of a payload.
    ///
    /// # Errors
    /// The errors of [`layout`](TopK::layout).
    pub fn header(&self, shape: Shape) -> Result<Header> {
        Ok(header(self.keep, self.values, shape, self.layout(shape.elements() as u32)?))
    }
}

/// The header of a payload with `keep` elements, which may be 0.
fn header(keep: u32, values: Dtype, shape: Shape, layout: Layout) -> Header {
    Header { method: Method::TopK, variant: values as u8 | (layout.coding as u8) << 2, parameter: keep, shape }
}

/// Bytes of a payload with `keep` elements.
pub(super) fn payload_len(keep: u32, shape: Shape, values: Dtype) -> Result<usize> {
    wire::payload_len(body_len(keep, shape.elements(), values), shape)
}

impl Compressor for TopK {
    fn traits(&self) -> Traits {
        let cost = Cost { family: 2, element: [3.0, 0.0], kept: self.keep, value: [4.0; 2] };
        Traits { piece: Some(1), shrinks: true, ..Traits::payloads(cost) }
    }

    fn payload_len(&self, shape: Shape, _: Dtype) -> Result<usize> {
        check_keep(self.keep, shape.elements())?;
        payload_len(self.keep, shape, self.values)
    }

    fn encode_workspace_len(&self, shape: Shape, _: Dtype) -> usize {
        select::workspace_len(shape.elements())
    }

    /// Encodes as described at [`Compressor::encode`]. Uses no random bits.
    ///
    /// # Errors
    /// The errors of [`Compressor::encode`], and [`Error::ElementOverflow`] when a kept element is too large for
    /// [`values`](TopK::values).
    fn encode(&self, gradient: &Gradient<'_>, _: Stream, workspace: &mut [u64], payload: &mut [u8]) -> Result<usize> {
        let shape = gradient.shape();
        let len = self.payload_len(shape, Dtype::F32)?;
        expect_room("payload bytes", len, payload.len())?;
        expect_room("workspace words", select::workspace_len(shape.elements()), workspace.len())?;
        let body = encode::Body::begin(self.keep, self.values, shape, &mut payload[..len])?;
        with_elements!(gradient.values(), v => encode::fill(self, v, workspace, body))?;
        Ok(len)
    }
}
