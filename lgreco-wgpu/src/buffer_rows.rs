//! Rows of the error table whose results stay on the device. The caller copies the results to the host.

use crate::Error;
use crate::backend::WgpuBackend;
use crate::buffers::check_target;
use crate::error::BufferJobError;
use crate::rows::{check_all, enqueue, results_bytes, take_rows};
use crate::tensor::{BufferJob, work};
use lgreco::error::expect_len;
use wgpu::Buffer;

impl WgpuBackend {
    /// Bytes of the results of [`enqueue_rows`](WgpuBackend::enqueue_rows) for `jobs`, a multiple of 64. The call
    /// neither uses the device nor reads a gradient.
    ///
    /// # Errors
    /// The error of the first job that is invalid whatever its values are.
    pub fn rows_bytes(&self, jobs: &[BufferJob<'_>]) -> Result<u64, BufferJobError> {
        let jobs = work(jobs);
        check_all(&jobs)?;
        Ok(results_bytes(&jobs))
    }

    /// Like [`measure_buffers`](WgpuBackend::measure_buffers), but without a wait. The call submits the measurement and
    /// then a copy of the results to `results`, a buffer of the caller with usage `COPY_DST`. The buffer must have
    /// [`rows_bytes`](WgpuBackend::rows_bytes) bytes from byte `offset` on, and `offset` must be a multiple of 4. If
    /// the caller can map the buffer (`MAP_READ`), no other copy is needed. [`read_rows`](WgpuBackend::read_rows) makes
    /// the rows from the bytes.
    ///
    /// The workspace belongs to the backend. [`reserve_buffers`](WgpuBackend::reserve_buffers), or the first call,
    /// allocates the workspace and compiles the kernels. Later calls for the same shapes allocate nothing. The device
    /// runs submissions in order, so later work may overwrite the gradients and reuse the workspace. To upload the
    /// host's tables of tasks, wgpu allocates staging memory, and reclaims this memory at the next poll or submission.
    ///
    /// ```
    /// use lgreco::compress::{Candidates, qsgd::Qsgd};
    /// use lgreco::{gradient::{Dtype, Shape}, rng::Stream};
    /// use lgreco_wgpu::{BufferGradient, BufferJob, WgpuBackend, wgpu};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default()); // an embedder has a real one
    /// # let mut backend = WgpuBackend::with_device(device, queue)?;
    /// let buffer = |backend: &WgpuBackend, size, usage| {
    ///     let descriptor = wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false };
    ///     backend.device().create_buffer(&descriptor)
    /// };
    /// let held = buffer(&backend, 4 * 4096, wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC);
    /// let gradient = BufferGradient { buffer: &held, offset: 0, dtype: Dtype::F32, shape: Shape::new(64, 64)? };
    /// let candidates = Candidates::Qsgd { base: Qsgd::default(), bits: &[2, 4] };
    /// let jobs = [BufferJob { gradient, candidates, stream: Stream::default() }];
    /// backend.reserve_buffers(&jobs)?;
    /// let bytes = backend.rows_bytes(&jobs)?;
    /// let results = buffer(&backend, bytes, wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST);
    ///
    /// backend.enqueue_rows(&jobs, &results, 0)?;
    /// results.map_async(wgpu::MapMode::Read, .., |mapped| mapped.expect("a buffer that is mapped"));
    /// // The trainer continues, and polls the device without waiting. Some steps later the buffer is mapped:
    /// # backend.device().poll(wgpu::PollType::wait_indefinitely())?;
    /// let mut row = [f64::NAN; 2];
    /// backend.read_rows(&jobs, &results.get_mapped_range(..bytes)?, &mut row)?;
    /// results.unmap();
    /// assert_eq!(row, [0.0; 2]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`rows_bytes`](WgpuBackend::rows_bytes), and [`Error::TooLarge`] with the job whose tables do not
    /// fit. Without a job: [`Error::Buffer`] if the results cannot be copied to `results`, and errors that wgpu reports
    /// within this call: [`Error::Refused`], for example for a mapped buffer, and [`Error::OutOfMemory`]. After an
    /// error the content of `results` must not be used. If the device is lost during the work, the next call returns
    /// [`Error::Lost`], and mapping the buffer fails.
    pub fn enqueue_rows(
        &mut self,
        jobs: &[BufferJob<'_>],
        results: &Buffer,
        offset: u64,
    ) -> Result<(), BufferJobError> {
        let jobs = work(jobs);
        check_all(&jobs)?;
        check_target(results, offset, results_bytes(&jobs))?;
        enqueue(self.gpu(), &jobs, results, offset)
    }

    /// Makes the rows of these jobs, one after another, from the bytes that [`enqueue_rows`](WgpuBackend::enqueue_rows)
    /// left. The call uses the device only if a gradient is not finite, or so large that a payload might overflow. If
    /// the call uses the device, it waits, and the gradients must still exist.
    ///
    /// # Errors
    /// The errors of [`measure_buffers`](WgpuBackend::measure_buffers). Without a job:
    /// [`Length`](lgreco::Error::Length) if `bytes` or `rows` has a wrong length.
    pub fn read_rows(&mut self, jobs: &[BufferJob<'_>], bytes: &[u8], rows: &mut [f64]) -> Result<(), BufferJobError> {
        let jobs = work(jobs);
        check_all(&jobs)?;
        expect_len("bytes of results", results_bytes(&jobs) as usize, bytes.len()).map_err(Error::from)?;
        take_rows(self.gpu(), &jobs, bytes, rows)
    }
}
