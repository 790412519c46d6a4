//! Keeps and measures gradients for the next plan in the memory of a CUDA device. The unsafe code of this module
//! accesses device memory by address.

use crate::controller::Controller;
use crate::cores::{PlanPool, detached};
use crate::device::Device;
use crate::error::{LgrecoError, refused_by_device as refused};
use crate::task::{PlanResult, PlanTask};
use lgreco_cuda::{CudaBackend, DeviceJob, DeviceJobError, DeviceWindow};
use lgreco_train::CoreError;
use lgreco_train::backend::{Backend, Job, JobError, Parallel};
use lgreco_train::compress::Setting;
use lgreco_train::controller::Observed;
use lgreco_train::gradient::{Dtype, Gradient, Shape};
use lgreco_train::rng::Stream;
use lgreco_train::search::OfferedRow;
use pyo3::prelude::*;
use std::sync::Arc;

/// The mean gradients of a controller's last steps, for the next plan.
#[pyclass(name = "DeviceWindow", module = "lgreco._lgreco")]
pub(crate) struct Window {
    window: DeviceWindow,
    names: Arc<[String]>,
}

fn layers(controller: &Controller) -> Vec<(Shape, Dtype)> {
    controller.exchanged.iter().map(|tensor| (tensor.shape(), tensor.dtype())).collect()
}

#[pymethods]
impl Window {
    /// Makes an empty window for all layers in the given memory.
    #[new]
    fn new(py: Python<'_>, device: &mut Device, controller: &Controller, memory: u64) -> PyResult<Window> {
        let (layers, cuda) = (layers(controller), device.inner());
        // SAFETY: by the contract of `DeviceWindow` (`_lgreco.pyi`).
        let window = detached(py, || unsafe { cuda.begin_window(&layers, memory) });
        let window = window.map_err(|error| refused(py, error, &controller.names))?;
        Ok(Window { window, names: controller.names.clone() })
    }

    /// Bytes of device memory for a window of all layers.
    #[staticmethod]
    fn bytes(controller: &Controller) -> u64 {
        DeviceWindow::bytes(&layers(controller))
    }

    /// Adds the gradients at these addresses, of step `step` of the window, to the layers' means.
    fn observe(
        &self,
        py: Python<'_>,
        device: &mut Device,
        layers: Vec<usize>,
        addresses: Vec<u64>,
        step: u64,
    ) -> PyResult<()> {
        if layers.len() != addresses.len() {
            return Err(LgrecoError::new_err("one address per layer"));
        }
        let seen: Vec<(usize, u64)> = layers.into_iter().zip(addresses).collect();
        // SAFETY: by the contract of `DeviceWindow.observe` (`_lgreco.pyi`).
        let observed = unsafe { device.inner().observe(&self.window, &seen, step) };
        observed.map_err(|error| refused(py, error, &self.names))
    }

    /// Waits: copies the means of these layers to the controller.
    fn take_home(
        &self,
        py: Python<'_>,
        device: &mut Device,
        controller: &Controller,
        layers: Vec<usize>,
    ) -> PyResult<()> {
        let cuda = device.inner();
        for layer in layers {
            let mut mean = vec![0f32; controller.exchanged[controller.check(layer)?].shape().elements()];
            let read = detached(py, || cuda.window_mean(&self.window, layer, &mut mean));
            read.map_err(|error| refused(py, error, &self.names))?;
            controller.attempt(py, |controller| controller.external().set_observed(layer, &mean))?;
        }
        Ok(())
    }

    /// Waits: runs a plan task on the observed gradients. `allocate` returns the address of new device memory.
    fn plan(
        &self,
        py: Python<'_>,
        device: &mut Device,
        task: &mut PlanTask,
        allocate: Py<PyAny>,
    ) -> PyResult<PlanResult> {
        let task = task.take()?;
        let mut observed = OnDevice { cuda: device.inner(), window: &self.window, allocate, failed: None };
        // This thread waits for the device. The pool's threads measure only layers without gradients on the device.
        let result = py.detach(|| task.run_with(&mut observed, &mut OnCores(PlanPool::new())));
        match observed.failed {
            None => Ok(PlanResult(Some(result))),
            Some(Failed::Python(error)) => Err(error),
            Some(Failed::Device(error)) => Err(refused(py, error, &self.names)),
        }
    }
}

enum Failed {
    Python(PyErr),
    Device(lgreco_cuda::Error),
}

/// A window that is measured in device memory.
struct OnDevice<'a> {
    cuda: &'a mut CudaBackend,
    window: &'a DeviceWindow,
    allocate: Py<PyAny>,
    /// The error, if the window could not be measured.
    failed: Option<Failed>,
}

impl OnDevice<'_> {
    fn rows(&mut self, rows: &[OfferedRow<'_>], squared_errors: &mut [f64]) -> Result<(), Failed> {
        let mut jobs = Vec::with_capacity(rows.len());
        for row in rows {
            let gradient = self
                .window
                .gradient(row.layer)
                .ok_or(Failed::Device(lgreco_cuda::Error::Memory { what: "of the window has no such layer" }))?;
            jobs.push(DeviceJob { gradient, candidates: row.candidates, stream: row.stream });
        }
        let bytes = self.cuda.rows_bytes(&jobs).map_err(of_device)?;
        let [workspace, results] = [bytes.workspace, bytes.results].map(|bytes| {
            Python::attach(|py| self.allocate.call1(py, (bytes.max(1),))?.extract::<u64>(py)).map_err(Failed::Python)
        });
        let (workspace, results) = (workspace?, results?);
        // SAFETY: by the contract of `DeviceWindow.plan` (`_lgreco.pyi`) `allocate` returned enough bytes, which nothing
        // else uses.
        unsafe { self.cuda.enqueue_rows(&jobs, workspace, results) }.map_err(of_device)?;
        let mut words = vec![0; (bytes.results / 8) as usize];
        // SAFETY: `allocate` returned enough bytes for the results, as above, and the enqueued work fills them.
        unsafe { self.cuda.fetch_results(results, &mut words) }.map_err(Failed::Device)?;
        self.cuda.read_rows(&jobs, &words, squared_errors).map_err(of_device)
    }
}

fn of_device(failed: DeviceJobError) -> Failed {
    Failed::Device(failed.error)
}

const TOLD: CoreError = CoreError::Device { what: "its window cannot be measured" };

impl Observed for OnDevice<'_> {
    fn squared_norms(&mut self, layers: &[usize], norms: &mut [f64]) -> Result<(), CoreError> {
        let all = self.cuda.close_window(self.window).and_then(|()| self.cuda.window_norms(self.window));
        let all = all.map_err(|error| {
            self.failed = Some(Failed::Device(error));
            TOLD
        })?;
        layers.iter().zip(norms).for_each(|(&layer, norm)| *norm = all[layer]);
        Ok(())
    }

    fn measure(&mut self, rows: &[OfferedRow<'_>], squared_errors: &mut [f64]) -> Result<(), JobError> {
        self.rows(rows, squared_errors).map_err(|failed| {
            self.failed = Some(failed);
            JobError { job: None, error: TOLD }
        })
    }
}

/// The backend of all cores, which runs each call on the plan's pool.
struct OnCores(PlanPool);

impl Backend for OnCores {
    fn workspace_len(&self, jobs: &[Job<'_>]) -> usize {
        self.0.run(|| Parallel.workspace_len(jobs))
    }

    fn measure(&mut self, jobs: &[Job<'_>], workspace: &mut [u64], rows: &mut [f64]) -> Result<(), JobError> {
        self.0.run(|| Parallel.measure(jobs, workspace, rows))
    }

    fn encode(
        &mut self,
        setting: &Setting,
        gradient: &Gradient<'_>,
        stream: Stream,
        workspace: &mut [u64],
        payload: &mut [u8],
    ) -> Result<usize, CoreError> {
        self.0.run(|| Parallel.encode(setting, gradient, stream, workspace, payload))
    }

    fn decode(&mut self, payload: &[u8], values: &mut [f32]) -> Result<(), CoreError> {
        self.0.run(|| Parallel.decode(payload, values))
    }
}
