//! What to watch.

use super::output::page;
use clap::Args;
use std::path::PathBuf;

/// A run in progress.
#[derive(Args, Clone, Debug)]
pub struct Watch {
    /// A line of JSON per step, as a controller's metrics_line gives it (in C lgreco_controller_metrics_json), or `-` for
    /// standard input. The file is followed while it grows; a shorter file is read anew.
    pub steps: PathBuf,
    /// Write a page for a browser, which loads itself again while the run goes on: bytes, errors and seconds over the steps,
    /// settings over the model's depth, a table of layers.
    #[arg(long, value_name = "FILE.html", value_parser = page())]
    pub html: Option<PathBuf>,
    /// End with the lines that are there.
    #[arg(long)]
    pub once: bool,
    /// Seconds between two looks at the file.
    #[arg(long, value_name = "SECONDS", allow_hyphen_values = true, value_parser = seconds, default_value = "1")]
    pub every: f64,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds @ 0.05..=3600.0) => Ok(seconds),
        _ => Err("expected seconds from 0.05 to 3600".into()),
    }
}
