//! Whether a compressor is a contraction: its squared error is below the squared norm of its input.

use crate::Error;
#[cfg(doc)]
use crate::compress::Candidates;
use crate::compress::Setting;
use crate::gradient::{Dtype, Element, Gradient, Shape, with_elements};
use crate::num::Sum;
use crate::rng::Stream;

/// Words of workspace that [`contraction`] needs.
pub fn contraction_workspace_len(setting: &Setting, shape: Shape, dtype: Dtype) -> usize {
    setting.row().map_or(0, |row| row.measure_workspace_len(shape, dtype))
}

/// The relative squared error ‖g − decode(encode(g))‖² / ‖g‖², or its expectation under stochastic rounding; 0 for a gradient of
/// zeros. If the result is below 1, `setting` is a contraction on this gradient.
///
/// The result is never above 1 for TopK (also in few bits), for CLT-k's leader and hard thresholds (with values in f32), and for
/// PowerSGD. For QSGD with few bits and wide buckets, the result can be far above 1, because a step of the grid can be much wider
/// than a typical value.
///
/// # Errors
/// [`CoreError::NonFinite`](crate::CoreError::NonFinite), [`CoreError::Parameter`](crate::CoreError::Parameter),
/// [`CoreError::Length`](crate::CoreError::Length), as [`Candidates::measure`].
///
/// # Complexity
/// One measurement of `setting`, and one pass over the gradient.
///
/// ```
/// use lgreco_train::compress::{Setting, qsgd::Qsgd};
/// use lgreco_train::feedback::{contraction, require_contraction};
/// use lgreco_train::gradient::{Gradient, Shape, Values};
/// use lgreco_train::rng::Stream;
/// let mut values = [0.1; 512];
/// values[0] = 1.0;
/// let gradient = Gradient::new(Values::F32(&values), Shape::new(512, 1)?)?;
/// let relative = |bits| {
///     let setting = Setting::Qsgd(Qsgd { bits, ..Qsgd::default() });
///     contraction(&setting, &gradient, Stream::default(), &mut [])
/// };
/// require_contraction(relative(4)?)?;
/// assert!(require_contraction(relative(2)?).is_err()); // levels −1, 0, 1: 0.1 is sent as 1 once in ten times
/// # Ok::<(), lgreco_train::Error>(())
/// ```
pub fn contraction(
    setting: &Setting,
    gradient: &Gradient<'_>,
    stream: Stream,
    workspace: &mut [u64],
) -> Result<f64, Error> {
    let mut squared_error = [0.0; 2];
    match setting.row() {
        Some(row) => row.measure(gradient, stream, workspace, &mut squared_error[..row.len()])?,
        None => crate::compress::check_finite(gradient)?,
    }
    let square = |x: f32| x as f64 * x as f64;
    let norm: Sum = with_elements!(gradient.values(), v => v.iter().map(|x| square(x.to_f32())).collect());
    Ok(if norm.value() > 0.0 { squared_error[0] / norm.value() } else { 0.0 })
}

/// Returns an error unless `relative`, the squared compression error divided by the gradient's squared norm, is below 1.
///
/// Error feedback is proven to converge under contractions only. If `relative` is above 1, the residual grows from step to step.
/// With 2-bit QSGD in buckets of 2048, the residual's squared norm is more than 100 times the gradient's after 60 steps. A hard
/// threshold needs no contraction. If all values of a gradient are below λ, nothing is sent and `relative` is 1, but the residual
/// stays below λ per element.
///
/// ```
/// use lgreco_train::{Error, feedback::require_contraction};
/// assert_eq!(require_contraction(0.99), Ok(()));
/// assert_eq!(require_contraction(1.0), Err(Error::NotContractive { relative: 1.0 }));
/// ```
///
/// # Errors
/// [`Error::NotContractive`].
pub fn require_contraction(relative: f64) -> Result<(), Error> {
    if relative < 1.0 { Ok(()) } else { Err(Error::NotContractive { relative }) }
}
