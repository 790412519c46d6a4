//! Payloads that never leave the device: what goes through NCCL or the like.

use crate::Error;
use crate::backend::{CudaBackend, DeviceJobError};
use crate::codec::{STATUS, check, checked_len, enqueue, enqueue_decoding, header};
use crate::device::Part;
use crate::gpu::{Gpu, Scratch};
use crate::tensor::{DeviceGradient, Input, Tensor, checked};
use lgreco_core::compress::wire::HEADER_LEN;
use lgreco_core::compress::{Compressor, Setting};
use lgreco_core::gradient::{Dtype, Shape};
use lgreco_core::rng::Stream;

/// Calls that may be enqueued between two checks.
const MOST: usize = 4096;

/// What has been enqueued.
enum Enqueued {
    Encoding(Setting, DeviceGradient),
    /// The status of a payload that an encoder wrote.
    Decoding([u32; 2]),
}

/// Calls that have not been checked yet, and where what is known of them will be.
#[derive(Default)]
pub(crate) struct Pending {
    calls: Vec<Enqueued>,
    statuses: Option<Part>,
}

impl Pending {
    /// Where the next call's status will be.
    pub(crate) fn status(&mut self, gpu: &mut Gpu) -> Result<Part, Error> {
        if self.calls.len() == MOST {
            return Err(Error::Memory { what: "for what is known of enqueued calls is full: they need a check" });
        }
        let statuses = match self.statuses {
            Some(statuses) => statuses,
            None => *self.statuses.insert(gpu.room(Scratch::Statuses, STATUS * MOST as u64)?),
        };
        Ok(statuses.cut(STATUS * self.calls.len() as u64, STATUS))
    }
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
    /// [`Error::Memory`] when `address` is 0 or no multiple of 4, and after 4096 calls without a check.
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
        let status = pending.status(gpu)?;
        gpu.write(&bytes, payload)?;
        enqueue(gpu, setting, &input, stream, payload, status)?;
        pending.calls.push(Enqueued::Encoding(*setting, *gradient));
        Ok(len)
    }

    /// Done: whether all gradients encoded by [`encode_to_device`](CudaBackend::encode_to_device) since the last check
    /// could be compressed, and all payloads decoded by [`decode_on_device`](CudaBackend::decode_on_device) were an
    /// encoder's. Nothing of what came out of those that were not may be used.
    ///
    /// ```
    /// # let Ok(mut backend) = lgreco_cuda::CudaBackend::new(0) else { return };
    /// assert_eq!(backend.check(), Ok(())); // nothing so far
    /// ```
    ///
    /// # Errors
    /// The first call that failed, as `job` in the order of the calls, with the reason that
    /// [`Compressor::encode`](lgreco_core::compress::Compressor::encode) has, or
    /// [`PayloadBody`](lgreco_core::Error::PayloadBody); [`Error::Memory`] in its place when the gradient has been
    /// overwritten. Those of the device.
    pub fn check(&mut self) -> Result<(), DeviceJobError> {
        let (gpu, pending) = self.gpu_and_pending();
        let calls = std::mem::take(&mut pending.calls);
        let Some(statuses) = pending.statuses.filter(|_| !calls.is_empty()) else { return Ok(()) };
        let at = |job| move |error| DeviceJobError { job, error };
        let words = gpu.read::<u32>(statuses.cut(0, STATUS * calls.len() as u64)).map_err(at(0))?;
        for (job, (call, status)) in calls.iter().zip(words.as_chunks::<2>().0).enumerate() {
            let outcome = match call {
                Enqueued::Encoding(setting, gradient) => check(gpu, setting, &Input::Device(*gradient), status),
                Enqueued::Decoding(expected) if status == expected => Ok(()),
                Enqueued::Decoding(_) => {
                    Err(lgreco_core::Error::PayloadBody { what: "it is not what an encoder writes" }.into())
                }
            };
            outcome.map_err(at(job))?;
        }
        Ok(())
    }

    /// Enqueued: decodes a payload that lies at the device address `payload`, a multiple of 4, into f32 values at the
    /// address `values`. It is one that [`encode_to_device`](CudaBackend::encode_to_device), of any worker, made of a
    /// gradient of this shape under this setting; of other bytes some values come out, or [`check`](CudaBackend::check)
    /// tells. Its header is not read.
    ///
    /// # Errors
    /// [`Parameter`](lgreco_core::Error::Parameter) of the setting's; [`Error::Memory`] when an address is 0 or no multiple
    /// of 4, and after 4096 calls without a check; [`Error::Method`] for methods that are not decoded on
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
        let (gpu, pending) = self.gpu_and_pending();
        let status = pending.status(gpu)?;
        let target = Tensor::of_part(target);
        if let Some(expected) = enqueue_decoding(gpu, setting, shape, payload, &target, status)? {
            pending.calls.push(Enqueued::Decoding(expected));
        }
        Ok(())
    }
}
