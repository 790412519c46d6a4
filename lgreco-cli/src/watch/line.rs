//! A line of JSON about one step.

use serde::Deserialize;

/// The version of lines that this command can read.
const VERSION: u64 = 1;

/// What a controller did in a step, and the state of the layers after the step.
#[derive(Clone, Debug, Deserialize)]
pub struct Line {
    version: u64,
    /// Number of the step, from 0.
    pub step: u64,
    /// What happened to the gradients.
    pub outcome: Outcome,
    /// Whether this is the first step with new settings.
    pub switched: bool,
    /// Bytes of one worker's gradients.
    pub bytes_in: u64,
    /// Bytes that this worker sent for these gradients.
    pub bytes_out: u64,
    /// Seconds of agreement, measurement and planning.
    pub planning_seconds: Option<f64>,
    /// Seconds of the exchange.
    pub exchange_seconds: Option<f64>,
    /// The last decision.
    pub decision: Option<Decision>,
    /// All layers.
    pub layers: Vec<Layer>,
}

/// What happened to a step's gradients.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// They were exchanged.
    Exchanged,
    /// Gradients were not finite, so the step left them out.
    Skipped,
    /// Gradients were not finite, and were averaged uncompressed.
    #[serde(rename = "passed through")]
    PassedThrough,
    /// An exchange failed.
    Failed,
}

/// The last decision about the settings.
#[derive(Clone, Debug, Deserialize)]
pub struct Decision {
    /// The step in which the decision was made.
    pub step: u64,
    /// Why the decision was made in that step.
    pub cause: String,
    /// Unit of the sizes.
    pub unit: Option<String>,
    /// The plan's size.
    pub size: Option<u64>,
    /// Size of the uncompressed layers.
    pub uncompressed_size: Option<u64>,
    /// The plan's error.
    pub error: Option<f64>,
    /// Whether compression saves time.
    pub pays: Option<bool>,
}

/// The state of a layer after a step.
#[derive(Clone, Debug, Deserialize)]
pub struct Layer {
    /// Its name.
    pub name: String,
    /// Its setting.
    pub setting: String,
    /// Why the layer is uncompressed. `None` for a compressed layer.
    pub uncompressed: Option<String>,
    /// Number of steps in which the layer was exchanged.
    pub steps: u64,
    /// Bytes of the layer's gradients in these steps.
    pub bytes_in: u64,
    /// Bytes that the worker sent for the layer in these steps.
    pub bytes_out: u64,
    /// Squared error of the payload, relative to the squared norm of the layer, at the last measurement.
    pub relative_error: Option<f64>,
    /// L2 norm of the residual.
    pub residual_norm: Option<f64>,
}

impl Line {
    /// Reads a line. The error states what is wrong, and where in the line.
    pub fn parse(bytes: &[u8]) -> Result<Line, String> {
        let line: Line = serde_json::from_slice(bytes).map_err(|error| {
            let text = error.to_string();
            let what = text.rsplit_once(" at line ").map_or(&*text, |(what, _)| what);
            format!("column {}: {what}", error.column())
        })?;
        if line.version != VERSION {
            return Err(format!("version is {}, expected {VERSION}: another lgreco wrote it", line.version));
        }
        let numbers = [("planning_seconds", line.planning_seconds), ("exchange_seconds", line.exchange_seconds)];
        not_negative("", numbers)?;
        for layer in &line.layers {
            let numbers = [("relative_error", layer.relative_error), ("residual_norm", layer.residual_norm)];
            not_negative(&layer.name, numbers)?;
        }
        Ok(line)
    }
}

fn not_negative<const N: usize>(layer: &str, numbers: [(&str, Option<f64>); N]) -> Result<(), String> {
    let wrong = numbers.into_iter().find_map(|(field, value)| Some((field, value.filter(|&value| value < 0.0)?)));
    wrong.map_or(Ok(()), |(field, value)| {
        let of = if layer.is_empty() { String::new() } else { format!("layer `{layer}`: ") };
        Err(format!("{of}{field} is {value}, expected a number >= 0"))
    })
}
