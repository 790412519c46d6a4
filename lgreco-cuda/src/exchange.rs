//! Payloads that never leave the device: what goes through NCCL or the like.

use crate::backend::{CudaBackend, DeviceJobError};
use crate::codec::{STATUS, check, checked_len, enqueue, header};
use crate::device::Part;
use crate::gpu::Scratch;
use crate::tensor::{DeviceGradient, Input, Tensor, checked};
use crate::{Error, qsgd};
use lgreco_core::compress::wire::HEADER_LEN;
use lgreco_core::compress::{Compressor, Setting};
use lgreco_core::gradient::{Dtype, Shape};
use lgreco_core::rng::Stream;

/// Encodings that may be enqueued between two checks.
const MOST: usize = 4096;

/// Encodings whose gradients have not been checked yet, and where what is known of them will be.
#[derive(Default)]
pub(crate) struct Pending {
    encodings: Vec<(Setting, DeviceGradient)>,
    statuses: Option<Part>,
}

impl CudaBackend {
    /// Enqueued: [`Backend::encode`](lgreco_core::backend::Backend::encode) from device memory to device memory; returns the
    /// payload's length. [`check`](CudaBackend::check) says later whether the gradient could be compressed.
    ///
    /// ```no_run
    /// use lgreco_core::compress::{Compressor, Setting, qsgd::Qsgd};
    /// use lgreco_core::gradient::{Dtype, Shape};
    /// use lgreco_core::rng::Stream;
    /// use lgreco_cuda::{CudaBackend, DeviceGradient};
    /// /// Sends a gradient of 64 × 64 f32 through `all_gather`, whose stream is the backend's. All are device addresses.
    /// fn exchange(
    ///     cuda: &mut CudaBackend,
    ///     (gradient, payload, received, decoded): (u64, u64, u64, u64),
    ///     all_gather: impl Fn(u64, usize, u64),
    /// ) -> Result<(), Box<dyn std::error::Error>> {
    ///     let (shape, setting) = (Shape::new(64, 64)?, Setting::Qsgd(Qsgd::default()));
    ///     // SAFETY: all are the trainer's, large enough, and used on the backend's stream alone.
    ///     unsafe {
    ///         let gradient = DeviceGradient::new(gradient, Dtype::F32, shape)?;
    ///         let length = cuda.encode_to_device(&setting, &gradient, Stream::default(), payload)?;
    ///         all_gather(payload, length, received);
    ///         cuda.decode_on_device(&setting, shape, received, decoded)?; // the first worker's
    ///     }
    ///     Ok(cuda.check()?) // waits: once per step, for all layers
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`Compressor::encode`](lgreco_core::compress::Compressor::encode), but for the values, and those of the device;
    /// [`Error::Memory`] when `address` is 0 or no multiple of 4, and after 4096 encodings without a check.
    ///
    /// # Safety
    /// `address` is valid memory of [`payload_len`](lgreco_core::compress::Compressor::payload_len) bytes in the backend's
    /// context, apart from the gradient's, which nothing else uses, other than work ordered before or after on the
    /// backend's stream.
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
        let mut bytes = [0; HEADER_LEN];
        header(setting, &input)?.write(&mut bytes)?;
        let (gpu, pending) = self.gpu_and_pending();
        let index = pending.encodings.len();
        if index == MOST {
            return Err(Error::Memory { what: "for what is known of enqueued encodings is full: they need a check" });
        }
        let statuses = match pending.statuses {
            Some(statuses) => statuses,
            None => *pending.statuses.insert(gpu.room(Scratch::Statuses, STATUS * MOST as u64)?),
        };
        gpu.write(&bytes, payload)?;
        enqueue(gpu, setting, &input, stream, payload, statuses.cut(STATUS * index as u64, STATUS))?;
        pending.encodings.push((*setting, *gradient));
        Ok(len)
    }

    /// Done: whether all gradients encoded by [`encode_to_device`](CudaBackend::encode_to_device) since the last check
    /// could be compressed. Nothing of the payloads of those that could not may be used.
    ///
    /// ```
    /// # let Ok(mut backend) = lgreco_cuda::CudaBackend::new(0) else { return };
    /// assert_eq!(backend.check(), Ok(())); // nothing so far
    /// ```
    ///
    /// # Errors
    /// The first encoding that failed, as `job` in the order of the calls, with the reason that
    /// [`Compressor::encode`](lgreco_core::compress::Compressor::encode) has; [`Error::Memory`] in its place when the
    /// gradient has been overwritten. Those of the device.
    pub fn check(&mut self) -> Result<(), DeviceJobError> {
        let (gpu, pending) = self.gpu_and_pending();
        let encodings = std::mem::take(&mut pending.encodings);
        let Some(statuses) = pending.statuses.filter(|_| !encodings.is_empty()) else { return Ok(()) };
        let at = |job| move |error| DeviceJobError { job, error };
        let words = gpu.read::<u32>(statuses.cut(0, STATUS * encodings.len() as u64)).map_err(at(0))?;
        for (job, ((setting, gradient), status)) in encodings.iter().zip(words.as_chunks::<2>().0).enumerate() {
            check(gpu, setting, &Input::Device(*gradient), status).map_err(at(job))?;
        }
        Ok(())
    }

    /// Enqueued: decodes a payload that lies at the device address `payload`, a multiple of 4, into f32 values at the
    /// address `values`. It is one that [`encode_to_device`](CudaBackend::encode_to_device), of any worker, made of a
    /// gradient of this shape under this setting; of other bytes some values come out.
    ///
    /// # Errors
    /// [`Error::Memory`] when an address is 0 or no multiple of 4; [`Error::Method`] for methods that are not decoded on
    /// the device; those of the device.
    ///
    /// # Safety
    /// `payload` is valid memory of [`payload_len`](lgreco_core::compress::Compressor::payload_len) bytes, `values` of four
    /// bytes per element, both in the backend's context, apart from each other, and used by nothing else, other than work
    /// ordered before or after on the backend's stream.
    pub unsafe fn decode_on_device(
        &mut self,
        setting: &Setting,
        shape: Shape,
        payload: u64,
        values: u64,
    ) -> Result<(), Error> {
        let len = setting.payload_len(shape, Dtype::F32)? as u64;
        let (payload, target) = (checked(payload, len, 4)?, checked(values, 4 * shape.elements() as u64, 4)?);
        if shape.elements() == 0 {
            return Ok(());
        }
        let (gpu, _) = self.gpu_and_pending();
        match *setting {
            Setting::Qsgd(c) => qsgd::decode(gpu, c, payload, &Tensor::of_part(target)),
            _ => Err(Error::Method("decoding this setting's payloads")),
        }
    }
}
