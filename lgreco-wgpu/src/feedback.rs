//! Error feedback on the device: launches of `feedback.wgsl`.

use crate::Error;
use crate::backend::WgpuBackend;
use crate::batch::{Batch, Part};
use crate::kernels::{Kernel, Shader};
use crate::magnitude::{self, INFINITY, check_finite};
use crate::memory::Scratch;
use crate::params::params;
use crate::tensor::{BufferGradient, Input, Tensor};
use lgreco::compress::Setting;
use lgreco::gradient::Dtype;
use lgreco::rng::Stream;
use lgreco_train::feedback::{Storage, payload_stream};
use wgpu::{Buffer, BufferUsages};

params! {
    /// The struct `Params` in `feedback.wgsl`, with the same layout.
    offset, dtype, first, count, storage, gain, keep, step, layer, rank, seed_low, seed_high,
    shift,
}

const _: () = assert!(lgreco_train::feedback::GROUP == 512, "as in feedback.wgsl");
const USAGES: BufferUsages = BufferUsages::STORAGE.union(BufferUsages::COPY_SRC).union(BufferUsages::COPY_DST);

/// A worker's residual of one layer, in a buffer of the device. The buffer must be zero before the first step.
///
/// ```
/// use lgreco_train::feedback::Storage;
/// use lgreco_wgpu::{BufferResidual, wgpu};
/// # let (device, _) = wgpu::Device::noop(&wgpu::DeviceDescriptor::default());
/// let buffer = device.create_buffer(&wgpu::BufferDescriptor {
///     label: None,
///     size: BufferResidual::bytes(Storage::Int8, 64 * 576),
///     usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
///     mapped_at_creation: false,
/// });
/// let residual = BufferResidual { buffer: &buffer, storage: Storage::Int8 };
/// assert_eq!(buffer.size(), 64 * 576 + 72); // one byte per element, and one per 512 elements
/// ```
#[derive(Clone, Copy, Debug)]
pub struct BufferResidual<'a> {
    /// The buffer, of usages `STORAGE`, `COPY_SRC` and `COPY_DST`.
    pub buffer: &'a Buffer,
    /// Format of the residual. The bytes are the same as in the core's format. Values in f32 and bf16 are in row-major
    /// order. An int8 residual has one code per element and then, without a gap, the exponents of the groups.
    pub storage: Storage,
}

impl BufferResidual<'_> {
    /// Bytes of the buffer for `elements` elements: [`Storage::bytes`], padded to a whole word.
    pub fn bytes(storage: Storage, elements: usize) -> u64 {
        storage.bytes(elements).next_multiple_of(4)
    }

    /// Returns the part with `count` elements from `first` on, without exponents. `first` must be a multiple of 2048.
    fn part(&self, first: usize, count: usize) -> Part {
        let per_element = match self.storage {
            Storage::F32 => 4,
            Storage::Bf16 => 2,
            Storage::Int8 => 1,
        };
        let (offset, size) = ((per_element * first) as u64, (per_element * count) as u64);
        Part { buffer: self.buffer.clone(), offset, size: size.next_multiple_of(4) }
    }

    /// For int8, returns the part after the last whole word of codes. This part has up to three codes, and all
    /// exponents.
    fn tail(&self, elements: usize) -> Part {
        let offset = elements as u64 / 4 * 4;
        Part { buffer: self.buffer.clone(), offset, size: BufferResidual::bytes(self.storage, elements) - offset }
    }
}

impl WgpuBackend {
    /// Makes one step of error feedback for a gradient on the device. The call compresses `residual + gradient` into
    /// `payload`, and keeps `(1 − gain) residual + gain (residual + gradient − decoded payload)` in `residual`. Payload
    /// and residual have the same bits as those that the core's [`Residual`](lgreco_train::feedback::Residual) makes in
    /// the same format. There is one exception: PowerSGD's payloads may differ from the core's. The residual is the one
    /// that the core would compute from this backend's payload.
    ///
    /// As in the core, PowerSGD draws a new start matrix at every step of `stream`. QSGD's random words also depend on
    /// the step.
    ///
    /// ```
    /// use lgreco::compress::{Compressor, Setting, qsgd::Qsgd};
    /// use lgreco_train::feedback::Storage;
    /// use lgreco::gradient::{Dtype, Shape};
    /// use lgreco::rng::Stream;
    /// use lgreco_wgpu::{BufferGradient, BufferResidual, WgpuBackend, wgpu};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default()); // an embedder has a real one
    /// # let mut backend = WgpuBackend::with_device(device, queue)?;
    /// let zeros = |size| {
    ///     backend.device().create_buffer(&wgpu::BufferDescriptor {
    ///         label: None,
    ///         size,
    ///         usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
    ///         mapped_at_creation: false,
    ///     })
    /// };
    /// let (gradient, residual) = (zeros(4 * 4096), zeros(BufferResidual::bytes(Storage::Bf16, 4096)));
    /// let gradient = BufferGradient { buffer: &gradient, offset: 0, dtype: Dtype::F32, shape: Shape::new(64, 64)? };
    /// let residual = BufferResidual { buffer: &residual, storage: Storage::Bf16 };
    /// let setting = Setting::Qsgd(Qsgd::default());
    /// let mut payload = vec![0; setting.payload_len(gradient.shape, gradient.dtype)?];
    /// for step in 0..3 {
    ///     let stream = Stream { step, ..Stream::default() };
    ///     backend.encode_with_feedback(&setting, &gradient, &residual, 1.0, stream, &mut payload)?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Parameter`](lgreco::Error::Parameter) unless `gain` is in (0, 1]. [`NonFinite`](lgreco::Error::NonFinite) with
    /// the gradient's first element that is not finite. [`Overflow`](lgreco::Error::Overflow) if a sum exceeds the
    /// range of f32, or the residual exceeds the range of its format. [`Error::Buffer`] if the residual's buffer lacks
    /// a usage or is too short. [`Error::Method`] for [`Setting::Dense`], which leaves no residual, and for AdaComp,
    /// which has no kernels. Errors of [`encode_buffer`](WgpuBackend::encode_buffer). After an error the residual is
    /// unchanged.
    ///
    /// # Complexity
    /// The cost of encoding and decoding, and three more passes over the values for bf16 and int8, or two passes and a
    /// copy for f32. The workspace has eight bytes per element.
    pub fn encode_with_feedback(
        &mut self,
        setting: &Setting,
        gradient: &BufferGradient<'_>,
        residual: &BufferResidual<'_>,
        gain: f32,
        stream: Stream,
        payload: &mut [u8],
    ) -> Result<usize, Error> {
        let elements = gradient.shape.elements();
        let bytes = 4 * elements as u64;
        if !(gain > 0.0 && gain <= 1.0) {
            let value = f64::from(gain);
            return Err(lgreco::Error::Parameter { what: "residual gain", value, expected: "in (0, 1]" }.into());
        }
        if !residual.buffer.usage().contains(USAGES) {
            return Err(Error::Buffer { what: "of residuals needs the usages STORAGE, COPY_SRC and COPY_DST" });
        }
        if residual.buffer.size() < BufferResidual::bytes(residual.storage, elements) {
            return Err(Error::Buffer { what: "of residuals is too short for the gradient" });
        }
        if matches!(setting, Setting::Dense) {
            return Err(Error::Method("error feedback of uncompressed gradients"));
        }
        if elements == 0 {
            return self.encode_buffer(setting, gradient, stream, payload);
        }
        let overflow = |what| Err(lgreco::Error::Overflow { what }.into());
        // The residual needs a separate seed, because the same random bits must not round both the payload and the
        // residual.
        let seed = stream.seed ^ u64::from_le_bytes(*b"feedback");
        let base = Params {
            storage: residual.storage as u32,
            gain: gain.to_bits(),
            keep: (1.0 - gain).to_bits(),
            step: stream.step,
            layer: stream.layer,
            rank: stream.rank,
            seed_low: seed as u32,
            seed_high: (seed >> 32) as u32,
            shift: (elements % 4) as u32,
            ..Params::default()
        };

        let mut batch = Batch::new(self.gpu())?;
        let offered = batch.gpu.scratch(Scratch::Offered, bytes)?;
        let decoded = batch.gpu.scratch(Scratch::Decoded, bytes)?;
        let sums = Tensor::of_buffer(&offered, 0, elements);
        let input = Input::Device(*gradient);
        let tensor = input.tensor(&mut batch)?;
        pass(&mut batch, "offer", &tensor, residual, &sums, base)?;
        let [of_gradient, of_sums] = largest(batch, [&tensor, &sums])?;
        check_finite(self.gpu(), &input, of_gradient)?;
        if of_sums >= INFINITY {
            return overflow("gradient plus residual");
        }

        let shape = gradient.shape;
        let whole = BufferGradient { buffer: &offered, offset: 0, dtype: Dtype::F32, shape };
        let len = self.encode_buffer(setting, &whole, payload_stream(setting, stream), payload)?;
        self.decode_to_buffer(&payload[..len], &decoded, 0)?;

        let mut batch = Batch::new(self.gpu())?;
        pass(&mut batch, "remember", &Tensor::of_buffer(&decoded, 0, elements), residual, &sums, base)?;
        let [left] = largest(batch, [&sums])?;
        if left > residual.storage.largest().to_bits() {
            return overflow("the residual");
        }
        let mut batch = Batch::new(self.gpu())?;
        match residual.storage {
            Storage::F32 => batch.copy(&offered, 0, residual.buffer, 0, bytes),
            Storage::Bf16 => store(&mut batch, "store_bf16", residual, &sums, base, &[]),
            Storage::Int8 => store_int8(&mut batch, residual, &sums, base)?,
        }
        batch.read(&[])?;
        Ok(len)
    }
}

const fn kernel(entry: &'static str) -> Kernel {
    Kernel { shader: Shader::Feedback, entry }
}

/// Records a pass over `values`, the residual, and the sums of gradient and residual.
fn pass(
    batch: &mut Batch<'_>,
    entry: &'static str,
    values: &Tensor,
    residual: &BufferResidual<'_>,
    offered: &Tensor,
    base: Params,
) -> Result<(), Error> {
    let tail = match residual.storage {
        // f32 and bf16 have no exponents, so any buffer can be bound.
        Storage::F32 | Storage::Bf16 => (&batch.scratch(Scratch::Results, 16)?).into(),
        Storage::Int8 => {
            let there = residual.tail(values.elements);
            let tail = scratch_tail(batch, &there)?;
            batch.copy(&there.buffer, there.offset, &tail.buffer, 0, tail.size);
            tail
        }
    };
    for (piece, offered) in values.all(batch).into_iter().zip(offered.all(batch)) {
        let params = Params {
            offset: piece.skip,
            dtype: values.dtype as u32,
            first: piece.first as u32,
            count: piece.count as u32,
            ..base
        };
        let memory = residual.part(piece.first, piece.count);
        let bindings = [(1, piece.part.clone()), (2, memory), (3, offered.part), (4, tail.clone())];
        batch.dispatch(kernel(entry), params, &bindings, piece.groups());
    }
    Ok(())
}

/// Returns a part of a scratch buffer with the size of the residual's tail at `there`. Kernels bind this part in place
/// of the tail, because the tail's offset may not be aligned for a binding.
fn scratch_tail(batch: &mut Batch<'_>, there: &Part) -> Result<Part, Error> {
    let buffer = batch.scratch(Scratch::Exponents, there.size)?;
    Ok(Part { buffer, offset: 0, size: there.size })
}

/// Records the commands that round `values` to int8 and write them to the residual.
fn store_int8(
    batch: &mut Batch<'_>,
    residual: &BufferResidual<'_>,
    values: &Tensor,
    base: Params,
) -> Result<(), Error> {
    let there = residual.tail(values.elements);
    let tail = scratch_tail(batch, &there)?;
    batch.clear(&tail.buffer, tail.size);
    store(batch, "store_int8", residual, values, base, &[(4, tail.clone())]);
    batch.copy(&tail.buffer, 0, &there.buffer, there.offset, there.size);
    Ok(())
}

/// Records the commands with which the kernel `entry` rounds `values` and writes them to the residual. `more` has
/// bindings in addition to those of the values and the residual.
fn store(
    batch: &mut Batch<'_>,
    entry: &'static str,
    residual: &BufferResidual<'_>,
    values: &Tensor,
    base: Params,
    more: &[(u32, Part)],
) {
    for piece in values.all(batch) {
        let params = Params { first: piece.first as u32, count: piece.count as u32, ..base };
        let of_piece = [(2, residual.part(piece.first, piece.count)), (3, piece.part.clone())];
        batch.dispatch(kernel(entry), params, &[&of_piece, more].concat(), piece.groups());
    }
}

/// Submits the recorded work, and returns the bits of each tensor's largest magnitude.
fn largest<const N: usize>(mut batch: Batch<'_>, tensors: [&Tensor; N]) -> Result<[u32; N], Error> {
    let results = batch.scratch(Scratch::Results, 16)?;
    batch.clear(&results, 16);
    let tensors: Vec<(&Tensor, usize)> = tensors.into_iter().zip(0..).collect();
    magnitude::largest(&mut batch, &tensors, &results);
    let words: Vec<u32> =
        bytemuck::pod_collect_to_vec(&batch.read(&[Part { buffer: results, offset: 0, size: 16 }])?);
    Ok(std::array::from_fn(|index| words[index]))
}
