//! Reports of steps, and metrics of layers.

use super::layer::LayerState;
use super::{Tensor, Uncompressed};
use crate::compress::Setting;
use crate::num::sqrt;

/// The result of a step. All fields except `seconds` and `bytes_out` are the same on every rank. `bytes_out` differs between ranks
/// if the length of a payload depends on its values.
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
    /// The number of the step, from 0.
    pub step: u64,
    /// The content of the gradients after the step.
    pub outcome: Outcome,
    /// Whether this step was the first one under new settings.
    pub switched: bool,
    /// Bytes of one worker's gradients.
    pub bytes_in: u64,
    /// Bytes that this worker sent for its gradients.
    pub bytes_out: u64,
    /// Seconds of the step, if the configuration has a clock.
    pub seconds: Option<Seconds>,
}

/// The content of the gradients after a step.
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
    /// The means of all workers' gradients, compressed under the present settings.
    Exchanged,
    /// The gradients are zeros, because some rank's gradients were not finite. Do not update the parameters. If the trainer
    /// exchanges the buckets itself, other buckets may have means instead, which must not be applied. Residuals are the same as
    /// before the step.
    Skipped,
    /// The gradients are uncompressed means with NaN or infinity, because some rank's gradients were not finite. If the trainer
    /// exchanges the buckets itself, the gradients of some bucket are NaN.
    PassedThrough,
    /// The exchange of some bucket has failed. The gradients of this bucket are undefined, and the gradients of the other buckets
    /// are means. Only a trainer that exchanges the buckets itself gets this outcome. Usually, the bucket fails on every rank. A
    /// bucket fails on this rank only in the cases that [`Bucket::next`](super::Bucket::next) names, and if it was
    /// [closed](super::Controller::close) in the middle of its exchange. After a failure on this rank only, the next bucket or
    /// step fails on all ranks. If gradients of another bucket were not finite under [`NonFinite::Skip`](super::NonFinite), no
    /// mean may be applied, and residuals are the same as before the step.
    Failed,
}

/// Seconds of a step, divided into planning and exchanging.
///
/// ```
/// use lgreco_train::controller::Seconds;
/// let share = |seconds: Seconds| seconds.planning / (seconds.planning + seconds.exchange);
/// assert_eq!(share(Seconds { planning: 1.0, exchange: 3.0 }), 0.25);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seconds {
    /// Seconds of checking gradients and waiting for other ranks; at a decision, also of measuring, planning and switching
    /// settings.
    pub planning: f64,
    /// Seconds of compressing and exchanging.
    pub exchange: f64,
}

/// Metrics of one layer on one rank.
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
    /// The present setting.
    pub setting: Setting,
    /// Why the layer is uncompressed; `None` if it is compressed.
    pub uncompressed: Option<Uncompressed>,
    /// Number of steps in which the layer was exchanged.
    pub steps: u64,
    /// Bytes of the layer's gradients in the steps in which it was exchanged.
    pub bytes_in: u64,
    /// Bytes that this rank has sent for the layer's gradients.
    pub bytes_out: u64,
    /// ‖p − ĝ‖² / ‖p‖² of the compressor's input p and the decoded payload ĝ, when it was last measured.
    pub relative_error: Option<f64>,
    /// L2 norm of the residual; `None` without one.
    pub residual_norm: Option<f64>,
    /// Seconds of compressing and exchanging the layer's bucket, since the controller was created or loaded. All layers of a
    /// bucket have the same number. `None` without a clock.
    pub bucket_seconds: Option<f64>,
    /// Number of decisions in which the layer's setting was refused, because error feedback does not work with the setting.
    pub not_contractive: u64,
}

pub(super) fn of<'a>(tensor: &'a Tensor, state: &LayerState) -> Metrics<'a> {
    Metrics {
        name: &tensor.name,
        setting: state.plan.choice.setting,
        uncompressed: state.plan.choice.uncompressed,
        steps: state.counts.steps,
        bytes_in: state.counts.bytes_in,
        bytes_out: state.counts.bytes_out,
        relative_error: state.relative_error,
        residual_norm: state.memory.as_ref().map(|memory| sqrt(memory.squared_norm())),
        bucket_seconds: state.bucket_seconds,
        not_contractive: state.counts.not_contractive,
    }
}
