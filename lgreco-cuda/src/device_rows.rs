//! Rows of the error table whose results stay on the device. The caller provides the memory and copies the results to
//! the host.

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

/// Device memory that [`enqueue_rows`](CudaBackend::enqueue_rows) needs, in bytes.
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
    /// Bytes of the workspace, which is in use until the enqueued work is done.
    pub workspace: u64,
    /// Bytes of the results, a multiple of 8.
    pub results: u64,
}

/// Enqueues the jobs on a recording device. Returns the recording device with the workspace that the jobs need, and the
/// number of host bytes that the jobs upload.
fn rehearsed(jobs: &[Work<'_>]) -> Result<(Gpu, usize), DeviceJobError> {
    check_all(jobs)?;
    let uploaded = Arc::new(AtomicUsize::new(0));
    let mut gpu = Gpu::new(Box::new(Counting { uploaded: uploaded.clone(), ..Counting::default() }));
    enqueue(&mut gpu, jobs, Part { address: 0, bytes: results_bytes(jobs) })?;
    Ok((gpu, uploaded.load(Ordering::Relaxed)))
}

impl CudaBackend {
    /// Bytes of device memory that [`enqueue_rows`](CudaBackend::enqueue_rows) needs for `jobs`. The call neither uses
    /// the device nor reads a gradient.
    ///
    /// # Errors
    /// The number and the error of the first job that is invalid whatever its values are.
    ///
    /// # Complexity
    /// The cost of enqueuing the jobs.
    pub fn rows_bytes(&self, jobs: &[DeviceJob<'_>]) -> Result<RowsBytes, DeviceJobError> {
        let jobs = work(jobs);
        let (gpu, _) = rehearsed(&jobs)?;
        Ok(RowsBytes { workspace: gpu.room(), results: results_bytes(&jobs) })
    }

    /// Enqueued: measures like [`measure_device`](CudaBackend::measure_device), but without a wait, and in the caller's
    /// memory. The results go to `results`. The caller copies the results to the host, for example to page-locked
    /// memory with an event after the copy. Then [`read_rows`](CudaBackend::read_rows) makes the rows from the copy.
    ///
    /// The call waits in three cases. The first call of a backend waits because it loads kernels. A call that uploads
    /// more bytes of tables than every earlier call enlarges the page-locked memory to twice that number. A call also
    /// waits while the page-locked memory is full of tables that the device has not read.
    ///
    /// ```no_run
    /// use lgreco_cuda::{CudaBackend, DeviceJob, DeviceJobError};
    /// /// `allocate` returns the address of new device memory. `to_host` enqueues a copy of the given number of bytes
    /// /// on the backend's stream, waits for the copy (perhaps in another thread), and returns the bytes as words.
    /// fn rows(
    ///     cuda: &mut CudaBackend,
    ///     jobs: &[DeviceJob<'_>],
    ///     allocate: impl Fn(u64) -> u64,
    ///     to_host: impl Fn(u64, u64) -> Vec<u64>,
    /// ) -> Result<Vec<f64>, DeviceJobError> {
    ///     let bytes = cuda.rows_bytes(jobs)?;
    ///     let (workspace, results) = (allocate(bytes.workspace), allocate(bytes.results));
    ///     // SAFETY: both have the required size, and only work on the backend's stream uses them.
    ///     unsafe { cuda.enqueue_rows(jobs, workspace, results) }?;
    ///     let words = to_host(results, bytes.results);
    ///     let mut rows = vec![0.0; jobs.iter().map(|job| job.candidates.len()).sum()];
    ///     cuda.read_rows(jobs, &words, &mut rows)?;
    ///     Ok(rows)
    /// }
    /// ```
    ///
    /// # Errors
    /// The errors of [`rows_bytes`](CudaBackend::rows_bytes). With `job: None`: [`Error::Memory`] if an address is 0,
    /// if the address `workspace` is not a multiple of 256, or if the address `results` is not a multiple of 8. Errors
    /// of the device.
    ///
    /// # Complexity
    /// The cost of [`measure_device`](CudaBackend::measure_device). In addition, the host makes the tables of layers a
    /// second time.
    ///
    /// # Safety
    /// Workspace and results are valid memory of the sizes that [`rows_bytes`](CudaBackend::rows_bytes) returns, in the
    /// backend's context. Workspace and results overlap neither each other nor the gradients. Any other work on this
    /// memory is ordered before or after this call on the backend's stream.
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

    /// Done: copies `words.len()` words from `results` to the host. Make this call from a thread that may block.
    ///
    /// # Errors
    /// [`Error::Memory`] if the address is 0 or not a multiple of 8; errors of the device.
    ///
    /// # Safety
    /// `results` is valid memory of `words.len()` words in the backend's context. Any other work that writes this
    /// memory is ordered before or after this call on the backend's stream.
    pub unsafe fn fetch_results(&mut self, results: u64, words: &mut [u64]) -> Result<()> {
        let results = checked(results, size_of_val(words) as u64, 8)?;
        self.gpu_mut().read_into(results, bytemuck::cast_slice_mut(words))
    }

    /// Makes the rows of these jobs, one after another, from the words that [`enqueue_rows`](CudaBackend::enqueue_rows)
    /// left. The call uses the device only if a gradient is not finite, or so large that a payload might overflow. Then
    /// the call waits for the device, and the gradients must still exist.
    ///
    /// # Errors
    /// The errors of [`measure_device`](CudaBackend::measure_device). Without a job: [`Length`](lgreco::Error::Length),
    /// also for a wrong number of words.
    pub fn read_rows(&mut self, jobs: &[DeviceJob<'_>], words: &[u64], rows: &mut [f64]) -> Result<(), DeviceJobError> {
        let jobs = work(jobs);
        check_all(&jobs)?;
        expect_len("words of results", (results_bytes(&jobs) / 8) as usize, words.len()).map_err(Error::from)?;
        take_rows(self.gpu_mut(), &jobs, words, rows)
    }
}
