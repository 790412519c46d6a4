//! SIDCo: estimates the threshold for a wanted density by fitting a distribution to the magnitudes, instead of
//! selecting the largest ones.
//!
//! With several stages, the first stage fits all magnitudes and takes the threshold that a quarter of the elements
//! should exceed. Each further stage fits the excesses over the last threshold. All further stages reduce the density
//! by the same ratio, until the wanted density is reached. A single stage fits all magnitudes at once. Elements above
//! the last threshold are sent, in [`topk`]'s payload. All elements are sent, without positions, if this payload takes
//! fewer bytes.
//!
//! The accuracy of the density depends on the tail and the number of stages. With heavy tails, further stages reduce
//! the number of sent elements; with light tails, further stages increase this number. The number of sent elements is
//! always between half and twice the wanted number, unless the gradient is zero. If the fit gives a number outside this
//! range, exactly half or twice the wanted number of largest elements is sent. If no distribution fits (all magnitudes
//! are equal), the wanted number of largest elements is sent. Tensors of fewer than [`SMALLEST`] elements also send the
//! wanted number of largest elements.
//!
//! # Fits
//! Thresholds for density δ, where μ and σ² are mean and variance of the fitted magnitudes:
//!
//! | fit | threshold |
//! |---|---|
//! | exponential | `−μ ln δ` |
//! | gamma, by maximum likelihood | `θ Q⁻¹(α, δ)`; `s = ln μ − mean ln`, `α = (3 − s + √((s − 3)² + 24 s)) / (12 s)`, `θ = μ / α` |
//! | generalised Pareto, by moments | `β (1 − δ^κ) / κ`; `q = μ² / σ²`, `β = μ (q + 1) / 2`, `κ = (q − 1) / 2` |
//!
//! Excesses are measured from the smallest element above the last threshold.
//!
//! # Source
//! Abdelmoniem et al., "An efficient statistical-based gradient compression technique for distributed training
//! systems", MLSys 2021, as in the authors' code. Deviations: (1) Further stages are used only for densities below a
//! quarter. (2) The number sent is between half and twice the wanted number. (3) The number of stages is fixed, not
//! adapted.

mod estimate;
mod gamma;
mod setting;
pub(crate) use setting::{KNOWN, PLANNED};

use super::hard_threshold::{self, HardThreshold};
use super::topk::{self, AtLeast, TopK};
use super::{Compressor, Cost, Traits};
use crate::error::expect_room;
use crate::gradient::{Dtype, Element, Gradient, Shape, with_elements};
use crate::rng::Stream;
use crate::select;
use crate::{Error, Result};

/// Number of elements below which no distribution is fitted.
pub const SMALLEST: usize = 1000;

/// Maximum number of stages. Each stage takes one pass over the elements. An f64 density cannot be halved more often
/// than this number.
const MOST_STAGES: u32 = 1100;

/// The distributions that are fitted to the magnitudes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Fit {
    /// Exponential in all stages (SIDCo-E), the cheapest.
    #[default]
    Exponential = 0,
    /// Gamma in the first stage, then generalised Pareto (SIDCo-GP). Computes one logarithm per element.
    GammaPareto = 1,
    /// Generalised Pareto in all stages (SIDCo-P).
    Pareto = 2,
}

/// Sends about a fraction `density` of the elements: those above an estimated threshold.
///
/// # Complexity
/// Encoding takes two passes, one more pass per stage, and half a word of workspace per element. Encoding also selects
/// the largest elements if no distribution is fitted, or if the fit gives a number outside the allowed range (see the
/// [module](self)).
///
/// ```
/// use lgreco_compress::{Compressor, sidco::{Fit, Sidco}, wire::Payload};
/// use lgreco_core::gradient::{Dtype, Gradient, Shape, Values};
/// use lgreco_core::rng::Stream;
/// // The quantiles of an exponential distribution, with both signs.
/// let values: Vec<f32> = (0..10_000).map(|i| (1.0 - (i as f32 + 0.5) / 1e4).ln() * if i % 2 == 0 { 1.0 } else { -1.0 }).collect();
/// let gradient = Gradient::new(Values::F32(&values), Shape::new(100, 100)?)?;
/// let sidco = Sidco { density: 0.01, fit: Fit::Exponential, stages: 2, values: Dtype::F32 };
/// let mut workspace = vec![0; sidco.encode_workspace_len(gradient.shape(), Dtype::F32)];
/// let mut payload = vec![0; sidco.payload_len(gradient.shape(), Dtype::F32)?];
/// let len = sidco.encode(&gradient, Stream::default(), &mut workspace, &mut payload)?;
/// let sent = Payload::parse(&payload[..len])?.header.parameter;
/// assert!((98..=102).contains(&sent), "{sent}");
/// # Ok::<(), lgreco_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sidco {
    /// Wanted fraction of the elements, in (0, 1].
    pub density: f64,
    /// The distributions that are fitted.
    pub fit: Fit,
    /// Number of stages, 1 to 1100. Workers may use different numbers of stages.
    pub stages: u32,
    /// Type in which the values are sent, rounded to nearest.
    pub values: Dtype,
}

/// The elements of a gradient that are sent.
enum Selected {
    /// All elements with magnitude bits of at least `magnitude`.
    AtLeast { magnitude: u32, count: u32 },
    /// The largest elements; the field is their number.
    Largest(u32),
}

impl Sidco {
    pub(super) fn check(&self) -> Result<()> {
        Error::require((1..=MOST_STAGES).contains(&self.stages), "stages", self.stages.into(), "1 to 1100")?;
        TopK::with_density(self.density, 1, self.values).map(|_| ())
    }

    fn top(&self, keep: u32) -> TopK {
        TopK { keep, values: self.values }
    }

    /// Wanted number of elements.
    fn target(&self, elements: usize) -> Result<u32> {
        self.check()?;
        Ok(TopK::with_density(self.density, elements, self.values)?.keep)
    }

    fn select<T: Element>(&self, values: &[T]) -> Result<Selected> {
        let target = self.target(values.len())?;
        if select::count_at_least(values, 1)? == 0 {
            return Ok(Selected::AtLeast { magnitude: 1, count: 0 });
        }
        let estimated = if values.len() < SMALLEST { None } else { estimate::threshold(self, values) };
        let Some(magnitude) = estimated else { return Ok(Selected::Largest(target)) };
        let count = select::count_at_least(values, magnitude)?;
        let within = count.clamp(target.div_ceil(2), target.saturating_mul(2).min(values.len() as u32));
        if within == count { Ok(Selected::AtLeast { magnitude, count }) } else { Ok(Selected::Largest(within)) }
    }
}

impl Compressor for Sidco {
    fn traits(&self) -> Traits {
        Traits { shrinks: true, ..Traits::whole(Cost::of_elements(2, 4.0, 0.0)) }
    }

    /// An upper bound: the length with twice the wanted number of elements.
    fn payload_len(&self, shape: Shape, _: Dtype) -> Result<usize> {
        let elements = shape.elements();
        let target = self.target(elements)?;
        let most = target.saturating_mul(2).min(elements as u32);
        // A payload with all elements needs no positions, so it may be shorter than a payload with almost all elements.
        Ok(topk::payload_len(most, shape, self.values)?.max(topk::payload_len(target, shape, self.values)?))
    }

    fn has_fixed_len(&self) -> bool {
        false
    }

    fn encode_workspace_len(&self, shape: Shape, dtype: Dtype) -> usize {
        self.top(1).encode_workspace_len(shape, dtype)
    }

    /// Encodes as described at [`Compressor::encode`]. Uses no random bits.
    ///
    /// # Errors
    /// The errors of [`Compressor::encode`], and [`Error::ElementOverflow`] when a sent element is too large for
    /// [`values`](Sidco::values).
    fn encode(
        &self,
        gradient: &Gradient<'_>,
        stream: Stream,
        workspace: &mut [u64],
        payload: &mut [u8],
    ) -> Result<usize> {
        let room = self.encode_workspace_len(gradient.shape(), Dtype::F32);
        expect_room("workspace words", room, workspace.len())?;
        match with_elements!(gradient.values(), v => self.select(v))? {
            Selected::AtLeast { magnitude, count } => {
                AtLeast { magnitude, count, values: self.values }.encode(gradient, workspace, payload)
            }
            Selected::Largest(keep) => self.top(keep).encode(gradient, stream, workspace, payload),
        }
    }
}

/// Words of workspace that measuring a row needs.
const fn measure_workspace_len(shape: Shape) -> usize {
    topk::measure_workspace_len(shape, 1)
}

/// Returns the squared error and the payload's length in bytes.
///
/// # Complexity
/// About the time of one encoding and two passes over the gradient.
fn measure(sidco: &Sidco, gradient: &Gradient<'_>, workspace: &mut [u64]) -> Result<(f64, usize)> {
    let (shape, values) = (gradient.shape(), sidco.values);
    expect_room("workspace words", measure_workspace_len(shape), workspace.len())?;
    match with_elements!(gradient.values(), v => sidco.select(v))? {
        Selected::AtLeast { magnitude, .. } => {
            hard_threshold::measure(&HardThreshold { lambda: f32::from_bits(magnitude), values }, gradient)
        }
        Selected::Largest(keep) => {
            let mut error = [0.0];
            topk::measure(gradient, values, &[keep], workspace, &mut error)?;
            Ok((error[0], topk::payload_len(keep, shape, values)?))
        }
    }
}
