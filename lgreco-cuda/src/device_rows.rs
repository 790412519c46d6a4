//! Rows whose results stay on the device: enqueued in the caller's memory, read when the caller has brought them to the host.

use crate::backend::CudaBackend;
use crate::counting::Counting;
use crate::device::Part;
use crate::error::DeviceJobError;
use crate::gpu::Gpu;
use crate::rows::{check_all, enqueue, results_bytes, take_rows};
use crate::tensor::{DeviceJob, Work, checked, work};
use crate::{Error, Result, gpu};
use lgreco::error::expect_len;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What [`enqueue_rows`](CudaBackend::enqueue_rows) takes of device memory, in bytes.
///
/// ```no_run
/// use lgreco_cuda::{CudaBackend, DeviceJob, DeviceJobError, RowsBytes};
/// fn sizes(cuda: &CudaBackend, jobs: &[DeviceJob<'_>]) -> Result<(), DeviceJobError> {
///     let RowsBytes { workspace, results } = cuda.rows_bytes(jobs)?;
///     println!("{workspace} bytes to work in, {results} bytes to bring to the host");
///     Ok(())
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowsBytes {
    /// To work in, until what was enqueued is done.
    pub workspace: u64,
    /// Of results, a multiple of 8.
    pub results: u64,
}

/// A workspace after the jobs were enqueued, and the bytes of the host that they took.
fn rehearsed(jobs: &[Work<'_>]) -> Result<(Gpu, usize), DeviceJobError> {
    check_all(jobs)?;
    let uploaded = Arc::new(AtomicUsize::new(0));
    let mut gpu = Gpu::new(Box::new(Counting { uploaded: uploaded.clone(), ..Counting::default() }));
    enqueue(&mut gpu, jobs, Part { address: 0, bytes: results_bytes(jobs) })?;
    Ok((gpu, uploaded.load(Ordering::Relaxed)))
}

impl CudaBackend {
    /// Bytes of device memory that [`enqueue_rows`](CudaBackend::enqueue_rows) takes for `jobs`. No device is asked, and no gradient
    /// read.
    ///
    /// # Errors
    /// The first job that cannot be measured, whatever its values.
    ///
    /// # Complexity
    /// That of enqueuing the jobs.
    pub fn rows_bytes(&self, jobs: &[DeviceJob<'_>]) -> Result<RowsBytes, DeviceJobError> {
        let jobs = work(jobs);
        let (gpu, _) = rehearsed(&jobs)?;
        Ok(RowsBytes { workspace: gpu.room(), results: results_bytes(&jobs) })
    }

    /// Enqueued: [`measure_device`](CudaBackend::measure_device) but for its wait, in memory of the caller's. Results are at
    /// `results` when that is done; brought to the host, by a copy to page-locked memory and an event behind it for example,
    /// [`read_rows`](CudaBackend::read_rows) makes rows of them. The first call of a backend loads kernels, and one with more tables
    /// than those before makes room for them in page-locked memory: these wait. So does one while tables of earlier calls, which the device has
    /// not read, fill that memory: room is for twice the tables of a call.
    ///
    /// ```no_run
    /// use lgreco_cuda::{CudaBackend, DeviceJob, DeviceJobError};
    /// /// `allocate` gives device memory; `to_host` enqueues a copy of so many bytes on the backend's stream, waits for it, in
    /// /// another thread perhaps, and gives them as words.
    /// fn rows(
    ///     cuda: &mut CudaBackend,
    ///     jobs: &[DeviceJob<'_>],
    ///     allocate: impl Fn(u64) -> u64,
    ///     to_host: impl Fn(u64, u64) -> Vec<u64>,
    /// ) -> Result<Vec<f64>, DeviceJobError> {
    ///     let bytes = cuda.rows_bytes(jobs)?;
    ///     let (workspace, results) = (allocate(bytes.workspace), allocate(bytes.results));
    ///     // SAFETY: as large as that, and used on the backend's stream alone.
    ///     unsafe { cuda.enqueue_rows(jobs, workspace, results) }?;
    ///     let words = to_host(results, bytes.results);
    ///     let mut rows = vec![0.0; jobs.iter().map(|job| job.candidates.len()).sum()];
    ///     cuda.read_rows(jobs, &words, &mut rows)?;
    ///     Ok(rows)
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`rows_bytes`](CudaBackend::rows_bytes); without a job [`Error::Memory`] when the workspace's address is 0 or no multiple of
    /// 256, or that of the results no multiple of 8, and those of the device.
    ///
    /// # Complexity
    /// That of [`measure_device`](CudaBackend::measure_device), with the tables of layers made twice on the host.
    ///
    /// # Safety
    /// Both are valid memory of [`rows_bytes`](CudaBackend::rows_bytes) in the backend's context, apart from each other and from the
    /// gradients, which nothing else uses, other than work ordered before or after on the backend's stream.
    pub unsafe fn enqueue_rows(
        &mut self,
        jobs: &[DeviceJob<'_>],
        workspace: u64,
        results: u64,
    ) -> Result<(), DeviceJobError> {
        let jobs = work(jobs);
        let (rehearsed, uploaded) = rehearsed(&jobs)?;
        let memory = checked(workspace, rehearsed.room(), gpu::ALIGN)?;
        let results = checked(results, results_bytes(&jobs), 8)?;
        let gpu = self.gpu_mut();
        gpu.stage(uploaded)?;
        gpu.within(memory, &rehearsed, |gpu| enqueue(gpu, &jobs, results))
    }

    /// Done: brings as many words as there are from `results` to the host, for who waits on a thread that nobody waits for.
    ///
    /// # Errors
    /// [`Error::Memory`] when the address is 0 or no multiple of 8; those of the device.
    ///
    /// # Safety
    /// There are as many words at `results` in the backend's context, which nothing else writes, other than work ordered before or
    /// after on the backend's stream.
    pub unsafe fn fetch_results(&mut self, results: u64, words: &mut [u64]) -> Result<()> {
        let results = checked(results, size_of_val(words) as u64, 8)?;
        self.gpu_mut().read_into(results, bytemuck::cast_slice_mut(words))
    }

    /// Makes rows, one after another, of the words that [`enqueue_rows`](CudaBackend::enqueue_rows) has left of these jobs. Asks the
    /// device only where a gradient is not finite, or so large that the core would look more closely: then it waits, and the
    /// gradients must still be there.
    ///
    /// # Errors
    /// As [`measure_device`](CudaBackend::measure_device); without a job [`Length`](lgreco::Error::Length), also when there are
    /// not as many words.
    pub fn read_rows(&mut self, jobs: &[DeviceJob<'_>], words: &[u64], rows: &mut [f64]) -> Result<(), DeviceJobError> {
        let jobs = work(jobs);
        check_all(&jobs)?;
        expect_len("words of results", (results_bytes(&jobs) / 8) as usize, words.len()).map_err(Error::from)?;
        take_rows(self.gpu_mut(), &jobs, words, rows)
    }
}
