//! The work of a decision, which any thread may do.

use crate::cores::PlanPool;
use crate::error::LgrecoError;
use lgreco_train::backend::Parallel;
use lgreco_train::controller;
use pyo3::prelude::*;

/// The work of a decision.
#[pyclass(module = "lgreco._lgreco")]
pub(crate) struct PlanTask(pub(crate) Option<controller::PlanTask>);

/// The result of a decision's work.
#[pyclass(module = "lgreco._lgreco")]
pub(crate) struct PlanResult(pub(crate) Option<controller::PlanResult>);

#[pymethods]
impl PlanTask {
    /// Measures and plans while training continues. Can be called only once.
    fn run(&mut self, py: Python<'_>) -> PyResult<PlanResult> {
        let task = self.take()?;
        Ok(PlanResult(Some(py.detach(|| PlanPool::new().run(|| task.run(&mut Parallel))))))
    }
}

impl PlanTask {
    /// Takes the task out of the handle. Can be called only once.
    pub(crate) fn take(&mut self) -> PyResult<controller::PlanTask> {
        self.0.take().ok_or_else(|| LgrecoError::new_err("the plan task has been run"))
    }
}
