//! The options of `lgreco watch`.

use super::output::page;
use clap::Args;
use std::path::PathBuf;

/// The run to show.
#[derive(Args, Clone, Debug)]
pub struct Watch {
    /// A file with a line of JSON per step, or `-` for standard input. A controller's metrics_line returns such lines
    /// (in C lgreco_controller_metrics_json). The command follows the file while it grows. If the file becomes shorter,
    /// the command reads it again from the start.
    pub steps: PathBuf,
    /// Write a page for a browser, which reloads itself while the run continues. The page shows bytes, errors and
    /// seconds over the steps, settings over the model's depth, and a table of layers.
    #[arg(long, value_name = "FILE.html", value_parser = page())]
    pub html: Option<PathBuf>,
    /// Show the lines that the file has now, and do not wait for more.
    #[arg(long)]
    pub once: bool,
    /// Seconds between two checks of the file for new lines.
    #[arg(long, value_name = "SECONDS", allow_hyphen_values = true, value_parser = seconds, default_value = "1")]
    pub every: f64,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds @ 0.05..=3600.0) => Ok(seconds),
        _ => Err("expected seconds from 0.05 to 3600".into()),
    }
}
