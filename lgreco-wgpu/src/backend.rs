//! The backend: the core's interface, and the same on the embedder's buffers.

use crate::Error;
use crate::codec::{decode, encode};
use crate::gpu::{Batch, Gpu};
use crate::rows::{Work, measure};
use crate::tensor::{BufferGradient, Input, Tensor};
use lgreco_core::backend::{Backend, Job, JobError};
use lgreco_core::compress::wire::Payload;
use lgreco_core::compress::{Candidates, Setting};
use lgreco_core::gradient::Gradient;
use lgreco_core::rng::Stream;
use wgpu::{Buffer, BufferUsages};

/// A row to measure of a gradient that lies on the device; see [`Job`].
///
/// ```
/// use lgreco_core::compress::Candidates;
/// use lgreco_core::{gradient::Dtype, rng::Stream};
/// use lgreco_wgpu::{BufferGradient, BufferJob};
/// fn densities(gradient: BufferGradient<'_>) -> BufferJob<'_> {
///     let candidates = Candidates::TopK { values: Dtype::F32, keeps: &[10, 100, 1000] };
///     BufferJob { gradient, candidates, stream: Stream::default() }
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct BufferJob<'a> {
    /// The layer's gradient.
    pub gradient: BufferGradient<'a>,
    /// What it is to be measured under.
    pub candidates: Candidates<'a>,
    /// Source of start matrices.
    pub stream: Stream,
}

/// An error and the job of the batch it happened in.
///
/// ```
/// use lgreco_wgpu::{BufferJobError, Error};
/// let failed = BufferJobError { job: 2, error: Error::Lost("reset".into()) };
/// assert_eq!(failed.to_string(), "job 2: the device is lost: reset");
/// ```
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("job {job}: {error}")]
pub struct BufferJobError {
    /// Index of the job in its batch; 0 when the batch as a whole failed.
    pub job: usize,
    /// What went wrong.
    pub error: Error,
}

/// Any GPU that wgpu can drive.
///
/// ```
/// use lgreco_core::backend::{Backend, Job};
/// use lgreco_core::compress::Candidates;
/// use lgreco_core::gradient::{Dtype, Gradient, Shape, Values};
/// use lgreco_core::rng::Stream;
/// use lgreco_wgpu::WgpuBackend;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let Ok(_) = WgpuBackend::new() else { return Ok(()) };
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
    /// The fastest adapter there is: WebGPU's own choice of high performance.
    ///
    /// ```
    /// match lgreco_wgpu::WgpuBackend::new() {
    ///     Ok(backend) => println!("{:?}", backend.device().limits()),
    ///     Err(error) => println!("{error}"),
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoAdapter`] with the reason; [`Error::Limit`] when it cannot do what the kernels need.
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

    /// A device of its own on `adapter`, with all of its limits, and subgroups if it has them.
    ///
    /// ```no_run
    /// use lgreco_wgpu::{WgpuBackend, wgpu};
    /// fn on(adapter: &wgpu::Adapter) -> Result<WgpuBackend, lgreco_wgpu::Error> {
    ///     println!("{}", adapter.get_info().name);
    ///     WgpuBackend::with_adapter(adapter)
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`new`](WgpuBackend::new).
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

    /// The embedder's device, whose buffers it can then work on. Takes the device's lost callback.
    ///
    /// ```no_run
    /// use lgreco_wgpu::{WgpuBackend, wgpu};
    /// fn beside_a_renderer(device: &wgpu::Device, queue: &wgpu::Queue) -> Result<WgpuBackend, lgreco_wgpu::Error> {
    ///     WgpuBackend::with_device(device.clone(), queue.clone()) // handles of the same device
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::Limit`] when a limit is below what the kernels need; the defaults of WebGPU are enough.
    pub fn with_device(device: wgpu::Device, queue: wgpu::Queue) -> Result<Self, Error> {
        Ok(WgpuBackend { gpu: Gpu::new(device, queue)?, failure: None })
    }

    /// The device.
    ///
    /// ```
    /// # let Ok(backend) = lgreco_wgpu::WgpuBackend::new() else { return };
    /// assert!(backend.device().limits().max_storage_buffer_binding_size >= 2 << 20);
    /// ```
    pub fn device(&self) -> &wgpu::Device {
        &self.gpu.device
    }

    /// The queue all work is submitted to.
    ///
    /// ```
    /// # use lgreco_wgpu::wgpu;
    /// # let Ok(backend) = lgreco_wgpu::WgpuBackend::new() else { return };
    /// # let descriptor = wgpu::BufferDescriptor {
    /// #     label: None,
    /// #     size: 16,
    /// #     usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST,
    /// #     mapped_at_creation: false,
    /// # };
    /// let buffer = backend.device().create_buffer(&descriptor);
    /// backend.queue().write_buffer(&buffer, 0, &[0; 16]);
    /// ```
    pub fn queue(&self) -> &wgpu::Queue {
        &self.gpu.queue
    }

    /// Bytes of device memory held between calls: tables and workspace, which grow with the largest layer. Uploads (of at
    /// most about 256 MiB at a time) and payloads come on top while a call runs.
    ///
    /// ```
    /// # let Ok(backend) = lgreco_wgpu::WgpuBackend::new() else { return };
    /// assert_eq!(backend.held_bytes(), 0); // before any work
    /// ```
    pub fn held_bytes(&self) -> u64 {
        self.gpu.held()
    }

    /// What the device said, in full, when a call through [`Backend`] last answered
    /// [`Device`](lgreco_core::Error::Device), whose text is shorter.
    ///
    /// ```
    /// # let Ok(backend) = lgreco_wgpu::WgpuBackend::new() else { return };
    /// assert_eq!(backend.failure(), None); // so far
    /// ```
    pub fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// [`Backend::measure`] for gradients on the device: only the rows come back.
    ///
    /// ```
    /// use lgreco_core::backend::Backend;
    /// use lgreco_core::compress::{Candidates, Compressor, Setting, qsgd::Qsgd};
    /// use lgreco_core::gradient::{Dtype, Shape};
    /// use lgreco_core::rng::Stream;
    /// use lgreco_wgpu::{BufferGradient, BufferJob, WgpuBackend, wgpu};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let Ok(mut backend) = WgpuBackend::new() else { return Ok(()) };
    /// let buffer = backend.device().create_buffer(&wgpu::BufferDescriptor {
    ///     label: None,
    ///     size: 4 * 4096,
    ///     usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
    ///     mapped_at_creation: false,
    /// }); // zeros; a trainer's kernels would fill it
    /// let gradient = BufferGradient { buffer: &buffer, offset: 0, dtype: Dtype::F32, shape: Shape::new(64, 64)? };
    /// let candidates = Candidates::Qsgd { base: Qsgd::default(), bits: &[2, 4] };
    /// let mut row = [f64::NAN; 2];
    /// backend.measure_buffers(&[BufferJob { gradient, candidates, stream: Stream::default() }], &mut row)?;
    /// assert_eq!(row, [0.0; 2]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The first job that fails, with its reason.
    pub fn measure_buffers(&mut self, jobs: &[BufferJob<'_>], rows: &mut [f64]) -> Result<(), BufferJobError> {
        let work: Vec<Work<'_>> =
            jobs.iter().map(|job| Work::new(Input::Device(job.gradient), job.candidates, job.stream)).collect();
        measure(&mut self.gpu, &work, rows).map_err(|(job, error)| BufferJobError { job, error })
    }

    /// [`Backend::encode`] for a gradient on the device: only the payload comes back.
    ///
    /// ```
    /// use lgreco_core::backend::Backend;
    /// use lgreco_core::compress::{Candidates, Compressor, Setting, qsgd::Qsgd};
    /// use lgreco_core::gradient::{Dtype, Shape};
    /// use lgreco_core::rng::Stream;
    /// use lgreco_wgpu::{BufferGradient, BufferJob, WgpuBackend, wgpu};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let Ok(mut backend) = WgpuBackend::new() else { return Ok(()) };
    /// let buffer = backend.device().create_buffer(&wgpu::BufferDescriptor {
    ///     label: None,
    ///     size: 4 * 4096,
    ///     usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
    ///     mapped_at_creation: false,
    /// }); // zeros; a trainer's kernels would fill it
    /// let gradient = BufferGradient { buffer: &buffer, offset: 0, dtype: Dtype::F32, shape: Shape::new(64, 64)? };
    /// let setting = Setting::Qsgd(Qsgd::default());
    /// let mut payload = vec![0; setting.payload_len(gradient.shape, gradient.dtype)?];
    /// backend.encode_buffer(&setting, &gradient, Stream::default(), &mut payload)?;
    /// backend.decode_to_buffer(&payload, &buffer, 0)?; // what the receivers will have
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Compressor::encode`](lgreco_core::compress::Compressor::encode), and those of the device.
    pub fn encode_buffer(
        &mut self,
        setting: &Setting,
        gradient: &BufferGradient<'_>,
        stream: Stream,
        payload: &mut [u8],
    ) -> Result<usize, Error> {
        encode(&mut self.gpu, setting, &Input::Device(*gradient), stream, payload)
    }

    /// Decodes a payload into f32 values of `buffer` (usage `COPY_DST`) from byte `offset`, a multiple of 4, on. Nothing
    /// of them may be used when an error is returned. [`encode_buffer`](WgpuBackend::encode_buffer) has an example.
    ///
    /// # Errors
    /// As [`decode`](lgreco_core::compress::decode), and those of the device.
    pub fn decode_to_buffer(&mut self, payload: &[u8], buffer: &Buffer, offset: u64) -> Result<(), Error> {
        let parsed = Payload::parse(payload)?;
        let bytes = 4 * parsed.header.shape.elements() as u64;
        if !buffer.usage().contains(BufferUsages::COPY_DST) {
            return Err(Error::Buffer { what: "needs the usage COPY_DST" });
        }
        if !offset.is_multiple_of(4) {
            return Err(Error::Buffer { what: "is to be written at an offset that is no multiple of 4" });
        }
        if offset.checked_add(bytes).is_none_or(|end| end > buffer.size()) {
            return Err(Error::Buffer { what: "ends before the values do" });
        }
        let elements = parsed.header.shape.elements();
        if elements > 0
            && decode(&mut self.gpu, payload, &parsed, Some(Tensor::of_buffer(buffer, offset, elements)))?.is_some()
        {
            return Ok(());
        }
        let mut values = vec![0.0f32; elements];
        lgreco_core::compress::decode(payload, &mut values)?;
        let mut batch = Batch::new(&mut self.gpu)?;
        batch.write(buffer, offset, bytemuck::cast_slice(&values));
        batch.read(&[]).map(|_| ())
    }

    pub(crate) fn gpu(&mut self) -> &mut Gpu {
        &mut self.gpu
    }

    fn told(&mut self, error: Error) -> lgreco_core::Error {
        let core = error.to_core();
        if !matches!(error, Error::Core(_)) {
            self.failure = Some(error);
        }
        core
    }
}

impl Backend for WgpuBackend {
    /// None: workspace is memory of the device, which the backend holds.
    fn workspace_len(&self, _: &[Job<'_>]) -> usize {
        0
    }

    fn measure(&mut self, jobs: &[Job<'_>], _: &mut [u64], rows: &mut [f64]) -> Result<(), JobError> {
        let work: Vec<Work<'_>> =
            jobs.iter().map(|job| Work::new(Input::Host(job.gradient), job.candidates, job.stream)).collect();
        measure(&mut self.gpu, &work, rows).map_err(|(job, error)| JobError { job, error: self.told(error) })
    }

    fn encode(
        &mut self,
        setting: &Setting,
        gradient: &Gradient<'_>,
        stream: Stream,
        _: &mut [u64],
        payload: &mut [u8],
    ) -> Result<usize, lgreco_core::Error> {
        encode(&mut self.gpu, setting, &Input::Host(*gradient), stream, payload).map_err(|error| self.told(error))
    }

    fn decode(&mut self, payload: &[u8], values: &mut [f32]) -> Result<(), lgreco_core::Error> {
        let parsed = Payload::parse(payload)?;
        let elements = parsed.header.shape.elements();
        if values.len() == elements
            && elements > 0
            && let Some(bytes) = decode(&mut self.gpu, payload, &parsed, None).map_err(|error| self.told(error))?
        {
            values.copy_from_slice(&bytemuck::pod_collect_to_vec::<u8, f32>(&bytes));
            return Ok(());
        }
        lgreco_core::compress::decode(payload, values).map(|_| ())
    }
}
