//! The backend: the core's interface, and the same on the embedder's buffers.

use crate::gpu::{Batch, Gpu, Part, Scratch};
use crate::magnitude::{self, INFINITY};
use crate::sums::RECORD;
use crate::tensor::{BufferGradient, Input, Tensor};
use crate::{Error, payload, powersgd, qsgd, topk};
use lgreco_core::backend::{Backend, Job, JobError};
use lgreco_core::compress::wire::{Header, Method, Payload};
use lgreco_core::compress::{Candidates, Compressor, Setting, dense::Dense, powersgd::PowerSgd, topk::TopK};
use lgreco_core::gradient::{Bf16, Dtype, F16, Gradient, Values};
use lgreco_core::rng::Stream;
use wgpu::{Buffer, BufferUsages};

/// A row to measure of a gradient that lies on the device; see [`Job`].
///
/// ```
/// use lgreco_core::compress::Candidates;
/// use lgreco_core::{gradient::Dtype, rng::Stream};
/// use lgreco_wgpu::{BufferGradient, BufferJob};
/// fn densities(gradient: BufferGradient<'_>) -> BufferJob<'_> {
///     let candidates = Candidates::TopK { values: Dtype::F32, keeps: &[10, 100, 1000] };
///     BufferJob { gradient, candidates, stream: Stream::default() }
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct BufferJob<'a> {
    /// The layer's gradient.
    pub gradient: BufferGradient<'a>,
    /// What it is to be measured under.
    pub candidates: Candidates<'a>,
    /// Source of start matrices.
    pub stream: Stream,
}

/// An error and the job of the batch it happened in.
///
/// ```
/// use lgreco_wgpu::{BufferJobError, Error};
/// let failed = BufferJobError { job: 2, error: Error::Lost("reset".into()) };
/// assert_eq!(failed.to_string(), "job 2: the device is lost: reset");
/// ```
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("job {job}: {error}")]
pub struct BufferJobError {
    /// Index of the job in its batch; 0 when the batch as a whole failed.
    pub job: usize,
    /// What went wrong.
    pub error: Error,
}

/// Bytes of uploads after which the batch waits for the device, so that memory does not hold a whole model twice.
const UPLOADS: u64 = 256 << 20;

/// Any GPU that wgpu can drive.
///
/// ```
/// use lgreco_core::backend::{Backend, Job};
/// use lgreco_core::compress::Candidates;
/// use lgreco_core::gradient::{Dtype, Gradient, Shape, Values};
/// use lgreco_core::rng::Stream;
/// use lgreco_wgpu::WgpuBackend;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let Ok(_) = WgpuBackend::new() else { return Ok(()) };
/// let mut backend = WgpuBackend::new()?;
/// let gradient = Gradient::new(Values::F32(&[3.0, 0.0, -1.0, 2.0]), Shape::new(2, 2)?)?;
/// let candidates = Candidates::TopK { values: Dtype::F32, keeps: &[1, 2, 3] };
/// let mut row = [0.0; 3];
/// backend.measure(&[Job { gradient, candidates, stream: Stream::default() }], &mut [], &mut row)?;
/// assert_eq!(row, [5.0, 1.0, 0.0]);
/// # Ok(())
/// # }
/// ```
pub struct WgpuBackend {
    gpu: Gpu,
    failure: Option<Error>,
}

struct Work<'a> {
    input: Input<'a>,
    candidates: Candidates<'a>,
    stream: Stream,
}

impl<'a> Work<'a> {
    fn new(input: Input<'a>, candidates: Candidates<'a>, stream: Stream) -> Self {
        Work { input, candidates, stream }
    }
}

impl WgpuBackend {
    /// The fastest adapter there is: WebGPU's own choice of high performance.
    ///
    /// ```
    /// match lgreco_wgpu::WgpuBackend::new() {
    ///     Ok(backend) => println!("{:?}", backend.device().limits()),
    ///     Err(error) => println!("{error}"),
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoAdapter`] with the reason; [`Error::Limit`] when it cannot do what the kernels need.
    pub fn new() -> Result<Self, Error> {
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle_from_env());
        let options = wgpu::RequestAdapterOptions {
            power_preference: wgpu::PowerPreference::HighPerformance,
            ..Default::default()
        };
        let adapter = pollster::block_on(instance.request_adapter(&options));
        let adapter = adapter.map_err(|error| Error::NoAdapter(error.to_string()))?;
        Self::with_adapter(&adapter)
    }

    /// A device of its own on `adapter`, with all of its limits.
    ///
    /// # Errors
    /// As [`new`](WgpuBackend::new).
    pub fn with_adapter(adapter: &wgpu::Adapter) -> Result<Self, Error> {
        let descriptor = wgpu::DeviceDescriptor { required_limits: adapter.limits(), ..Default::default() };
        let device = pollster::block_on(adapter.request_device(&descriptor));
        let (device, queue) = device.map_err(|error| Error::NoAdapter(error.to_string()))?;
        Self::with_device(device, queue)
    }

    /// The embedder's device, whose buffers it can then work on. Takes the device's lost callback.
    ///
    /// ```no_run
    /// use lgreco_wgpu::{WgpuBackend, wgpu};
    /// fn beside_a_renderer(device: &wgpu::Device, queue: &wgpu::Queue) -> Result<WgpuBackend, lgreco_wgpu::Error> {
    ///     WgpuBackend::with_device(device.clone(), queue.clone()) // handles of the same device
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::Limit`] when a limit is below what the kernels need; the defaults of WebGPU are enough.
    pub fn with_device(device: wgpu::Device, queue: wgpu::Queue) -> Result<Self, Error> {
        Ok(WgpuBackend { gpu: Gpu::new(device, queue)?, failure: None })
    }

    /// The device.
    pub fn device(&self) -> &wgpu::Device {
        &self.gpu.device
    }

    /// The queue all work is submitted to.
    pub fn queue(&self) -> &wgpu::Queue {
        &self.gpu.queue
    }

    /// Bytes of device memory held between calls: tables and workspace, which grow with the largest layer. Uploads (of at
    /// most about 256 MiB at a time) and payloads come on top while a call runs.
    ///
    /// ```
    /// # let Ok(backend) = lgreco_wgpu::WgpuBackend::new() else { return };
    /// assert_eq!(backend.held_bytes(), 0); // before any work
    /// ```
    pub fn held_bytes(&self) -> u64 {
        self.gpu.held()
    }

    /// What the device said, in full, when a call through [`Backend`] last answered
    /// [`Device`](lgreco_core::Error::Device), whose text is shorter.
    pub fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// [`Backend::measure`] for gradients on the device: only the rows come back.
    ///
    /// ```
    /// use lgreco_core::backend::Backend;
    /// use lgreco_core::compress::{Candidates, Compressor, Setting, qsgd::Qsgd};
    /// use lgreco_core::gradient::{Dtype, Shape};
    /// use lgreco_core::rng::Stream;
    /// use lgreco_wgpu::{BufferGradient, BufferJob, WgpuBackend, wgpu};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let Ok(mut backend) = WgpuBackend::new() else { return Ok(()) };
    /// let buffer = backend.device().create_buffer(&wgpu::BufferDescriptor {
    ///     label: None,
    ///     size: 4 * 4096,
    ///     usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
    ///     mapped_at_creation: false,
    /// }); // zeros; a trainer's kernels would fill it
    /// let gradient = BufferGradient { buffer: &buffer, offset: 0, dtype: Dtype::F32, shape: Shape::new(64, 64)? };
    /// let candidates = Candidates::Qsgd { base: Qsgd::default(), bits: &[2, 4] };
    /// let mut row = [f64::NAN; 2];
    /// backend.measure_buffers(&[BufferJob { gradient, candidates, stream: Stream::default() }], &mut row)?;
    /// assert_eq!(row, [0.0; 2]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The first job that fails, with its reason.
    pub fn measure_buffers(&mut self, jobs: &[BufferJob<'_>], rows: &mut [f64]) -> Result<(), BufferJobError> {
        let work: Vec<Work<'_>> =
            jobs.iter().map(|job| Work::new(Input::Device(job.gradient), job.candidates, job.stream)).collect();
        measure(&mut self.gpu, &work, rows).map_err(|(job, error)| BufferJobError { job, error })
    }

    /// [`Backend::encode`] for a gradient on the device: only the payload comes back.
    ///
    /// ```
    /// use lgreco_core::backend::Backend;
    /// use lgreco_core::compress::{Candidates, Compressor, Setting, qsgd::Qsgd};
    /// use lgreco_core::gradient::{Dtype, Shape};
    /// use lgreco_core::rng::Stream;
    /// use lgreco_wgpu::{BufferGradient, BufferJob, WgpuBackend, wgpu};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let Ok(mut backend) = WgpuBackend::new() else { return Ok(()) };
    /// let buffer = backend.device().create_buffer(&wgpu::BufferDescriptor {
    ///     label: None,
    ///     size: 4 * 4096,
    ///     usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
    ///     mapped_at_creation: false,
    /// }); // zeros; a trainer's kernels would fill it
    /// let gradient = BufferGradient { buffer: &buffer, offset: 0, dtype: Dtype::F32, shape: Shape::new(64, 64)? };
    /// let setting = Setting::Qsgd(Qsgd::default());
    /// let mut payload = vec![0; setting.payload_len(gradient.shape, gradient.dtype)?];
    /// backend.encode_buffer(&setting, &gradient, Stream::default(), &mut payload)?;
    /// backend.decode_to_buffer(&payload, &buffer, 0)?; // what the receivers will have
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Compressor::encode`], and those of the device.
    pub fn encode_buffer(
        &mut self,
        setting: &Setting,
        gradient: &BufferGradient<'_>,
        stream: Stream,
        payload: &mut [u8],
    ) -> Result<usize, Error> {
        encode(&mut self.gpu, setting, &Input::Device(*gradient), stream, payload)
    }

    /// Decodes a payload into f32 values of `buffer` (usage `COPY_DST`) from byte `offset`, a multiple of 4, on. Nothing
    /// of them may be used when an error is returned. [`encode_buffer`](WgpuBackend::encode_buffer) has an example.
    ///
    /// # Errors
    /// As [`decode`](lgreco_core::compress::decode), and those of the device.
    pub fn decode_to_buffer(&mut self, payload: &[u8], buffer: &Buffer, offset: u64) -> Result<(), Error> {
        let parsed = Payload::parse(payload)?;
        let bytes = 4 * parsed.header.shape.elements() as u64;
        if !buffer.usage().contains(BufferUsages::COPY_DST) {
            return Err(Error::Buffer { what: "needs the usage COPY_DST" });
        }
        if !offset.is_multiple_of(4) {
            return Err(Error::Buffer { what: "is to be written at an offset that is no multiple of 4" });
        }
        if offset.checked_add(bytes).is_none_or(|end| end > buffer.size()) {
            return Err(Error::Buffer { what: "ends before the values do" });
        }
        let elements = parsed.header.shape.elements();
        if elements > 0
            && decode(&mut self.gpu, payload, &parsed, Some(Tensor::of_buffer(buffer, offset, elements)))?.is_some()
        {
            return Ok(());
        }
        let mut values = vec![0.0f32; elements];
        lgreco_core::compress::decode(payload, &mut values)?;
        let mut batch = Batch::new(&mut self.gpu)?;
        batch.write(buffer, offset, bytemuck::cast_slice(&values));
        batch.read(&[]).map(|_| ())
    }

    pub(crate) fn gpu(&mut self) -> &mut Gpu {
        &mut self.gpu
    }

    fn told(&mut self, error: Error) -> lgreco_core::Error {
        let core = error.to_core();
        if !matches!(error, Error::Core(_)) {
            self.failure = Some(error);
        }
        core
    }
}

impl Backend for WgpuBackend {
    /// None: workspace is memory of the device, which the backend holds.
    fn workspace_len(&self, _: &[Job<'_>]) -> usize {
        0
    }

    fn measure(&mut self, jobs: &[Job<'_>], _: &mut [u64], rows: &mut [f64]) -> Result<(), JobError> {
        let work: Vec<Work<'_>> =
            jobs.iter().map(|job| Work::new(Input::Host(job.gradient), job.candidates, job.stream)).collect();
        measure(&mut self.gpu, &work, rows).map_err(|(job, error)| JobError { job, error: self.told(error) })
    }

    fn encode(
        &mut self,
        setting: &Setting,
        gradient: &Gradient<'_>,
        stream: Stream,
        _: &mut [u64],
        payload: &mut [u8],
    ) -> Result<usize, lgreco_core::Error> {
        encode(&mut self.gpu, setting, &Input::Host(*gradient), stream, payload).map_err(|error| self.told(error))
    }

    fn decode(&mut self, payload: &[u8], values: &mut [f32]) -> Result<(), lgreco_core::Error> {
        let parsed = Payload::parse(payload)?;
        let elements = parsed.header.shape.elements();
        if values.len() == elements
            && elements > 0
            && let Some(bytes) = decode(&mut self.gpu, payload, &parsed, None).map_err(|error| self.told(error))?
        {
            values.copy_from_slice(&bytemuck::pod_collect_to_vec::<u8, f32>(&bytes));
            return Ok(());
        }
        lgreco_core::compress::decode(payload, values).map(|_| ())
    }
}

/// Words of results of one row, a multiple of [`RECORD`].
fn result_words(work: &Work<'_>) -> usize {
    let words = match work.candidates {
        Candidates::Qsgd { .. } => qsgd::RESULT_WORDS,
        Candidates::TopK { keeps, .. } => topk::result_words(keeps.len()),
        Candidates::PowerSgd { ranks, .. } => powersgd::result_words(ranks.len()),
        _ => 0,
    };
    words.next_multiple_of(RECORD)
}

/// What the core says of parameters that do not fit.
fn check(work: &Work<'_>) -> Result<(), Error> {
    for index in 0..work.candidates.len() {
        if let Some(setting) = work.candidates.setting(index) {
            setting.payload_len(work.input.shape(), work.input.dtype())?;
        }
    }
    Ok(())
}

fn measure(gpu: &mut Gpu, jobs: &[Work<'_>], rows: &mut [f64]) -> Result<(), (usize, Error)> {
    let total: usize = jobs.iter().map(|job| job.candidates.len()).sum();
    if rows.len() != total {
        let what = "rows, one place per candidate";
        return Err((0, lgreco_core::Error::Length { what, expected: total, found: rows.len() }.into()));
    }
    // Jobs before one that cannot be measured may fail first.
    let refused = jobs.iter().enumerate().find_map(|(index, job)| check(job).err().map(|error| (index, error)));
    let measured = &jobs[..refused.as_ref().map_or(jobs.len(), |&(index, _)| index)];
    let words = record(gpu, measured)?;
    let (mut rest, mut words) = (&mut rows[..], &words[..]);
    for (index, job) in measured.iter().enumerate() {
        let (row, next) = rest.split_at_mut(job.candidates.len());
        let (own, others) = words.split_at(result_words(job));
        take_row(gpu, job, own, row).map_err(|error| (index, error))?;
        (rest, words) = (next, others);
    }
    refused.map_or(Ok(()), Err)
}

/// Runs all jobs and returns the words of their results.
fn record(gpu: &mut Gpu, jobs: &[Work<'_>]) -> Result<Vec<u32>, (usize, Error)> {
    let total: usize = jobs.iter().map(result_words).sum();
    let at = |job| move |error| (job, error);
    let mut batch = Batch::new(gpu).map_err(at(0))?;
    let results = batch.scratch(Scratch::Results, 4 * total as u64).map_err(at(0))?;
    batch.clear(&results, 4 * total as u64);
    let mut last: Option<(Input<'_>, Tensor)> = None;
    let (mut result, mut uploaded) = (0, 0);
    for (index, job) in jobs.iter().enumerate() {
        let tensor = match last.take() {
            Some((input, tensor)) if input.is(&job.input) => tensor,
            _ => {
                if uploaded > UPLOADS {
                    batch.wait().map_err(at(index))?;
                    uploaded = 0;
                }
                if matches!(job.input, Input::Host(_)) {
                    uploaded += (job.input.shape().elements() * job.input.dtype().bytes()) as u64;
                }
                job.input.tensor(&mut batch).map_err(at(index))?
            }
        };
        row(&mut batch, job, &tensor, &results, result).map_err(at(index))?;
        last = Some((job.input, tensor));
        result += result_words(job);
    }
    let bytes = batch.read(&[Part { buffer: results, offset: 0, size: 4 * total as u64 }]).map_err(at(0))?;
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
        Candidates::PowerSgd { iterations, ranks } => {
            let shape = job.input.shape();
            powersgd::measure(batch, tensor, shape, (iterations, ranks), job.stream, results, at)
        }
        _ => Err(Error::Method("this row")),
    }
}

/// Makes a row of the words of a job's results, the first of which is the largest magnitude.
fn take_row(gpu: &mut Gpu, job: &Work<'_>, words: &[u32], row: &mut [f64]) -> Result<(), Error> {
    check_finite(gpu, &job.input, words[0])?;
    match job.candidates {
        Candidates::Qsgd { base, bits } => {
            row.iter_mut().zip(qsgd::errors(base, bits, words)).for_each(|(place, error)| *place = error);
        }
        Candidates::TopK { values, keeps } => {
            if !keeps.is_empty() && words[0] >= topk::overflow(values) {
                return Err(overflow(gpu, &job.input, words[0])?);
            }
            topk::errors(keeps, words, row);
        }
        Candidates::PowerSgd { iterations, ranks } => {
            let largest = ranks.iter().copied().max().unwrap_or(0);
            if words[0] >= NEAR_OVERFLOW && largest > 0 {
                // Encoding says whether anything overflows.
                let setting = Setting::PowerSgd(PowerSgd { rank: largest, iterations });
                let mut payload = vec![0; setting.payload_len(job.input.shape(), job.input.dtype())?];
                encode(gpu, &setting, &job.input, job.stream, &mut payload)?;
            }
            powersgd::errors(job.input.shape(), ranks, words, row);
        }
        _ => return Err(Error::Method("this row")),
    }
    Ok(())
}

/// `Err` with the first offender when the largest magnitude is not finite.
pub(crate) fn check_finite(gpu: &mut Gpu, input: &Input<'_>, largest: u32) -> Result<(), Error> {
    if largest < INFINITY {
        return Ok(());
    }
    match magnitude::first_from(gpu, input, INFINITY)? {
        Some((index, value)) => Err(lgreco_core::Error::NonFinite { index, value }.into()),
        None => Err(Error::Refused("it found a value that is not finite, then found none".into())),
    }
}

/// What is wrong with the first element from `least` on: it is too large for the type it is sent in.
fn overflow(gpu: &mut Gpu, input: &Input<'_>, least: u32) -> Result<Error, Error> {
    match magnitude::first_from(gpu, input, least)? {
        Some((index, value)) => Ok(lgreco_core::Error::ElementOverflow { index, value }.into()),
        None => Err(Error::Refused("it found a value that is too large, then found none".into())),
    }
}

fn encode(
    gpu: &mut Gpu,
    setting: &Setting,
    input: &Input<'_>,
    stream: Stream,
    payload: &mut [u8],
) -> Result<usize, Error> {
    let (shape, dtype) = (input.shape(), input.dtype());
    let len = setting.payload_len(shape, dtype)?;
    if payload.len() < len {
        let (what, found) = ("payload bytes", payload.len());
        return Err(lgreco_core::Error::Length { what, expected: len, found }.into());
    }
    let header = match *setting {
        Setting::Dense => return encode_dense(gpu, input, stream, payload),
        Setting::Qsgd(c) => {
            let variant = (c.bits - 1) | (c.scale as u8) << 3;
            Header { method: Method::Qsgd, variant, parameter: c.bucket, shape }
        }
        Setting::TopK(c) => {
            let variant = topk::variant(c, shape.elements());
            Header { method: Method::TopK, variant, parameter: c.keep, shape }
        }
        Setting::PowerSgd(c) => {
            let rank = powersgd::effective(shape, c.rank) as u32;
            Header { method: Method::PowerSgd, variant: 0, parameter: rank, shape }
        }
        _ => return Err(Error::Method("this setting")),
    };
    header.write(payload)?;
    if shape.elements() == 0 {
        return Ok(len);
    }
    let mut batch = Batch::new(gpu)?;
    let results = batch.scratch(Scratch::Results, 16)?;
    batch.clear(&results, 16);
    let tensor = input.tensor(&mut batch)?;
    let mut parts = vec![Part { buffer: results.clone(), offset: 0, size: 16 }];
    let body_at = |buffer: Buffer| Part { offset: HEADER as u64, size: buffer.size() - HEADER as u64, buffer };
    match *setting {
        Setting::Qsgd(c) => parts.push(body_at(qsgd::encode(&mut batch, &tensor, c, stream, len, &results)?)),
        Setting::TopK(c) => parts.push(body_at(topk::encode(&mut batch, &tensor, c, len, &results)?)),
        Setting::PowerSgd(c) => {
            let rank = powersgd::effective(shape, c.rank);
            parts.extend(powersgd::encode(&mut batch, &tensor, shape, (rank, c.iterations), stream, &results)?);
        }
        _ => return Err(Error::Method("this setting")),
    }
    let bytes = batch.read(&parts)?;
    let (words, body) = bytes.split_at(16);
    let word = |i: usize| bytemuck::pod_read_unaligned::<u32>(&words[4 * i..4 * i + 4]);
    check_finite(gpu, input, word(0))?;
    if let Setting::TopK(TopK { values, .. }) = *setting
        && word(0) >= topk::overflow(values)
    {
        return Err(overflow(gpu, input, word(1).max(topk::overflow(values)))?);
    }
    payload[HEADER..len].copy_from_slice(&body[..len - HEADER]);
    if matches!(setting, Setting::PowerSgd(_)) && word(0) >= NEAR_OVERFLOW {
        check_product(&payload[..len], shape.elements())?;
    }
    Ok(len)
}

const HEADER: usize = lgreco_core::compress::wire::HEADER_LEN;

/// From this magnitude on products of factors may leave the range of f32.
const NEAR_OVERFLOW: u32 = (127 + 90) << 23;

/// `Err` when a factor of a PowerSGD payload or the product of both is not finite.
fn check_product(payload: &[u8], elements: usize) -> Result<(), Error> {
    let body = payload[HEADER..].as_chunks::<4>().0;
    if !body.iter().all(|&bytes| f32::from_le_bytes(bytes).is_finite()) {
        return Err(lgreco_core::Error::Overflow { what: "PowerSGD factor Q" }.into());
    }
    lgreco_core::compress::decode(payload, &mut vec![0.0; elements])?;
    Ok(())
}

/// The values as they are, which the core writes behind a header.
fn encode_dense(gpu: &mut Gpu, input: &Input<'_>, stream: Stream, payload: &mut [u8]) -> Result<usize, Error> {
    let gradient = match input {
        Input::Host(gradient) => return Ok(Dense.encode(gradient, stream, &mut [], payload)?),
        Input::Device(gradient) => gradient,
    };
    let mut batch = Batch::new(gpu)?;
    input.tensor(&mut batch)?;
    let elements = gradient.shape.elements();
    let size = (elements * gradient.dtype.bytes()).next_multiple_of(4) as u64;
    let bytes = batch.read(&[Part { buffer: gradient.buffer.clone(), offset: gradient.offset, size }])?;
    let bytes = &bytes[..elements * gradient.dtype.bytes()];
    let (single, half, brain): (Vec<f32>, Vec<F16>, Vec<Bf16>);
    let values = match gradient.dtype {
        Dtype::F32 => {
            single = bytemuck::pod_collect_to_vec(bytes);
            Values::F32(&single)
        }
        Dtype::F16 => {
            half = bytemuck::pod_collect_to_vec(bytes);
            Values::F16(&half)
        }
        Dtype::Bf16 => {
            brain = bytemuck::pod_collect_to_vec(bytes);
            Values::Bf16(&brain)
        }
    };
    Ok(Dense.encode(&Gradient::new(values, gradient.shape)?, stream, &mut [], payload)?)
}

/// Decodes into `target`, or into room of its own, whose bytes it returns. `None` when that is left to the core: other
/// methods' payloads, those that no encoder writes, and PowerSGD at the ends of the range of f32.
fn decode(
    gpu: &mut Gpu,
    bytes: &[u8],
    payload: &Payload<'_>,
    target: Option<Tensor>,
) -> Result<Option<Vec<u8>>, Error> {
    let mut batch = Batch::new(gpu)?;
    let results = batch.scratch(Scratch::Results, 16)?;
    batch.clear(&results, 16);
    let mut parts = vec![Part { buffer: results.clone(), offset: 0, size: 16 }];
    let target = match target {
        Some(target) => target,
        None => {
            let room = Tensor::room(&mut batch, payload.header.shape.elements())?;
            parts.extend(room.parts());
            room
        }
    };
    let mut ones = 0;
    match payload.header.method {
        Method::Qsgd => match payload::qsgd(payload)? {
            Some(qsgd) => qsgd::decode(&mut batch, qsgd, payload.body, &target)?,
            None => return Ok(None),
        },
        Method::TopK => match topk::of_payload(payload) {
            Some(top) => ones = topk::decode(&mut batch, top, bytes, &target, &results)?,
            None => return Ok(None),
        },
        Method::PowerSgd => match powersgd::of_payload(payload) {
            Some(factors) => powersgd::decode(&mut batch, &factors, payload.header.shape, &target)?,
            None => return Ok(None),
        },
        Method::Dense | Method::AdaComp | Method::LoCo => return Ok(None),
    }
    let mut read = batch.read(&parts)?;
    let values = read.split_off(16);
    let word = |i: usize| bytemuck::pod_read_unaligned::<u32>(&read[4 * i..4 * i + 4]);
    Ok((word(0) == 0 && word(1) == ones).then_some(values))
}
