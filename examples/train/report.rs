//! The result of a run, as a line of a table and as JSON, and the controller's metrics of a step.

use crate::schemes::Scheme;
use crate::task::Task;
use lgreco_train::controller::{Controller, Report};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The result of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The model's name.
    pub model: String,
    /// The optimiser, with all unusual conditions of training: [`Task::conditions`].
    pub optimizer: String,
    /// Steps of training.
    pub steps: u32,
    /// Seed of starting values, data and random bits of compression.
    pub seed: u64,
    /// The compression method.
    pub method: String,
    /// The scheme that chose the method's parameters.
    pub scheme: String,
    /// Validation loss after the last step, in nats; NaN (in JSON, null) if the run diverged.
    #[serde(deserialize_with = "nan_for_null")]
    pub final_loss: f32,
    /// Bytes that one worker sent in the whole run, including the warm-up. Under CLT-k, the bytes are counted as if the
    /// worker were always the leader.
    pub bytes: u64,
    /// Bytes of the worker's uncompressed gradients divided by bytes sent.
    pub ratio: f64,
    /// Wall time of the run, including validation.
    pub seconds: f64,
    /// Fraction of the training time that is spent on planning.
    pub planning: f64,
    /// Bytes sent and validation loss during the run.
    pub curve: Vec<Point>,
}

/// A point on a run's curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Bytes sent so far.
    pub bytes: u64,
    /// Validation loss.
    #[serde(deserialize_with = "nan_for_null")]
    pub loss: f32,
}

fn nan_for_null<'de, D: serde::Deserializer<'de>>(from: D) -> Result<f32, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f32::NAN))
}

/// The head of the table.
pub fn head(task: &Task) -> String {
    format!(
        "\n{:<12}{:<30}{:>6}{:>10}{:>9}{:>8}{:>13}{:>10}{:>8}",
        task.name, "scheme", "seed", "loss", "", "ratio", "bytes/step", "planning", "time"
    )
}

impl Row {
    /// Whether this is the result of a run of `task` with `scheme` and `seed`.
    pub fn is_of(&self, task: &Task, scheme: Scheme, seed: u64) -> bool {
        (&*self.model, &self.optimizer, self.steps) == (task.name, &task.conditions(), task.steps)
            && (&*self.method, &*self.scheme, self.seed) == (scheme.method, scheme.name, seed)
    }

    /// Whether the other run had the same model, optimiser, steps and seed.
    pub fn is_beside(&self, other: &Row) -> bool {
        (&self.model, &self.optimizer, self.steps, self.seed)
            == (&other.model, &other.optimizer, other.steps, other.seed)
    }

    /// The loss relative to the uncompressed run with the same data and starting values, minus 1, in per cent.
    pub fn increase(&self, all: &[Row]) -> Option<f64> {
        let uncompressed = all.iter().find(|row| row.method == "none" && row.is_beside(self))?;
        Some(100.0 * (f64::from(self.final_loss) / f64::from(uncompressed.final_loss) - 1.0))
    }

    /// A line of the table. The second loss is relative to the uncompressed run, if that is among `all`.
    pub fn line(&self, all: &[Row]) -> String {
        let change = self.increase(all).map_or(String::new(), |change| format!("{change:+.2} %"));
        let Row { method, scheme, seed, final_loss, bytes, ratio, seconds, steps, planning, .. } = self;
        format!(
            "{method:<12}{scheme:<30}{seed:>6}{final_loss:>10.4}{change:>9}{ratio:>7.2}×{:>13}{:>8.2} %{seconds:>6.1} s",
            bytes / u64::from(*steps),
            100.0 * planning,
        )
    }
}

/// The controller's metrics of a step of a run, as a line of JSON.
pub fn metrics_line(
    task: &Task,
    scheme: Scheme,
    seed: u64,
    controller: &Controller,
    report: &Report,
) -> Result<String, serde_json::Error> {
    let mut line: Map<String, Value> =
        serde_json::from_str(&lgreco_train::controller::metrics_line(controller, report))?;
    for (key, value) in [("model", task.name), ("method", scheme.method), ("scheme", scheme.name)] {
        line.insert(key.into(), value.into());
    }
    line.insert("seed".into(), seed.into());
    serde_json::to_string(&line)
}
