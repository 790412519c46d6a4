//! Backends measure rows of the error table and make payloads. The trait [`Backend`] is their interface; the CPU
//! backend is the reference.

#[cfg(feature = "rayon")]
mod parallel;

#[cfg(feature = "rayon")]
pub use parallel::Parallel;

use crate::compress::{Candidates, Compressor, Setting, decode};
use crate::error::{expect_len, expect_room};
use crate::gradient::Gradient;
use crate::rng::Stream;
use crate::{Error, Result};
#[cfg(feature = "alloc")]
use alloc::vec::Vec;
use core::fmt;

/// One row to measure: a gradient, candidates and a random stream. By default the gradient is in host memory. A backend
/// may use another type `G`, for example for gradients in device memory.
///
/// ```
/// use lgreco::backend::Job;
/// use lgreco::compress::{Candidates, qsgd::Qsgd};
/// use lgreco::gradient::{Gradient, Shape, Values};
/// use lgreco::rng::Stream;
/// let gradient = Gradient::new(Values::F32(&[1.0, 2.0]), Shape::new(2, 1)?)?;
/// let candidates = Candidates::Qsgd { base: Qsgd::default(), bits: &[2, 3, 4] };
/// let job = Job { gradient, candidates, stream: Stream::default() };
/// assert_eq!(job.candidates.len(), 3); // values in the row
/// # Ok::<(), lgreco::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Job<'a, G = Gradient<'a>> {
    /// The layer's gradient.
    pub gradient: G,
    /// The candidate settings.
    pub candidates: Candidates<'a>,
    /// The random stream, from which start matrices are drawn.
    pub stream: Stream,
}

/// An error of the core or a backend, with the index of the job that failed.
///
/// ```
/// use lgreco::{Error, backend::JobError};
/// let failed = JobError { job: Some(2), error: Error::NonFinite { index: 7, value: f32::NAN } };
/// assert_eq!(failed.to_string(), "job 2: element 7 is NaN: gradients must be finite");
/// let failed = JobError { job: None, error: Error::Device { what: "it is lost" } };
/// assert_eq!(failed.to_string(), "the device failed: it is lost");
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JobError<E = Error> {
    /// Index of the failed job in its batch. `None` when the batch as a whole failed.
    pub job: Option<usize>,
    /// The error.
    pub error: E,
}

impl<E: fmt::Display> fmt::Display for JobError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.job {
            Some(job) => write!(f, "job {job}: {}", self.error),
            None => self.error.fmt(f),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> core::error::Error for JobError<E> {}

/// Makes an error that concerns the whole batch.
impl<E> From<E> for JobError<E> {
    fn from(error: E) -> Self {
        JobError { job: None, error }
    }
}

/// A device that measures rows, encodes and decodes.
///
/// Integer results (codes, indices, payload bytes of QSGD and TopK) are equal bit for bit on every backend. Measured errors
/// agree within the bound that each backend documents.
///
/// ```
/// use lgreco::backend::{Backend, Job, JobError, Portable};
/// /// Works with any backend.
/// fn rows(backend: &mut dyn Backend, jobs: &[Job<'_>]) -> Result<Vec<f64>, JobError> {
///     let mut workspace = vec![0; backend.workspace_len(jobs)];
///     let mut rows = vec![0.0; jobs.iter().map(|job| job.candidates.len()).sum()];
///     backend.measure(jobs, &mut workspace, &mut rows)?;
///     Ok(rows)
/// }
/// assert_eq!(rows(&mut Portable, &[]), Ok(vec![]));
/// ```
pub trait Backend {
    /// 8-byte words of workspace that [`measure`](Backend::measure) needs for `jobs`.
    fn workspace_len(&self, jobs: &[Job<'_>]) -> usize;

    /// Measures all `jobs` as one batch, and writes their rows to `rows` one after another (see [`Candidates::measure`]).
    ///
    /// # Errors
    /// The error of the first job that fails, with the job's index. Without an index: failures of the whole device, and
    /// [`Error::Length`] when `rows` does not have one entry per candidate, or `workspace` is shorter than
    /// [`workspace_len`](Backend::workspace_len).
    fn measure(&mut self, jobs: &[Job<'_>], workspace: &mut [u64], rows: &mut [f64]) -> Result<(), JobError>;

    /// Compresses `gradient` with `setting`. The default implementation runs on the CPU; see [`Compressor::encode`].
    ///
    /// # Errors
    /// The errors of [`Compressor::encode`].
    fn encode(
        &mut self,
        setting: &Setting,
        gradient: &Gradient<'_>,
        stream: Stream,
        workspace: &mut [u64],
        payload: &mut [u8],
    ) -> Result<usize> {
        setting.encode(gradient, stream, workspace, payload)
    }

    /// Decodes any payload into `values`. The default implementation runs on the CPU; see [`decode`].
    ///
    /// # Errors
    /// The errors of [`decode`].
    fn decode(&mut self, payload: &[u8], values: &mut [f32]) -> Result<()> {
        decode(payload, values).map(drop)
    }
}

/// The CPU on one core. Tests compare all other backends with this reference.
///
/// ```
/// use lgreco::backend::{Backend, Job, Portable};
/// use lgreco::compress::Candidates;
/// use lgreco::gradient::{Dtype, Gradient, Shape, Values};
/// use lgreco::rng::Stream;
/// let gradient = Gradient::new(Values::F32(&[3.0, 0.0, -1.0, 2.0]), Shape::new(2, 2)?)?;
/// let candidates = Candidates::TopK { values: Dtype::F32, keeps: &[1, 2, 3] };
/// let jobs = [Job { gradient, candidates, stream: Stream::default() }];
/// let mut workspace = vec![0; Portable.workspace_len(&jobs)];
/// let mut row = [0.0; 3];
/// Portable.measure(&jobs, &mut workspace, &mut row)?;
/// assert_eq!(row, [5.0, 1.0, 0.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Portable;

/// Whether a row must be measured on the CPU, because no GPU backend has kernels for its candidates.
pub fn on_the_core(job: &Job<'_>) -> bool {
    matches!(job.candidates, Candidates::Each(_) | Candidates::CltK { .. })
}

/// Grows a workspace to at least `words` words of 8 bytes. Methods from outside lgreco may ask for any length, so the
/// allocation may fail.
///
/// # Errors
/// `OutOfMemory`; the workspace is unchanged.
#[cfg(feature = "alloc")]
pub(crate) fn grow(workspace: &mut Vec<u64>, words: usize) -> Result<()> {
    let more = words.saturating_sub(workspace.len());
    workspace.try_reserve_exact(more).map_err(|_| Error::OutOfMemory { words })?;
    workspace.resize(workspace.len() + more, 0);
    Ok(())
}

/// Measures one job after another. Jobs for which [`on_the_core`] is true run on the CPU, and all other jobs run on
/// `backend`.
///
/// # Errors
/// The errors of [`Backend::measure`].
#[cfg(feature = "alloc")]
pub fn one_by_one(backend: &mut dyn Backend, jobs: &[Job<'_>], rows: &mut [f64]) -> Result<(), JobError> {
    let total = jobs.iter().map(|job| job.candidates.len()).sum();
    expect_len("rows, one place per candidate", total, rows.len())?;
    let mut rest = rows;
    for (index, job) in jobs.iter().enumerate() {
        let (row, others) = rest.split_at_mut(job.candidates.len());
        let mut portable = Portable;
        let on: &mut dyn Backend = if on_the_core(job) { &mut portable } else { &mut *backend };
        let job = core::slice::from_ref(job);
        let mut workspace = Vec::new();
        grow(&mut workspace, on.workspace_len(job)).map_err(|error| JobError { job: Some(index), error })?;
        on.measure(job, &mut workspace, row).map_err(|failed| JobError { job: Some(index), ..failed })?;
        rest = others;
    }
    Ok(())
}

impl Backend for Portable {
    fn workspace_len(&self, jobs: &[Job<'_>]) -> usize {
        let of_job = |job: &Job<'_>| {
            let (shape, dtype) = (job.gradient.shape(), job.gradient.values().dtype());
            job.candidates.measure_workspace_len(shape, dtype)
        };
        jobs.iter().map(of_job).max().unwrap_or(0)
    }

    fn measure(&mut self, jobs: &[Job<'_>], workspace: &mut [u64], rows: &mut [f64]) -> Result<(), JobError> {
        let total = jobs.iter().map(|job| job.candidates.len()).sum();
        expect_len("rows, one place per candidate", total, rows.len())?;
        expect_room("workspace", self.workspace_len(jobs), workspace.len())?;
        let mut rest = rows;
        for (index, job) in jobs.iter().enumerate() {
            let (row, next) = rest.split_at_mut(job.candidates.len());
            job.candidates
                .measure(&job.gradient, job.stream, workspace, row)
                .map_err(|error| JobError { job: Some(index), error })?;
            rest = next;
        }
        Ok(())
    }
}
