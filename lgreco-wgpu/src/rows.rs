//! Batches of rows: recorded together, read back at once.

use crate::batch::{Batch, Part};
use crate::codec::encode;
use crate::error::{BufferJobError, of_job};
use crate::gpu::Gpu;
use crate::magnitude::{check_finite, overflow};
use crate::memory::Scratch;
use crate::sums::RECORD;
use crate::tensor::{Input, Tensor, Work};
use crate::{Error, few_bits, magnitude, methods, powersgd, qsgd, topk};
use lgreco_core::compress::{Candidates, Compressor, Setting, powersgd::PowerSgd};
use lgreco_core::internal::powersgd::NEAR_OVERFLOW;
use wgpu::Buffer;

/// Bytes of uploads after which the batch waits for the device, so that memory does not hold a whole model twice.
const UPLOADS: u64 = 256 << 20;

/// Words of results of one row, a multiple of [`RECORD`].
fn result_words(work: &Work<'_>) -> usize {
    let words = match work.candidates {
        Candidates::Qsgd { .. } => qsgd::RESULT_WORDS,
        Candidates::TopK { keeps, .. } => topk::result_words(keeps.len()),
        Candidates::QuantisedTopK { keeps, .. } => few_bits::result_words(keeps.len()),
        Candidates::PowerSgd { ranks, .. } => powersgd::result_words(ranks.len()),
        _ => 0,
    };
    words.next_multiple_of(RECORD)
}

/// What the core says of parameters that do not fit; methods without kernels are refused.
fn check(work: &Work<'_>) -> Result<(), Error> {
    match work.candidates {
        Candidates::Qsgd { .. }
        | Candidates::TopK { .. }
        | Candidates::QuantisedTopK { .. }
        | Candidates::PowerSgd { .. } => {}
        _ => return Err(Error::Method(methods::of_candidates(&work.candidates))),
    }
    Ok(work.candidates.check(work.gradient.shape(), work.gradient.dtype())?)
}

/// Measures all jobs and writes their rows one after another.
pub(crate) fn measure(gpu: &mut Gpu, jobs: &[Work<'_>], rows: &mut [f64]) -> Result<(), BufferJobError> {
    let total: usize = jobs.iter().map(|job| job.candidates.len()).sum();
    if rows.len() != total {
        let what = "rows, one place per candidate";
        return Err(Error::from(lgreco_core::Error::Length { what, expected: total, found: rows.len() }).into());
    }
    // Jobs before one that cannot be measured may fail first.
    let refused = jobs.iter().enumerate().find_map(|(index, job)| Some((index, check(job).err()?)));
    let measured = &jobs[..refused.as_ref().map_or(jobs.len(), |&(index, _)| index)];
    let words = record(gpu, measured)?;
    let (mut rest, mut words) = (&mut rows[..], &words[..]);
    for (index, job) in measured.iter().enumerate() {
        let (row, next) = rest.split_at_mut(job.candidates.len());
        let (own, others) = words.split_at(result_words(job));
        take_row(gpu, job, own, row).map_err(of_job(index))?;
        (rest, words) = (next, others);
    }
    refused.map_or(Ok(()), |(index, error)| Err(of_job(index)(error)))
}

/// Takes the memory and compiles the kernels that measuring `jobs` needs.
pub(crate) fn reserve(gpu: &mut Gpu, jobs: &[Work<'_>]) -> Result<(), BufferJobError> {
    jobs.iter().enumerate().try_for_each(|(index, job)| check(job).map_err(of_job(index)))?;
    gpu.rehearsing = true;
    let recorded = record(gpu, jobs).map(drop);
    gpu.rehearsing = false;
    recorded
}

/// Runs all jobs and returns the words of their results.
fn record(gpu: &mut Gpu, jobs: &[Work<'_>]) -> Result<Vec<u32>, BufferJobError> {
    let total: usize = jobs.iter().map(result_words).sum();
    let mut batch = Batch::new(gpu)?;
    let results = batch.scratch(Scratch::Results, 4 * total as u64)?;
    batch.clear(&results, 4 * total as u64);
    let mut last: Option<(Input<'_>, Tensor)> = None;
    let (mut result, mut uploaded) = (0, 0);
    for (index, job) in jobs.iter().enumerate() {
        let tensor = match last.take() {
            Some((input, tensor)) if input.is(&job.gradient) => tensor,
            _ => {
                if uploaded > UPLOADS {
                    batch.wait()?;
                    uploaded = 0;
                }
                if matches!(job.gradient, Input::Host(_)) {
                    uploaded += (job.gradient.shape().elements() * job.gradient.dtype().bytes()) as u64;
                }
                job.gradient.tensor(&mut batch).map_err(of_job(index))?
            }
        };
        row(&mut batch, job, &tensor, &results, result).map_err(of_job(index))?;
        last = Some((job.gradient, tensor));
        result += result_words(job);
    }
    let bytes = batch.read(&[Part { buffer: results, offset: 0, size: 4 * total as u64 }])?;
    Ok(bytemuck::pod_collect_to_vec(&bytes))
}

/// Records one job.
fn row(batch: &mut Batch<'_>, job: &Work<'_>, tensor: &Tensor, results: &Buffer, at: usize) -> Result<(), Error> {
    if tensor.elements == 0 {
        return Ok(());
    }
    if job.candidates.is_empty() {
        magnitude::largest(batch, tensor, results, at);
        return Ok(());
    }
    match job.candidates {
        Candidates::Qsgd { base, bits } => qsgd::measure(batch, tensor, base, bits, results, at),
        Candidates::TopK { values, keeps } => topk::measure(batch, tensor, values, keeps, results, at),
        Candidates::QuantisedTopK { keeps, .. } => few_bits::measure(batch, tensor, keeps, results, at),
        Candidates::PowerSgd { iterations, ranks } => {
            let shape = job.gradient.shape();
            powersgd::measure(batch, tensor, shape, (iterations, ranks), job.stream, results, at)
        }
        _ => Err(Error::Method(methods::of_candidates(&job.candidates))),
    }
}

/// Makes a row of the words of a job's results, the first of which is the largest magnitude.
fn take_row(gpu: &mut Gpu, job: &Work<'_>, words: &[u32], row: &mut [f64]) -> Result<(), Error> {
    check_finite(gpu, &job.gradient, words[0])?;
    match job.candidates {
        Candidates::Qsgd { base, bits } => {
            row.iter_mut().zip(qsgd::errors(base, bits, words)).for_each(|(place, error)| *place = error);
        }
        Candidates::TopK { values, keeps } => {
            if !keeps.is_empty() && words[0] >= topk::overflow(values) {
                return Err(overflow(gpu, &job.gradient, words[0])?);
            }
            topk::errors(keeps, words, row);
        }
        Candidates::QuantisedTopK { keeps, bits } if !row.is_empty() => few_bits::errors(keeps, bits, words, row),
        Candidates::QuantisedTopK { .. } => {}
        Candidates::PowerSgd { iterations, ranks } => {
            let largest = ranks.iter().copied().max().unwrap_or(0);
            if words[0] >= NEAR_OVERFLOW && largest > 0 {
                // Encoding says whether anything overflows.
                let setting = Setting::PowerSgd(PowerSgd { rank: largest, iterations });
                let mut payload = vec![0; setting.payload_len(job.gradient.shape(), job.gradient.dtype())?];
                encode(gpu, &setting, &job.gradient, job.stream, &mut payload)?;
            }
            powersgd::errors(job.gradient.shape(), ranks, words, row);
        }
        _ => return Err(Error::Method(methods::of_candidates(&job.candidates))),
    }
    Ok(())
}
