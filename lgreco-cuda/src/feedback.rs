//! Error feedback on the device: what `feedback.cu` is asked to do.

use crate::Error;
use crate::backend::CudaBackend;
use crate::device::Part;
use crate::gpu::{Gpu, Scratch, looping_blocks};
use crate::kernels::{Kernel, Module};
use crate::magnitude::{self, INFINITY, check_finite};
use crate::tensor::{DeviceGradient, Input, Tensor, checked};
use bytemuck::{Pod, Zeroable};
use lgreco_core::compress::Setting;
use lgreco_core::feedback::payload_stream;
use lgreco_core::gradient::Dtype;
use lgreco_core::rng::Stream;

/// `Params` of `feedback.cu`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    dtype: u32,
    count: u32,
    gain: f32,
    keep: f32,
}

#[cfg(test)]
impl Params {
    pub(crate) const FIELDS: &[&'static str] = &["dtype", "count", "gain", "keep"];
}

impl CudaBackend {
    /// Done: one step of error feedback for a gradient on the device: compresses `residual + gradient` into `payload`, and
    /// keeps `(1 − gain) residual + gain (residual + gradient − what was sent)` at the address `residual`, one f32 per
    /// element, zeros before the first step. Payload and residual are, bit for bit, those of the core's
    /// [`Rule::Residual`](lgreco_core::feedback::Rule) in f32 (for PowerSGD, of the payload this backend makes).
    ///
    /// PowerSGD draws another start matrix at every step of `stream`, as the core does; QSGD's words are those of the step.
    ///
    /// ```no_run
    /// use lgreco_core::compress::{Compressor, Setting, qsgd::Qsgd};
    /// use lgreco_core::gradient::{Dtype, Shape};
    /// use lgreco_core::rng::Stream;
    /// use lgreco_cuda::{CudaBackend, DeviceGradient};
    /// /// What a worker sends of one layer at one step; `gradient` and `residual` are device addresses of 64 × 64 f32.
    /// fn compress(cuda: &mut CudaBackend, gradient: u64, residual: u64, step: u32) -> Result<Vec<u8>, lgreco_cuda::Error> {
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
    /// [`Overflow`](lgreco_core::Error::Overflow) when a sum leaves f32; [`Error::Memory`] when `residual` is 0 or no
    /// multiple of 4; [`Error::Method`] for [`Setting::Dense`], which leaves nothing; those of
    /// [`encode_device`](CudaBackend::encode_device). The residual is then unchanged.
    ///
    /// # Safety
    /// `residual` is valid memory of four bytes per element in the backend's context, apart from the gradient's, which
    /// nothing else uses, other than work ordered before or after on the backend's stream.
    pub unsafe fn encode_with_feedback(
        &mut self,
        setting: &Setting,
        gradient: &DeviceGradient,
        residual: u64,
        gain: f32,
        stream: Stream,
        payload: &mut [u8],
    ) -> Result<usize, Error> {
        let shape = gradient.shape();
        let bytes = 4 * shape.elements() as u64;
        if !(gain > 0.0 && gain <= 1.0) {
            let value = f64::from(gain);
            return Err(lgreco_core::Error::Parameter { what: "residual gain", value, expected: "in (0, 1]" }.into());
        }
        if matches!(setting, Setting::Dense) {
            return Err(Error::Method("error feedback of uncompressed gradients"));
        }
        let residual = checked(residual, bytes, 4)?;
        if shape.elements() == 0 {
            return self.encode_device(setting, gradient, stream, payload);
        }
        let overflow = |what| Err(lgreco_core::Error::Overflow { what }.into());
        let params = Params { gain, keep: 1.0 - gain, ..Params::default() };

        let gpu = self.gpu();
        let offered = gpu.room(Scratch::Offered, bytes)?;
        let sums = Tensor::of_part(offered);
        let input = Input::Device(*gradient);
        let tensor = input.tensor(gpu)?;
        pass(gpu, "offer", &tensor, [residual, offered], params)?;
        let [of_gradient, of_sums] = largest(gpu, [&tensor, &sums])?;
        check_finite(gpu, &input, of_gradient)?;
        if of_sums >= INFINITY {
            return overflow("the gradient with what is remembered");
        }

        let whole = DeviceGradient::of_part(offered, Dtype::F32, shape);
        let len = self.encode_device(setting, &whole, payload_stream(setting, stream), payload)?;
        let decoded = self.gpu().room(Scratch::Decoded, bytes)?;
        self.decode_to_part(&payload[..len], decoded)?;

        let gpu = self.gpu();
        pass(gpu, "remember", &Tensor::of_part(decoded), [residual, offered], params)?;
        let [left] = largest(gpu, [&sums])?;
        if left >= INFINITY {
            return overflow("what is to be remembered");
        }
        gpu.copy(offered, residual)?;
        Ok(len)
    }
}

/// Enqueued: a pass over `values` and, in step with them, the memory and what is offered.
fn pass(gpu: &mut Gpu, entry: &'static str, values: &Tensor, others: [Part; 2], params: Params) -> Result<(), Error> {
    let params = Params { dtype: values.dtype as u32, count: values.elements, ..params };
    let [memory, offered] = others;
    let kernel = Kernel { module: Module::Feedback, entry };
    gpu.launch(kernel, params, &[values.part, memory, offered], looping_blocks(values.elements.into()))
}

/// Done: the bits of the largest magnitude of each tensor.
fn largest<const N: usize>(gpu: &mut Gpu, tensors: [&Tensor; N]) -> Result<[u32; N], Error> {
    let results = gpu.room(Scratch::Results, 4 * N as u64)?;
    gpu.clear(results)?;
    for (index, tensor) in tensors.iter().enumerate() {
        magnitude::largest(gpu, tensor, results.cut(4 * index as u64, 4))?;
    }
    let words = gpu.read::<u32>(results)?;
    Ok(std::array::from_fn(|index| words[index]))
}
