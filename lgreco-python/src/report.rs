//! Reports of steps.

use lgreco_train::controller::{self, Outcome};
use pyo3::prelude::*;

/// A finished step.
#[pyclass(frozen, module = "lgreco._lgreco")]
pub(crate) struct Report {
    /// The controller's report.
    pub(crate) of_controller: controller::Report,
    #[pyo3(get)]
    step: u64,
    /// `exchanged`, `passed_through` (not finite) or `failed`.
    #[pyo3(get)]
    outcome: &'static str,
    #[pyo3(get)]
    switched: bool,
    #[pyo3(get)]
    bytes_in: u64,
    #[pyo3(get)]
    bytes_out: u64,
    /// Seconds of agreement, measurement and planning.
    #[pyo3(get)]
    planning_seconds: Option<f64>,
    #[pyo3(get)]
    exchange_seconds: Option<f64>,
}

#[pymethods]
impl Report {
    fn __repr__(&self) -> String {
        let Report { step, outcome, switched, bytes_in, bytes_out, planning_seconds, exchange_seconds, .. } = self;
        let switched = if *switched { "True" } else { "False" };
        let seconds = |seconds: &Option<f64>| seconds.map_or("None".into(), |seconds| format!("{seconds:?}"));
        let [planning, exchange] = [planning_seconds, exchange_seconds].map(seconds);
        format!(
            "Report(step={step}, outcome='{outcome}', switched={switched}, bytes_in={bytes_in}, bytes_out={bytes_out}, \
             planning_seconds={planning}, exchange_seconds={exchange})"
        )
    }
}

impl From<controller::Report> for Report {
    fn from(report: controller::Report) -> Report {
        Report {
            of_controller: report,
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
