//! What the API asks of a CUDA device about memory of that device. In libraries without the feature `cuda` nothing answers,
//! and so there is no handle.

use crate::failure::Result;
use crate::status::lgreco_status;
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

/// A gradient to encode, by which setting and with which random words.
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "nobody reads it"))]
pub(crate) struct Encoding {
    pub(crate) gradient: DeviceTensor,
    pub(crate) setting: Setting,
    pub(crate) stream: Stream,
}

/// A number for each call to reserve memory for, to be added up: measure, encode, decode, encode to and decode on the device.
pub(crate) const CALLS: [u32; 5] = [1, 2, 4, 8, 16];

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
    unsafe fn submit(&mut self, device: &mut dyn OnDevice, gradients: u64) -> Result<()>;
    unsafe fn next(&mut self, device: &mut dyn OnDevice) -> Result<Option<Collective>>;
    unsafe fn outcome(&self, device: &mut dyn OnDevice) -> Result<Outcome>;
    /// Where on the device its outcome is, and of how many bytes.
    fn outcome_place(&self) -> (u64, usize);
    /// What a copy of that says.
    fn outcome_of(&self, copy: &[u8]) -> Result<Outcome>;
    unsafe fn residuals(&self, device: &mut dyn OnDevice, values: &mut [f32]) -> Result<()>;
    unsafe fn set_residuals(&mut self, device: &mut dyn OnDevice, values: &[f32]) -> Result<()>;
    unsafe fn take_over(&mut self, device: &mut dyn OnDevice, other: &dyn OnDeviceBucket) -> Result<()>;
    fn found_inf(&self) -> u64;
}

/// A device with a stream. Safety of the unsafe calls: addresses are as README.md asks of device pointers.
pub(crate) trait OnDevice: Any {
    fn held_bytes(&self) -> u64;
    fn synchronise(&mut self) -> Result<()>;
    fn check(&mut self) -> Result<()>;
    /// Nothing is done with addresses, which may be [`NOWHERE`]. `calls` is a sum of [`CALLS`].
    fn workspace_bytes(&self, rows: &[Row<'_>], calls: u32) -> Result<u64>;
    /// As `workspace_bytes`.
    fn reserve(&mut self, rows: &[Row<'_>], calls: u32) -> Result<()>;
    unsafe fn measure(&mut self, rows: &[Row<'_>], squared_errors: &mut [f64]) -> Result<()>;
    /// Bytes of workspace and of results. Nothing is done with addresses, which may be [`NOWHERE`].
    fn rows_bytes(&self, rows: &[Row<'_>]) -> Result<(u64, u64)>;
    unsafe fn enqueue_rows(&mut self, rows: &[Row<'_>], workspace: u64, results: u64) -> Result<()>;
    /// `copy` is a copy of the results that were enqueued for these rows, or anything else.
    unsafe fn read_rows(&mut self, rows: &[Row<'_>], copy: &[u8], squared_errors: &mut [f64]) -> Result<()>;
    unsafe fn encode(&mut self, encoding: &Encoding, payload: &mut [u8]) -> Result<usize>;
    unsafe fn decode(&mut self, payload: &[u8], values: u64) -> Result<()>;
    unsafe fn encode_to_device(&mut self, encoding: &Encoding, payload: u64) -> Result<usize>;
    unsafe fn decode_on_device(&mut self, by: &Setting, shape: Shape, payload: u64, values: u64) -> Result<()>;
    fn bucket_bytes(&self, layers: &BucketLayers) -> Result<u64>;
    unsafe fn bucket(&mut self, layers: &BucketLayers, memory: u64) -> Result<Box<dyn OnDeviceBucket>>;
}

/// The device of this number in its primary context, on a stream of its own.
pub(crate) fn open(ordinal: u32) -> Result<Box<dyn OnDevice>> {
    #[cfg(feature = "cuda")]
    return Ok(Box::new(lgreco_cuda::CudaBackend::new(ordinal as usize)?));
    #[cfg(not(feature = "cuda"))]
    crate::device::not_built_in(ordinal)
}

/// A stream in its context.
///
/// # Safety
/// Both outlive the device.
pub(crate) unsafe fn on_stream(stream: *mut c_void) -> Result<Box<dyn OnDevice>> {
    #[cfg(feature = "cuda")]
    // SAFETY: passed on.
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
    /// As for [`DeviceGradient::new`].
    unsafe fn gradient(tensor: DeviceTensor) -> Result<DeviceGradient> {
        // SAFETY: passed on.
        Ok(unsafe { DeviceGradient::new(tensor.address, tensor.dtype, tensor.shape) }?)
    }

    /// Runs a call on rows; failures name the layer.
    ///
    /// # Safety
    /// As for [`DeviceGradient::new`], of every row; addresses of which nothing is read or written may be anything.
    unsafe fn on<'a, T>(
        rows: &[Row<'a>],
        call: impl FnOnce(&[DeviceJob<'a>]) -> Result<T, DeviceJobError>,
    ) -> Result<T> {
        let job = |row: &Row<'a>| {
            // SAFETY: passed on.
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
            // SAFETY: nothing is done with the addresses.
            unsafe { on(rows, |jobs| CudaBackend::workspace_bytes(self, jobs, &named(calls))) }
        }

        fn reserve(&mut self, rows: &[Row<'_>], calls: u32) -> Result<()> {
            // SAFETY: nothing is done with the addresses.
            unsafe { on(rows, |jobs| CudaBackend::reserve(self, jobs, &named(calls))) }
        }

        unsafe fn measure(&mut self, rows: &[Row<'_>], squared_errors: &mut [f64]) -> Result<()> {
            // SAFETY: passed on.
            unsafe { on(rows, |jobs| self.measure_device(jobs, squared_errors)) }
        }

        fn rows_bytes(&self, rows: &[Row<'_>]) -> Result<(u64, u64)> {
            // SAFETY: nothing is done with the addresses.
            let bytes = unsafe { on(rows, |jobs| CudaBackend::rows_bytes(self, jobs)) }?;
            Ok((bytes.workspace, bytes.results))
        }

        unsafe fn enqueue_rows(&mut self, rows: &[Row<'_>], workspace: u64, results: u64) -> Result<()> {
            // SAFETY: passed on.
            unsafe { on(rows, |jobs| CudaBackend::enqueue_rows(self, jobs, workspace, results)) }
        }

        unsafe fn read_rows(&mut self, rows: &[Row<'_>], copy: &[u8], squared_errors: &mut [f64]) -> Result<()> {
            let (words, rest) = copy.as_chunks();
            if !rest.is_empty() {
                let expected = OnDevice::rows_bytes(self, rows)?.1 as usize;
                return Err(CoreError::Length { what: "bytes of results", expected, found: copy.len() }.into());
            }
            let words: Vec<u64> = words.iter().map(|&word| u64::from_ne_bytes(word)).collect();
            // SAFETY: passed on.
            unsafe { on(rows, |jobs| CudaBackend::read_rows(self, jobs, &words, squared_errors)) }
        }

        unsafe fn encode(&mut self, encoding: &Encoding, payload: &mut [u8]) -> Result<usize> {
            // SAFETY: passed on.
            let gradient = unsafe { gradient(encoding.gradient) }?;
            Ok(self.encode_device(&encoding.setting, &gradient, encoding.stream, payload)?)
        }

        unsafe fn decode(&mut self, payload: &[u8], values: u64) -> Result<()> {
            // SAFETY: passed on.
            Ok(unsafe { self.decode_to_device(payload, values) }?)
        }

        unsafe fn encode_to_device(&mut self, encoding: &Encoding, payload: u64) -> Result<usize> {
            let Encoding { gradient: tensor, setting, stream } = encoding;
            // SAFETY: passed on.
            unsafe { Ok(CudaBackend::encode_to_device(self, setting, &gradient(*tensor)?, *stream, payload)?) }
        }

        unsafe fn decode_on_device(&mut self, by: &Setting, shape: Shape, from: u64, to: u64) -> Result<()> {
            // SAFETY: passed on.
            Ok(unsafe { CudaBackend::decode_on_device(self, by, shape, from, to) }?)
        }

        fn bucket_bytes(&self, layers: &BucketLayers) -> Result<u64> {
            bucket::bytes(layers)
        }

        unsafe fn bucket(&mut self, layers: &BucketLayers, memory: u64) -> Result<Box<dyn OnDeviceBucket>> {
            // SAFETY: passed on.
            unsafe { bucket::new(self, layers, memory) }
        }
    }
}
