//! Encodes and decodes payloads that never leave the device, for collectives such as NCCL's.
//!
//! After each encoding, a kernel checks the status. If the gradient cannot be compressed, the kernel records the
//! position and the value of the first invalid element. `CudaBackend::check` later reads this record instead of the
//! gradient, so work that is enqueued after the encoding may overwrite the gradient. Errors of the driver name no
//! layer, because they may belong to work that was enqueued earlier.

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
    /// Enqueued: like [`Backend::encode`](lgreco::backend::Backend::encode), but from device memory to device memory.
    /// Returns the payload's length. Later, [`check`](CudaBackend::check) says whether the gradient could be
    /// compressed. Work that is enqueued after this call may overwrite the gradient.
    ///
    /// ```no_run
    /// use lgreco::compress::{Compressor, Setting, qsgd::Qsgd};
    /// use lgreco::gradient::{Dtype, Shape};
    /// use lgreco::rng::Stream;
    /// use lgreco_cuda::{CudaBackend, DeviceGradient};
    /// /// Sends a gradient of 64 × 64 f32 to `world` workers through `all_gather`, whose stream is the backend's. The
    /// /// addresses are the device's; `decoded` is large enough for every worker's values.
    /// fn exchange(
    ///     cuda: &mut CudaBackend,
    ///     world: u64,
    ///     (gradient, payload, received, decoded): (u64, u64, u64, u64),
    ///     all_gather: impl Fn(u64, usize, u64),
    /// ) -> Result<(), Box<dyn std::error::Error>> {
    ///     let (shape, setting) = (Shape::new(64, 64)?, Setting::Qsgd(Qsgd::default()));
    ///     // SAFETY: all memory is the trainer's and large enough. Only work on the backend's stream uses it.
    ///     unsafe {
    ///         let gradient = DeviceGradient::new(gradient, Dtype::F32, shape)?;
    ///         let length = cuda.encode_to_device(&setting, &gradient, Stream::default(), payload)?;
    ///         all_gather(payload, length, received);
    ///         for worker in 0..world {
    ///             let payload = received + worker * length as u64;
    ///             cuda.decode_on_device(&setting, shape, payload, decoded + worker * 4 * 64 * 64)?;
    ///         }
    ///     }
    ///     Ok(cuda.check()?) // waits once per step, for all layers
    /// }
    /// ```
    ///
    /// # Errors
    /// Errors of the device, and the errors of [`Compressor::encode`](lgreco::compress::Compressor::encode) that do not
    /// depend on values. [`Error::Memory`] if `address` is 0 or not a multiple of 4, and after 4096 calls without a
    /// check.
    ///
    /// # Safety
    /// `address` is valid memory of [`payload_len`](lgreco::compress::Compressor::payload_len) bytes in the backend's
    /// context. This memory does not overlap the gradient. Any other work on this memory is ordered before or after
    /// this call on the backend's stream.
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

    /// Done: checks all calls since the last check, with one wait. The call returns `Ok` if every gradient passed to
    /// [`encode_to_device`](CudaBackend::encode_to_device) could be compressed, and if an encoder wrote every payload
    /// passed to [`decode_on_device`](CudaBackend::decode_on_device). The call reads no gradient.
    ///
    /// ```no_run
    /// # let mut backend = lgreco_cuda::CudaBackend::new(0)?;
    /// assert_eq!(backend.check(), Ok(())); // nothing so far
    /// # Ok::<(), lgreco_cuda::Error>(())
    /// ```
    ///
    /// # Errors
    /// The error of the first call that failed: an error of
    /// [`Compressor::encode`](lgreco::compress::Compressor::encode), or [`PayloadBody`](lgreco::Error::PayloadBody).
    /// `job` counts from 0 the encoding and decoding calls that returned `Ok` since the last check, including calls
    /// that cannot fail. Later calls may have failed without a report, so discard the outputs of all calls since the
    /// last check. For errors of the device, `job` is `None`; then no call has been checked, and the next check tries
    /// again.
    pub fn check(&mut self) -> Result<(), DeviceJobError> {
        let (gpu, pending) = self.gpu_and_pending();
        if pending.calls.is_empty() {
            return Ok(());
        }
        let Some(statuses) = pending.statuses else {
            // Without memory for statuses, all pending calls are of kinds that cannot fail.
            pending.calls.clear();
            return Ok(());
        };
        // If the read fails, the calls stay pending, and a later check covers these calls.
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

    /// Enqueued: decodes a payload at the device address `payload` into f32 values at the address `values`, a multiple
    /// of 4. A payload that does not begin at a multiple of 4 is first copied to the workspace. Most payloads begin
    /// elsewhere if the payloads of several workers lie one after another. The payload must come from
    /// [`encode_to_device`](CudaBackend::encode_to_device), on any worker, for a gradient of this shape under this
    /// setting. If the payload has other bytes, the decoded values are arbitrary, or [`check`](CudaBackend::check)
    /// reports an error. The call does not read the payload's header.
    ///
    /// # Errors
    /// [`Parameter`](lgreco::Error::Parameter) for a wrong parameter of the setting. [`Error::Memory`] if an address is
    /// 0, if the address `values` is not a multiple of 4, and after 4096 calls without a check. [`Error::Method`] for
    /// methods that the device does not decode. Errors of the device.
    ///
    /// # Safety
    /// `payload` is valid memory of [`payload_len`](lgreco::compress::Compressor::payload_len) bytes. `values` is valid
    /// memory of four bytes per element. Both memories are in the backend's context and do not overlap. Any other work
    /// on these memories is ordered before or after this call on the backend's stream.
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
