//! Measures batches of rows of the error table. The commands of a batch are recorded together. The results are then
//! downloaded together, or left on the device for the caller.

use crate::batch::{Batch, Part};
use crate::codec::encode;
use crate::eden_rows::Rotated;
use crate::error::{BufferJobError, first_failure, of_job};
use crate::gpu::Gpu;
use crate::magnitude::{check_finite, overflow};
use crate::memory::Scratch;
use crate::packing::packs;
use crate::ranks::LowRank;
use crate::sums::RECORD;
use crate::tensor::{Input, Row, Tensor, Work, in_one_binding};
use crate::{Error, eden, eden_rows, few_bits, magnitude, powersgd, qsgd, ranks, topk};
use lgreco::compress::powersgd::{NEAR_OVERFLOW, distinct_ranks};
use lgreco::compress::qsgd::Qsgd;
use lgreco::compress::topk::overflow as overflow_from;
use lgreco::compress::{Candidates, Compressor, Setting, powersgd::PowerSgd};
use lgreco::error::expect_len;
use lgreco::gradient::Dtype;
use wgpu::Buffer;

/// Number of uploaded bytes after which the batch waits for the device. Without the limit, memory might hold a whole
/// model twice.
const UPLOADS: u64 = 256 << 20;
/// Largest total size, in bytes, of layers that are processed together. These layers may exist twice on the device.
const TOGETHER: u64 = 128 << 20;

/// Number of result words of one row, a multiple of [`RECORD`].
fn result_words(work: &Work<'_>) -> usize {
    let words = match work.candidates {
        Candidates::Qsgd { .. } => qsgd::RESULT_WORDS,
        Candidates::TopK { keeps, .. } => topk::result_words(keeps.len()),
        Candidates::QuantisedTopK { keeps, .. } => few_bits::result_words(keeps.len()),
        Candidates::PowerSgd { ranks, .. } => ranks::result_words(ranks.len()),
        Candidates::Eden { .. } => eden_rows::RESULT_WORDS,
        _ => 0,
    };
    words.next_multiple_of(RECORD)
}

/// Returns the core's error for invalid parameters. Refuses methods and shapes without kernels.
fn check(work: &Work<'_>) -> Result<(), Error> {
    work.gradient.check()?;
    let (shape, dtype) = (work.gradient.shape(), work.gradient.dtype());
    match work.candidates {
        Candidates::Qsgd { .. }
        | Candidates::TopK { .. }
        | Candidates::QuantisedTopK { .. }
        | Candidates::Eden { .. } => Ok(work.candidates.check(shape, dtype)?),
        Candidates::PowerSgd { ranks, .. } => {
            work.candidates.check(shape, dtype)?;
            powersgd::check(shape, distinct_ranks(shape, ranks).last().map_or(0, |&rank| rank as usize))
        }
        _ => Err(Error::Method(work.candidates.name())),
    }
}

/// Checks all jobs.
pub(crate) fn check_all(jobs: &[Work<'_>]) -> Result<(), BufferJobError> {
    jobs.iter().enumerate().try_for_each(|(index, job)| check(job).map_err(of_job(index)))
}

/// Bytes of the results of all jobs.
pub(crate) fn results_bytes(jobs: &[Work<'_>]) -> u64 {
    4 * jobs.iter().map(result_words).sum::<usize>() as u64
}

fn check_places(jobs: &[Work<'_>], rows: &[f64]) -> Result<(), Error> {
    let places = jobs.iter().map(|job| job.candidates.len()).sum();
    Ok(expect_len("rows, one place per candidate", places, rows.len())?)
}

/// Measures all jobs and writes their rows one after another.
pub(crate) fn measure(gpu: &mut Gpu, jobs: &[Work<'_>], rows: &mut [f64]) -> Result<(), BufferJobError> {
    check_places(jobs, rows)?;
    // An invalid job is reported only if no job before it fails.
    let refused = jobs.iter().enumerate().find_map(|(index, job)| Some((index, check(job).err()?)));
    let measured = &jobs[..refused.as_ref().map_or(jobs.len(), |&(index, _)| index)];
    let bytes = read(gpu, measured)?;
    let places = measured.iter().map(|job| job.candidates.len()).sum();
    take_rows(gpu, measured, &bytes, &mut rows[..places])?;
    refused.map_or(Ok(()), |(index, error)| Err(of_job(index)(error)))
}

/// Makes the rows of all jobs, one after another, from the bytes of their results.
pub(crate) fn take_rows(
    gpu: &mut Gpu,
    jobs: &[Work<'_>],
    bytes: &[u8],
    rows: &mut [f64],
) -> Result<(), BufferJobError> {
    check_places(jobs, rows)?;
    let words: Vec<u32> = bytemuck::pod_collect_to_vec(bytes);
    let (mut rest, mut words) = (rows, &words[..]);
    for (index, job) in jobs.iter().enumerate() {
        let (row, next) = rest.split_at_mut(job.candidates.len());
        let (own, others) = words.split_at(result_words(job));
        take_row(gpu, job, own, row).map_err(of_job(index))?;
        (rest, words) = (next, others);
    }
    Ok(())
}

/// Allocates the memory and compiles the kernels that the measurement of `jobs` needs.
pub(crate) fn reserve(gpu: &mut Gpu, jobs: &[Work<'_>]) -> Result<(), BufferJobError> {
    check_all(jobs)?;
    gpu.rehearsing = true;
    let recorded = read(gpu, jobs).map(drop);
    gpu.rehearsing = false;
    recorded
}

/// Runs all jobs and returns the bytes of their results.
fn read(gpu: &mut Gpu, jobs: &[Work<'_>]) -> Result<Vec<u8>, BufferJobError> {
    let (batch, results) = record(gpu, jobs)?;
    Ok(batch.read(&[results])?)
}

/// Submits all jobs, and a copy of their results to byte `offset` of `to`. All gradients must be on the device.
pub(crate) fn enqueue(gpu: &mut Gpu, jobs: &[Work<'_>], to: &Buffer, offset: u64) -> Result<(), BufferJobError> {
    let (mut batch, results) = record(gpu, jobs)?;
    batch.copy(&results.buffer, results.offset, to, offset, results.size);
    Ok(batch.enqueue()?)
}

/// Rows grouped by method. Rows of a method share dispatches.
#[derive(Default)]
struct Rows<'a> {
    magnitudes: Vec<(&'a Tensor, usize)>,
    qsgd: Vec<Row<'a, (Qsgd, &'a [u8])>>,
    topk: Vec<Row<'a, (Dtype, &'a [u32])>>,
    few_bits: Vec<Row<'a, &'a [u32]>>,
    powersgd: Vec<Row<'a, LowRank<'a>>>,
    eden: Vec<Row<'a, Rotated<'a>>>,
}

impl<'a> Rows<'a> {
    fn add(&mut self, work: &Work<'a>, (job, tensor, result): (usize, &'a Tensor, usize)) {
        if tensor.elements == 0 {
            return;
        }
        if work.candidates.is_empty() {
            self.magnitudes.push((tensor, result));
            return;
        }
        match work.candidates {
            Candidates::Qsgd { base, bits } => self.qsgd.push(Row { job, tensor, sought: (base, bits), result }),
            Candidates::TopK { values, keeps } => self.topk.push(Row { job, tensor, sought: (values, keeps), result }),
            Candidates::QuantisedTopK { keeps, .. } => self.few_bits.push(Row { job, tensor, sought: keeps, result }),
            Candidates::PowerSgd { iterations, ranks } => {
                let sought = LowRank { shape: work.gradient.shape(), iterations, ranks, stream: work.stream };
                self.powersgd.push(Row { job, tensor, sought, result });
            }
            Candidates::Eden { base, bits } => {
                let sought = Rotated { scale: base.scale, bits, stream: work.stream };
                self.eden.push(Row { job, tensor, sought, result });
            }
            _ => {}
        }
    }

    fn record(&self, batch: &mut Batch<'_>, results: &Buffer) -> Result<(), BufferJobError> {
        magnitude::largest(batch, &self.magnitudes, results);
        let recorded = [
            qsgd::measure(batch, &self.qsgd, results),
            topk::measure(batch, &self.topk, results),
            few_bits::measure(batch, &self.few_bits, results),
            ranks::measure(batch, &self.powersgd, results),
            eden_rows::measure(batch, &self.eden, results),
        ];
        first_failure(recorded)
    }
}

/// Consecutive jobs with the same gradient.
pub(crate) struct Layer<'j, 'a> {
    pub(crate) first: usize,
    pub(crate) jobs: &'j [Work<'a>],
}

impl Layer<'_, '_> {
    fn bytes(&self) -> u64 {
        self.jobs[0].gradient.bytes()
    }
}

/// Records all jobs. Returns the batch, and the part that will have the results.
fn record<'g>(gpu: &'g mut Gpu, jobs: &[Work<'_>]) -> Result<(Batch<'g>, Part), BufferJobError> {
    let total = results_bytes(jobs);
    let mut batch = Batch::new(gpu)?;
    let results = batch.scratch(Scratch::Results, total)?;
    batch.clear(&results, total);
    let mut result = 0;
    in_packs(&mut batch, jobs, |batch, layers, tensors| {
        let mut rows = Rows::default();
        for (layer, tensor) in layers.iter().zip(tensors) {
            for (job, work) in (layer.first..).zip(layer.jobs) {
                rows.add(work, (job, tensor, result));
                result += result_words(work);
            }
        }
        rows.record(batch, &results)
    })?;
    Ok((batch, Part { buffer: results, offset: 0, size: total }))
}

/// Makes the gradients of jobs available on the device, in packs of layers that are processed together. `work` records
/// the commands for each pack.
pub(crate) fn in_packs<'a>(
    batch: &mut Batch<'_>,
    jobs: &[Work<'a>],
    mut work: impl FnMut(&mut Batch<'_>, &[Layer<'_, 'a>], &[Tensor]) -> Result<(), BufferJobError>,
) -> Result<(), BufferJobError> {
    let mut first = 0;
    let layers = jobs.chunk_by(|a, b| a.gradient.is(&b.gradient)).map(|jobs| {
        first += jobs.len();
        Layer { first: first - jobs.len(), jobs }
    });
    let layers: Vec<Layer<'_, '_>> = layers.collect();
    let most = TOGETHER.min(4 * batch.gpu.piece_len() as u64);
    let mut uploaded = 0;
    for layers in packs(&layers, |layers| layers.iter().map(Layer::bytes).sum::<u64>() <= most) {
        if uploaded > UPLOADS {
            batch.wait()?;
            uploaded = 0;
        } else if uploaded > 0 {
            batch.submit();
        }
        if matches!(layers[0].jobs[0].gradient, Input::Host(_)) {
            uploaded += layers.iter().map(Layer::bytes).sum::<u64>();
        }
        let tensors = on_device(batch, layers)?;
        work(batch, layers, &tensors)?;
    }
    Ok(())
}

/// Returns the tensors of some layers. A single layer may take several bindings. Layers that are processed together
/// share one binding.
fn on_device(batch: &mut Batch<'_>, layers: &[Layer<'_, '_>]) -> Result<Vec<Tensor>, BufferJobError> {
    let inputs: Vec<Input<'_>> = layers.iter().map(|layer| layer.jobs[0].gradient).collect();
    let tensors = match &inputs[..] {
        [input] => input.tensor(batch).map(|tensor| vec![tensor]).map_err(|error| (0, error)),
        _ => in_one_binding(batch, &inputs),
    };
    tensors.map_err(|(index, error)| of_job(layers[index].first)(error))
}

/// Makes a row from the words of a job's results. The first word has the gradient's largest magnitude.
fn take_row(gpu: &mut Gpu, job: &Work<'_>, words: &[u32], row: &mut [f64]) -> Result<(), Error> {
    let finite = check_finite(gpu, &job.gradient, words[0]);
    if let Candidates::Eden { bits, .. } = job.candidates {
        eden::check(finite, words)?;
        row.iter_mut().zip(eden_rows::errors(bits, words)).for_each(|(place, error)| *place = error);
        return Ok(());
    }
    finite?;
    match job.candidates {
        Candidates::Qsgd { base, bits } => {
            row.iter_mut().zip(qsgd::errors(base, bits, words)).for_each(|(place, error)| *place = error);
        }
        Candidates::TopK { values, keeps } => {
            if !keeps.is_empty() && words[0] >= overflow_from(values) {
                return Err(overflow(gpu, &job.gradient, words[0])?);
            }
            topk::errors(keeps, words, row);
        }
        Candidates::QuantisedTopK { keeps, bits } if !row.is_empty() => few_bits::errors(keeps, bits, words, row),
        Candidates::QuantisedTopK { .. } => {}
        Candidates::PowerSgd { iterations, ranks } => {
            let largest = ranks.iter().copied().max().unwrap_or(0);
            if words[0] >= NEAR_OVERFLOW && largest > 0 {
                // Encoding at the largest rank returns an error if a factor or the product overflows.
                let setting = Setting::PowerSgd(PowerSgd { rank: largest, iterations });
                let mut payload = vec![0; setting.payload_len(job.gradient.shape(), job.gradient.dtype())?];
                encode(gpu, &setting, &job.gradient, job.stream, &mut payload)?;
            }
            ranks::errors(job.gradient.shape(), ranks, words, row);
        }
        _ => return Err(Error::Method(job.candidates.name())),
    }
    Ok(())
}
