//! Squared norms of gradients on the device. `enqueue_norms` submits the work. After the caller has copied the results
//! to the host, `read_norms` makes the norms from them.

use crate::Error;
use crate::backend::WgpuBackend;
use crate::batch::Batch;
use crate::buffers::check_target;
use crate::error::{BufferJobError, of_job};
use crate::gpu::Gpu;
use crate::magnitude::{check_finite, squares};
use crate::memory::Scratch;
use crate::rows::in_packs;
use crate::sums::{self, RECORD};
use crate::tensor::{BufferGradient, Input, Work};
use lgreco::backend::Job;
use lgreco::compress::Candidates;
use lgreco::error::expect_len;
use lgreco::gradient::Dtype;
use lgreco::rng::Stream;
use wgpu::Buffer;

/// Number of result records of a gradient: one with its largest magnitude, and one with sums of its squares.
const RECORDS: usize = 2;

/// Returns a job without candidates for each gradient. `Err` if a gradient does not fit its buffer.
fn jobs<'a>(gradients: &[BufferGradient<'a>]) -> Result<Vec<Work<'a>>, BufferJobError> {
    let job = |(index, &gradient): (usize, &BufferGradient<'a>)| {
        let gradient = Input::Device(gradient);
        gradient.check().map_err(of_job(index))?;
        let candidates = Candidates::TopK { values: Dtype::F32, keeps: &[] };
        Ok(Job { gradient, candidates, stream: Stream::default() })
    };
    gradients.iter().enumerate().map(job).collect()
}

fn bytes_of(gradients: usize) -> u64 {
    sums::bytes(RECORDS * gradients)
}

/// Submits the work that adds up all squares, and a copy of the results to byte `offset` of `to`.
fn enqueue(gpu: &mut Gpu, jobs: &[Work<'_>], to: &Buffer, offset: u64) -> Result<(), BufferJobError> {
    let bytes = bytes_of(jobs.len());
    let mut batch = Batch::new(gpu)?;
    let results = batch.scratch(Scratch::Results, bytes)?;
    batch.clear(&results, bytes);
    in_packs(&mut batch, jobs, |batch, layers, tensors| {
        let mut all = Vec::new();
        for (layer, tensor) in layers.iter().zip(tensors) {
            all.extend((layer.first..).zip(layer.jobs).map(|(job, _)| (tensor, RECORDS * job)));
        }
        squares(batch, &all, &results).map_err(of_job(layers[0].first))
    })?;
    batch.copy(&results, 0, to, offset, bytes);
    Ok(batch.enqueue()?)
}

impl WgpuBackend {
    /// Bytes of the results of [`enqueue_norms`](WgpuBackend::enqueue_norms) for this number of gradients.
    pub fn norms_bytes(&self, gradients: usize) -> u64 {
        bytes_of(gradients)
    }

    /// Submits the work that adds up the squares of each gradient, and a copy of the results to `results`. Two
    /// dispatches suffice for up to a few thousand gradients with 2^24 values in all. A gradient of more than 2^23
    /// values needs one more dispatch. The rules for buffers, waits, memory and errors are those of
    /// [`enqueue_rows`](WgpuBackend::enqueue_rows): for example, the first call allocates memory. Errors state a
    /// gradient's number in place of a job's number. The results have [`norms_bytes`](WgpuBackend::norms_bytes) bytes.
    /// [`read_norms`](WgpuBackend::read_norms) makes the norms from these bytes.
    ///
    /// ```
    /// use lgreco::gradient::{Dtype, Shape};
    /// use lgreco_wgpu::{BufferGradient, WgpuBackend, wgpu};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default()); // an embedder has a real one
    /// # let mut backend = WgpuBackend::with_device(device, queue)?;
    /// let buffer = |backend: &WgpuBackend, size, usage| {
    ///     let descriptor = wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false };
    ///     backend.device().create_buffer(&descriptor)
    /// };
    /// let held = buffer(&backend, 4 * 4096, wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC);
    /// let gradients = [BufferGradient { buffer: &held, offset: 0, dtype: Dtype::F32, shape: Shape::new(64, 64)? }];
    /// let bytes = backend.norms_bytes(gradients.len());
    /// let results = buffer(&backend, bytes, wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST);
    ///
    /// backend.enqueue_norms(&gradients, &results, 0)?;
    /// results.map_async(wgpu::MapMode::Read, .., |mapped| mapped.expect("a buffer that is mapped"));
    /// // The trainer continues. Some steps later the buffer is mapped:
    /// # backend.device().poll(wgpu::PollType::wait_indefinitely())?;
    /// let mut norms = [f64::NAN];
    /// backend.read_norms(&gradients, &results.get_mapped_range(..bytes)?, &mut norms)?;
    /// assert_eq!(norms, [0.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`enqueue_rows`](WgpuBackend::enqueue_rows).
    pub fn enqueue_norms(
        &mut self,
        gradients: &[BufferGradient<'_>],
        results: &Buffer,
        offset: u64,
    ) -> Result<(), BufferJobError> {
        let jobs = jobs(gradients)?;
        check_target(results, offset, bytes_of(jobs.len()))?;
        enqueue(self.gpu(), &jobs, results, offset)
    }

    /// Makes one squared norm per gradient from the bytes that [`enqueue_norms`](WgpuBackend::enqueue_norms) left. The
    /// call uses the device only if a gradient is not finite. If the call uses the device, it waits, and the gradient
    /// must still exist.
    ///
    /// # Errors
    /// [`NonFinite`](lgreco::Error::NonFinite) with the gradient's number. Without a number:
    /// [`Length`](lgreco::Error::Length), and errors of the device.
    pub fn read_norms(
        &mut self,
        gradients: &[BufferGradient<'_>],
        bytes: &[u8],
        norms: &mut [f64],
    ) -> Result<(), BufferJobError> {
        expect_len("norms, one place per gradient", gradients.len(), norms.len()).map_err(Error::from)?;
        expect_len("bytes of results", bytes_of(gradients.len()) as usize, bytes.len()).map_err(Error::from)?;
        let words: Vec<u32> = bytemuck::pod_collect_to_vec(bytes);
        let of_gradients = words.chunks(RECORDS * RECORD);
        for (index, (job, words)) in jobs(gradients)?.iter().zip(of_gradients).enumerate() {
            check_finite(self.gpu(), &job.gradient, words[0]).map_err(of_job(index))?;
            let (mantissas, exponents) = words[RECORD..].split_at(RECORD / 2);
            let sums = mantissas.iter().zip(exponents).map(|(&mantissa, &exponent)| sums::value(mantissa, exponent));
            norms[index] = sums.sum();
        }
        Ok(())
    }
}
