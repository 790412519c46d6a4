//! Reports and metrics as lines of JSON.

use super::{Cause, Controller, Decision, Metrics, Outcome, Report, Timing};
use crate::file::VERSION;
use crate::plan::{Limit, Proof};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use serde_json::Value;

/// A step's report with the metrics of all layers as one line of JSON, without a newline. The keys are the fields of [`Report`],
/// [`Decision`](crate::controller::Decision), its [`Timing`](crate::controller::Timing) and
/// [`Metrics`](crate::controller::Metrics). Unknown values are left out. `unit` is the unit of sizes. A decision under an error
/// budget has the keys `budget` and `lower_bound`, a bound of the plan's size. A decision under a size limit has the keys
/// `size_limit` and `lower_bound`, a bound of the plan's error.
///
/// ```
/// use lgreco_train::controller::{Config, Controller, Tensor, metrics_line};
/// use lgreco_train::exchange::threads::ThreadCollective;
/// use lgreco_train::gradient::{Dtype, ValuesMut};
/// use lgreco_train::search::{Method, Search};
/// let mut worker = ThreadCollective::group(1).remove(0);
/// let layers = vec![Tensor::new("bias", &[2], Dtype::F32)?];
/// let mut controller = Controller::new(Config::new(Search::new(Method::Qsgd)), layers, worker.rank(), worker.world_size())?;
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
    let layers: Vec<String> =
        (0..controller.tensors().len()).map(|layer| of_layer(&controller.metrics(layer))).collect();
    let mut line = Object::default();
    line.put("version", VERSION);
    line.put("step", report.step);
    line.put(
        "outcome",
        match report.outcome {
            Outcome::Exchanged => "exchanged",
            Outcome::Skipped => "skipped",
            Outcome::PassedThrough => "passed through",
            Outcome::Failed => "failed",
        },
    );
    line.put("switched", report.switched);
    line.put("bytes_in", report.bytes_in);
    line.put("bytes_out", report.bytes_out);
    line.put_known("planning_seconds", report.seconds.map(|seconds| seconds.planning));
    line.put_known("exchange_seconds", report.seconds.map(|seconds| seconds.exchange));
    line.put("non_finite_steps", controller.non_finite_steps());
    if let Some(decision) = controller.decision() {
        line.json("decision", &of_decision(decision));
    }
    line.json("layers", &alloc::format!("[{}]", layers.join(",")));
    line.end()
}

fn of_layer(metrics: &Metrics<'_>) -> String {
    let mut layer = Object::default();
    layer.put("name", metrics.name);
    layer.put("setting", metrics.setting.to_string());
    layer.put_known("uncompressed", metrics.uncompressed.map(|why| why.name()));
    layer.put("steps", metrics.steps);
    layer.put("bytes_in", metrics.bytes_in);
    layer.put("bytes_out", metrics.bytes_out);
    layer.put_known("relative_error", metrics.relative_error);
    layer.put_known("residual_norm", metrics.residual_norm);
    layer.put_known("bucket_seconds", metrics.bucket_seconds);
    layer.put("not_contractive", metrics.not_contractive);
    layer.end()
}

fn of_decision(decision: &Decision) -> String {
    let mut object = Object::default();
    object.put("step", decision.step);
    object.put(
        "cause",
        match decision.cause {
            Cause::Schedule => "schedule",
            Cause::LearningRate => "learning rate",
            Cause::Caller => "caller",
        },
    );
    if let Some(plan) = decision.plan {
        object.put("unit", if decision.timing.is_some() { "picoseconds" } else { "bits" });
        object.put("size", plan.size);
        match plan.proof {
            Proof::Size { lower_bound, .. } => object.put("lower_bound", lower_bound),
            Proof::Error { lower_bound, .. } => object.put("lower_bound", lower_bound),
        }
        object.put("error", plan.error);
        match plan.limit() {
            Limit::Error(budget) => object.put("budget", budget),
            Limit::Size(limit) => object.put("size_limit", limit),
        }
        object.put("default_size", decision.default_size);
        object.put("uncompressed_size", decision.uncompressed_size);
    }
    object.put_known("pays", decision.pays());
    object.put("slower", decision.slower);
    object.put("not_contractive", decision.not_contractive);
    if let Some(timing) = &decision.timing {
        object.json("timing", &of_timing(timing));
    }
    object.end()
}

fn of_timing(timing: &Timing) -> String {
    let mut object = Object::default();
    object.put("measured", timing.measured);
    object.put("computing", timing.computing);
    object.put("seconds_per_byte", timing.seconds_per_byte);
    object.put("plan", timing.plan);
    object.put("plan_computing", timing.plan_computing);
    object.put("default", timing.default);
    object.put("uncompressed", timing.uncompressed);
    object.put("compressed", timing.compressed);
    object.put("layers", timing.layers);
    object.end()
}

/// The fields of a JSON object in the order in which they are added, each with a comma before it.
#[derive(Default)]
struct Object(String);

impl Object {
    fn json(&mut self, key: &str, json: &str) {
        self.0 += &alloc::format!(",\"{key}\":{json}");
    }

    fn put(&mut self, key: &str, value: impl Into<Value>) {
        self.json(key, &value.into().to_string());
    }

    fn put_known(&mut self, key: &str, value: Option<impl Into<Value>>) {
        value.into_iter().for_each(|value| self.put(key, value));
    }

    fn end(&self) -> String {
        alloc::format!("{{{}}}", self.0.trim_start_matches(','))
    }
}
