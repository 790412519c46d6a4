//! What became of a step.

use lgreco_train::controller::{self, Outcome};
use pyo3::prelude::*;

/// A finished step.
#[pyclass(frozen, get_all, module = "lgreco._lgreco")]
pub(crate) struct Report {
    step: u64,
    /// `exchanged`, `passed_through` (not finite) or `failed`.
    outcome: &'static str,
    switched: bool,
    bytes_in: u64,
    bytes_out: u64,
    /// Seconds of agreeing, measuring and planning, and of exchanging.
    planning_seconds: Option<f64>,
    exchange_seconds: Option<f64>,
}

impl From<controller::Report> for Report {
    fn from(report: controller::Report) -> Report {
        Report {
            step: report.step,
            outcome: match report.outcome {
                Outcome::Exchanged => "exchanged",
                Outcome::Skipped => "skipped",
                Outcome::PassedThrough => "passed_through",
                Outcome::Failed => "failed",
            },
            switched: report.switched,
            bytes_in: report.bytes_in,
            bytes_out: report.bytes_out,
            planning_seconds: report.seconds.map(|seconds| seconds.planning),
            exchange_seconds: report.seconds.map(|seconds| seconds.exchange),
        }
    }
}
