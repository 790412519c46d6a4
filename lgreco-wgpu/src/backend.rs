//! [`WgpuBackend`] implements the core's trait [`Backend`] on a device.

use crate::Error;
use crate::codec::{decode, encode};
use crate::error::BufferJobError;
use crate::gpu::Gpu;
use crate::rows::{measure, reserve};
use crate::tensor::{Input, Work, work};
use lgreco::backend::{Backend, Job, JobError, on_the_core, one_by_one};
use lgreco::compress::wire::Payload;
use lgreco::compress::{Compressor, Setting};
use lgreco::gradient::Gradient;
use lgreco::rng::Stream;

/// A backend on any GPU that wgpu can drive.
///
/// ```no_run
/// use lgreco::backend::{Backend, Job};
/// use lgreco::compress::Candidates;
/// use lgreco::gradient::{Dtype, Gradient, Shape, Values};
/// use lgreco::rng::Stream;
/// use lgreco_wgpu::WgpuBackend;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut backend = WgpuBackend::new()?;
/// let gradient = Gradient::new(Values::F32(&[3.0, 0.0, -1.0, 2.0]), Shape::new(2, 2)?)?;
/// let candidates = Candidates::TopK { values: Dtype::F32, keeps: &[1, 2, 3] };
/// let mut row = [0.0; 3];
/// backend.measure(&[Job { gradient, candidates, stream: Stream::default() }], &mut [], &mut row)?;
/// assert_eq!(row, [5.0, 1.0, 0.0]);
/// # Ok(())
/// # }
/// ```
pub struct WgpuBackend {
    gpu: Gpu,
    failure: Option<Error>,
}

impl WgpuBackend {
    /// Whether the GPU measures and compresses gradients under this setting. This holds for QSGD, TopK (also in few
    /// bits), PowerSGD and EDEN. Encoding under another setting returns [`Error::Method`], except under
    /// [`Setting::Dense`].
    ///
    /// ```
    /// use lgreco::compress::{Setting, adacomp::AdaComp, eden::Eden};
    /// use lgreco_wgpu::WgpuBackend;
    /// assert!(WgpuBackend::takes(&Setting::Eden(Eden::default())));
    /// assert!(!WgpuBackend::takes(&Setting::AdaComp(AdaComp { bin: 16 })));
    /// ```
    pub const fn takes(setting: &Setting) -> bool {
        matches!(
            setting,
            Setting::Qsgd(_) | Setting::TopK(_) | Setting::QuantisedTopK(_) | Setting::PowerSgd(_) | Setting::Eden(_)
        )
    }

    /// Opens the adapter that WebGPU chooses for high performance.
    ///
    /// ```
    /// match lgreco_wgpu::WgpuBackend::new() {
    ///     Ok(backend) => println!("{:?}", backend.device().limits()),
    ///     Err(error) => println!("{error}"),
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoAdapter`] with the reason; [`Error::Limit`] or [`Error::Compiler`] if the adapter cannot run the
    /// kernels.
    pub fn new() -> Result<Self, Error> {
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle_from_env());
        let options = wgpu::RequestAdapterOptions {
            power_preference: wgpu::PowerPreference::HighPerformance,
            ..Default::default()
        };
        let adapter = pollster::block_on(instance.request_adapter(&options));
        let adapter = adapter.map_err(|error| Error::NoAdapter(error.to_string()))?;
        Self::with_adapter(&adapter)
    }

    /// Opens a new device on `adapter`, with all of the adapter's limits, and with subgroups if it supports them.
    ///
    /// ```
    /// use lgreco_wgpu::{WgpuBackend, wgpu};
    /// let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle_from_env());
    /// for adapter in pollster::block_on(instance.enumerate_adapters(wgpu::Backends::all())) {
    ///     match WgpuBackend::with_adapter(&adapter) {
    ///         Ok(backend) => println!("{}: {:?}", adapter.get_info().name, backend.device().features()),
    ///         Err(error) => println!("{}: {error}", adapter.get_info().name),
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// The errors of [`new`](WgpuBackend::new).
    pub fn with_adapter(adapter: &wgpu::Adapter) -> Result<Self, Error> {
        let descriptor = wgpu::DeviceDescriptor {
            required_features: adapter.features() & wgpu::Features::SUBGROUP,
            required_limits: adapter.limits(),
            ..Default::default()
        };
        let device = pollster::block_on(adapter.request_device(&descriptor));
        let (device, queue) = device.map_err(|error| Error::NoAdapter(error.to_string()))?;
        Self::with_device(device, queue)
    }

    /// Uses the caller's device, so that the backend can work on buffers of that device. The call replaces the
    /// device-lost callback.
    ///
    /// ```
    /// use lgreco_wgpu::{WgpuBackend, wgpu};
    /// # let (device, queue) = wgpu::Device::noop(&wgpu::DeviceDescriptor::default());
    /// let backend = WgpuBackend::with_device(device.clone(), queue.clone())?; // clones are handles of the same device
    /// assert_eq!(backend.device(), &device);
    /// # Ok::<(), lgreco_wgpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Limit`] if a limit is too low for the kernels; WebGPU's default limits are enough. [`Error::Compiler`]
    /// on DirectX 12 with FXC.
    pub fn with_device(device: wgpu::Device, queue: wgpu::Queue) -> Result<Self, Error> {
        Ok(WgpuBackend { gpu: Gpu::new(device, queue)?, failure: None })
    }

    /// The device.
    pub fn device(&self) -> &wgpu::Device {
        &self.gpu.device
    }

    /// The queue to which all work is submitted.
    pub fn queue(&self) -> &wgpu::Queue {
        &self.gpu.queue
    }

    /// Allocates all device memory that measuring `jobs` needs, compiles the kernels, and returns
    /// [`held_bytes`](WgpuBackend::held_bytes). After this, measuring these jobs, or other jobs of the same shapes,
    /// allocates nothing. Without this call, the first measurement allocates the memory. The memory for uploads is at
    /// most about 256 MiB, or the size of the largest gradient if that is more.
    ///
    /// ```
    /// use lgreco::backend::{Backend, Job};
    /// use lgreco::compress::{Candidates, qsgd::Qsgd};
    /// use lgreco::gradient::{Gradient, Shape, Values};
    /// use lgreco::rng::Stream;
    /// use lgreco_wgpu::{WgpuBackend, wgpu};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (device, queue) = wgpu::Device::noop(&wgpu::DeviceDescriptor::default()); // an embedder has a real one
    /// let mut backend = WgpuBackend::with_device(device, queue)?;
    /// let gradient = Gradient::new(Values::F32(&[0.5; 4096]), Shape::new(64, 64)?)?;
    /// let candidates = Candidates::Qsgd { base: Qsgd::default(), bits: &[2, 4] };
    /// let jobs = [Job { gradient, candidates, stream: Stream::default() }; 3];
    /// let bytes = backend.reserve(&jobs)?;
    /// backend.measure(&jobs, &mut [], &mut [0.0; 6])?;
    /// assert_eq!(backend.held_bytes(), bytes);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The error of the first job that cannot be measured; [`Error::TooLarge`] and [`Error::OutOfMemory`] if the memory
    /// does not suffice.
    pub fn reserve(&mut self, jobs: &[Job<'_>]) -> Result<u64, BufferJobError> {
        self.reserve_for(&work(jobs))
    }

    pub(crate) fn reserve_for(&mut self, work: &[Work<'_>]) -> Result<u64, BufferJobError> {
        reserve(&mut self.gpu, work)?;
        Ok(self.held_bytes())
    }

    /// Bytes of device memory held between calls: tables, workspace, and buffers for uploads and payloads. The first
    /// use or [`reserve`](WgpuBackend::reserve) allocates this memory. Later calls of similar size reuse the memory,
    /// and dropping the backend frees it.
    pub fn held_bytes(&self) -> u64 {
        self.gpu.memory.held()
    }

    /// The full error of the last [`Backend`] call that returned [`Device`](lgreco::Error::Device). `Device` only says
    /// that the device failed.
    pub fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    pub(crate) fn gpu(&mut self) -> &mut Gpu {
        &mut self.gpu
    }

    fn told(&mut self, error: Error) -> lgreco::Error {
        let core = error.to_core();
        if !matches!(error, Error::Core(_)) {
            self.failure = Some(error);
        }
        core
    }
}

impl Backend for WgpuBackend {
    /// Returns 0, because the backend holds its workspace in device memory.
    fn workspace_len(&self, _: &[Job<'_>]) -> usize {
        0
    }

    fn measure(&mut self, jobs: &[Job<'_>], _: &mut [u64], rows: &mut [f64]) -> Result<(), JobError> {
        if jobs.iter().any(on_the_core) {
            return one_by_one(self, jobs, rows);
        }
        measure(&mut self.gpu, &work(jobs), rows)
            .map_err(|BufferJobError { job, error }| JobError { job, error: self.told(error) })
    }

    fn encode(
        &mut self,
        setting: &Setting,
        gradient: &Gradient<'_>,
        stream: Stream,
        _: &mut [u64],
        payload: &mut [u8],
    ) -> Result<usize, lgreco::Error> {
        if let Setting::Own(_) = setting {
            let mut workspace = vec![0; setting.encode_workspace_len(gradient.shape(), gradient.values().dtype())];
            return setting.encode(gradient, stream, &mut workspace, payload);
        }
        encode(&mut self.gpu, setting, &Input::Host(*gradient), stream, payload).map_err(|error| self.told(error))
    }

    fn decode(&mut self, payload: &[u8], values: &mut [f32]) -> Result<(), lgreco::Error> {
        let parsed = Payload::parse(payload)?;
        let elements = parsed.header.shape.elements();
        if values.len() == elements
            && elements > 0
            && let Some(bytes) = decode(&mut self.gpu, &parsed, None).map_err(|error| self.told(error))?
        {
            values.copy_from_slice(&bytemuck::pod_collect_to_vec::<u8, f32>(&bytes));
            return Ok(());
        }
        lgreco::compress::decode(payload, values).map(|_| ())
    }
}
