//! Encodes all elements whose magnitude reaches a threshold.

use super::encode::{Body, write};
use super::{STRETCH, body_len, payload_len};
use crate::Result;
use crate::error::expect_room;
use crate::gradient::{Dtype, Gradient, with_elements};
use crate::select::Cut;
use crate::value::with_wire_type;

/// Encoder of all elements whose magnitude reaches a threshold. All elements are sent if the payload is then shorter.
pub(crate) struct AtLeast {
    /// The threshold, as bits of f32; not 0.
    pub(crate) magnitude: u32,
    /// Number of elements that reach the threshold.
    pub(crate) count: u32,
    /// Type of the sent values.
    pub(crate) values: Dtype,
}

/// Words of workspace for writing the payload, after the threshold is known.
pub(crate) const fn write_workspace_len(elements: usize) -> usize {
    if elements < STRETCH { elements.div_ceil(2) } else { STRETCH / 2 }
}

/// Number of elements sent when `count` elements reach the threshold.
pub(crate) fn sent(count: u32, elements: u32, values: Dtype) -> u32 {
    let all = body_len(elements, elements as usize, values);
    if body_len(count, elements as usize, values) > all { elements } else { count }
}

impl AtLeast {
    /// Writes the payload and returns its length. The gradient must be finite.
    pub(crate) fn encode(&self, gradient: &Gradient<'_>, workspace: &mut [u64], payload: &mut [u8]) -> Result<usize> {
        let shape = gradient.shape();
        let elements = shape.elements();
        let keep = sent(self.count, elements as u32, self.values);
        let len = payload_len(keep, shape, self.values)?;
        expect_room("payload bytes", len, payload.len())?;
        expect_room("workspace words", write_workspace_len(elements), workspace.len())?;
        let magnitude = if keep == self.count { self.magnitude } else { 0 };
        let cut = Cut { magnitude, ties: u32::MAX };
        let Body { values, positions } = Body::begin(keep, self.values, shape, &mut payload[..len])?;
        with_elements!(gradient.values(), v => {
            with_wire_type!(self.values, V => write::<_, V>(v, cut, workspace, values, positions)?)
        });
        Ok(len)
    }
}
