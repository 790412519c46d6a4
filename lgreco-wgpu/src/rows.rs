//! Batches of rows: recorded together, read back at once.

use crate::batch::{Batch, Part};
use crate::codec::encode;
use crate::error::{BufferJobError, first_failure, of_job};
use crate::gpu::Gpu;
use crate::magnitude::{check_finite, overflow};
use crate::memory::Scratch;
use crate::packing::packs;
use crate::ranks::LowRank;
use crate::sums::RECORD;
use crate::tensor::{Input, Row, Tensor, Work, in_one_binding};
use crate::{Error, few_bits, magnitude, methods, powersgd, qsgd, ranks, topk};
use lgreco_core::compress::qsgd::Qsgd;
use lgreco_core::compress::{Candidates, Compressor, Setting, powersgd::PowerSgd};
use lgreco_core::gradient::Dtype;
use lgreco_core::internal::powersgd::{NEAR_OVERFLOW, distinct_ranks};
use wgpu::Buffer;

/// Bytes of uploads after which the batch waits for the device, so that memory does not hold a whole model twice.
const UPLOADS: u64 = 256 << 20;
/// Bytes of layers that are worked on together, which lie on the device twice.
const TOGETHER: u64 = 128 << 20;

/// Words of results of one row, a multiple of [`RECORD`].
fn result_words(work: &Work<'_>) -> usize {
    let words = match work.candidates {
        Candidates::Qsgd { .. } => qsgd::RESULT_WORDS,
        Candidates::TopK { keeps, .. } => topk::result_words(keeps.len()),
        Candidates::QuantisedTopK { keeps, .. } => few_bits::result_words(keeps.len()),
        Candidates::PowerSgd { ranks, .. } => ranks::result_words(ranks.len()),
        _ => 0,
    };
    words.next_multiple_of(RECORD)
}

/// What the core says of parameters that do not fit; what has no kernels is refused.
fn check(work: &Work<'_>) -> Result<(), Error> {
    work.gradient.check()?;
    let (shape, dtype) = (work.gradient.shape(), work.gradient.dtype());
    match work.candidates {
        Candidates::Qsgd { .. } | Candidates::TopK { .. } | Candidates::QuantisedTopK { .. } => {
            Ok(work.candidates.check(shape, dtype)?)
        }
        Candidates::PowerSgd { ranks, .. } => {
            work.candidates.check(shape, dtype)?;
            powersgd::check(shape, distinct_ranks(shape, ranks).last().map_or(0, |&rank| rank as usize))
        }
        _ => Err(Error::Method(methods::of_candidates(&work.candidates))),
    }
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

/// Rows by method: those of a method share dispatches.
#[derive(Default)]
struct Rows<'a> {
    magnitudes: Vec<(&'a Tensor, usize)>,
    qsgd: Vec<Row<'a, (Qsgd, &'a [u8])>>,
    topk: Vec<Row<'a, (Dtype, &'a [u32])>>,
    few_bits: Vec<Row<'a, &'a [u32]>>,
    powersgd: Vec<Row<'a, LowRank<'a>>>,
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
        ];
        first_failure(recorded)
    }
}

/// Jobs one after another with the same gradient.
struct Layer<'j, 'a> {
    first: usize,
    jobs: &'j [Work<'a>],
}

impl Layer<'_, '_> {
    fn bytes(&self) -> u64 {
        self.jobs[0].gradient.bytes()
    }
}

/// Runs all jobs and returns the words of their results.
fn record(gpu: &mut Gpu, jobs: &[Work<'_>]) -> Result<Vec<u32>, BufferJobError> {
    let total: usize = jobs.iter().map(result_words).sum();
    let mut batch = Batch::new(gpu)?;
    let results = batch.scratch(Scratch::Results, 4 * total as u64)?;
    batch.clear(&results, 4 * total as u64);
    let mut first = 0;
    let layers = jobs.chunk_by(|a, b| a.gradient.is(&b.gradient)).map(|jobs| {
        first += jobs.len();
        Layer { first: first - jobs.len(), jobs }
    });
    let layers: Vec<Layer<'_, '_>> = layers.collect();
    let most = TOGETHER.min(4 * batch.gpu.piece_len() as u64);
    let (mut result, mut uploaded) = (0, 0);
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
        let tensors = on_device(&mut batch, layers)?;
        let mut rows = Rows::default();
        for (layer, tensor) in layers.iter().zip(&tensors) {
            for (job, work) in (layer.first..).zip(layer.jobs) {
                rows.add(work, (job, tensor, result));
                result += result_words(work);
            }
        }
        rows.record(&mut batch, &results)?;
    }
    let bytes = batch.read(&[Part { buffer: results, offset: 0, size: 4 * total as u64 }])?;
    Ok(bytemuck::pod_collect_to_vec(&bytes))
}

/// The tensors of some layers: of one in as many bindings as it takes, of many in one.
fn on_device(batch: &mut Batch<'_>, layers: &[Layer<'_, '_>]) -> Result<Vec<Tensor>, BufferJobError> {
    let inputs: Vec<Input<'_>> = layers.iter().map(|layer| layer.jobs[0].gradient).collect();
    let tensors = match &inputs[..] {
        [input] => input.tensor(batch).map(|tensor| vec![tensor]).map_err(|error| (0, error)),
        _ => in_one_binding(batch, &inputs),
    };
    tensors.map_err(|(index, error)| of_job(layers[index].first)(error))
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
            ranks::errors(job.gradient.shape(), ranks, words, row);
        }
        _ => return Err(Error::Method(methods::of_candidates(&job.candidates))),
    }
    Ok(())
}
