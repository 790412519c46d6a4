//! Error feedback on the device: what `feedback.cu` is asked to do.

use crate::Error;
use crate::backend::CudaBackend;
use crate::codec::{STATUS, check, check_decoded, checked_len, encode, enqueue, enqueue_decoding, header};
use crate::device::Part;
use crate::gpu::{Gpu, Scratch, looping_blocks};
use crate::kernels::{Kernel, Module};
use crate::magnitude::{INFINITY, check_finite};
use crate::tensor::{DeviceGradient, Input, Tensor, checked};
use bytemuck::{Pod, Zeroable};
use lgreco_core::compress::Setting;
use lgreco_core::compress::wire::{HEADER_LEN, Header};
use lgreco_core::gradient::Dtype;
use lgreco_core::rng::Stream;
use lgreco_train::feedback::{GROUP, Storage, payload_stream};

/// `Params` of `feedback.cu`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    dtype: u32,
    count: u32,
    storage: u32,
    gain: f32,
    keep: f32,
    step: u32,
    layer: u32,
    rank: u32,
    seed_low: u32,
    seed_high: u32,
}

#[cfg(test)]
impl Params {
    pub(crate) const FIELDS: &[&'static str] =
        &["dtype", "count", "storage", "gain", "keep", "step", "layer", "rank", "seed_low", "seed_high"];
}

/// Threads that round a group.
const WARP: u64 = 32;
const _: () = assert!(GROUP == 512, "as in feedback.cu");

/// What a worker remembers of one layer, in device memory: zeros before the first step.
///
/// ```
/// use lgreco_train::feedback::Storage;
/// use lgreco_cuda::DeviceResidual;
/// let residual = DeviceResidual { address: 0x7f00_0000_0000, storage: Storage::Int8 };
/// assert_eq!(residual.storage.bytes(64 * 576), 64 * 576 + 72); // a byte per element, and one per 512
/// assert_eq!(DeviceResidual::from(4096).storage, Storage::F32); // an address alone
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceResidual {
    /// Where it begins, a multiple of 4; it takes [`Storage::bytes`].
    pub address: u64,
    /// What it is kept in: f32 and bf16 in row-major order; int8 as the codes, then the groups' exponents.
    pub storage: Storage,
}

/// A residual in f32.
impl From<u64> for DeviceResidual {
    fn from(address: u64) -> Self {
        DeviceResidual { address, storage: Storage::F32 }
    }
}

impl CudaBackend {
    /// Done: one step of error feedback for a gradient on the device: compresses `residual + gradient` into `payload`,
    /// and keeps `(1 − gain) residual + gain (residual + gradient − what was sent)` in `residual`; an address alone is
    /// one of f32. Payload and residual are, bit for bit, those of the core's
    /// [`Residual`](lgreco_train::feedback::Residual) in the same [`Storage`] (for PowerSGD, of the payload this
    /// backend makes).
    ///
    /// PowerSGD draws another start matrix at every step of `stream`, as the core does; QSGD's words are those of the
    /// step.
    ///
    /// ```no_run
    /// use lgreco_core::compress::{Compressor, Setting, qsgd::Qsgd};
    /// use lgreco_core::gradient::{Dtype, Shape};
    /// use lgreco_core::rng::Stream;
    /// use lgreco_cuda::{CudaBackend, DeviceGradient};
    /// /// What a worker sends of one layer at one step; `gradient` and `residual` are device addresses of 64 × 64 f32.
    /// fn compress(
    ///     cuda: &mut CudaBackend,
    ///     (gradient, residual): (u64, u64),
    ///     step: u32,
    /// ) -> Result<Vec<u8>, lgreco_cuda::Error> {
    ///     let (shape, setting) = (Shape::new(64, 64)?, Setting::Qsgd(Qsgd::default()));
    ///     let mut payload = vec![0; setting.payload_len(shape, Dtype::F32)?];
    ///     let stream = Stream { step, ..Stream::default() };
    ///     // SAFETY: both are the trainer's, of this size, and written on the backend's stream alone.
    ///     unsafe {
    ///         let gradient = DeviceGradient::new(gradient, Dtype::F32, shape)?;
    ///         cuda.encode_with_feedback(&setting, &gradient, residual, 1.0, stream, &mut payload)?;
    ///     }
    ///     Ok(payload)
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Parameter`](lgreco_core::Error::Parameter) unless `gain` is in (0, 1];
    /// [`NonFinite`](lgreco_core::Error::NonFinite) with the gradient's first offender;
    /// [`Overflow`](lgreco_core::Error::Overflow) when a sum leaves f32, or the residual its format; [`Error::Memory`]
    /// when the residual's address is 0 or no multiple of 4; [`Error::Method`] for [`Setting::Dense`], which leaves
    /// nothing; those of [`encode_device`](CudaBackend::encode_device). The residual is then unchanged.
    ///
    /// # Complexity
    /// Encode, decode and, for bf16 and int8, three passes, else two and a copy; they find the largest magnitudes on
    /// their way. Waits twice: for what is known of the sums, and for the payload. Keeps eight bytes per element of
    /// workspace.
    ///
    /// # Safety
    /// The residual is valid memory of [`Storage::bytes`] in the backend's context, apart from the gradient's, which
    /// nothing else uses, other than work ordered before or after on the backend's stream.
    pub unsafe fn encode_with_feedback(
        &mut self,
        setting: &Setting,
        gradient: &DeviceGradient,
        residual: impl Into<DeviceResidual>,
        gain: f32,
        stream: Stream,
        payload: &mut [u8],
    ) -> Result<usize, Error> {
        let DeviceResidual { address, storage } = residual.into();
        let part = checked(address, storage.bytes(gradient.shape().elements()), 4)?;
        step(self.gpu_mut(), setting, gradient, &Memory { part, storage, gain }, stream, payload)
    }
}

/// A residual and how much of it is renewed.
pub(crate) struct Memory {
    pub(crate) part: Part,
    pub(crate) storage: Storage,
    pub(crate) gain: f32,
}

/// Done: [`encode_with_feedback`](CudaBackend::encode_with_feedback).
fn step(
    gpu: &mut Gpu,
    setting: &Setting,
    gradient: &DeviceGradient,
    memory: &Memory,
    stream: Stream,
    payload: &mut [u8],
) -> Result<usize, Error> {
    check_call(setting, memory.gain)?;
    if gradient.shape().elements() == 0 {
        return encode(gpu, setting, &Input::Device(*gradient), stream, payload);
    }
    let step = Step::enqueue(gpu, setting, gradient, memory, stream, payload.len())?;
    step.check(gpu, setting, gradient, memory.storage)?;
    step.finish(gpu, memory, payload)
}

/// All that [`step`] does where nothing is wrong, except to ask that; the device must be one that does nothing.
pub(crate) fn rehearse_step(
    gpu: &mut Gpu,
    setting: &Setting,
    gradient: &DeviceGradient,
    memory: &Memory,
    stream: Stream,
    payload: &mut [u8],
) -> Result<(), Error> {
    check_call(setting, memory.gain)?;
    if gradient.shape().elements() == 0 {
        return Ok(());
    }
    let step = Step::enqueue(gpu, setting, gradient, memory, stream, payload.len())?;
    step.finish(gpu, memory, payload).map(drop)
}

/// What is wrong whatever the values.
fn check_call(setting: &Setting, gain: f32) -> Result<(), Error> {
    if !(gain > 0.0 && gain <= 1.0) {
        let value = f64::from(gain);
        return Err(lgreco_core::Error::Parameter { what: "residual gain", value, expected: "in (0, 1]" }.into());
    }
    if matches!(setting, Setting::Dense) {
        return Err(Error::Method("error feedback of uncompressed gradients"));
    }
    Ok(())
}

const fn overflow(what: &'static str) -> Error {
    Error::Core(lgreco_core::Error::Overflow { what })
}

/// A sum of gradient and memory that has been enqueued; nothing of the caller's has changed yet.
struct Sum {
    /// The sum that is compressed.
    whole: DeviceGradient,
    /// What it decodes to.
    next: Tensor,
    /// Words: the largest magnitudes of the gradient, of the sum and of what is to be remembered, and two statuses.
    known: Part,
    base: Params,
}

impl Sum {
    /// Enqueued, of some elements.
    fn enqueue(
        gpu: &mut Gpu,
        gradient: &DeviceGradient,
        &Memory { part: memory, storage, gain }: &Memory,
        stream: Stream,
    ) -> Result<Self, Error> {
        // A key of their own: the same bits must not round both payload and memory.
        let seed = stream.seed ^ u64::from_le_bytes(*b"feedback");
        let base = Params {
            storage: storage as u32,
            gain,
            keep: 1.0 - gain,
            step: stream.step,
            layer: stream.layer,
            rank: stream.rank,
            seed_low: seed as u32,
            seed_high: (seed >> 32) as u32,
            ..Params::default()
        };
        let bytes = 4 * gradient.shape().elements() as u64;
        let offered = gpu.scratch(Scratch::Offered, bytes)?;
        let next = Tensor::of_part(gpu.scratch(Scratch::Decoded, bytes)?);
        let known = gpu.scratch(Scratch::Known, 12 + 2 * STATUS)?;
        gpu.clear(known)?;
        let tensor = Input::Device(*gradient).tensor(gpu)?;
        pass(gpu, "offer", &tensor, [memory, offered, known.cut(0, 8)], base)?;
        Ok(Sum { whole: DeviceGradient::of_part(offered, Dtype::F32, gradient.shape()), next, known, base })
    }

    /// Enqueued: makes what is to be remembered of the sum and what it decodes to.
    fn remember(&self, gpu: &mut Gpu, memory: &Memory) -> Result<(), Error> {
        let offered = Input::Device(self.whole).tensor(gpu)?;
        pass(gpu, "remember", &offered, [memory.part, self.next.part, self.known.cut(8, 4)], self.base)
    }

    /// Whether gradient and sum are finite, by the first two words.
    fn check(&self, gpu: &mut Gpu, gradient: &DeviceGradient, words: &[u32]) -> Result<(), Error> {
        check_finite(gpu, &Input::Device(*gradient), words[0])?;
        if words[1] >= INFINITY {
            return Err(overflow("the gradient with what is remembered"));
        }
        Ok(())
    }

    /// Enqueued: renews the memory.
    fn store(&self, gpu: &mut Gpu, memory: &Memory) -> Result<(), Error> {
        store(gpu, memory.storage, &self.next, memory.part, self.base)
    }
}

/// Whether the memory's format holds what is to be remembered, by its largest magnitude.
fn check_fits(storage: Storage, largest: u32) -> Result<(), Error> {
    if largest > storage.largest().to_bits() { Err(overflow("what is to be remembered")) } else { Ok(()) }
}

/// What has been enqueued of a step, which has changed nothing yet.
struct Step {
    sum: Sum,
    /// What the second status must be.
    decoded: Option<[u32; 2]>,
    header: Header,
    sent: Part,
}

impl Step {
    /// Enqueued, of some elements.
    fn enqueue(
        gpu: &mut Gpu,
        setting: &Setting,
        gradient: &DeviceGradient,
        memory: &Memory,
        stream: Stream,
        room: usize,
    ) -> Result<Self, Error> {
        let sum = Sum::enqueue(gpu, gradient, memory, stream)?;
        let [of_encoding, of_decoding] = [12, 12 + STATUS].map(|at| sum.known.cut(at, STATUS));
        let (shape, input) = (gradient.shape(), Input::Device(sum.whole));
        let len = checked_len(setting, &input, room)?;
        let header = header(setting, &input)?;
        let sent = gpu.scratch(Scratch::Payload, len as u64)?;
        enqueue(gpu, setting, &input, payload_stream(setting, stream), sent, of_encoding)?;
        let decoded = enqueue_decoding(gpu, setting, shape, sent, &sum.next, of_decoding)?;
        sum.remember(gpu, memory)?;
        Ok(Step { sum, decoded, header, sent })
    }

    /// Done: whether the step may be finished.
    fn check(
        &self,
        gpu: &mut Gpu,
        setting: &Setting,
        gradient: &DeviceGradient,
        storage: Storage,
    ) -> Result<(), Error> {
        let words = gpu.read::<u32>(self.sum.known)?;
        self.sum.check(gpu, gradient, &words)?;
        check(gpu, setting, &Input::Device(self.sum.whole), &words[3..5])?;
        check_decoded(&words[5..], self.decoded)?;
        check_fits(storage, words[2])
    }

    /// Done: renews the memory, and fetches the payload.
    fn finish(&self, gpu: &mut Gpu, memory: &Memory, payload: &mut [u8]) -> Result<usize, Error> {
        self.sum.store(gpu, memory)?;
        self.header.write(payload)?;
        let len = self.sent.bytes as usize;
        gpu.read_into(self.sent.from(HEADER_LEN as u64), &mut payload[HEADER_LEN..len])?;
        Ok(len)
    }
}

/// Enqueued: a pass over `values` and, in step with them, two other parts; the last is for the largest magnitudes.
fn pass(gpu: &mut Gpu, entry: &'static str, values: &Tensor, others: [Part; 3], base: Params) -> Result<(), Error> {
    let params = Params { dtype: values.dtype as u32, count: values.elements, ..base };
    let kernel = Kernel { module: Module::Feedback, entry };
    let [second, third, largest] = others;
    gpu.launch(kernel, params, &[values.part, second, third, largest], looping_blocks(values.elements.into()))
}

/// Enqueued: rounds `values` to what the memory is kept in.
fn store(gpu: &mut Gpu, storage: Storage, values: &Tensor, memory: Part, base: Params) -> Result<(), Error> {
    let elements = u64::from(values.elements);
    let (entry, threads) = match storage {
        Storage::F32 => return gpu.copy(values.part, memory),
        Storage::Bf16 => ("store_bf16", elements.div_ceil(4)),
        Storage::Int8 => ("store_int8", elements.div_ceil(GROUP as u64) * WARP),
    };
    let kernel = Kernel { module: Module::Feedback, entry };
    let params = Params { count: values.elements, ..base };
    gpu.launch(kernel, params, &[values.part, memory], looping_blocks(threads))
}
