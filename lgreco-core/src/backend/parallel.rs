//! The CPU, all cores: layers in parallel.

use super::{Backend, Job, JobError, Portable};
use crate::Error;
use crate::compress::Setting;
use crate::error::expect_len;
use crate::gradient::Gradient;
use crate::rng::Stream;
use alloc::vec::Vec;
use rayon::prelude::*;

/// [`Portable`] over rayon's current thread pool, one job per thread at a time; same results bit for bit.
///
/// Each thread allocates the workspace of its largest job; the caller's workspace is not used.
///
/// ```
/// use lgreco_core::backend::{Backend, Job, Parallel, Portable};
/// use lgreco_core::compress::{Candidates, qsgd::Qsgd};
/// use lgreco_core::gradient::{Gradient, Shape, Values};
/// use lgreco_core::rng::Stream;
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
            let needed = job.candidates.measure_workspace_len(shape, dtype);
            workspace.resize(needed.max(workspace.len()), 0);
            let result = job.candidates.measure(&job.gradient, job.stream, workspace, row);
            result.err().map(|error| JobError { job: Some(index), error })
        });
        match failed.flatten().min_by_key(|failure| failure.job) {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }

    fn encode(
        &mut self,
        setting: &Setting,
        gradient: &Gradient<'_>,
        stream: Stream,
        workspace: &mut [u64],
        payload: &mut [u8],
    ) -> Result<usize, Error> {
        Portable.encode(setting, gradient, stream, workspace, payload)
    }

    fn decode(&mut self, payload: &[u8], values: &mut [f32]) -> Result<(), Error> {
        Portable.decode(payload, values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::{Candidates, qsgd::Qsgd};
    use crate::gradient::{Dtype, Shape, Values};
    use crate::testing::powersgd::uniform;
    use std::vec;

    #[test]
    fn results_are_those_of_one_core_bit_for_bit() {
        let mut tensors: Vec<(Shape, Vec<f32>)> = (1..12)
            .map(|i| (Shape::new(17 * i, 130 - 9 * i).unwrap(), uniform(17 * i * (130 - 9 * i), i as u64)))
            .collect();
        let rows_of = |tensors: &[(Shape, Vec<f32>)]| {
            let jobs: Vec<Job<'_>> = tensors
                .iter()
                .enumerate()
                .map(|(i, (shape, values))| Job {
                    gradient: Gradient::new(Values::F32(values), *shape).unwrap(),
                    candidates: match i % 3 {
                        0 => Candidates::Qsgd { base: Qsgd::default(), bits: &[2, 4, 8] },
                        1 => Candidates::TopK { values: Dtype::F32, keeps: &[1, 100, 7] },
                        _ => Candidates::PowerSgd { iterations: 2, ranks: &[1, 4] },
                    },
                    stream: Stream { seed: 3, layer: i as u32, ..Stream::default() },
                })
                .collect();
            let places = jobs.iter().map(|job| job.candidates.len()).sum();
            let (mut here, mut spread) = (vec![f64::NAN; places], vec![f64::NAN; places]);
            let mut workspace = vec![!0; Portable.workspace_len(&jobs)];
            let one = Portable.measure(&jobs, &mut workspace, &mut here);
            let all = Parallel.measure(&jobs, &mut [], &mut spread);
            let bits = |rows: Vec<f64>| rows.into_iter().map(f64::to_bits).collect::<Vec<_>>();
            ((one, bits(here)), (all, bits(spread)))
        };
        let (one, all) = rows_of(&tensors);
        assert_eq!(one.0, Ok(()));
        assert_eq!(one, all);
        (tensors[4].1[33], tensors[9].1[5]) = (f32::INFINITY, f32::INFINITY);
        let (one, all) = rows_of(&tensors);
        let first = JobError { job: Some(4), error: Error::NonFinite { index: 33, value: f32::INFINITY } };
        assert_eq!((one.0, all.0), (Err(first), Err(first)));
    }
}
