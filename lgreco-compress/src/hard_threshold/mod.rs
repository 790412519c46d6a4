//! Hard threshold: sends every element of magnitude at least λ, with its position.
//!
//! One λ serves all layers and the whole run, so the largest elements over all layers and steps are sent. Under error
//! feedback, a constant λ minimises the total error of a run for the number of elements sent. The threshold λ has the
//! unit of the gradient. So λ must be scaled with the loss scale, and with the batch size if gradients are sums over
//! the batch.
//!
//! Payloads have [`topk`]'s format, where k is the number of elements found and may be 0. If positions would take more
//! bytes than the dropped elements, all elements are sent, including those below λ. So a payload is never longer than
//! the tensor's values and a header.
//!
//! The squared error is below n λ² for every gradient of n elements. Under error feedback, an element waits until its
//! residual reaches λ. The residual stays bounded although the method is not a contraction: a gradient with all
//! magnitudes below λ is dropped completely.
//!
//! # Source
//! Sahu et al., "Rethinking gradient sparsification as total error minimization", NeurIPS 2021. The rule for λ comes
//! from the authors' run script. Deviations: we send the whole tensor if its values take fewer bytes than the selected
//! elements with their positions. Our payloads are not padded; the authors pad their buffers to the largest number of
//! elements of all workers.

mod measure;
mod setting;

pub(super) use measure::measure;
pub(crate) use setting::{KNOWN, PLANNED};

use super::topk::{self, AtLeast};
use super::{Compressor, Cost, Traits};
use crate::gradient::{Dtype, Gradient, Shape, with_elements};
use crate::rng::Stream;
use crate::select;
use crate::{Error, Result};

/// Sends every element of magnitude at least `lambda`.
///
/// # Complexity
/// O(elements): two passes and at most 4096 words of workspace.
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
    /// Smallest magnitude sent; positive and finite.
    pub lambda: f32,
    /// Type in which the values are sent, rounded to nearest.
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
        // Residuals stay bounded, because every sum that reaches the threshold is sent.
        Traits { bounded: true, shrinks: true, ..Traits::whole(Cost::of_elements(2, 4.0, 0.0)) }
    }

    /// Length when all elements are sent. No payload is longer.
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

    /// Encodes as described at [`Compressor::encode`]. Uses no random bits.
    ///
    /// # Errors
    /// The errors of [`Compressor::encode`], and [`Error::ElementOverflow`] when a sent element is too large for
    /// [`values`](HardThreshold::values).
    fn encode(&self, gradient: &Gradient<'_>, _: Stream, workspace: &mut [u64], payload: &mut [u8]) -> Result<usize> {
        self.check()?;
        let magnitude = self.lambda.to_bits();
        let count = with_elements!(gradient.values(), v => select::count_at_least(v, magnitude))?;
        AtLeast { magnitude, count, values: self.values }.encode(gradient, workspace, payload)
    }
}
