use super::{Cause, Controller, Outcome, Report};
use crate::file::VERSION;
use crate::plan::{Limit, Proof};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use serde::Serialize;

/// A step's report with the metrics of all layers as one line of JSON, without the line's end: one object whose keys are
/// those of [`Report`], [`Decision`](crate::controller::Decision), its [`Timing`](crate::controller::Timing) and [`Metrics`](crate::controller::Metrics). What is not known
/// is left out; sizes in `unit`, bytes in bytes. A decision has `budget` and a `lower_bound` of its size, or `size_limit` and a
/// `lower_bound` of its error.
///
/// ```
/// use lgreco_train::controller::{Config, Controller, Tensor, metrics_line};
/// use lgreco_train::exchange::threads::ThreadCollective;
/// use lgreco_train::gradient::{Dtype, ValuesMut};
/// use lgreco_train::search::{Method, Search};
/// let mut worker = ThreadCollective::group(1).remove(0);
/// let layers = vec![Tensor::new("bias", &[2], Dtype::F32)?];
/// let mut controller = Controller::new(Config::new(Search::new(Method::Qsgd)), layers, &worker)?;
/// let report = controller.step(&mut worker, &mut [ValuesMut::F32(&mut [1.0, 2.0])], 0.1)?;
/// let line = metrics_line(&controller, &report);
/// assert!(line.starts_with(r#"{"version":1,"step":0,"outcome":"exchanged","switched":false,"bytes_in":8,"bytes_out":8,"#));
/// assert!(line.contains(r#""layers":[{"name":"bias","setting":"dense","uncompressed":"warm-up","steps":1,"#));
/// # Ok::<(), lgreco_train::Error>(())
/// ```
///
/// # Complexity
/// A pass over the residuals.
pub fn metrics_line(controller: &Controller, report: &Report) -> String {
    let layers = (0..controller.tensors().len()).map(|layer| {
        let metrics = controller.metrics(layer);
        Layer {
            name: metrics.name,
            setting: metrics.setting.to_string(),
            uncompressed: metrics.uncompressed.map(|why| why.name()),
            steps: metrics.steps,
            bytes_in: metrics.bytes_in,
            bytes_out: metrics.bytes_out,
            relative_error: metrics.relative_error,
            residual_norm: metrics.residual_norm,
            bucket_seconds: metrics.bucket_seconds,
            not_contractive: metrics.not_contractive,
        }
    });
    let line = Line {
        version: VERSION,
        step: report.step,
        outcome: match report.outcome {
            Outcome::Exchanged => "exchanged",
            Outcome::Skipped => "skipped",
            Outcome::PassedThrough => "passed through",
            Outcome::Failed => "failed",
        },
        switched: report.switched,
        bytes_in: report.bytes_in,
        bytes_out: report.bytes_out,
        planning_seconds: report.seconds.map(|seconds| seconds.planning),
        exchange_seconds: report.seconds.map(|seconds| seconds.exchange),
        non_finite_steps: controller.non_finite_steps(),
        decision: controller.decision().map(|decision| Decision {
            step: decision.step,
            cause: match decision.cause {
                Cause::Schedule => "schedule",
                Cause::LearningRate => "learning rate",
                Cause::Caller => "caller",
            },
            unit: decision.plan.map(|_| if decision.timing.is_some() { "picoseconds" } else { "bits" }),
            size: decision.plan.map(|plan| plan.size),
            lower_bound: decision.plan.map(|plan| match plan.proof {
                Proof::Size { lower_bound, .. } => LowerBound::Size(lower_bound),
                Proof::Error { lower_bound, .. } => LowerBound::Error(lower_bound),
            }),
            error: decision.plan.map(|plan| plan.error),
            budget: decision.plan.and_then(|plan| match plan.limit() {
                Limit::Error(budget) => Some(budget),
                Limit::Size(_) => None,
            }),
            size_limit: decision.plan.and_then(|plan| match plan.limit() {
                Limit::Error(_) => None,
                Limit::Size(limit) => Some(limit),
            }),
            default_size: decision.plan.map(|_| decision.default_size),
            uncompressed_size: decision.plan.map(|_| decision.uncompressed_size),
            pays: decision.pays(),
            slower: decision.slower,
            not_contractive: decision.not_contractive,
            timing: decision.timing.map(|timing| Timing {
                measured: timing.measured,
                computing: timing.computing,
                seconds_per_byte: timing.seconds_per_byte,
                plan: timing.plan,
                plan_computing: timing.plan_computing,
                default: timing.default,
                uncompressed: timing.uncompressed,
                compressed: timing.compressed,
                layers: timing.layers,
            }),
        }),
        layers: layers.collect(),
    };
    // Strings, finite numbers and lists of them have a JSON form.
    serde_json::to_string(&line).unwrap_or_default()
}

#[derive(Serialize)]
struct Line<'a> {
    version: u64,
    step: u64,
    outcome: &'static str,
    switched: bool,
    bytes_in: u64,
    bytes_out: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    planning_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exchange_seconds: Option<f64>,
    non_finite_steps: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    decision: Option<Decision>,
    layers: Vec<Layer<'a>>,
}

#[derive(Serialize)]
struct Decision {
    step: u64,
    cause: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    unit: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lower_bound: Option<LowerBound>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    budget: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size_limit: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    default_size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    uncompressed_size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pays: Option<bool>,
    slower: u32,
    not_contractive: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    timing: Option<Timing>,
}

/// Seconds of a step's exchange.
#[derive(Serialize)]
struct Timing {
    measured: f64,
    computing: f64,
    seconds_per_byte: f64,
    plan: f64,
    plan_computing: f64,
    default: f64,
    uncompressed: f64,
    compressed: u32,
    layers: u32,
}

/// Of what the plan minimises: its size within a budget, its error within a size limit.
#[derive(Serialize)]
#[serde(untagged)]
enum LowerBound {
    Size(u64),
    Error(f64),
}

#[derive(Serialize)]
struct Layer<'a> {
    name: &'a str,
    setting: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    uncompressed: Option<&'static str>,
    steps: u64,
    bytes_in: u64,
    bytes_out: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    relative_error: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    residual_norm: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bucket_seconds: Option<f64>,
    not_contractive: u64,
}
