//! The backends of this build.
//!
//! Default builds have only the CPU backend, because most users first try plans on it, and the GPU backends take long
//! to compile. Compiling the CUDA backend takes a tenth of the time of all other code. Compiling the wgpu backend takes
//! twice the time of all other code. The libraries of CUDA are loaded at run time.

use crate::args::BackendArg;
use crate::failure::Failure;
use lgreco::backend::{Backend, Parallel};

/// An opened backend.
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

    /// Bytes of device memory that the backend holds. `None` for the CPU.
    pub fn device_memory(&self) -> Option<u64> {
        match self {
            Opened::Cpu(_) => None,
            #[cfg(feature = "cuda")]
            Opened::Cuda(backend) => Some(backend.held_bytes()),
            #[cfg(feature = "wgpu")]
            Opened::Wgpu(backend) => Some(backend.held_bytes()),
        }
    }

    /// The device's message about its last failure. `None` for the CPU.
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
