//! Allocates memory and loads kernels before the first calls. To find out what calls need, this module makes the same
//! calls on a device that only records requests.
//!
//! Such a rehearsal runs the real code, so no other code has to compute the sizes.

use crate::Error;
use crate::backend::CudaBackend;
use crate::codec::{STATUS, encode, enqueue_decoding, enqueue_told};
use crate::counting::{Counting, Kernels};
use crate::device::Part;
use crate::error::{DeviceJobError, of_job};
use crate::gpu::{Gpu, Scratch};
use crate::magnitude::{INFINITY, first_from};
use crate::pending::Pending;
use crate::rows::rehearse;
use crate::tensor::{DeviceJob, Input, Tensor, work};
use lgreco::compress::{Compressor, Setting};
use lgreco::gradient::Dtype;

/// A call for which [`reserve`](CudaBackend::reserve) allocates memory and loads kernels.
///
/// ```
/// use lgreco_cuda::Call;
/// let on_the_wire = [Call::EncodeToDevice, Call::DecodeOnDevice]; // the calls around NCCL's collectives
/// assert!(!on_the_wire.contains(&Call::Measure));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// [`measure_device`](CudaBackend::measure_device) of all jobs.
    Measure,
    /// [`encode_device`](CudaBackend::encode_device) under any candidate.
    Encode,
    /// [`decode_to_device`](CudaBackend::decode_to_device) of payloads under any candidate.
    Decode,
    /// [`encode_to_device`](CudaBackend::encode_to_device) under any candidate.
    EncodeToDevice,
    /// [`decode_on_device`](CudaBackend::decode_on_device) of payloads under any candidate.
    DecodeOnDevice,
}

impl CudaBackend {
    /// Bytes of workspace that these calls need for `jobs`. After [`reserve`](CudaBackend::reserve), a new backend
    /// holds this number of bytes. `workspace_bytes` neither uses the device nor reads a gradient.
    ///
    /// ```no_run
    /// use lgreco::compress::{Candidates, qsgd::Qsgd};
    /// use lgreco::{gradient::{Dtype, Shape}, rng::Stream};
    /// use lgreco_cuda::{Call, CudaBackend, DeviceGradient, DeviceJob};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let backend = CudaBackend::new(0)?;
    /// // SAFETY: `workspace_bytes` does not read the values.
    /// let gradient = unsafe { DeviceGradient::new(4096, Dtype::F32, Shape::new(1024, 1024)?) }?;
    /// let candidates = Candidates::Qsgd { base: Qsgd::default(), bits: &[2, 4] };
    /// let jobs = [DeviceJob { gradient, candidates, stream: Stream::default() }];
    /// assert!(backend.workspace_bytes(&jobs, &[Call::Measure])? < 1 << 20);
    /// // This includes the payload, which takes at least half a byte per value.
    /// assert!(backend.workspace_bytes(&jobs, &[Call::Encode])? > 1 << 19);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of `calls` that do not depend on gradient values.
    ///
    /// # Complexity
    /// The cost of enqueuing `calls` for all jobs.
    pub fn workspace_bytes(&self, jobs: &[DeviceJob<'_>], calls: &[Call]) -> Result<u64, DeviceJobError> {
        rehearsed(jobs, calls).map(|(gpu, _)| gpu.held())
    }

    /// Done: allocates the workspace of [`workspace_bytes`](CudaBackend::workspace_bytes), and loads the kernels of
    /// these calls. For these jobs and their candidates, these calls then allocate and load nothing, so calls that only
    /// enqueue never wait.
    ///
    /// ```no_run
    /// use lgreco_cuda::Call;
    /// # let mut backend = lgreco_cuda::CudaBackend::new(0)?;
    /// // A trainer passes all layers at the start of a run; here there are none.
    /// assert_eq!(backend.reserve(&[], &[Call::Measure, Call::EncodeToDevice, Call::DecodeOnDevice]), Ok(()));
    /// # Ok::<(), lgreco_cuda::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`workspace_bytes`](CudaBackend::workspace_bytes); [`Error::OutOfMemory`], [`Error::Driver`].
    pub fn reserve(&mut self, jobs: &[DeviceJob<'_>], calls: &[Call]) -> Result<(), DeviceJobError> {
        let (rehearsed, kernels) = rehearsed(jobs, calls)?;
        let gpu = self.gpu_mut();
        gpu.grow_to(&rehearsed)?;
        Ok(kernels.get().into_iter().try_for_each(|kernel| gpu.prepare(kernel))?)
    }
}

/// Returns the workspace after the calls, and the kernels that the calls launch.
fn rehearsed(jobs: &[DeviceJob<'_>], calls: &[Call]) -> Result<(Gpu, Kernels), DeviceJobError> {
    let kernels = Kernels::default();
    let mut gpu = Gpu::new(Box::new(Counting { kernels: kernels.clone(), ..Counting::default() }));
    for &call in calls {
        if call == Call::Measure {
            rehearse(&mut gpu, &work(jobs))?;
        }
        for (index, job) in jobs.iter().enumerate() {
            rehearse_job(&mut gpu, call, job).map_err(of_job(index))?;
        }
    }
    Ok((gpu, kernels))
}

/// Makes every request to the device that a call may make for a job, whatever the gradient's values are.
fn rehearse_job(gpu: &mut Gpu, call: Call, job: &DeviceJob<'_>) -> Result<(), Error> {
    if job.gradient.shape().elements() == 0 {
        return Ok(());
    }
    if !matches!(call, Call::Decode | Call::DecodeOnDevice | Call::EncodeToDevice) {
        first_from(gpu, &Input::Device(job.gradient), INFINITY)?;
    }
    let mut settings = (0..job.candidates.len()).filter_map(|index| job.candidates.setting(index));
    settings.try_for_each(|setting| rehearse_setting(gpu, call, job, &setting))
}

fn rehearse_setting(gpu: &mut Gpu, call: Call, job: &DeviceJob<'_>, setting: &Setting) -> Result<(), Error> {
    let (input, shape) = (Input::Device(job.gradient), job.gradient.shape());
    let len = |dtype: Dtype| setting.payload_len(shape, dtype);
    // Memory that the caller provides. It takes no workspace.
    let of_caller = |bytes: u64| Part { address: 0, bytes };
    let values = Tensor::of_part(of_caller(4 * shape.elements() as u64));
    match call {
        Call::Measure => Ok(()),
        Call::Encode => {
            let mut payload = vec![0; len(job.gradient.dtype())?];
            encode(gpu, setting, &input, job.stream, &mut payload).map(drop)
        }
        Call::EncodeToDevice => {
            let status = Pending::default().status(gpu)?;
            let payload = of_caller(len(job.gradient.dtype())? as u64);
            enqueue_told(gpu, setting, &input, job.stream, payload, status)
        }
        Call::Decode | Call::DecodeOnDevice => {
            let len = len(Dtype::F32)? as u64;
            let (payload, status) = match call {
                Call::Decode => (gpu.scratch(Scratch::Payload, len)?, gpu.scratch(Scratch::Results, STATUS)?),
                // The rehearsal assumes an unaligned payload, which `decode_on_device` copies to the workspace.
                _ => (gpu.scratch(Scratch::Payload, len)?, Pending::default().status(gpu)?),
            };
            enqueue_decoding(gpu, setting, shape, payload, &values, status).map(drop)
        }
    }
}
