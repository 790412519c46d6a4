//! The device of a context: the CPU, or a GPU that the context's handles share.

use crate::failure::{Failure, Result};
use lgreco_train::CoreError;
use lgreco_train::backend::{Backend, Job, JobError, Portable};
use lgreco_train::compress::Setting;
use lgreco_train::gradient::{Gradient, Shape};
use lgreco_train::rng::Stream;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
use std::sync::{Arc, Mutex};

#[derive(Clone)]
pub(crate) enum Device {
    Cpu,
    #[cfg(feature = "cuda")]
    Cuda(Arc<Mutex<lgreco_cuda::CudaBackend>>),
    #[cfg(feature = "wgpu")]
    Wgpu(Arc<Mutex<lgreco_wgpu::WgpuBackend>>),
}

const NO_DEVICE: Failure = Failure::Unavailable("the device");

/// Each function opens one kind of device. `index` is the number of the device within its kind.
impl Device {
    pub(crate) fn cpu(index: u32) -> Result<Device> {
        if index == 0 { Ok(Device::Cpu) } else { Err(NO_DEVICE) }
    }

    pub(crate) fn cuda(index: u32) -> Result<Device> {
        #[cfg(feature = "cuda")]
        return Ok(Device::Cuda(Arc::new(Mutex::new(lgreco_cuda::CudaBackend::new(index as usize)?))));
        #[cfg(not(feature = "cuda"))]
        not_built_in(index)
    }

    pub(crate) fn wgpu(index: u32) -> Result<Device> {
        #[cfg(feature = "wgpu")]
        return match index {
            0 => Ok(Device::Wgpu(Arc::new(Mutex::new(lgreco_wgpu::WgpuBackend::new().map_err(Failure::Wgpu)?)))),
            _ => Err(NO_DEVICE),
        };
        #[cfg(not(feature = "wgpu"))]
        not_built_in(index)
    }
}

/// The failure of a library that was built without this kind of device.
#[cfg(not(all(feature = "cuda", feature = "wgpu")))]
pub(crate) fn not_built_in<T>(_device: impl Sized) -> Result<T> {
    Err(Failure::NotBuiltIn)
}

impl Device {
    /// Whether the GPU has kernels to measure and encode gradients of this shape under this setting.
    pub(crate) fn takes(&self, setting: &Setting, shape: Shape) -> bool {
        match self {
            Device::Cpu => {
                let _ = (setting, shape);
                false
            }
            #[cfg(feature = "cuda")]
            Device::Cuda(_) => lgreco_cuda::CudaBackend::takes(setting, shape),
            #[cfg(feature = "wgpu")]
            Device::Wgpu(_) => lgreco_wgpu::WgpuBackend::takes(setting),
        }
    }

    /// Whether the GPU measures the whole row of this job.
    fn takes_row(&self, job: &Job<'_>) -> bool {
        let takes =
            |index| job.candidates.setting(index).is_some_and(|setting| self.takes(&setting, job.gradient.shape()));
        !matches!(self, Device::Cpu) && (0..job.candidates.len()).all(takes)
    }

    /// Returns the more precise failure that a GPU's backend has recorded, or else `failure`.
    pub(crate) fn in_its_words(&self, failure: Failure) -> Failure {
        #[cfg(feature = "cuda")]
        if let Device::Cuda(shared) = self
            && failure.is_of_device()
            && let Some(said) = shared.lock().ok().and_then(|backend| backend.failure().cloned())
        {
            return Failure::Cuda(said);
        }
        failure
    }

    /// Measures one row. Rows without GPU kernels are measured on the CPU.
    pub(crate) fn row(&self, job: &Job<'_>, row: &mut [f64]) -> Result<(), CoreError> {
        if !self.takes_row(job) {
            let mut workspace = vec![0; Portable.workspace_len(&[*job])];
            return Portable.measure(&[*job], &mut workspace, row).map_err(|failed| failed.error);
        }
        self.run(|backend| {
            let jobs = [*job];
            let mut workspace = vec![0; backend.workspace_len(&jobs)];
            backend.measure(&jobs, &mut workspace, row).map_err(|failed| failed.error)
        })
    }

    /// Runs a call on the device. Calls on a GPU from several threads run one after another.
    fn run<T>(&self, call: impl FnOnce(&mut dyn Backend) -> Result<T, CoreError>) -> Result<T, CoreError> {
        #[cfg(any(feature = "cuda", feature = "wgpu"))]
        const PANICKED: CoreError = CoreError::Device { what: "an earlier call on it panicked" };
        match self {
            Device::Cpu => call(&mut Portable),
            #[cfg(feature = "cuda")]
            Device::Cuda(shared) => call(&mut *shared.lock().map_err(|_| PANICKED)?),
            #[cfg(feature = "wgpu")]
            Device::Wgpu(shared) => call(&mut *shared.lock().map_err(|_| PANICKED)?),
        }
    }

    /// Measures jobs one after another, each on the GPU or on the CPU.
    fn measure_each(&self, jobs: &[Job<'_>], workspace: &mut [u64], rows: &mut [f64]) -> Result<(), JobError> {
        let total = jobs.iter().map(|job| job.candidates.len()).sum();
        if rows.len() != total {
            let error = CoreError::Length { what: "rows, one place per candidate", expected: total, found: rows.len() };
            return Err(JobError { job: None, error });
        }
        let mut rest = rows;
        for (index, job) in jobs.iter().enumerate() {
            let (row, others) = rest.split_at_mut(job.candidates.len());
            let measure = |backend: &mut dyn Backend| Ok(backend.measure(&[*job], workspace, row));
            let measured = if self.takes_row(job) { self.run(measure) } else { Device::Cpu.run(measure) };
            measured
                .map_err(|error| JobError { job: None, error })?
                .map_err(|failed| JobError { job: failed.job.map(|_| index), ..failed })?;
            rest = others;
        }
        Ok(())
    }
}

/// If a GPU lacks kernels for some rows of a table, each row is measured separately. The CPU measures the rows without
/// kernels, and the GPU measures the other rows.
impl Backend for Device {
    fn workspace_len(&self, jobs: &[Job<'_>]) -> usize {
        let words = self.run(|backend| Ok(backend.workspace_len(jobs))).unwrap_or(0);
        let others = jobs.iter().filter(|job| !self.takes_row(job)).map(|job| Portable.workspace_len(&[*job]));
        others.fold(words, usize::max)
    }

    fn measure(&mut self, jobs: &[Job<'_>], workspace: &mut [u64], rows: &mut [f64]) -> Result<(), JobError> {
        if !matches!(self, Device::Cpu) && !jobs.iter().all(|job| self.takes_row(job)) {
            return self.measure_each(jobs, workspace, rows);
        }
        let measured = self.run(|backend| Ok(backend.measure(jobs, workspace, rows)));
        measured.unwrap_or_else(|error| Err(JobError { job: None, error }))
    }

    fn encode(
        &mut self,
        setting: &Setting,
        gradient: &Gradient<'_>,
        stream: Stream,
        workspace: &mut [u64],
        payload: &mut [u8],
    ) -> Result<usize, CoreError> {
        self.run(|backend| backend.encode(setting, gradient, stream, workspace, payload))
    }

    fn decode(&mut self, payload: &[u8], values: &mut [f32]) -> Result<(), CoreError> {
        self.run(|backend| backend.decode(payload, values))
    }
}
