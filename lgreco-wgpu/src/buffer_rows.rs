//! Rows whose results stay on the device: enqueued, and read when the embedder has brought them to the host.

use crate::Error;
use crate::backend::WgpuBackend;
use crate::buffers::check_target;
use crate::error::BufferJobError;
use crate::rows::{check_all, enqueue, results_bytes, take_rows};
use crate::tensor::{BufferJob, work};
use lgreco::error::expect_len;
use wgpu::Buffer;

impl WgpuBackend {
    /// Bytes of results that [`enqueue_rows`](WgpuBackend::enqueue_rows) leaves of `jobs`, a multiple of 64. No device is asked, and
    /// no gradient read.
    ///
    /// # Errors
    /// The first job that cannot be measured, whatever its values.
    pub fn rows_bytes(&self, jobs: &[BufferJob<'_>]) -> Result<u64, BufferJobError> {
        let jobs = work(jobs);
        check_all(&jobs)?;
        Ok(results_bytes(&jobs))
    }

    /// [`measure_buffers`](WgpuBackend::measure_buffers) but for its wait: submits what measures the jobs, and behind it a copy of the
    /// results to `results`, a buffer of the embedder's (usage `COPY_DST`) with room for [`rows_bytes`](WgpuBackend::rows_bytes) from
    /// byte `offset`, a multiple of 4, on. It neither waits nor reads back; a buffer that the embedder can map (`MAP_READ`) needs no
    /// other copy. [`read_rows`](WgpuBackend::read_rows) makes rows of the bytes.
    ///
    /// Workspace is the backend's: [`reserve_buffers`](WgpuBackend::reserve_buffers), or the first call, takes it and compiles the
    /// kernels, and calls for the same shapes take nothing after that. Whatever the embedder or the backend submits next comes behind
    /// it, so gradients may be overwritten and workspace is used again. wgpu stages what the host writes, the tables of tasks, in
    /// memory of its own, which it has back when it is polled or something is submitted.
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
    /// // The trainer goes on, and polls the device without waiting. Steps later the buffer is mapped:
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
    /// As [`rows_bytes`](WgpuBackend::rows_bytes), and [`Error::TooLarge`] with the job whose tables do not fit; without a job
    /// [`Error::Buffer`] when the results cannot be copied there, and what the driver says of a call it is given, which wgpu knows at
    /// once: [`Error::Refused`], of a buffer that is mapped for example, and [`Error::OutOfMemory`]. What is at `results` may then not
    /// be used. A device that is lost while it works is told by the next call, as [`Error::Lost`], and by what maps the buffer.
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

    /// Makes rows, one after another, of the bytes that [`enqueue_rows`](WgpuBackend::enqueue_rows) has left of these jobs. Asks the
    /// device only where a gradient is not finite, or so large that the core would look more closely: then it waits, and the
    /// gradients must still be there.
    ///
    /// # Errors
    /// As [`measure_buffers`](WgpuBackend::measure_buffers); without a job [`Length`](lgreco::Error::Length), also when there are
    /// not as many bytes.
    pub fn read_rows(&mut self, jobs: &[BufferJob<'_>], bytes: &[u8], rows: &mut [f64]) -> Result<(), BufferJobError> {
        let jobs = work(jobs);
        check_all(&jobs)?;
        expect_len("bytes of results", results_bytes(&jobs) as usize, bytes.len()).map_err(Error::from)?;
        take_rows(self.gpu(), &jobs, bytes, rows)
    }
}
