//! Whether error feedback works with a compressor.
//!
//! There are two checks. At decisions, the controller measures settings on the gradients of its window. Without a gradient,
//! [`suits`] measures QSGD on quantiles of a heavy-tailed distribution. Examples are compressors of the C API, and decisions after
//! Accordion has detected a fall of the learning rate.

use super::{contraction, require_contraction};
use crate::Error;
use crate::compress::{Compressor, Setting};
use crate::gradient::{Gradient, Shape};
use crate::rng::Stream;

/// `Err` unless error feedback is expected to work under `setting` on layers of this shape. No gradient is needed.
/// [`suits_gradient`] checks a setting on one gradient.
///
/// QSGD is judged by its squared error on a bucket of `n` heavy-tailed values: the quantiles `(i + 1/4) / (n − 1/2)` of
/// Student's t with two degrees of freedom. At most 65536 quantiles are used. By this measure, QSGD in buckets of 512 is a
/// contraction with 4 bits, but not with 1 to 3 bits. The other methods are contractions, or bound the residual in another way.
///
/// ```
/// use lgreco_train::Error;
/// use lgreco_train::compress::{Setting, qsgd::Qsgd};
/// use lgreco_train::feedback;
/// use lgreco_train::gradient::Shape;
/// let shape = Shape::new(64, 64)?;
/// let suits = |bits| feedback::suits(&Setting::Qsgd(Qsgd { bits, ..Qsgd::default() }), shape);
/// assert!((1..=3).all(|bits| matches!(suits(bits), Err(Error::NotContractive { .. }))));
/// assert!((4..=8).all(|bits| suits(bits).is_ok()));
/// # Ok::<(), Error>(())
/// ```
///
/// # Errors
/// [`Error::NotContractive`]; [`CoreError::Parameter`](crate::CoreError::Parameter) for QSGD's parameters out of range.
///
/// # Complexity
/// Linear in the elements of a bucket for QSGD.
pub fn suits(setting: &Setting, shape: Shape) -> Result<(), Error> {
    require_contraction(setting.heavy_tailed_error(shape.elements())?)
}

/// `Err` unless `setting` is a contraction on `gradient`, or error feedback needs no contraction under `setting`. This function
/// calls [`contraction`] and [`require_contraction`], and needs [`contraction_workspace_len`](super::contraction_workspace_len)
/// words of workspace.
///
/// ```
/// use lgreco_train::compress::{Setting, qsgd::Qsgd};
/// use lgreco_train::feedback::suits_gradient;
/// use lgreco_train::gradient::{Gradient, Shape, Values};
/// use lgreco_train::rng::Stream;
/// let (shape, setting) = (Shape::new(4, 1)?, Setting::Qsgd(Qsgd { bits: 2, ..Qsgd::default() }));
/// let suits = |values: &[f32]| {
///     let gradient = Gradient::new(Values::F32(values), shape)?;
///     suits_gradient(&setting, &gradient, Stream::default(), &mut [])
/// };
/// assert!(suits(&[1.0, -1.0, 1.0, 0.0]).is_ok() && suits(&[1.0, 0.4, 0.4, 0.4]).is_ok());
/// # Ok::<(), lgreco_train::Error>(())
/// ```
///
/// # Errors
/// [`Error::NotContractive`]; the errors of [`contraction`].
///
/// # Complexity
/// The same as [`contraction`].
pub fn suits_gradient(
    setting: &Setting,
    gradient: &Gradient<'_>,
    stream: Stream,
    workspace: &mut [u64],
) -> Result<(), Error> {
    let relative = contraction(setting, gradient, stream, workspace)?;
    if setting.traits().bounded { Ok(()) } else { require_contraction(relative) }
}
