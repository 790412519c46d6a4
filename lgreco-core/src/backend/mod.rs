//! Where rows are measured and payloads made: the interface every backend has, and the CPU as its reference.

#[cfg(feature = "rayon")]
mod parallel;

#[cfg(feature = "rayon")]
pub use parallel::Parallel;

use crate::Error;
use crate::compress::{Candidates, Compressor, Setting, decode};
use crate::error::{expect_len, expect_room};
use crate::gradient::Gradient;
use crate::rng::Stream;

/// One row to measure.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The layer's gradient.
    pub gradient: Gradient<'a>,
    /// What it is to be measured under.
    pub candidates: Candidates<'a>,
    /// Source of start matrices.
    pub stream: Stream,
}

/// An error and the job of the batch it happened in.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("job {job}: {error}")]
pub struct JobError {
    /// Index of the job in its batch.
    pub job: usize,
    /// What went wrong.
    pub error: Error,
}

/// Something that measures rows, encodes and decodes. Integer results (codes, indices, payload bytes of QSGD and TopK)
/// are equal bit for bit on every backend; measured errors agree within the bound each backend documents.
pub trait Backend {
    /// Words of workspace that [`measure`](Backend::measure) needs for `jobs`.
    fn workspace_len(&self, jobs: &[Job<'_>]) -> usize;

    /// Measures all `jobs` as one batch and writes their rows one after another into `rows` (see
    /// [`Candidates::measure`]).
    ///
    /// # Errors
    /// The first job that fails, with its reason; [`Error::Length`] when `rows` has not one place per candidate.
    fn measure(&mut self, jobs: &[Job<'_>], workspace: &mut [u64], rows: &mut [f64]) -> Result<(), JobError>;

    /// Compresses `gradient` under `setting`; see [`Compressor::encode`].
    ///
    /// # Errors
    /// As [`Compressor::encode`].
    fn encode(
        &mut self,
        setting: &Setting,
        gradient: &Gradient<'_>,
        stream: Stream,
        workspace: &mut [u64],
        payload: &mut [u8],
    ) -> Result<usize, Error>;

    /// Decodes any payload into `values`; see [`decode`].
    ///
    /// # Errors
    /// As [`decode`].
    fn decode(&mut self, payload: &[u8], values: &mut [f32]) -> Result<(), Error>;
}

/// The CPU, one core: the reference the other backends are compared with.
///
/// ```
/// use lgreco_core::backend::{Backend, Job, Portable};
/// use lgreco_core::compress::Candidates;
/// use lgreco_core::gradient::{Dtype, Gradient, Shape, Values};
/// use lgreco_core::rng::Stream;
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

impl Backend for Portable {
    fn workspace_len(&self, jobs: &[Job<'_>]) -> usize {
        let of_job = |job: &Job<'_>| {
            let (shape, dtype) = (job.gradient.shape(), job.gradient.values().dtype());
            job.candidates.measure_workspace_len(shape, dtype)
        };
        jobs.iter().map(of_job).max().unwrap_or(0)
    }

    fn measure(&mut self, jobs: &[Job<'_>], workspace: &mut [u64], rows: &mut [f64]) -> Result<(), JobError> {
        let at = |job| move |error| JobError { job, error };
        let total = jobs.iter().map(|job| job.candidates.len()).sum();
        expect_len("rows, one place per candidate", total, rows.len()).map_err(at(0))?;
        expect_room("workspace", self.workspace_len(jobs), workspace.len()).map_err(at(0))?;
        let mut rest = rows;
        for (index, job) in jobs.iter().enumerate() {
            let (row, next) = rest.split_at_mut(job.candidates.len());
            job.candidates.measure(&job.gradient, job.stream, workspace, row).map_err(at(index))?;
            rest = next;
        }
        Ok(())
    }

    fn encode(
        &mut self,
        setting: &Setting,
        gradient: &Gradient<'_>,
        stream: Stream,
        workspace: &mut [u64],
        payload: &mut [u8],
    ) -> Result<usize, Error> {
        setting.encode(gradient, stream, workspace, payload)
    }

    fn decode(&mut self, payload: &[u8], values: &mut [f32]) -> Result<(), Error> {
        decode(payload, values).map(|_| ())
    }
}
