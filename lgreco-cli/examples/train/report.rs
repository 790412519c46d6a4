//! Results as a table and as JSON.

use crate::schemes::Scheme;
use crate::task::Task;
use lgreco_train::controller::{Controller, Report};
use serde::Serialize;
use serde_json::{Map, Value};

/// One run.
#[derive(Serialize)]
pub struct Row {
    /// The model's name.
    pub model: &'static str,
    /// The compressor.
    pub method: &'static str,
    /// Who chose its parameters.
    pub scheme: &'static str,
    /// Validation loss after the last step, in nats.
    pub final_loss: f32,
    /// Bytes that one worker sent in the whole run, warm-up included; under CLT-k as if it had always led.
    pub bytes: u64,
    /// Bytes of its gradients uncompressed over those.
    pub ratio: f64,
    /// Wall time of the run, validation included.
    pub seconds: f64,
    /// Steps of training.
    #[serde(skip)]
    pub steps: u32,
    /// Planning's share of the time of training.
    #[serde(skip)]
    pub planning: f64,
    /// Bytes sent and validation loss during the run.
    #[serde(skip)]
    pub curve: Vec<(u64, f32)>,
}

/// The head of the table.
pub fn head(model: &str) -> String {
    format!(
        "\n{model:<12}{:<19}{:>10}{:>9}{:>8}{:>13}{:>10}{:>8}",
        "scheme", "loss", "", "ratio", "bytes/step", "planning", "time"
    )
}

impl Row {
    /// A line of the table; the second loss is relative to that of the uncompressed run.
    pub fn line(&self, uncompressed: &Row) -> String {
        let change = 100.0 * (self.final_loss / uncompressed.final_loss - 1.0);
        let Row { method, scheme, final_loss, bytes, ratio, seconds, steps, planning, .. } = self;
        format!(
            "{method:<12}{scheme:<19}{final_loss:>10.4}{change:>+7.2} %{ratio:>7.2}×{:>13}{:>8.2} %{seconds:>6.1} s",
            bytes / u64::from(*steps),
            100.0 * planning,
        )
    }
}

/// What the controller did in a step of a run, as a line of JSON.
pub fn metrics_line(
    task: &Task,
    scheme: Scheme,
    controller: &Controller,
    report: &Report,
) -> Result<String, serde_json::Error> {
    let mut line: Map<String, Value> =
        serde_json::from_str(&lgreco_train::controller::metrics_line(controller, report))?;
    for (key, value) in [("model", task.name), ("method", scheme.method), ("scheme", scheme.name)] {
        line.insert(key.into(), value.into());
    }
    serde_json::to_string(&line)
}
