//! What people want to know about a run.

use super::layer::LayerState;
use super::{Tensor, Uncompressed};
use crate::compress::Setting;
use crate::num::sqrt;

/// What a step did. All but `seconds` is the same on every rank, and so is `bytes_out` unless the values decide lengths.
///
/// ```
/// # use lgreco_testing::controller::{alone, step_alone};
/// # use lgreco_train::search::Method;
/// # let (mut controller, mut worker) = alone(Method::TopK)?;
/// let report = step_alone(&mut controller, &mut worker)?;
/// assert_eq!((report.step, report.bytes_in, report.bytes_out), (0, 16640, 16640)); // warm-up
/// # Ok::<(), lgreco_train::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    /// Its number, from 0.
    pub step: u64,
    /// What became of the gradients.
    pub outcome: Outcome,
    /// Whether it was the first under new settings.
    pub switched: bool,
    /// Bytes of one worker's gradients.
    pub bytes_in: u64,
    /// Bytes that one worker sent for them.
    pub bytes_out: u64,
    /// How long it took, if the configuration has a clock.
    pub seconds: Option<Seconds>,
}

/// What became of a step's gradients.
///
/// ```
/// # use lgreco_testing::controller::{alone, step_alone};
/// # use lgreco_train::search::Method;
/// # let (mut controller, mut worker) = alone(Method::TopK)?;
/// # use lgreco_train::controller::Outcome;
/// let report = step_alone(&mut controller, &mut worker)?;
/// assert_eq!(report.outcome, Outcome::Exchanged);
/// # Ok::<(), lgreco_train::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// They are the means of all workers' gradients, compressed as was decided.
    Exchanged,
    /// Some rank's were not finite; they are zeros. Do not update the parameters. In steps made of buckets, those of the other
    /// buckets are means that do not count: residuals are what they were before the step.
    Skipped,
    /// Some rank's were not finite; they are the plain means, not finite either. In steps made of buckets, those of some
    /// bucket are NaN.
    PassedThrough,
    /// In a step made of buckets: the exchange of some bucket has failed, on every rank, and its gradients are of no use;
    /// the others are means.
    Failed,
}

/// Where a step's time went.
///
/// ```
/// use lgreco_train::controller::Seconds;
/// let share = |seconds: Seconds| seconds.planning / (seconds.planning + seconds.exchange);
/// assert_eq!(share(Seconds { planning: 1.0, exchange: 3.0 }), 0.25);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seconds {
    /// Checking gradients and waiting for the others; at a decision measuring, planning and switching too.
    pub planning: f64,
    /// Compressing and exchanging.
    pub exchange: f64,
}

/// What is known about one layer on one rank.
///
/// ```
/// # use lgreco_testing::controller::{alone, step_alone};
/// # use lgreco_train::search::Method;
/// # let (mut controller, mut worker) = alone(Method::TopK)?;
/// # (0..3).try_for_each(|_| step_alone(&mut controller, &mut worker).map(drop))?;
/// let ratio = |layer| controller.metrics(layer).bytes_in as f64 / controller.metrics(layer).bytes_out as f64;
/// assert!(ratio(0) > 1.0 && ratio(1) == 1.0);
/// # Ok::<(), lgreco_train::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metrics<'a> {
    /// The layer's name.
    pub name: &'a str,
    /// How it is compressed.
    pub setting: Setting,
    /// Why it is not, when it is not.
    pub uncompressed: Option<Uncompressed>,
    /// Steps in which it was exchanged.
    pub steps: u64,
    /// Bytes of its gradients in these steps.
    pub bytes_in: u64,
    /// Bytes sent for them.
    pub bytes_out: u64,
    /// ‖p − ĝ‖² / ‖p‖² of what was compressed and what it was decompressed to, when last measured.
    pub relative_error: Option<f64>,
    /// L2 norm of the residual; `None` without one.
    pub residual_norm: Option<f64>,
    /// Seconds that compressing and exchanging its bucket took, since the controller was made or loaded; layers of one
    /// bucket share them. `None` without a clock.
    pub bucket_seconds: Option<f64>,
    /// Decisions whose setting was refused because feedback would not have worked with it.
    pub not_contractive: u64,
}

pub(super) fn of<'a>(tensor: &'a Tensor, state: &LayerState) -> Metrics<'a> {
    Metrics {
        name: &tensor.name,
        setting: state.choice.setting,
        uncompressed: state.choice.uncompressed,
        steps: state.counts.steps,
        bytes_in: state.counts.bytes_in,
        bytes_out: state.counts.bytes_out,
        relative_error: state.relative_error,
        residual_norm: state.memory.as_ref().map(|memory| sqrt(memory.squared_norm())),
        bucket_seconds: state.bucket_seconds,
        not_contractive: state.counts.not_contractive,
    }
}
