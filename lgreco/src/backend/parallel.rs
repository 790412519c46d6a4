//! The CPU on all cores: measures layers in parallel.

use super::{Backend, Job, JobError, grow};
use crate::error::expect_len;
use alloc::vec::Vec;
use rayon::prelude::*;

/// Works as [`Portable`](super::Portable), but on all threads of rayon's current pool. Each thread takes one job at a
/// time. Results have the same bits as on one core.
///
/// Each thread allocates the workspace of its largest job. The caller's workspace is not used.
///
/// ```
/// use lgreco::backend::{Backend, Job, Parallel, Portable};
/// use lgreco::compress::{Candidates, qsgd::Qsgd};
/// use lgreco::gradient::{Gradient, Shape, Values};
/// use lgreco::rng::Stream;
/// let values: Vec<f32> = (0..4096).map(|i| (i as f32).sin()).collect();
/// let gradient = Gradient::new(Values::F32(&values), Shape::new(64, 64)?)?;
/// let candidates = Candidates::Qsgd { base: Qsgd::default(), bits: &[2, 4] };
/// let jobs = [Job { gradient, candidates, stream: Stream::default() }; 3];
/// let (mut here, mut spread) = ([0.0; 6], [0.0; 6]);
/// Portable.measure(&jobs, &mut [], &mut here)?;
/// Parallel.measure(&jobs, &mut [], &mut spread)?;
/// assert_eq!(here, spread);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Parallel;

impl Backend for Parallel {
    fn workspace_len(&self, _: &[Job<'_>]) -> usize {
        0
    }

    fn measure(&mut self, jobs: &[Job<'_>], _: &mut [u64], rows: &mut [f64]) -> Result<(), JobError> {
        let total = jobs.iter().map(|job| job.candidates.len()).sum();
        expect_len("rows, one place per candidate", total, rows.len())?;
        let mut rest = rows;
        let mut parts = Vec::with_capacity(jobs.len());
        for (index, job) in jobs.iter().enumerate() {
            let (row, next) = rest.split_at_mut(job.candidates.len());
            parts.push((index, job, row));
            rest = next;
        }
        let failed = parts.into_par_iter().map_init(Vec::new, |workspace, (index, job, row)| {
            let (shape, dtype) = (job.gradient.shape(), job.gradient.values().dtype());
            let result = grow(workspace, job.candidates.measure_workspace_len(shape, dtype))
                .and_then(|()| job.candidates.measure(&job.gradient, job.stream, workspace, row));
            result.err().map(|error| JobError { job: Some(index), error })
        });
        match failed.flatten().min_by_key(|failure| failure.job) {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }
}
