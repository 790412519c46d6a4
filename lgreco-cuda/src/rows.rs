//! Measures batches of rows of the error table. The rows of a batch are enqueued and downloaded together.

use crate::codec::encode;
use crate::device::Part;
use crate::error::{DeviceJobError, of_job};
use crate::gpu::{Gpu, Scratch};
use crate::magnitude::{check_finite, overflow};
use crate::tensor::{Input, Tensor, Work};
use crate::{Error, Result, eden, eden_rows, few_bits, magnitude, powersgd, qsgd, topk};
use lgreco::compress::{Candidates, Compressor, Setting, powersgd::PowerSgd};
use lgreco::compress::{powersgd::NEAR_OVERFLOW, topk::overflow as overflow_from};
use lgreco::error::expect_len;
use lgreco::gradient::Dtype;

/// The error for methods without kernels.
const NO_ROW: Error = Error::Method("this method's row");

/// Number of result words of a job, of 8 bytes each. The first four bytes of the first word have the bits of the
/// largest magnitude.
fn result_words(work: &Work<'_>) -> usize {
    match work.candidates {
        Candidates::Qsgd { .. } => qsgd::RESULT_WORDS,
        Candidates::TopK { keeps, .. } => topk::result_words(keeps.len()),
        Candidates::QuantisedTopK { keeps, .. } => few_bits::result_words(keeps.len()),
        Candidates::PowerSgd { ranks, .. } => powersgd::result_words(ranks.len()),
        Candidates::Eden { .. } => eden_rows::RESULT_WORDS,
        _ => 1,
    }
}

/// Returns the core's error for invalid parameters. Also refuses methods and shapes for which no kernel exists.
fn check(work: &Work<'_>) -> Result<()> {
    let shape = work.gradient.shape();
    match work.candidates {
        Candidates::Qsgd { .. }
        | Candidates::TopK { .. }
        | Candidates::QuantisedTopK { .. }
        | Candidates::PowerSgd { .. }
        | Candidates::Eden { .. } => {}
        _ => return Err(NO_ROW),
    }
    work.candidates.check(shape, work.gradient.dtype())?;
    if is_of_other_buckets(work) && matches!(work.gradient, Input::Device(_)) {
        return Err(qsgd::OTHER_BUCKETS);
    }
    let Candidates::PowerSgd { ranks, .. } = work.candidates else { return Ok(()) };
    ranks.iter().try_for_each(|&rank| powersgd::check(shape, rank))
}

/// Whether a job is under QSGD with a bucket size that no kernel supports. With such bucket sizes, the core measures
/// gradients in host memory.
fn is_of_other_buckets(work: &Work<'_>) -> bool {
    matches!(work.candidates, Candidates::Qsgd { base, .. } if !qsgd::holds(base.bucket))
}

/// Done: measures all jobs and writes their rows one after another.
pub(crate) fn measure(gpu: &mut Gpu, jobs: &[Work<'_>], rows: &mut [f64]) -> Result<(), DeviceJobError> {
    expect_places(jobs, rows)?;
    // An invalid job is reported only if no earlier job fails.
    let refused = jobs.iter().enumerate().find_map(|(index, job)| Some((index, check(job).err()?)));
    let measured = &jobs[..refused.as_ref().map_or(jobs.len(), |&(index, _)| index)];
    let results = gpu.scratch(Scratch::Results, results_bytes(measured))?;
    enqueue(gpu, measured, results)?;
    let words = if measured.is_empty() { Vec::new() } else { gpu.read(results)? };
    let count = measured.iter().map(|job| job.candidates.len()).sum();
    take_rows(gpu, measured, &words, &mut rows[..count])?;
    refused.map_or(Ok(()), |(index, error)| Err(of_job(index)(error)))
}

/// `Err` unless `rows` has one element per candidate.
fn expect_places(jobs: &[Work<'_>], rows: &[f64]) -> Result<()> {
    let total = jobs.iter().map(|job| job.candidates.len()).sum();
    Ok(expect_len("rows, one place per candidate", total, rows.len())?)
}

/// `Err` with the first job that cannot be measured.
pub(crate) fn check_all(jobs: &[Work<'_>]) -> Result<(), DeviceJobError> {
    jobs.iter().enumerate().try_for_each(|(index, job)| check(job).map_err(of_job(index)))
}

/// Bytes of the jobs' results.
pub(crate) fn results_bytes(jobs: &[Work<'_>]) -> u64 {
    jobs.iter().map(|job| 8 * result_words(job) as u64).sum()
}

/// Index of the first result word of each job. The words of jobs that share launches lie one after another.
fn places(jobs: &[Work<'_>]) -> Vec<usize> {
    let (mut places, mut first) = (vec![0; jobs.len()], 0);
    for index in groups(jobs).into_iter().flatten() {
        places[index] = first;
        first += result_words(&jobs[index]);
    }
    places
}

/// Measures all jobs, and writes to `results`. Enqueued for gradients on the device, done for gradients on the host.
pub(crate) fn enqueue(gpu: &mut Gpu, jobs: &[Work<'_>], results: Part) -> Result<(), DeviceJobError> {
    gpu.clear(results)?;
    let mut last: Option<(Input<'_>, Tensor)> = None;
    let mut rest = results;
    for group in groups(jobs) {
        let index = group[0];
        let alike: Vec<Work<'_>> = group.iter().map(|&index| jobs[index]).collect();
        let tensor = match last.take() {
            Some((input, tensor)) if input.is(&alike[0].gradient) => tensor,
            _ => alike[0].gradient.tensor(gpu).map_err(of_job(index))?,
        };
        let mut tensors = vec![tensor];
        for (job, &index) in alike.iter().zip(&group).skip(1) {
            tensors.push(job.gradient.tensor(gpu).map_err(of_job(index))?);
        }
        let bytes = results_bytes(&alike);
        row(gpu, &alike, &tensors, rest.cut(0, bytes)).map_err(of_job(index))?;
        rest = rest.from(bytes);
        last = Some((alike[0].gradient, tensor)).filter(|_| alike.len() == 1);
    }
    Ok(())
}

/// Makes rows from the words of all jobs' results. The call uses the device only if a gradient is not finite, or so
/// large that a payload might overflow. Then the call searches for the error and its position.
pub(crate) fn take_rows(
    gpu: &mut Gpu,
    jobs: &[Work<'_>],
    words: &[u64],
    rows: &mut [f64],
) -> Result<(), DeviceJobError> {
    expect_places(jobs, rows)?;
    let mut rest = rows;
    for (index, (job, place)) in jobs.iter().zip(places(jobs)).enumerate() {
        let (row, next) = std::mem::take(&mut rest).split_at_mut(job.candidates.len());
        take_row(gpu, job, &words[place..][..result_words(job)], row).map_err(of_job(index))?;
        rest = next;
    }
    Ok(())
}

/// Groups of jobs that share launches, as indices of `jobs`. The jobs of a group need not be consecutive.
fn groups(jobs: &[Work<'_>]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (index, job) in jobs.iter().enumerate() {
        match groups.iter_mut().find(|group| are_alike(&jobs[group[0]], job)) {
            Some(group) => group.push(index),
            None => groups.push(vec![index]),
        }
    }
    groups
}

/// Whether two jobs can share launches. Both must be in device memory. Jobs under QSGD, EDEN or PowerSGD must have the
/// same candidates, and under PowerSGD also the same seed. Jobs under TopK must send values in the same type. In
/// addition, the sent type must require rounding for both jobs or for neither.
fn are_alike(one: &Work<'_>, other: &Work<'_>) -> bool {
    let some = |job: &Work<'_>| {
        let is_device = matches!(job.gradient, Input::Device(_));
        is_device && job.gradient.shape().elements() > 0 && !job.candidates.is_empty()
    };
    if !(some(one) && some(other)) {
        return false;
    }
    match (one.candidates, other.candidates) {
        (Candidates::Qsgd { base, bits }, Candidates::Qsgd { base: b, bits: w }) => b == base && w == bits,
        (Candidates::Eden { base, bits }, Candidates::Eden { base: b, bits: w }) => b.scale == base.scale && w == bits,
        (Candidates::PowerSgd { iterations, ranks }, Candidates::PowerSgd { iterations: i, ranks: r }) => {
            i == iterations && r == ranks && other.stream.seed == one.stream.seed
        }
        (as_one, as_other) => match (sent_by(&as_one), sent_by(&as_other)) {
            (Some(sent), Some(as_well)) => {
                let rounds = |job: &Work<'_>| topk::rounds(job.gradient.dtype(), sent);
                sent == as_well && rounds(one) == rounds(other)
            }
            _ => false,
        },
    }
}

/// Returns the type in which TopK sends values, if TopK's kernels measure these candidates.
fn sent_by(candidates: &Candidates<'_>) -> Option<Dtype> {
    match *candidates {
        Candidates::TopK { values, .. } => Some(values),
        Candidates::QuantisedTopK { .. } => Some(Dtype::F32),
        _ => None,
    }
}

/// Enqueued: measures jobs that share launches, or a single job, from their tensors.
fn row(gpu: &mut Gpu, alike: &[Work<'_>], tensors: &[Tensor], results: Part) -> Result<()> {
    let (job, tensor) = (&alike[0], &tensors[0]);
    if tensor.elements == 0 || is_of_other_buckets(job) {
        return Ok(());
    }
    if job.candidates.is_empty() {
        return magnitude::largest(gpu, tensor, results);
    }
    match job.candidates {
        Candidates::Qsgd { base, bits } => qsgd::measure(gpu, tensors, base, bits, results),
        Candidates::PowerSgd { iterations, ranks } => {
            let layer = |(job, tensor): (&Work<'_>, _)| (job.gradient.shape(), job.stream, tensor);
            let layers = alike.iter().zip(tensors).map(layer);
            let layers = layers.map(|(shape, stream, tensor)| powersgd::Layer { tensor, shape, stream });
            powersgd::measure(gpu, &layers.collect::<Vec<_>>(), (iterations, ranks), powersgd::TOGETHER, results)
        }
        Candidates::Eden { base, bits } => {
            let jobs = alike.iter().zip(tensors).map(|(job, &tensor)| eden_rows::Job { tensor, stream: job.stream });
            eden_rows::measure(gpu, &jobs.collect::<Vec<_>>(), base.scale, bits, results)
        }
        candidates => {
            let sent = sent_by(&candidates).ok_or(NO_ROW)?;
            let layers = alike.iter().zip(tensors).filter_map(|(job, &tensor)| match job.candidates {
                Candidates::TopK { keeps, .. } | Candidates::QuantisedTopK { keeps, .. } => {
                    Some(topk::Layer { tensor, keeps, words: result_words(job) })
                }
                _ => None,
            });
            topk::measure(gpu, &layers.collect::<Vec<_>>(), sent, results)?;
            let (mut few, mut word) = (Vec::new(), 0);
            for (job, &tensor) in alike.iter().zip(tensors) {
                if let Candidates::QuantisedTopK { keeps, .. } = job.candidates {
                    few.push(few_bits::Layer { tensor, keeps, word });
                }
                word += result_words(job);
            }
            few_bits::measure(gpu, &few, few_bits::TOGETHER, results)
        }
    }
}

/// Done: encodes the gradient at PowerSGD's largest rank, to find out whether a factor or the product overflows.
fn try_largest(gpu: &mut Gpu, job: &Work<'_>) -> Result<()> {
    let Candidates::PowerSgd { iterations, ranks } = job.candidates else { return Ok(()) };
    let Some(&rank) = ranks.iter().max() else { return Ok(()) };
    let setting = Setting::PowerSgd(PowerSgd { rank, iterations });
    let mut payload = vec![0; setting.payload_len(job.gradient.shape(), job.gradient.dtype())?];
    encode(gpu, &setting, &job.gradient, job.stream, &mut payload).map(drop)
}

/// Makes every request to the device that [`measure`] may make, whatever the gradients' values are. The device must
/// only record requests.
pub(crate) fn rehearse(gpu: &mut Gpu, jobs: &[Work<'_>]) -> Result<(), DeviceJobError> {
    check_all(jobs)?;
    let results = gpu.scratch(Scratch::Results, results_bytes(jobs))?;
    enqueue(gpu, jobs, results)?;
    for (index, job) in jobs.iter().enumerate() {
        try_largest(gpu, job).map_err(of_job(index))?;
    }
    Ok(())
}

/// Makes a row from the words of a job's results.
fn take_row(gpu: &mut Gpu, job: &Work<'_>, words: &[u64], row: &mut [f64]) -> Result<()> {
    let finite = check_finite(gpu, &job.gradient, words[0] as u32);
    if let Candidates::Eden { bits, .. } = job.candidates {
        eden::check(finite, (words[0] >> 32) as u32)?;
        row.iter_mut().zip(eden_rows::errors(bits, words)).for_each(|(place, error)| *place = error);
        return Ok(());
    }
    finite?;
    match job.candidates {
        Candidates::Qsgd { base, bits } if !qsgd::holds(base.bucket) => {
            let Input::Host(gradient) = job.gradient else { return Err(qsgd::OTHER_BUCKETS) };
            lgreco::compress::qsgd::measure(&gradient, base, bits, row)?;
        }
        Candidates::Qsgd { base, bits } => {
            row.iter_mut().zip(qsgd::errors(base, bits, words)).for_each(|(place, error)| *place = error);
        }
        Candidates::TopK { values, keeps } => {
            if !keeps.is_empty() && words[0] as u32 >= overflow_from(values) {
                return Err(overflow(gpu, &job.gradient, words[0] as u32)?);
            }
            row.iter_mut().zip(topk::errors(words)).for_each(|(place, error)| *place = error);
        }
        Candidates::QuantisedTopK { .. } if row.is_empty() => {}
        Candidates::QuantisedTopK { keeps, bits } => few_bits::read(keeps.len(), bits, words, row),
        Candidates::PowerSgd { ranks, .. } => {
            if words[0] as u32 >= NEAR_OVERFLOW {
                try_largest(gpu, job)?;
            }
            powersgd::errors(job.gradient.shape(), ranks, words, row);
        }
        _ => return Err(NO_ROW),
    }
    Ok(())
}
