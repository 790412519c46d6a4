//! Where a context works: the CPU, or a GPU that it shares with what was made with it.

use crate::api::{LGRECO_DEVICE_CPU, LGRECO_DEVICE_CUDA, LGRECO_DEVICE_WGPU, lgreco_device};
use crate::status::Failure;
use lgreco_core::Error;
use lgreco_core::backend::{Backend, Job, JobError, Portable};
use lgreco_core::compress::{Compressor, Setting};
use lgreco_core::gradient::Gradient;
use lgreco_core::rng::Stream;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
use std::sync::{Arc, Mutex};

#[derive(Clone)]
pub(crate) enum Device {
    Cpu,
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    Gpu(Arc<Mutex<dyn Backend + Send>>),
}

const NO_DEVICE: Failure = Failure::Unavailable { what: "the device" };

#[cfg(feature = "cuda")]
fn cuda(index: u32) -> Result<Device, Failure> {
    let backend = lgreco_cuda::CudaBackend::new(index as usize)?;
    Ok(Device::Gpu(Arc::new(Mutex::new(backend))))
}

#[cfg(not(feature = "cuda"))]
fn cuda(_: u32) -> Result<Device, Failure> {
    Err(Failure::NotBuiltIn)
}

#[cfg(feature = "wgpu")]
fn wgpu(index: u32) -> Result<Device, Failure> {
    match (index, lgreco_wgpu::WgpuBackend::new()) {
        (0, Ok(backend)) => Ok(Device::Gpu(Arc::new(Mutex::new(backend)))),
        _ => Err(NO_DEVICE),
    }
}

#[cfg(not(feature = "wgpu"))]
fn wgpu(_: u32) -> Result<Device, Failure> {
    Err(Failure::NotBuiltIn)
}

impl Device {
    pub(crate) fn open(kind: lgreco_device, index: u32) -> Result<Device, Failure> {
        match kind {
            LGRECO_DEVICE_CPU if index == 0 => Ok(Device::Cpu),
            LGRECO_DEVICE_CPU => Err(NO_DEVICE),
            LGRECO_DEVICE_WGPU => wgpu(index),
            LGRECO_DEVICE_CUDA => cuda(index),
            found => Err(Failure::UnknownConstant { what: "device", found }),
        }
    }

    /// Whether rows and payloads of this setting are made on a GPU.
    pub(crate) fn takes(&self, setting: &Setting) -> bool {
        let has_kernels = matches!(setting, Setting::Qsgd(_) | Setting::TopK(_) | Setting::PowerSgd(_));
        !matches!(self, Device::Cpu) && has_kernels
    }

    /// Measures one row: squared errors, and the bytes of payloads, also where the values decide them. What has no kernels
    /// is measured on the CPU.
    pub(crate) fn row(
        &self,
        job: &Job<'_>,
        squared_errors: &mut [f64],
        payload_lens: &mut [usize],
    ) -> Result<(), Error> {
        let Job { gradient, candidates, stream } = job;
        let (shape, dtype) = (gradient.shape(), gradient.values().dtype());
        if !candidates.setting(0).is_some_and(|setting| self.takes(&setting)) {
            let mut workspace = vec![0; candidates.measure_workspace_len(shape, dtype)];
            return candidates.measure_with_lens(gradient, *stream, &mut workspace, squared_errors, payload_lens);
        }
        for (index, len) in payload_lens.iter_mut().enumerate() {
            *len = candidates.setting(index).map_or(Ok(0), |setting| setting.payload_len(shape, dtype))?;
        }
        self.run(|backend| {
            let jobs = [*job];
            let mut workspace = vec![0; backend.workspace_len(&jobs)];
            backend.measure(&jobs, &mut workspace, squared_errors).map_err(|failed| failed.error)
        })
    }

    /// Runs a call on the device, when those of other threads have ended.
    fn run<T>(&self, call: impl FnOnce(&mut dyn Backend) -> Result<T, Error>) -> Result<T, Error> {
        match self {
            Device::Cpu => call(&mut Portable),
            #[cfg(any(feature = "cuda", feature = "wgpu"))]
            Device::Gpu(shared) => match shared.lock() {
                Ok(mut backend) => call(&mut *backend),
                Err(_) => Err(Error::Device { what: "an earlier call on it panicked" }),
            },
        }
    }
}

impl Backend for Device {
    fn workspace_len(&self, jobs: &[Job<'_>]) -> usize {
        self.run(|backend| Ok(backend.workspace_len(jobs))).unwrap_or(0)
    }

    fn measure(&mut self, jobs: &[Job<'_>], workspace: &mut [u64], rows: &mut [f64]) -> Result<(), JobError> {
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
    ) -> Result<usize, Error> {
        self.run(|backend| backend.encode(setting, gradient, stream, workspace, payload))
    }

    fn decode(&mut self, payload: &[u8], values: &mut [f32]) -> Result<(), Error> {
        self.run(|backend| backend.decode(payload, values))
    }
}
