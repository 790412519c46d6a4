//! A line of JSON: one step.

use serde::Deserialize;

/// The version of the lines that are known.
const VERSION: u64 = 1;

/// What a controller did in a step, and what is known of the layers after it.
#[derive(Clone, Debug, Deserialize)]
pub struct Line {
    version: u64,
    /// Its number, from 0.
    pub step: u64,
    /// What became of the gradients.
    pub outcome: Outcome,
    /// Whether it was the first under new settings.
    pub switched: bool,
    /// Bytes of one worker's gradients.
    pub bytes_in: u64,
    /// Bytes that it sent for them.
    pub bytes_out: u64,
    /// Seconds of agreeing, measuring and planning.
    pub planning_seconds: Option<f64>,
    /// Seconds of exchanging.
    pub exchange_seconds: Option<f64>,
    /// The last decision.
    pub decision: Option<Decision>,
    /// Every layer.
    pub layers: Vec<Layer>,
}

/// What became of a step's gradients.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// They were exchanged.
    Exchanged,
    /// They were not finite, and left out.
    Skipped,
    /// They were not finite, and averaged as they are.
    #[serde(rename = "passed through")]
    PassedThrough,
    /// An exchange failed.
    Failed,
}

/// Why settings are what they are.
#[derive(Clone, Debug, Deserialize)]
pub struct Decision {
    /// The step in which it was made.
    pub step: u64,
    /// Why then.
    pub cause: String,
    /// What sizes count.
    pub unit: Option<String>,
    /// The plan's size.
    pub size: Option<u64>,
    /// That of the uncompressed layers.
    pub uncompressed_size: Option<u64>,
    /// The plan's error.
    pub error: Option<f64>,
    /// Whether compressing pays.
    pub pays: Option<bool>,
}

/// What is known of a layer after a step.
#[derive(Clone, Debug, Deserialize)]
pub struct Layer {
    /// Its name.
    pub name: String,
    /// How it is compressed.
    pub setting: String,
    /// Why it is not, when it is not.
    pub uncompressed: Option<String>,
    /// Steps in which it was exchanged.
    pub steps: u64,
    /// Bytes of its gradients in these steps.
    pub bytes_in: u64,
    /// Bytes sent for them.
    pub bytes_out: u64,
    /// Squared error of what was sent, relative to the squared norm, when last measured.
    pub relative_error: Option<f64>,
    /// L2 norm of the residual.
    pub residual_norm: Option<f64>,
}

impl Line {
    /// Reads a line; the error says where in it something is wrong, and what.
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
