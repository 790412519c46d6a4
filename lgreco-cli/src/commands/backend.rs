//! The backends of this build.
//!
//! wgpu is left out by default, because wgpu and naga took two thirds of the time of a first build, and most who try
//! a plan do it on the processor. CUDA is in: its libraries are looked for at run time.

use crate::args::BackendArg;
use crate::failure::Failure;
use lgreco::backend::{Backend, Parallel};

/// A backend ready for work.
pub enum Opened {
    Cpu(Parallel),
    #[cfg(feature = "cuda")]
    Cuda(Box<lgreco_cuda::CudaBackend>),
    #[cfg(feature = "wgpu")]
    Wgpu(Box<lgreco_wgpu::WgpuBackend>),
}

impl Opened {
    pub fn new(backend: BackendArg) -> Result<Opened, Failure> {
        match backend {
            BackendArg::Cpu => Ok(Opened::Cpu(Parallel)),
            #[cfg(feature = "cuda")]
            BackendArg::Cuda => match lgreco_cuda::CudaBackend::new(0) {
                Ok(backend) => Ok(Opened::Cuda(Box::new(backend))),
                Err(error) => Err(Failure::no_result(format_args!("--backend cuda: {error}"))),
            },
            #[cfg(feature = "wgpu")]
            BackendArg::Wgpu => match lgreco_wgpu::WgpuBackend::new() {
                Ok(backend) => Ok(Opened::Wgpu(Box::new(backend))),
                Err(error) => Err(Failure::no_result(format_args!("--backend wgpu: {error}"))),
            },
        }
    }

    pub fn backend(&mut self) -> &mut dyn Backend {
        match self {
            Opened::Cpu(backend) => backend,
            #[cfg(feature = "cuda")]
            Opened::Cuda(backend) => backend.as_mut(),
            #[cfg(feature = "wgpu")]
            Opened::Wgpu(backend) => backend.as_mut(),
        }
    }

    /// Bytes of the device's memory that the backend holds.
    pub fn device_memory(&self) -> Option<u64> {
        match self {
            Opened::Cpu(_) => None,
            #[cfg(feature = "cuda")]
            Opened::Cuda(backend) => Some(backend.held_bytes()),
            #[cfg(feature = "wgpu")]
            Opened::Wgpu(backend) => Some(backend.held_bytes()),
        }
    }

    /// What the device said of its last failure.
    pub fn failure(&self) -> Option<String> {
        match self {
            Opened::Cpu(_) => None,
            #[cfg(feature = "cuda")]
            Opened::Cuda(backend) => backend.failure().map(ToString::to_string),
            #[cfg(feature = "wgpu")]
            Opened::Wgpu(backend) => backend.failure().map(ToString::to_string),
        }
    }
}
