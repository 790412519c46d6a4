//! Calls of the backend for gradients and values in the caller's buffers.

use crate::Error;
use crate::backend::WgpuBackend;
use crate::batch::Batch;
use crate::codec::{decode, encode};
use crate::error::BufferJobError;
use crate::rows::measure;
use crate::tensor::{BufferGradient, BufferJob, Input, Tensor, work};
use lgreco::compress::Setting;
use lgreco::compress::wire::Payload;
use lgreco::rng::Stream;
use wgpu::{Buffer, BufferUsages};

/// `Err` unless `bytes` bytes can be copied to byte `offset` of a buffer.
pub(crate) fn check_target(buffer: &Buffer, offset: u64, bytes: u64) -> Result<(), Error> {
    if !buffer.usage().contains(BufferUsages::COPY_DST) {
        return Err(Error::Buffer { what: "needs the usage COPY_DST" });
    }
    if !offset.is_multiple_of(4) {
        return Err(Error::Buffer { what: "is to be written at an offset that is no multiple of 4" });
    }
    if offset.checked_add(bytes).is_none_or(|end| end > buffer.size()) {
        return Err(Error::Buffer { what: "ends before the values do" });
    }
    Ok(())
}

impl WgpuBackend {
    /// Like [`reserve`](WgpuBackend::reserve), but for [`measure_buffers`](WgpuBackend::measure_buffers) and
    /// [`enqueue_rows`](WgpuBackend::enqueue_rows), which upload no gradients.
    ///
    /// ```
    /// use lgreco::compress::{Candidates, topk::TopK};
    /// use lgreco::{gradient::{Dtype, Shape}, rng::Stream};
    /// use lgreco_wgpu::{BufferGradient, BufferJob, WgpuBackend, wgpu};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (device, queue) = wgpu::Device::noop(&wgpu::DeviceDescriptor::default()); // an embedder has a real one
    /// let mut backend = WgpuBackend::with_device(device, queue)?;
    /// let buffer = backend.device().create_buffer(&wgpu::BufferDescriptor {
    ///     label: None,
    ///     size: 4 * 4096,
    ///     usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC,
    ///     mapped_at_creation: false,
    /// });
    /// let gradient = BufferGradient { buffer: &buffer, offset: 0, dtype: Dtype::F32, shape: Shape::new(64, 64)? };
    /// let candidates = Candidates::TopK { values: Dtype::F32, keeps: &[41, 410] };
    /// let bytes = backend.reserve_buffers(&[BufferJob { gradient, candidates, stream: Stream::default() }])?;
    /// println!("{} MiB of tables", bytes >> 20);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`reserve`](WgpuBackend::reserve).
    pub fn reserve_buffers(&mut self, jobs: &[BufferJob<'_>]) -> Result<u64, BufferJobError> {
        self.reserve_for(&work(jobs))
    }

    /// [`Backend::measure`](lgreco::backend::Backend::measure) for gradients on the device. Only the rows are copied to
    /// the host. [`enqueue_rows`](WgpuBackend::enqueue_rows) does the same without a wait.
    ///
    /// ```
    /// use lgreco::backend::Backend;
    /// use lgreco::compress::{Candidates, Compressor, Setting, qsgd::Qsgd};
    /// use lgreco::gradient::{Dtype, Shape};
    /// use lgreco::rng::Stream;
    /// use lgreco_wgpu::{BufferGradient, BufferJob, WgpuBackend, wgpu};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default()); // an embedder has a real one
    /// # let mut backend = WgpuBackend::with_device(device, queue)?;
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
    /// The error of the first job that fails. Errors of the device come without a job.
    pub fn measure_buffers(&mut self, jobs: &[BufferJob<'_>], rows: &mut [f64]) -> Result<(), BufferJobError> {
        measure(self.gpu(), &work(jobs), rows)
    }

    /// [`Backend::encode`](lgreco::backend::Backend::encode) for a gradient on the device. Only the payload is copied
    /// to the host.
    ///
    /// ```
    /// use lgreco::backend::Backend;
    /// use lgreco::compress::{Candidates, Compressor, Setting, qsgd::Qsgd};
    /// use lgreco::gradient::{Dtype, Shape};
    /// use lgreco::rng::Stream;
    /// use lgreco_wgpu::{BufferGradient, BufferJob, WgpuBackend, wgpu};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default()); // an embedder has a real one
    /// # let mut backend = WgpuBackend::with_device(device, queue)?;
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
    /// backend.decode_to_buffer(&payload, &buffer, 0)?; // the values that the receivers will have
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`Compressor::encode`](lgreco::compress::Compressor::encode), and errors of the device.
    pub fn encode_buffer(
        &mut self,
        setting: &Setting,
        gradient: &BufferGradient<'_>,
        stream: Stream,
        payload: &mut [u8],
    ) -> Result<usize, Error> {
        encode(self.gpu(), setting, &Input::Device(*gradient), stream, payload)
    }

    /// Decodes a payload into f32 values of `buffer` (usage `COPY_DST`), from byte `offset` on, a multiple of 4. After
    /// an error none of the values may be used. [`encode_buffer`](WgpuBackend::encode_buffer) has an example.
    ///
    /// # Errors
    /// The errors of [`decode`](lgreco::compress::decode), and errors of the device.
    pub fn decode_to_buffer(&mut self, payload: &[u8], buffer: &Buffer, offset: u64) -> Result<(), Error> {
        let parsed = Payload::parse(payload)?;
        let bytes = 4 * parsed.header.shape.elements() as u64;
        check_target(buffer, offset, bytes)?;
        let elements = parsed.header.shape.elements();
        if elements > 0 && decode(self.gpu(), &parsed, Some(Tensor::of_buffer(buffer, offset, elements)))?.is_some() {
            return Ok(());
        }
        let mut values = vec![0.0f32; elements];
        lgreco::compress::decode(payload, &mut values)?;
        let mut batch = Batch::new(self.gpu())?;
        batch.write(buffer, offset, bytemuck::cast_slice(&values));
        batch.read(&[]).map(|_| ())
    }
}
