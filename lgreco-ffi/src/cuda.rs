//! What the API asks of a CUDA device about memory of that device. In libraries without the feature `cuda` nothing answers,
//! and so there is no handle.

use crate::status::{Failure, lgreco_status};
use lgreco_train::compress::{Candidates, Setting};
use lgreco_train::gradient::{Dtype, Shape};
use lgreco_train::rng::Stream;
use std::any::Any;
use std::ffi::c_void;

/// A gradient at a device address, which is aligned for its type.
#[derive(Clone, Copy)]
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "nobody reads it"))]
pub(crate) struct DeviceTensor {
    pub(crate) address: u64,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Shape,
}

/// An address that suits every type, of gradients that are not looked at.
pub(crate) const NOWHERE: u64 = 256;

/// A row to measure.
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "nobody reads it"))]
pub(crate) struct Row<'a> {
    /// The layer's name.
    pub(crate) layer: &'a str,
    pub(crate) gradient: DeviceTensor,
    pub(crate) candidates: Candidates<'a>,
    pub(crate) stream: Stream,
}

/// What rows take of device memory that are measured without a wait.
pub(crate) struct RowsBytes {
    pub(crate) workspace: u64,
    pub(crate) results: u64,
}

/// Calls to reserve memory for.
#[derive(Clone, Copy)]
pub(crate) enum Call {
    Measure,
    Encode,
    Decode,
    EncodeToDevice,
    DecodeOnDevice,
}

/// A bucket of layers to be exchanged on the device.
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "nobody reads it"))]
pub(crate) struct BucketLayers {
    /// The index in the model, shape and setting of each layer.
    pub(crate) layers: Vec<(u32, Shape, Setting)>,
    /// Of all gradients.
    pub(crate) dtype: Dtype,
    /// Of what is summed.
    pub(crate) reduce_dtype: Dtype,
    pub(crate) world_size: u32,
    /// Of the first step; the layer in it counts for nothing.
    pub(crate) stream: Stream,
    pub(crate) gain: f32,
    /// Whether means become NaN where a step fails.
    pub(crate) nan_on_fault: bool,
}

/// What a bucket asks for, of memory of the device.
pub(crate) struct Collective {
    pub(crate) address: u64,
    /// The type of the values to be summed over ranks; none where the bytes of all ranks are gathered.
    pub(crate) sum: Option<Dtype>,
    /// Number of values, or bytes of one rank.
    pub(crate) len: usize,
}

/// What has become of a bucket's steps.
#[derive(Default)]
pub(crate) struct Outcome {
    /// The next one.
    pub(crate) step: u32,
    /// So many failed.
    pub(crate) failed: u32,
    /// Whether the last one did.
    pub(crate) has_failed: bool,
    /// The first at fault in the last step.
    pub(crate) rank: Option<u32>,
    /// Of the last step on this rank.
    pub(crate) fault: lgreco_status,
    /// Of the first value at fault: its layer in the bucket, and its index there.
    pub(crate) value: (usize, usize),
}

/// A bucket on a device, which every call is given. Safety of the unsafe calls: the device is the bucket's own, and addresses
/// are as README.md asks of device pointers.
pub(crate) trait OnDeviceBucket: Any {
    unsafe fn submit(&mut self, device: &mut dyn OnDevice, gradients: u64) -> Result<(), Failure>;
    unsafe fn next(&mut self, device: &mut dyn OnDevice) -> Result<Option<Collective>, Failure>;
    unsafe fn outcome(&self, device: &mut dyn OnDevice) -> Result<Outcome, Failure>;
    /// Where on the device its outcome is, and of how many bytes.
    fn outcome_place(&self) -> (u64, usize);
    /// What a copy of that says.
    fn outcome_of(&self, copy: &[u8]) -> Result<Outcome, Failure>;
    unsafe fn residuals(&self, device: &mut dyn OnDevice, values: &mut [f32]) -> Result<(), Failure>;
    unsafe fn set_residuals(&mut self, device: &mut dyn OnDevice, values: &[f32]) -> Result<(), Failure>;
    unsafe fn take_over(&mut self, device: &mut dyn OnDevice, other: &dyn OnDeviceBucket) -> Result<(), Failure>;
    fn found_inf(&self) -> u64;
}

/// A device with a stream. Safety of the unsafe calls: addresses are as README.md asks of device pointers.
pub(crate) trait OnDevice: Any {
    fn held_bytes(&self) -> u64;
    fn synchronise(&mut self) -> Result<(), Failure>;
    fn check(&mut self) -> Result<(), Failure>;
    /// Nothing is done with addresses, which may be [`NOWHERE`].
    fn workspace_bytes(&self, rows: &[Row<'_>], calls: &[Call]) -> Result<u64, Failure>;
    /// Nothing is done with addresses, which may be [`NOWHERE`].
    fn reserve(&mut self, rows: &[Row<'_>], calls: &[Call]) -> Result<(), Failure>;
    unsafe fn measure(&mut self, rows: &[Row<'_>], squared_errors: &mut [f64]) -> Result<(), Failure>;
    /// Nothing is done with addresses, which may be [`NOWHERE`].
    fn rows_bytes(&self, rows: &[Row<'_>]) -> Result<RowsBytes, Failure>;
    unsafe fn enqueue_rows(&mut self, rows: &[Row<'_>], workspace: u64, results: u64) -> Result<(), Failure>;
    /// `results` is a copy of what was enqueued for these rows, or anything else.
    unsafe fn read_rows(&mut self, rows: &[Row<'_>], results: &[u8], squared_errors: &mut [f64])
    -> Result<(), Failure>;
    unsafe fn encode(
        &mut self,
        setting: &Setting,
        gradient: DeviceTensor,
        stream: Stream,
        payload: &mut [u8],
    ) -> Result<usize, Failure>;
    unsafe fn decode(&mut self, payload: &[u8], values: u64) -> Result<(), Failure>;
    unsafe fn encode_to_device(
        &mut self,
        setting: &Setting,
        gradient: DeviceTensor,
        stream: Stream,
        payload: u64,
    ) -> Result<usize, Failure>;
    unsafe fn decode_on_device(
        &mut self,
        setting: &Setting,
        shape: Shape,
        payload: u64,
        values: u64,
    ) -> Result<(), Failure>;
    fn bucket_bytes(&self, layers: &BucketLayers) -> Result<u64, Failure>;
    unsafe fn bucket(&mut self, layers: &BucketLayers, memory: u64) -> Result<Box<dyn OnDeviceBucket>, Failure>;
}

/// The device of this number in its primary context, on a stream of its own.
#[cfg(feature = "cuda")]
pub(crate) fn open(ordinal: u32) -> Result<Box<dyn OnDevice>, Failure> {
    Ok(Box::new(lgreco_cuda::CudaBackend::new(ordinal as usize)?))
}

#[cfg(not(feature = "cuda"))]
pub(crate) fn open(_: u32) -> Result<Box<dyn OnDevice>, Failure> {
    Err(Failure::NotBuiltIn)
}

/// A stream in its context.
///
/// # Safety
/// Both outlive the device.
#[cfg(feature = "cuda")]
pub(crate) unsafe fn on_stream(stream: *mut c_void) -> Result<Box<dyn OnDevice>, Failure> {
    // SAFETY: passed on.
    Ok(Box::new(unsafe { lgreco_cuda::CudaBackend::with_stream(stream) }?))
}

/// # Safety
/// None is asked for.
#[cfg(not(feature = "cuda"))]
pub(crate) unsafe fn on_stream(_: *mut c_void) -> Result<Box<dyn OnDevice>, Failure> {
    Err(Failure::NotBuiltIn)
}

#[cfg(feature = "cuda")]
mod bucket;

#[cfg(feature = "cuda")]
mod backend {
    use super::{BucketLayers, Call, DeviceTensor, OnDevice, OnDeviceBucket, Row, RowsBytes, bucket};
    use crate::status::Failure;
    use lgreco_cuda::{CudaBackend, DeviceGradient, DeviceJob, DeviceJobError};
    use lgreco_train::CoreError;
    use lgreco_train::compress::Setting;
    use lgreco_train::gradient::Shape;
    use lgreco_train::rng::Stream;

    /// # Safety
    /// As for [`DeviceGradient::new`].
    unsafe fn gradient(tensor: DeviceTensor) -> Result<DeviceGradient, Failure> {
        // SAFETY: passed on.
        Ok(unsafe { DeviceGradient::new(tensor.address, tensor.dtype, tensor.shape) }?)
    }

    /// # Safety
    /// As for [`DeviceGradient::new`], of every row.
    unsafe fn jobs<'a>(rows: &[Row<'a>]) -> Result<Vec<DeviceJob<'a>>, Failure> {
        let job = |row: &Row<'a>| {
            // SAFETY: passed on.
            let gradient = unsafe { gradient(row.gradient) }.map_err(|failure| failure.of_layer(row.layer))?;
            Ok(DeviceJob { gradient, candidates: row.candidates, stream: row.stream })
        };
        rows.iter().map(job).collect()
    }

    fn to_cuda(calls: &[Call]) -> Vec<lgreco_cuda::Call> {
        let to_cuda = |call: &Call| match call {
            Call::Measure => lgreco_cuda::Call::Measure,
            Call::Encode => lgreco_cuda::Call::Encode,
            Call::Decode => lgreco_cuda::Call::Decode,
            Call::EncodeToDevice => lgreco_cuda::Call::EncodeToDevice,
            Call::DecodeOnDevice => lgreco_cuda::Call::DecodeOnDevice,
        };
        calls.iter().map(to_cuda).collect()
    }

    fn of_layer(rows: &[Row<'_>]) -> impl Fn(DeviceJobError) -> Failure {
        |failed| {
            let failure = Failure::from(failed.error);
            match failed.job.and_then(|job| rows.get(job)) {
                Some(row) => failure.of_layer(row.layer),
                None => failure,
            }
        }
    }

    impl OnDevice for CudaBackend {
        fn held_bytes(&self) -> u64 {
            CudaBackend::held_bytes(self)
        }

        fn synchronise(&mut self) -> Result<(), Failure> {
            Ok(CudaBackend::synchronise(self)?)
        }

        fn check(&mut self) -> Result<(), Failure> {
            CudaBackend::check(self).map_err(|DeviceJobError { job, error }| match job {
                Some(call) => Failure::OfCall { call, failure: Box::new(error.into()) },
                None => error.into(),
            })
        }

        fn workspace_bytes(&self, rows: &[Row<'_>], calls: &[Call]) -> Result<u64, Failure> {
            // SAFETY: nothing is done with the addresses.
            let jobs = unsafe { jobs(rows) }?;
            CudaBackend::workspace_bytes(self, &jobs, &to_cuda(calls)).map_err(of_layer(rows))
        }

        fn reserve(&mut self, rows: &[Row<'_>], calls: &[Call]) -> Result<(), Failure> {
            // SAFETY: nothing is done with the addresses.
            let jobs = unsafe { jobs(rows) }?;
            CudaBackend::reserve(self, &jobs, &to_cuda(calls)).map_err(of_layer(rows))
        }

        unsafe fn measure(&mut self, rows: &[Row<'_>], squared_errors: &mut [f64]) -> Result<(), Failure> {
            // SAFETY: passed on.
            let jobs = unsafe { jobs(rows) }?;
            self.measure_device(&jobs, squared_errors).map_err(of_layer(rows))
        }

        fn rows_bytes(&self, rows: &[Row<'_>]) -> Result<RowsBytes, Failure> {
            // SAFETY: nothing is done with the addresses.
            let jobs = unsafe { jobs(rows) }?;
            let bytes = CudaBackend::rows_bytes(self, &jobs).map_err(of_layer(rows))?;
            Ok(RowsBytes { workspace: bytes.workspace, results: bytes.results })
        }

        unsafe fn enqueue_rows(&mut self, rows: &[Row<'_>], workspace: u64, results: u64) -> Result<(), Failure> {
            // SAFETY: passed on.
            unsafe {
                let jobs = jobs(rows)?;
                CudaBackend::enqueue_rows(self, &jobs, workspace, results).map_err(of_layer(rows))
            }
        }

        unsafe fn read_rows(
            &mut self,
            rows: &[Row<'_>],
            results: &[u8],
            squared_errors: &mut [f64],
        ) -> Result<(), Failure> {
            // SAFETY: passed on.
            let jobs = unsafe { jobs(rows) }?;
            let (words, rest) = results.as_chunks();
            if !rest.is_empty() {
                let expected = CudaBackend::rows_bytes(self, &jobs).map_err(of_layer(rows))?.results as usize;
                return Err(CoreError::Length { what: "bytes of results", expected, found: results.len() }.into());
            }
            let words: Vec<u64> = words.iter().map(|&word| u64::from_ne_bytes(word)).collect();
            CudaBackend::read_rows(self, &jobs, &words, squared_errors).map_err(of_layer(rows))
        }

        unsafe fn encode(
            &mut self,
            setting: &Setting,
            tensor: DeviceTensor,
            stream: Stream,
            payload: &mut [u8],
        ) -> Result<usize, Failure> {
            // SAFETY: passed on.
            let gradient = unsafe { gradient(tensor) }?;
            Ok(self.encode_device(setting, &gradient, stream, payload)?)
        }

        unsafe fn decode(&mut self, payload: &[u8], values: u64) -> Result<(), Failure> {
            // SAFETY: passed on.
            Ok(unsafe { self.decode_to_device(payload, values) }?)
        }

        unsafe fn encode_to_device(
            &mut self,
            setting: &Setting,
            tensor: DeviceTensor,
            stream: Stream,
            payload: u64,
        ) -> Result<usize, Failure> {
            // SAFETY: passed on.
            unsafe {
                let gradient = gradient(tensor)?;
                Ok(CudaBackend::encode_to_device(self, setting, &gradient, stream, payload)?)
            }
        }

        unsafe fn decode_on_device(
            &mut self,
            setting: &Setting,
            shape: Shape,
            payload: u64,
            values: u64,
        ) -> Result<(), Failure> {
            // SAFETY: passed on.
            Ok(unsafe { CudaBackend::decode_on_device(self, setting, shape, payload, values) }?)
        }

        fn bucket_bytes(&self, layers: &BucketLayers) -> Result<u64, Failure> {
            bucket::bytes(layers)
        }

        unsafe fn bucket(&mut self, layers: &BucketLayers, memory: u64) -> Result<Box<dyn OnDeviceBucket>, Failure> {
            // SAFETY: passed on.
            unsafe { bucket::new(self, layers, memory) }
        }
    }
}
