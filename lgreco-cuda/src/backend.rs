//! [`CudaBackend`] implements the core's trait [`Backend`]. The backend also offers these operations for gradients and
//! payloads in the caller's device memory.

use crate::codec::{decode, decoded_bytes, encode};
use crate::device::{Device, Part};
use crate::driver::Driver;
use crate::error::DeviceJobError;
use crate::gpu::{Gpu, Scratch};
use crate::pending::Pending;
use crate::rows::measure;
use crate::tensor::{DeviceGradient, DeviceJob, Input, checked, work};
use crate::{Error, Result, powersgd, qsgd};
use lgreco::backend::{Backend, Job, JobError, on_the_core, one_by_one};
use lgreco::compress::wire::Payload;
use lgreco::compress::{Compressor, Setting};
use lgreco::gradient::{Gradient, Shape};
use lgreco::rng::Stream;
use std::ffi::c_void;

/// An NVIDIA GPU.
///
/// ```no_run
/// use lgreco::backend::{Backend, Job};
/// use lgreco::compress::{Candidates, qsgd::{Qsgd, Rounding}};
/// use lgreco::gradient::{Gradient, Shape, Values};
/// use lgreco::rng::Stream;
/// use lgreco_cuda::CudaBackend;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut backend = CudaBackend::new(0)?;
/// let gradient = Gradient::new(Values::F32(&[1.0, 0.25]), Shape::new(2, 1)?)?;
/// let base = Qsgd { rounding: Rounding::Nearest, ..Qsgd::default() };
/// let candidates = Candidates::Qsgd { base, bits: &[2] };
/// let mut row = [0.0];
/// backend.measure(&[Job { gradient, candidates, stream: Stream::default() }], &mut [], &mut row)?;
/// assert_eq!(row, [0.0625]);
/// # Ok(())
/// # }
/// ```
pub struct CudaBackend {
    gpu: Gpu,
    pending: Pending,
    failure: Option<Error>,
}

impl CudaBackend {
    /// Opens device number `ordinal` (0 is the first) in its primary context, on a new stream. PyTorch, libtorch and
    /// the CUDA runtime share that context.
    ///
    /// ```
    /// match lgreco_cuda::CudaBackend::new(0) {
    ///     Ok(backend) => println!("{} bytes held", backend.held_bytes()),
    ///     Err(error) => println!("{error}"),
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoDriver`], [`Error::NoDevice`], [`Error::NoPools`], [`Error::TooOld`], [`Error::Unsupported`]: the
    /// error says what is missing. [`Error::Driver`], for example if the device has no memory for a context.
    pub fn new(ordinal: usize) -> Result<Self> {
        Ok(Self::on(Box::new(Driver::new(ordinal)?)))
    }

    /// Makes a backend on the caller's stream, in the context of that stream. All work of the backend goes to this
    /// stream. Any thread may call the backend. `cudaStream_t` and `CUstream` are the same type, and null is the
    /// default stream. For a default stream, the backend uses the context that is current on the calling thread. While
    /// the stream is being captured into a graph, calls return [`Error::Captured`]. Calls cannot be captured for two
    /// reasons: calls may wait and allocate, and each replay of the graph would use the same random words. A backend
    /// that is dropped during a capture frees nothing: the workspace, kernels, page-locked memory and events stay until
    /// the context ends.
    ///
    /// ```no_run
    /// use lgreco_cuda::CudaBackend;
    /// use std::ffi::c_void;
    /// fn beside_a_trainer(stream: *mut c_void) -> Result<CudaBackend, lgreco_cuda::Error> {
    ///     // SAFETY: the trainer keeps its stream until the backend is dropped.
    ///     unsafe { CudaBackend::with_stream(stream) }
    /// }
    /// ```
    ///
    /// # Errors
    /// The errors of [`new`](CudaBackend::new); [`Error::NoDevice`] if the stream is a default stream and no context is
    /// current.
    ///
    /// # Safety
    /// The stream belongs to its context, and both outlive the backend.
    pub unsafe fn with_stream(stream: *mut c_void) -> Result<Self> {
        // SAFETY: the caller guarantees that the stream belongs to its context and that both outlive the backend.
        Ok(Self::on(Box::new(unsafe { Driver::with_stream(stream) }?)))
    }

    pub(crate) fn on(device: Box<dyn Device>) -> Self {
        CudaBackend { gpu: Gpu::new(device), pending: Pending::default(), failure: None }
    }

    /// Whether this backend measures and compresses gradients of this shape under this setting. It supports:
    /// * QSGD with buckets that are powers of two from 64 to 4096;
    /// * TopK, also in few bits, and EDEN;
    /// * PowerSGD for sides up to 2^31, if the rank is at most 1024 or the matrix has at most 1024 rows or columns.
    ///
    /// The backend refuses all other settings ([`Error::Method`]), with one exception: under QSGD with other bucket
    /// sizes, the CPU compresses gradients in host memory.
    ///
    /// ```
    /// use lgreco::compress::{Setting, powersgd::PowerSgd, qsgd::Qsgd};
    /// use lgreco::gradient::Shape;
    /// use lgreco_cuda::CudaBackend;
    /// let setting = Setting::PowerSgd(PowerSgd { rank: 1500, iterations: 1 });
    /// assert!(!CudaBackend::takes(&setting, Shape::new(2048, 2048)?));
    /// assert!(CudaBackend::takes(&setting, Shape::new(2048, 1024)?)); // of rank 1024
    /// assert!(CudaBackend::takes(&setting, Shape::new(1 << 31, 1)?));
    /// assert!(!CudaBackend::takes(&setting, Shape::new((1 << 31) + 1, 1)?));
    /// assert!(!CudaBackend::takes(&Setting::Dense, Shape::new(2048, 1024)?)); // there is nothing to make
    /// assert!(!CudaBackend::takes(&Setting::Qsgd(Qsgd { bucket: 100, ..Qsgd::default() }), Shape::new(64, 64)?));
    /// # Ok::<(), lgreco::Error>(())
    /// ```
    pub fn takes(setting: &Setting, shape: Shape) -> bool {
        match setting {
            Setting::Qsgd(qsgd) => qsgd::holds(qsgd.bucket),
            Setting::TopK(_) | Setting::QuantisedTopK(_) | Setting::Eden(_) => true,
            Setting::PowerSgd(power) => powersgd::check(shape, power.rank).is_ok(),
            _ => false,
        }
    }

    /// Bytes of the workspace: device memory that the backend holds between calls. The workspace grows with the largest
    /// layer. Under PowerSGD and TopK in few bits, it also grows with the number of layers. Each of these methods takes
    /// at most 512 MiB plus one layer. [`reserve`](CudaBackend::reserve) allocates the workspace beforehand.
    pub fn held_bytes(&self) -> u64 {
        self.gpu.held()
    }

    /// Done: waits for all enqueued work.
    ///
    /// # Errors
    /// [`Error::Driver`] if the wait, or any earlier enqueued work, has failed.
    pub fn synchronise(&mut self) -> Result<()> {
        self.gpu.synchronise()
    }

    /// The full error of the device for the last call through [`Backend`] that returned
    /// [`Device`](lgreco::Error::Device). [`Device`](lgreco::Error::Device) itself has no details.
    pub fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// Done: [`Backend::measure`] for gradients on the device. Only the rows are copied to the host.
    ///
    /// ```no_run
    /// use lgreco::compress::{Candidates, qsgd::Qsgd};
    /// use lgreco::{gradient::{Dtype, Shape}, rng::Stream};
    /// use lgreco_cuda::{CudaBackend, DeviceGradient, DeviceJob};
    /// /// Squared errors at 2 and 4 bits, for 64 × 64 bf16 values at a device address.
    /// fn row(cuda: &mut CudaBackend, address: u64) -> Result<[f64; 2], Box<dyn std::error::Error>> {
    ///     // SAFETY: the trainer's memory has this size, and only work on the backend's stream writes it.
    ///     let gradient = unsafe { DeviceGradient::new(address, Dtype::Bf16, Shape::new(64, 64)?) }?;
    ///     let candidates = Candidates::Qsgd { base: Qsgd::default(), bits: &[2, 4] };
    ///     let mut row = [0.0; 2];
    ///     cuda.measure_device(&[DeviceJob { gradient, candidates, stream: Stream::default() }], &mut row)?;
    ///     Ok(row)
    /// }
    /// ```
    ///
    /// # Errors
    /// The number and the error of the first job that fails. With `job: None`: [`Length`](lgreco::Error::Length) unless
    /// `rows` has one element per candidate, and errors of the device.
    pub fn measure_device(&mut self, jobs: &[DeviceJob<'_>], rows: &mut [f64]) -> Result<(), DeviceJobError> {
        measure(&mut self.gpu, &work(jobs), rows)
    }

    /// Done: [`Backend::encode`] for a gradient on the device. Only the payload is copied to the host.
    ///
    /// ```no_run
    /// use lgreco::compress::{Compressor, Setting, qsgd::Qsgd};
    /// use lgreco::rng::Stream;
    /// use lgreco_cuda::{CudaBackend, DeviceGradient, Error};
    /// fn payload(cuda: &mut CudaBackend, gradient: DeviceGradient) -> Result<Vec<u8>, Error> {
    ///     let setting = Setting::Qsgd(Qsgd::default());
    ///     let mut payload = vec![0; setting.payload_len(gradient.shape(), gradient.dtype())?];
    ///     cuda.encode_device(&setting, &gradient, Stream::default(), &mut payload)?;
    ///     Ok(payload)
    /// }
    /// ```
    ///
    /// # Errors
    /// The errors of [`Compressor::encode`](lgreco::compress::Compressor::encode), and errors of the device.
    pub fn encode_device(
        &mut self,
        setting: &Setting,
        gradient: &DeviceGradient,
        stream: Stream,
        payload: &mut [u8],
    ) -> Result<usize> {
        encode(&mut self.gpu, setting, &Input::Device(*gradient), stream, payload)
    }

    /// Enqueued: decodes a payload in host memory into f32 values at `address`, a multiple of 4. If the device decodes
    /// a payload of TopK, EDEN or PowerSGD, the call waits until it has checked the payload. After an error, none of
    /// the values may be used. The payload is read before the call returns. If more than 4 MiB of uploads would be
    /// pending, the call waits until the device has read 2 MiB of them.
    ///
    /// ```no_run
    /// # use lgreco_cuda::{CudaBackend, Error};
    /// /// `values` is the address of device memory for all f32 values that the payload decodes to.
    /// fn received(cuda: &mut CudaBackend, payload: &[u8], values: u64) -> Result<(), Error> {
    ///     // SAFETY: the trainer's memory has this size, and only work on the backend's stream uses it.
    ///     unsafe { cuda.decode_to_device(payload, values) }
    /// }
    /// ```
    ///
    /// # Errors
    /// The errors of [`decode`](lgreco::compress::decode), and errors of the device.
    ///
    /// # Safety
    /// `address` is valid memory of four bytes per element in the backend's context. Any other work on this memory is
    /// ordered before or after this call on the backend's stream.
    pub unsafe fn decode_to_device(&mut self, payload: &[u8], address: u64) -> Result<()> {
        let target = checked(address, decoded_bytes(Payload::parse(payload)?.header.shape), 4)?;
        self.decode_to_part(payload, target)
    }

    /// Enqueued: decodes a payload into f32 values. If the device decodes a payload of TopK, EDEN or PowerSGD, the call
    /// waits until it has checked the payload.
    pub(crate) fn decode_to_part(&mut self, payload: &[u8], target: Part) -> Result<()> {
        let parsed = Payload::parse(payload)?;
        let elements = parsed.header.shape.elements();
        if elements > 0 && decode(&mut self.gpu, payload, &parsed, target)? {
            return Ok(());
        }
        let mut values = vec![0.0f32; elements];
        lgreco::compress::decode(payload, &mut values)?;
        self.gpu.write(bytemuck::cast_slice(&values), target)
    }

    pub(crate) fn gpu_mut(&mut self) -> &mut Gpu {
        &mut self.gpu
    }

    pub(crate) fn gpu_and_pending(&mut self) -> (&mut Gpu, &mut Pending) {
        (&mut self.gpu, &mut self.pending)
    }

    fn told(&mut self, error: Error) -> lgreco::Error {
        let core = error.to_core();
        if !matches!(error, Error::Core(_)) {
            self.failure = Some(error);
        }
        core
    }
}

/// Rows agree with the core's within 1e-4. Payloads of QSGD, TopK and EDEN are bit for bit the same as the core's, and
/// so are their decoded values.
impl Backend for CudaBackend {
    /// No host workspace is needed, because the workspace is in device memory.
    fn workspace_len(&self, _: &[Job<'_>]) -> usize {
        0
    }

    fn measure(&mut self, jobs: &[Job<'_>], _: &mut [u64], rows: &mut [f64]) -> Result<(), JobError> {
        if jobs.iter().any(on_the_core) {
            return one_by_one(self, jobs, rows);
        }
        let measured = measure(&mut self.gpu, &work(jobs), rows);
        measured.map_err(|DeviceJobError { job, error }| JobError { job, error: self.told(error) })
    }

    fn encode(
        &mut self,
        setting: &Setting,
        gradient: &Gradient<'_>,
        stream: Stream,
        _: &mut [u64],
        payload: &mut [u8],
    ) -> Result<usize, lgreco::Error> {
        if let Setting::Own(own) = setting {
            let mut workspace = vec![0; own.encode_workspace_len(gradient.shape(), gradient.values().dtype())];
            return own.encode(gradient, stream, &mut workspace, payload);
        }
        encode(&mut self.gpu, setting, &Input::Host(*gradient), stream, payload).map_err(|error| self.told(error))
    }

    fn decode(&mut self, payload: &[u8], values: &mut [f32]) -> Result<(), lgreco::Error> {
        let parsed = Payload::parse(payload)?;
        let elements = parsed.header.shape.elements();
        if values.len() == elements && elements > 0 {
            let decoded = self.decode_with_room(payload, &parsed, values);
            if decoded.map_err(|error| self.told(error))? {
                return Ok(());
            }
        }
        lgreco::compress::decode(payload, values).map(|_| ())
    }
}

impl CudaBackend {
    /// Done: decodes like [`decode`], but writes the values to host memory.
    fn decode_with_room(&mut self, bytes: &[u8], payload: &Payload<'_>, values: &mut [f32]) -> Result<bool> {
        let part = self.gpu.scratch(Scratch::Output, decoded_bytes(payload.header.shape))?;
        if !decode(&mut self.gpu, bytes, payload, part)? {
            return Ok(false);
        }
        self.gpu.read_into(part, bytemuck::cast_slice_mut(values))?;
        Ok(true)
    }
}
