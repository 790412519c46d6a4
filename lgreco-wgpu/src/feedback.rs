//! Error feedback on the device: what `feedback.wgsl` is asked to do.

use crate::Error;
use crate::backend::WgpuBackend;
use crate::batch::{Batch, Part};
use crate::kernels::{Kernel, Shader};
use crate::magnitude::{self, INFINITY, check_finite};
use crate::memory::Scratch;
use crate::tensor::{BufferGradient, Input, Tensor};
use bytemuck::{Pod, Zeroable};
use lgreco_core::compress::Setting;
use lgreco_core::feedback::payload_stream;
use lgreco_core::gradient::Dtype;
use lgreco_core::rng::Stream;
use wgpu::{Buffer, BufferUsages};

/// `Params` of `feedback.wgsl`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    offset: u32,
    dtype: u32,
    count: u32,
    gain: u32,
    keep: u32,
}

#[cfg(test)]
impl Params {
    pub(crate) const FIELDS: [&'static str; 5] = ["offset", "dtype", "count", "gain", "keep"];
}

const USAGES: BufferUsages = BufferUsages::STORAGE.union(BufferUsages::COPY_SRC).union(BufferUsages::COPY_DST);

impl WgpuBackend {
    /// One step of error feedback for a gradient on the device: compresses `residual + gradient` into `payload`, and keeps
    /// `(1 − gain) residual + gain (residual + gradient − what was sent)` in `residual`, one f32 per element, zeros before the
    /// first step. Payload and residual are, bit for bit, those of the core's
    /// [`Rule::Residual`](lgreco_core::feedback::Rule) in f32 (for PowerSGD, of the payload this backend makes).
    ///
    /// PowerSGD draws another start matrix at every step of `stream`, as the core does; QSGD's words are those of the step.
    ///
    /// ```
    /// use lgreco_core::compress::{Compressor, Setting, topk::TopK};
    /// use lgreco_core::gradient::{Dtype, Shape};
    /// use lgreco_core::rng::Stream;
    /// use lgreco_wgpu::{BufferGradient, WgpuBackend, wgpu};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let Ok(mut backend) = WgpuBackend::new() else { return Ok(()) };
    /// let zeros = |backend: &WgpuBackend| {
    ///     backend.device().create_buffer(&wgpu::BufferDescriptor {
    ///         label: None,
    ///         size: 4 * 4096,
    ///         usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
    ///         mapped_at_creation: false,
    ///     })
    /// };
    /// let (gradient, residual) = (zeros(&backend), zeros(&backend));
    /// let gradient = BufferGradient { buffer: &gradient, offset: 0, dtype: Dtype::F32, shape: Shape::new(64, 64)? };
    /// let setting = Setting::TopK(TopK { keep: 41, values: Dtype::F32 });
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
    /// [`Parameter`](lgreco_core::Error::Parameter) unless `gain` is in (0, 1];
    /// [`NonFinite`](lgreco_core::Error::NonFinite) with the gradient's first offender;
    /// [`Overflow`](lgreco_core::Error::Overflow) when a sum leaves f32; [`Error::Buffer`] when `residual` lacks one of the
    /// usages `STORAGE`, `COPY_SRC` and `COPY_DST` or is too short; [`Error::Method`] for
    /// [`Setting::Dense`], which leaves nothing; those of [`encode_buffer`](WgpuBackend::encode_buffer). The residual is
    /// then unchanged.
    pub fn encode_with_feedback(
        &mut self,
        setting: &Setting,
        gradient: &BufferGradient<'_>,
        residual: &Buffer,
        gain: f32,
        stream: Stream,
        payload: &mut [u8],
    ) -> Result<usize, Error> {
        let elements = gradient.shape.elements();
        let bytes = 4 * elements as u64;
        if !(gain > 0.0 && gain <= 1.0) {
            let value = f64::from(gain);
            return Err(lgreco_core::Error::Parameter { what: "residual gain", value, expected: "in (0, 1]" }.into());
        }
        if !residual.usage().contains(USAGES) {
            return Err(Error::Buffer { what: "of residuals needs the usages STORAGE, COPY_SRC and COPY_DST" });
        }
        if residual.size() < bytes {
            return Err(Error::Buffer { what: "of residuals has fewer than four bytes per element" });
        }
        if matches!(setting, Setting::Dense) {
            return Err(Error::Method("error feedback of uncompressed gradients"));
        }
        if elements == 0 {
            return self.encode_buffer(setting, gradient, stream, payload);
        }
        let overflow = |what| Err(lgreco_core::Error::Overflow { what }.into());
        let base = Params { gain: gain.to_bits(), keep: (1.0 - gain).to_bits(), ..Params::default() };

        let mut batch = Batch::new(self.gpu())?;
        let offered = batch.gpu.scratch(Scratch::Offered, bytes)?;
        let decoded = batch.gpu.scratch(Scratch::Decoded, bytes)?;
        let memory = Tensor::of_buffer(residual, 0, elements);
        let sums = Tensor::of_buffer(&offered, 0, elements);
        let input = Input::Device(*gradient);
        let tensor = input.tensor(&mut batch)?;
        pass(&mut batch, "offer", &tensor, [&memory, &sums], base);
        let [of_gradient, of_sums] = largest(batch, [&tensor, &sums])?;
        check_finite(self.gpu(), &input, of_gradient)?;
        if of_sums >= INFINITY {
            return overflow("the gradient with what is remembered");
        }

        let shape = gradient.shape;
        let whole = BufferGradient { buffer: &offered, offset: 0, dtype: Dtype::F32, shape };
        let len = self.encode_buffer(setting, &whole, payload_stream(setting, stream), payload)?;
        self.decode_to_buffer(&payload[..len], &decoded, 0)?;

        let mut batch = Batch::new(self.gpu())?;
        pass(&mut batch, "remember", &Tensor::of_buffer(&decoded, 0, elements), [&memory, &sums], base);
        let [left] = largest(batch, [&sums])?;
        if left >= INFINITY {
            return overflow("what is to be remembered");
        }
        let mut batch = Batch::new(self.gpu())?;
        batch.copy(&offered, 0, residual, 0, bytes);
        batch.read(&[])?;
        Ok(len)
    }
}

/// Records a pass over `values` and, in step with them, the memory and what is offered.
fn pass(batch: &mut Batch<'_>, entry: &'static str, values: &Tensor, others: [&Tensor; 2], base: Params) {
    let [memory, offered] = others.map(|tensor| tensor.all(batch));
    for ((piece, memory), offered) in values.all(batch).into_iter().zip(memory).zip(offered) {
        let params = Params { offset: piece.skip, dtype: values.dtype as u32, count: piece.count as u32, ..base };
        let bindings = [(1, piece.part.clone()), (2, memory.part), (3, offered.part)];
        batch.dispatch(Kernel { shader: Shader::Feedback, entry }, params, &bindings, piece.groups());
    }
}

/// Runs what is recorded; the bits of the largest magnitude of each tensor.
fn largest<const N: usize>(mut batch: Batch<'_>, tensors: [&Tensor; N]) -> Result<[u32; N], Error> {
    let results = batch.scratch(Scratch::Results, 16)?;
    batch.clear(&results, 16);
    for (index, tensor) in tensors.iter().enumerate() {
        magnitude::largest(&mut batch, tensor, &results, index);
    }
    let words: Vec<u32> =
        bytemuck::pod_collect_to_vec(&batch.read(&[Part { buffer: results, offset: 0, size: 16 }])?);
    Ok(std::array::from_fn(|index| words[index]))
}
