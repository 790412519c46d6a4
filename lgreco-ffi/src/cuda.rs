//! Calls on memory of a CUDA device. Libraries without the feature `cuda` do not implement the traits of this module,
//! so they never create a handle for these calls.

use crate::failure::Result;
use crate::status::lgreco_status;
use lgreco_train::compress::{Candidates, Setting};
use lgreco_train::gradient::{Dtype, Shape};
use lgreco_train::rng::Stream;
use std::any::Any;
use std::ffi::c_void;

/// A gradient at a device address that is aligned for its type.
#[derive(Clone, Copy)]
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "nobody reads it"))]
pub(crate) struct DeviceTensor {
    pub(crate) address: u64,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Shape,
}

/// An aligned address for gradients that are never read.
pub(crate) const NOWHERE: u64 = 256;

/// A row of the error table to measure.
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "nobody reads it"))]
pub(crate) struct Row<'a> {
    /// The layer's name.
    pub(crate) layer: &'a str,
    pub(crate) gradient: DeviceTensor,
    pub(crate) candidates: Candidates<'a>,
    pub(crate) stream: Stream,
}

/// A gradient to encode, with its setting and its random stream.
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "nobody reads it"))]
pub(crate) struct Encoding {
    pub(crate) gradient: DeviceTensor,
    pub(crate) setting: Setting,
    pub(crate) stream: Stream,
}

/// One bit for each kind of call for which memory can be reserved. The order is measure, encode, decode,
/// encode_to_device, decode_on_device.
pub(crate) const CALLS: [u32; 5] = [1, 2, 4, 8, 16];

/// A description of a bucket whose layers are exchanged on the device.
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "nobody reads it"))]
pub(crate) struct BucketLayers {
    /// For each layer, its index in the model, its shape and its setting.
    pub(crate) layers: Vec<(u32, Shape, Setting)>,
    /// Element type of all gradients.
    pub(crate) dtype: Dtype,
    /// Element type of the sums over ranks.
    pub(crate) reduce_dtype: Dtype,
    pub(crate) world_size: u32,
    /// Random stream of the first step. The stream's layer index is ignored.
    pub(crate) stream: Stream,
    pub(crate) gain: f32,
    /// Whether all means become NaN when a step fails.
    pub(crate) nan_on_fault: bool,
}

/// A collective on device memory that a bucket asks for.
pub(crate) struct Collective {
    pub(crate) address: u64,
    /// Element type of the values to sum over ranks; `None` for an all-gather of bytes.
    pub(crate) sum: Option<Dtype>,
    /// Number of values to sum, or bytes of one rank to gather.
    pub(crate) len: usize,
}

/// The outcome of a bucket's steps.
#[derive(Default)]
pub(crate) struct Outcome {
    /// Number of the next step.
    pub(crate) step: u32,
    /// Number of steps that failed.
    pub(crate) failed: u32,
    /// Whether the last step failed.
    pub(crate) has_failed: bool,
    /// The first rank at fault in the last step.
    pub(crate) rank: Option<u32>,
    /// The fault of `rank` in the last step.
    pub(crate) fault: lgreco_status,
    /// The first faulty value: its layer in the bucket, and its index in the layer.
    pub(crate) value: (usize, usize),
}

/// A bucket on a device. Every call also takes the bucket's device. For the unsafe calls, the bucket must have been
/// made on that device, and addresses must meet the requirements of lgreco-ffi/README.md on device pointers.
pub(crate) trait OnDeviceBucket: Any {
    unsafe fn submit(&mut self, device: &mut dyn OnDevice, gradients: u64) -> Result<()>;
    unsafe fn next(&mut self, device: &mut dyn OnDevice) -> Result<Option<Collective>>;
    unsafe fn outcome(&self, device: &mut dyn OnDevice) -> Result<Outcome>;
    /// The device address of the outcome, and its number of bytes.
    fn outcome_place(&self) -> (u64, usize);
    /// Reads the outcome from a copy of the bytes at `outcome_place`.
    fn outcome_of(&self, copy: &[u8]) -> Result<Outcome>;
    unsafe fn residuals(&self, device: &mut dyn OnDevice, values: &mut [f32]) -> Result<()>;
    unsafe fn set_residuals(&mut self, device: &mut dyn OnDevice, values: &[f32]) -> Result<()>;
    unsafe fn take_over(&mut self, device: &mut dyn OnDevice, other: &dyn OnDeviceBucket) -> Result<()>;
    fn found_inf(&self) -> u64;
}

/// A device with a stream. For the unsafe calls, addresses must meet the requirements of lgreco-ffi/README.md on device
/// pointers.
pub(crate) trait OnDevice: Any {
    fn held_bytes(&self) -> u64;
    fn synchronise(&mut self) -> Result<()>;
    fn check(&mut self) -> Result<()>;
    /// Does not use the addresses in `rows`, which may be [`NOWHERE`]. `calls` is a sum of [`CALLS`].
    fn workspace_bytes(&self, rows: &[Row<'_>], calls: u32) -> Result<u64>;
    /// Reserves the amount of memory that `workspace_bytes` returns for the same arguments.
    fn reserve(&mut self, rows: &[Row<'_>], calls: u32) -> Result<()>;
    unsafe fn measure(&mut self, rows: &[Row<'_>], squared_errors: &mut [f64]) -> Result<()>;
    /// Number of bytes of the workspace and of the results. Does not use the addresses in `rows`, which may be
    /// [`NOWHERE`].
    fn rows_bytes(&self, rows: &[Row<'_>]) -> Result<(u64, u64)>;
    unsafe fn enqueue_rows(&mut self, rows: &[Row<'_>], workspace: u64, results: u64) -> Result<()>;
    /// `copy` should be a copy of the results of `enqueue_rows` for these rows. Any bytes are allowed.
    unsafe fn read_rows(&mut self, rows: &[Row<'_>], copy: &[u8], squared_errors: &mut [f64]) -> Result<()>;
    unsafe fn encode(&mut self, encoding: &Encoding, payload: &mut [u8]) -> Result<usize>;
    unsafe fn decode(&mut self, payload: &[u8], values: u64) -> Result<()>;
    unsafe fn encode_to_device(&mut self, encoding: &Encoding, payload: u64) -> Result<usize>;
    unsafe fn decode_on_device(&mut self, by: &Setting, shape: Shape, payload: u64, values: u64) -> Result<()>;
    fn bucket_bytes(&self, layers: &BucketLayers) -> Result<u64>;
    unsafe fn bucket(&mut self, layers: &BucketLayers, memory: u64) -> Result<Box<dyn OnDeviceBucket>>;
}

/// Opens the device with this ordinal in its primary context, on a new stream.
pub(crate) fn open(ordinal: u32) -> Result<Box<dyn OnDevice>> {
    #[cfg(feature = "cuda")]
    return Ok(Box::new(lgreco_cuda::CudaBackend::new(ordinal as usize)?));
    #[cfg(not(feature = "cuda"))]
    crate::device::not_built_in(ordinal)
}

/// Opens the device of this stream, in the stream's context.
///
/// # Safety
/// The stream and its context outlive the device.
pub(crate) unsafe fn on_stream(stream: *mut c_void) -> Result<Box<dyn OnDevice>> {
    #[cfg(feature = "cuda")]
    // SAFETY: the caller meets the safety requirements of this function.
    return Ok(Box::new(unsafe { lgreco_cuda::CudaBackend::with_stream(stream) }?));
    #[cfg(not(feature = "cuda"))]
    crate::device::not_built_in(stream)
}

#[cfg(feature = "cuda")]
mod bucket;

#[cfg(feature = "cuda")]
mod backend {
    use super::{BucketLayers, CALLS, DeviceTensor, Encoding, OnDevice, OnDeviceBucket, Row, bucket};
    use crate::failure::{Failure, Result};
    use lgreco_cuda::Call::{Decode, DecodeOnDevice, Encode, EncodeToDevice, Measure};
    use lgreco_cuda::{Call, CudaBackend, DeviceGradient, DeviceJob, DeviceJobError};
    use lgreco_train::CoreError;
    use lgreco_train::compress::Setting;
    use lgreco_train::gradient::Shape;

    /// # Safety
    /// The requirements of [`DeviceGradient::new`] apply.
    unsafe fn gradient(tensor: DeviceTensor) -> Result<DeviceGradient> {
        // SAFETY: the caller meets the safety requirements of this function.
        Ok(unsafe { DeviceGradient::new(tensor.address, tensor.dtype, tensor.shape) }?)
    }

    /// Runs a call on the rows. Failures name the layer.
    ///
    /// # Safety
    /// The requirements of [`DeviceGradient::new`] apply to every row. Addresses that are neither read nor written may
    /// have any value.
    unsafe fn on<'a, T>(
        rows: &[Row<'a>],
        call: impl FnOnce(&[DeviceJob<'a>]) -> Result<T, DeviceJobError>,
    ) -> Result<T> {
        let job = |row: &Row<'a>| {
            // SAFETY: the caller meets the safety requirements of this function.
            let gradient = unsafe { gradient(row.gradient) }.map_err(|failure| failure.of_layer(row.layer))?;
            Ok(DeviceJob { gradient, candidates: row.candidates, stream: row.stream })
        };
        let jobs = rows.iter().map(job).collect::<Result<Vec<_>>>()?;
        call(&jobs).map_err(|failed| {
            let failure = Failure::from(failed.error);
            match failed.job.and_then(|job| rows.get(job)) {
                Some(row) => failure.of_layer(row.layer),
                None => failure,
            }
        })
    }

    fn named(calls: u32) -> Vec<Call> {
        let known = CALLS.into_iter().zip([Measure, Encode, Decode, EncodeToDevice, DecodeOnDevice]);
        known.filter(|(number, _)| calls & number != 0).map(|(_, call)| call).collect()
    }

    impl OnDevice for CudaBackend {
        fn held_bytes(&self) -> u64 {
            CudaBackend::held_bytes(self)
        }

        fn synchronise(&mut self) -> Result<()> {
            Ok(CudaBackend::synchronise(self)?)
        }

        fn check(&mut self) -> Result<()> {
            CudaBackend::check(self).map_err(|DeviceJobError { job, error }| match job {
                Some(call) => Failure::OfCall { call, failure: Box::new(error.into()) },
                None => error.into(),
            })
        }

        fn workspace_bytes(&self, rows: &[Row<'_>], calls: u32) -> Result<u64> {
            // SAFETY: the addresses are neither read nor written.
            unsafe { on(rows, |jobs| CudaBackend::workspace_bytes(self, jobs, &named(calls))) }
        }

        fn reserve(&mut self, rows: &[Row<'_>], calls: u32) -> Result<()> {
            // SAFETY: the addresses are neither read nor written.
            unsafe { on(rows, |jobs| CudaBackend::reserve(self, jobs, &named(calls))) }
        }

        unsafe fn measure(&mut self, rows: &[Row<'_>], squared_errors: &mut [f64]) -> Result<()> {
            // SAFETY: the caller meets the safety requirements of this function.
            unsafe { on(rows, |jobs| self.measure_device(jobs, squared_errors)) }
        }

        fn rows_bytes(&self, rows: &[Row<'_>]) -> Result<(u64, u64)> {
            // SAFETY: the addresses are neither read nor written.
            let bytes = unsafe { on(rows, |jobs| CudaBackend::rows_bytes(self, jobs)) }?;
            Ok((bytes.workspace, bytes.results))
        }

        unsafe fn enqueue_rows(&mut self, rows: &[Row<'_>], workspace: u64, results: u64) -> Result<()> {
            // SAFETY: the caller meets the safety requirements of this function.
            unsafe { on(rows, |jobs| CudaBackend::enqueue_rows(self, jobs, workspace, results)) }
        }

        unsafe fn read_rows(&mut self, rows: &[Row<'_>], copy: &[u8], squared_errors: &mut [f64]) -> Result<()> {
            let (words, rest) = copy.as_chunks();
            if !rest.is_empty() {
                let expected = OnDevice::rows_bytes(self, rows)?.1 as usize;
                return Err(CoreError::Length { what: "bytes of results", expected, found: copy.len() }.into());
            }
            let words: Vec<u64> = words.iter().map(|&word| u64::from_ne_bytes(word)).collect();
            // SAFETY: the caller meets the safety requirements of this function.
            unsafe { on(rows, |jobs| CudaBackend::read_rows(self, jobs, &words, squared_errors)) }
        }

        unsafe fn encode(&mut self, encoding: &Encoding, payload: &mut [u8]) -> Result<usize> {
            // SAFETY: the caller meets the safety requirements of this function.
            let gradient = unsafe { gradient(encoding.gradient) }?;
            Ok(self.encode_device(&encoding.setting, &gradient, encoding.stream, payload)?)
        }

        unsafe fn decode(&mut self, payload: &[u8], values: u64) -> Result<()> {
            // SAFETY: the caller meets the safety requirements of this function.
            Ok(unsafe { self.decode_to_device(payload, values) }?)
        }

        unsafe fn encode_to_device(&mut self, encoding: &Encoding, payload: u64) -> Result<usize> {
            let Encoding { gradient: tensor, setting, stream } = encoding;
            // SAFETY: the caller meets the safety requirements of this function.
            unsafe { Ok(CudaBackend::encode_to_device(self, setting, &gradient(*tensor)?, *stream, payload)?) }
        }

        unsafe fn decode_on_device(&mut self, by: &Setting, shape: Shape, from: u64, to: u64) -> Result<()> {
            // SAFETY: the caller meets the safety requirements of this function.
            Ok(unsafe { CudaBackend::decode_on_device(self, by, shape, from, to) }?)
        }

        fn bucket_bytes(&self, layers: &BucketLayers) -> Result<u64> {
            bucket::bytes(layers)
        }

        unsafe fn bucket(&mut self, layers: &BucketLayers, memory: u64) -> Result<Box<dyn OnDeviceBucket>> {
            // SAFETY: the caller meets the safety requirements of this function.
            unsafe { bucket::new(self, layers, memory) }
        }
    }
}
