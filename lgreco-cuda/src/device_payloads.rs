//! Payloads that never leave the device: what goes through NCCL or the like.
//!
//! Where a gradient cannot be compressed, a kernel that ends at once for good ones notes the position and the value at
//! fault, so that gradients may be overwritten by what is enqueued next. What the driver says names no layer, because it may
//! be about what was enqueued earlier.

use crate::Error;
use crate::backend::CudaBackend;
use crate::codec::{TOLD, check_decoded, check_told, checked_len, enqueue_decoding, enqueue_told};
use crate::error::{DeviceJobError, of_job};
use crate::gpu::Scratch;
use crate::pending::Enqueued;
use crate::tensor::{DeviceGradient, Input, Tensor, checked};
use lgreco::compress::{Compressor, Setting};
use lgreco::gradient::{Dtype, Shape};
use lgreco::rng::Stream;

impl CudaBackend {
    /// Enqueued: [`Backend::encode`](lgreco::backend::Backend::encode) from device memory to device memory;
    /// returns the payload's length. [`check`](CudaBackend::check) says later whether the gradient could be compressed;
    /// what is enqueued after this call may overwrite it.
    ///
    /// ```no_run
    /// use lgreco::compress::{Compressor, Setting, qsgd::Qsgd};
    /// use lgreco::gradient::{Dtype, Shape};
    /// use lgreco::rng::Stream;
    /// use lgreco_cuda::{CudaBackend, DeviceGradient};
    /// /// Sends a gradient of 64 × 64 f32 to `world` workers through `all_gather`, whose stream is the backend's. The
    /// /// addresses are the device's; `decoded` has room for every worker's values.
    /// fn exchange(
    ///     cuda: &mut CudaBackend,
    ///     world: u64,
    ///     (gradient, payload, received, decoded): (u64, u64, u64, u64),
    ///     all_gather: impl Fn(u64, usize, u64),
    /// ) -> Result<(), Box<dyn std::error::Error>> {
    ///     let (shape, setting) = (Shape::new(64, 64)?, Setting::Qsgd(Qsgd::default()));
    ///     // SAFETY: all are the trainer's, large enough, and used on the backend's stream alone.
    ///     unsafe {
    ///         let gradient = DeviceGradient::new(gradient, Dtype::F32, shape)?;
    ///         let length = cuda.encode_to_device(&setting, &gradient, Stream::default(), payload)?;
    ///         all_gather(payload, length, received);
    ///         for worker in 0..world {
    ///             let payload = received + worker * length as u64;
    ///             cuda.decode_on_device(&setting, shape, payload, decoded + worker * 4 * 64 * 64)?;
    ///         }
    ///     }
    ///     Ok(cuda.check()?) // waits: once per step, for all layers
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`Compressor::encode`](lgreco::compress::Compressor::encode), but for the values, and those of the
    /// device; [`Error::Memory`] when `address` is 0 or no multiple of 4, and after 4096 calls without a check.
    ///
    /// # Safety
    /// `address` is valid memory of [`payload_len`](lgreco::compress::Compressor::payload_len) bytes in the
    /// backend's context, apart from the gradient's, which nothing else uses, other than work ordered before or after
    /// on the backend's stream.
    pub unsafe fn encode_to_device(
        &mut self,
        setting: &Setting,
        gradient: &DeviceGradient,
        stream: Stream,
        address: u64,
    ) -> Result<usize, Error> {
        let input = Input::Device(*gradient);
        let len = checked_len(setting, &input, usize::MAX)?;
        let payload = checked(address, len as u64, 4)?;
        let (gpu, pending) = self.gpu_and_pending();
        let status = pending.status(gpu)?;
        enqueue_told(gpu, setting, &input, stream, payload, status)?;
        pending.calls.push(Enqueued::Encoding(*setting));
        Ok(len)
    }

    /// Done: whether all gradients encoded by [`encode_to_device`](CudaBackend::encode_to_device) since the last check
    /// could be compressed, and all payloads decoded by [`decode_on_device`](CudaBackend::decode_on_device) were an
    /// encoder's. Waits once. Reads no gradient.
    ///
    /// ```no_run
    /// # let mut backend = lgreco_cuda::CudaBackend::new(0)?;
    /// assert_eq!(backend.check(), Ok(())); // nothing so far
    /// # Ok::<(), lgreco_cuda::Error>(())
    /// ```
    ///
    /// # Errors
    /// The first call that failed, as `job`: its number, from 0, among the calls of both kinds that returned `Ok` since
    /// the last check, those included that cannot fail. With it comes the reason that
    /// [`Compressor::encode`](lgreco::compress::Compressor::encode) has, or
    /// [`PayloadBody`](lgreco::Error::PayloadBody). Calls after it may have failed too, and are not told of: nothing of what came out of any of them
    /// may be used. Those of the device, without a number; then nothing is known of any call, and the next check asks
    /// again.
    pub fn check(&mut self) -> Result<(), DeviceJobError> {
        let (gpu, pending) = self.gpu_and_pending();
        if pending.calls.is_empty() {
            return Ok(());
        }
        let Some(statuses) = pending.statuses else {
            // None of them has a status.
            pending.calls.clear();
            return Ok(());
        };
        // If that fails, the calls are still to be checked.
        let words = gpu.read::<u32>(statuses.cut(0, TOLD * pending.calls.len() as u64))?;
        let calls = pending.clear(gpu)?;
        for (job, (call, status)) in calls.iter().zip(words.as_chunks::<4>().0).enumerate() {
            let outcome = match call {
                Enqueued::Encoding(setting) => check_told(setting, *status),
                Enqueued::Decoding(expected) => check_decoded(&status[..2], *expected),
            };
            outcome.map_err(of_job(job))?;
        }
        Ok(())
    }

    /// Enqueued: decodes a payload that lies at the device address `payload` into f32 values at the address `values`, a
    /// multiple of 4. Where payloads of several workers lie one after another, most do not begin at a multiple of 4: these
    /// are copied to the workspace first. It is one that [`encode_to_device`](CudaBackend::encode_to_device), of any worker, made of a
    /// gradient of this shape under this setting; of other bytes some values come out, or [`check`](CudaBackend::check)
    /// tells. Its header is not read.
    ///
    /// # Errors
    /// [`Parameter`](lgreco::Error::Parameter) of the setting's; [`Error::Memory`] when an address is 0 or that of the
    /// values no multiple of 4, and after 4096 calls without a check; [`Error::Method`] for methods that are not decoded on
    /// the device; those of the device.
    ///
    /// # Safety
    /// `payload` is valid memory of [`payload_len`](lgreco::compress::Compressor::payload_len) bytes, `values` of
    /// four bytes per element, both in the backend's context, apart from each other, and used by nothing else, other
    /// than work ordered before or after on the backend's stream.
    pub unsafe fn decode_on_device(
        &mut self,
        setting: &Setting,
        shape: Shape,
        payload: u64,
        values: u64,
    ) -> Result<(), Error> {
        let len = setting.payload_len(shape, Dtype::F32)? as u64;
        let (mut payload, target) = (checked(payload, len, 1)?, checked(values, 4 * shape.elements() as u64, 4)?);
        let (gpu, pending) = self.gpu_and_pending();
        let expected = if shape.elements() == 0 {
            pending.has_room()?;
            None
        } else {
            let status = pending.status(gpu)?;
            if !payload.address.is_multiple_of(4) {
                let aligned = gpu.scratch(Scratch::Payload, len)?;
                gpu.copy(payload, aligned)?;
                payload = aligned;
            }
            enqueue_decoding(gpu, setting, shape, payload, &Tensor::of_part(target), status)?
        };
        pending.calls.push(Enqueued::Decoding(expected));
        Ok(())
    }
}
