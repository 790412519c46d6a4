//! Hard threshold: every element of at least a fixed magnitude λ, with its position.
//!
//! One λ serves all layers and the whole run. Under error feedback that minimises the total error of a run for the number
//! of elements it sends, since the largest over all layers and steps are sent. λ is in units of the gradient: a loss scale
//! or a sum instead of a mean over the batch scales it too.
//!
//! Payloads are [`topk`]'s, with the k that was found, 0 included. Where the positions of so many elements
//! would take more bytes than they save, all elements are sent, those below λ too; a payload is then never longer than
//! the values of the tensor and a header.
//!
//! The squared error of what is left out is below n λ², whatever the gradient: with error feedback an element waits until
//! its memory reaches λ, and the memory stays bounded although the method is not a contraction (a gradient all below λ
//! is left out whole).
//!
//! # Source
//! Sahu et al., "Rethinking gradient sparsification as total error minimization", NeurIPS 2021; the rule for λ is that of
//! the authors' run script. Deviation: the whole tensor where that is shorter; the authors' buffers are padded to the
//! largest number of elements of all workers.

mod measure;
mod setting;

pub(super) use measure::measure;
pub use measure::measure_workspace_len;
pub(crate) use setting::{KNOWN, PLANNED};

use super::topk::{self, AtLeast};
use super::{Compressor, Cost, Traits};
use crate::gradient::{Dtype, Gradient, Shape, with_elements};
use crate::rng::Stream;
use crate::select;
use crate::{Error, Result};

/// Sends every element of magnitude `lambda` or more.
///
/// # Complexity
/// Encoding takes two passes and at most 4096 words of workspace.
///
/// ```
/// use lgreco_compress::{Compressor, decode, hard_threshold::HardThreshold};
/// use lgreco_core::gradient::{Dtype, Gradient, Shape, Values};
/// use lgreco_core::rng::Stream;
/// let mut values = [0.1f32; 100];
/// (values[3], values[66]) = (-0.5, 7.0);
/// let gradient = Gradient::new(Values::F32(&values), Shape::new(100, 1)?)?;
/// let hard = HardThreshold { lambda: 0.5, values: Dtype::F32 };
/// let mut workspace = vec![0; hard.encode_workspace_len(gradient.shape(), Dtype::F32)];
/// let mut payload = vec![0; hard.payload_len(gradient.shape(), Dtype::F32)?];
/// let len = hard.encode(&gradient, Stream::default(), &mut workspace, &mut payload)?;
/// assert_eq!((len, payload.len()), (16 + 2 * 4 + 2, 16 + 100 * 4));
///
/// let mut decoded = [f32::NAN; 100];
/// decode(&payload[..len], &mut decoded)?;
/// assert_eq!((decoded[3], decoded[4], decoded[66]), (-0.5, 0.0, 7.0));
/// # Ok::<(), lgreco_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HardThreshold {
    /// The least magnitude sent; positive and finite.
    pub lambda: f32,
    /// The type the values are sent in, rounded to nearest.
    pub values: Dtype,
}

impl HardThreshold {
    pub(super) fn check(&self) -> Result<()> {
        let sound = self.lambda > 0.0 && self.lambda.is_finite();
        Error::require(sound, "lambda", self.lambda as f64, "positive and finite")
    }
}

impl Compressor for HardThreshold {
    fn traits(&self) -> Traits {
        // What a residual keeps under a threshold stays below it.
        Traits { bounded: true, shrinks: true, ..Traits::whole(Cost::of_elements(2, 4.0, 0.0)) }
    }

    /// The length when all elements are sent: a payload is never longer.
    fn payload_len(&self, shape: Shape, _: Dtype) -> Result<usize> {
        self.check()?;
        topk::payload_len(shape.elements() as u32, shape, self.values)
    }

    fn has_fixed_len(&self) -> bool {
        false
    }

    fn encode_workspace_len(&self, shape: Shape, _: Dtype) -> usize {
        topk::write_workspace_len(shape.elements())
    }

    /// As [`Compressor::encode`]; uses no random bits.
    ///
    /// # Errors
    /// Also [`Error::ElementOverflow`] when an element sent is too large for [`values`](HardThreshold::values).
    fn encode(&self, gradient: &Gradient<'_>, _: Stream, workspace: &mut [u64], payload: &mut [u8]) -> Result<usize> {
        self.check()?;
        let magnitude = self.lambda.to_bits();
        let count = with_elements!(gradient.values(), v => select::count_at_least(v, magnitude))?;
        AtLeast { magnitude, count, values: self.values }.encode(gradient, workspace, payload)
    }
}
