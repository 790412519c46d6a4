//! Buckets in the memory of a CUDA device, on a stream of the trainer. This module, `memory` and `window` contain the only unsafe
//! code of this crate. The unsafe code of this module accesses device memory by address.

use crate::controller::{Controller, parsed};
use crate::cores::detached;
use crate::error::{LgrecoError, named, of_layer, refused_by_device as refused};
use crate::request::Request;
use lgreco_cuda::{CudaBackend, DeviceBucket, DeviceLayer, ExchangeConfig, ExchangeFault, OnFault};
use lgreco_train::compress::Setting;
use lgreco_train::controller::{NonFinite, Tensor};
use lgreco_train::gradient::Dtype;
use lgreco_train::rng::Stream;
use lgreco_train::{CoreError, Error};
use pyo3::prelude::*;
use std::ptr::with_exposed_provenance_mut;
use std::sync::{Arc, Mutex, PoisonError};

/// A stream of a CUDA device. Methods only enqueue work unless their comment begins with "Waits".
#[pyclass(module = "lgreco._lgreco")]
pub(crate) struct Device {
    /// The backend of the stream. The lock is always free, because it is only used through `&mut self`.
    cuda: Mutex<CudaBackend>,
}

/// Layers that are exchanged together in the device's memory. The settings of a bucket never change.
#[pyclass(name = "DeviceBucket", module = "lgreco._lgreco")]
pub(crate) struct Bucket {
    bucket: DeviceBucket,
    layers: Vec<usize>,
    settings: Vec<Setting>,
    names: Arc<[String]>,
    /// Positions in the bucket of the layers without error feedback.
    forgetful: Vec<usize>,
}

/// The outcome of a step: whether it failed, the first rank at fault, an error, and whether only this rank knows of the
/// failure.
type Told = (bool, Option<u32>, Option<Py<PyAny>>, bool);

impl Bucket {
    fn name(&self, place: usize) -> Option<&str> {
        self.layers.get(place).and_then(|&layer| self.names.get(layer)).map(String::as_str)
    }

    /// The exception for a wrong value on this rank, or for a wrong payload from `rank`. Text and code are the same as
    /// in an exchange on the host.
    fn at_fault(&self, py: Python<'_>, rank: Option<u32>, fault: ExchangeFault) -> PyErr {
        let not_finite = Error::NonFiniteGradient { layer: 0, index: 0, value: f32::NAN };
        let (place, code, text) = match fault {
            ExchangeFault::NonFinite { layer, index } => {
                (layer, not_finite.code(), format!("element {index} is infinite or NaN: gradients must be finite"))
            }
            ExchangeFault::Overflow { layer, index } => {
                let overflow = CoreError::Overflow { what: "a gradient with its residual, or the mean" };
                (layer, overflow.code(), format!("element {index}: {overflow}"))
            }
            ExchangeFault::Factor { layer } => {
                let overflow = CoreError::Overflow { what: "a factor" };
                (layer, overflow.code(), overflow.to_string())
            }
            ExchangeFault::Payload { layer } => {
                let code = CoreError::PayloadBody { what: "" }.code();
                let broken = Error::PeerMessage { rank: rank.unwrap_or_default(), code };
                (layer, broken.code(), broken.to_string())
            }
        };
        let name = self.name(place);
        named(py, of_layer(name, &text), code, name)
    }
}

/// Describes a bucket of these layers, under `settings` or else under the controller's settings.
fn described<'a>(
    py: Python<'_>,
    controller: &'a Controller,
    layers: &[usize],
    settings: Option<&[String]>,
) -> PyResult<(Vec<DeviceLayer<'a>>, ExchangeConfig)> {
    let tensors = &controller.exchanged;
    let given = settings.map(parsed).transpose()?;
    if given.as_ref().is_some_and(|given| given.len() != layers.len()) {
        return Err(LgrecoError::new_err("one setting per layer"));
    }
    let mut described = Vec::with_capacity(layers.len());
    for (place, &layer) in layers.iter().enumerate() {
        let index = controller.check(layer)?;
        let setting = match &given {
            Some(given) => given[place],
            None => controller.with(py, |controller| controller.setting(index)),
        };
        let (shape, shards) = (tensors[index].shape(), tensors[index].shards());
        described.push(DeviceLayer { index: index as u32, shape, setting, shards });
    }
    let mut dtypes = layers.iter().map(|&layer| tensors[layer].dtype());
    let dtype = dtypes.next().unwrap_or(Dtype::F32);
    if dtypes.any(|other| other != dtype) {
        return Err(LgrecoError::new_err("layers of one bucket on a device are of one type"));
    }
    let step = controller.steps(py) as u32;
    let stream = Stream { seed: controller.seed, step, layer: 0, rank: controller.place.rank };
    let world = controller.place.world_size;
    let reduce_dtype = controller.reduce_dtype;
    let on_fault = match controller.non_finite {
        NonFinite::PassThrough => OnFault::Nan,
        _ => OnFault::Zeros,
    };
    Ok((described, ExchangeConfig { dtype, reduce_dtype, world, stream, gain: 1.0, on_fault }))
}

/// Returns the controller's residuals of these layers, one after the other.
fn remembered(py: Python<'_>, controller: &Controller, layers: &[usize]) -> PyResult<Vec<f32>> {
    let mut residuals = room(controller, layers);
    controller.attempt(py, |own| {
        let mut parts = parts(&controller.exchanged, layers, &mut residuals);
        parts.try_for_each(|(layer, part)| own.residual(layer, part))
    })?;
    Ok(residuals)
}

/// Returns zeros for the values of these layers.
fn room(controller: &Controller, layers: &[usize]) -> Vec<f32> {
    vec![0f32; layers.iter().map(|&layer| controller.exchanged[layer].shape().elements()).sum()]
}

/// Iterates over the layers, each with its part of `values`.
fn parts<'a>(
    tensors: &'a [Tensor],
    layers: &'a [usize],
    mut values: &'a mut [f32],
) -> impl Iterator<Item = (usize, &'a mut [f32])> {
    layers.iter().map(move |&layer| {
        let (own, others) = std::mem::take(&mut values).split_at_mut(tensors[layer].shape().elements());
        values = others;
        (layer, own)
    })
}

#[pymethods]
impl Device {
    /// Opens the stream with this handle. The default stream uses the current context.
    #[new]
    fn new(stream: usize) -> PyResult<Device> {
        // SAFETY: by the contract of `Device` (`_lgreco.pyi`), stream and context outlive it.
        let cuda = unsafe { CudaBackend::with_stream(with_exposed_provenance_mut(stream)) };
        let cuda = cuda.map_err(|error| LgrecoError::new_err(error.to_string()))?;
        Ok(Device { cuda: Mutex::new(cuda) })
    }

    /// Bytes of device memory for a bucket of these layers.
    #[pyo3(signature = (controller, layers, settings = None))]
    fn bytes(
        &self,
        py: Python<'_>,
        controller: &Controller,
        layers: Vec<usize>,
        settings: Option<Vec<String>>,
    ) -> PyResult<u64> {
        let (described, config) = described(py, controller, &layers, settings.as_deref())?;
        DeviceBucket::bytes(&described, config).map_err(|error| refused(py, error, &controller.names))
    }

    /// Waits: makes a bucket of these layers in the given memory. The bucket starts with the controller's residuals.
    /// With separate `settings`, the bucket has no residuals.
    #[pyo3(signature = (controller, layers, memory, settings = None))]
    fn bucket(
        &mut self,
        py: Python<'_>,
        controller: &Controller,
        layers: Vec<usize>,
        memory: u64,
        settings: Option<Vec<String>>,
    ) -> PyResult<Bucket> {
        let (described, config) = described(py, controller, &layers, settings.as_deref())?;
        let residuals = match settings {
            Some(_) => None,
            None => Some(remembered(py, controller, &layers)?),
        };
        let settings: Vec<Setting> = described.iter().map(|layer| layer.setting).collect();
        let leaves = |setting: &Setting| *setting != Setting::Dense || config.reduce_dtype != Dtype::F32;
        let forgets = |setting: &Setting| leaves(setting) && controller.feedback.of(setting).is_none();
        let forgetful = (0..settings.len()).filter(|&place| forgets(&settings[place])).collect();
        let cuda = self.inner();
        let bucket = detached(py, || {
            // SAFETY: by the contract of `Device.bucket` (`_lgreco.pyi`).
            let mut bucket = unsafe { DeviceBucket::new(cuda, &described, config, memory) }?;
            if let Some(residuals) = residuals {
                bucket.set_residuals(cuda, &residuals)?;
            }
            Ok(bucket)
        });
        let bucket = bucket.map_err(|error| refused(py, error, &controller.names))?;
        Ok(Bucket { bucket, layers, settings, names: controller.names.clone(), forgetful })
    }

    /// Waits: copies residuals and the step number from `other` to `bucket`, which has the same layers.
    fn take_over(&mut self, py: Python<'_>, bucket: &mut Bucket, other: &Bucket) -> PyResult<()> {
        // SAFETY: by the contract of `Device.take_over` (`_lgreco.pyi`).
        let taken = unsafe { bucket.bucket.take_over(self.inner(), &other.bucket) };
        taken.map_err(|error| refused(py, error, &other.names))
    }

    /// Submits the gradients at this address.
    fn submit(&mut self, py: Python<'_>, bucket: &mut Bucket, gradients: u64) -> PyResult<()> {
        // SAFETY: by the contract of `Device.submit` (`_lgreco.pyi`).
        let submitted = unsafe { bucket.bucket.submit(self.inner(), gradients) };
        submitted.map_err(|error| refused(py, error, &bucket.names))
    }

    /// Submits a failure instead of gradients. All ranks learn of the failure. The memory at `gradients` stays
    /// unchanged.
    fn submit_failure(&mut self, py: Python<'_>, bucket: &mut Bucket, gradients: u64) -> PyResult<()> {
        let failure = Error::StepOrder { what: "the trainer has failed", expected: "gradients" };
        // SAFETY: by the contract of `Device.submit` (`_lgreco.pyi`).
        let submitted = unsafe { bucket.bucket.submit_failure(self.inner(), gradients, failure.into()) };
        submitted.map_err(|error| refused(py, error, &bucket.names))
    }

    /// Continues after the previous collective was enqueued. Returns the next collective, or None once the means are
    /// enqueued.
    fn next(&mut self, py: Python<'_>, bucket: &mut Bucket) -> PyResult<Option<Request>> {
        // SAFETY: by the contract of `Device.submit` (`_lgreco.pyi`).
        let next = unsafe { bucket.bucket.next(self.inner()) }.map_err(|error| refused(py, error, &bucket.names))?;
        Ok(next.map(Request::from))
    }

    /// After a step without failure: clears the residuals of layers without error feedback.
    fn forget(&mut self, py: Python<'_>, bucket: &mut Bucket) -> PyResult<()> {
        let Bucket { bucket, forgetful, names, .. } = bucket;
        let cuda = self.inner();
        let forgotten = forgetful.iter().try_for_each(|&place| bucket.forget(cuda, place));
        forgotten.map_err(|error| refused(py, error, names))
    }

    /// Waits: copies the residuals from before step `before` to the controller. `before` is the last submitted step or
    /// the next step. Layers at the positions `forgotten` get zeros.
    #[pyo3(signature = (controller, bucket, before, forgotten = None))]
    fn take_home(
        &mut self,
        py: Python<'_>,
        controller: &Controller,
        bucket: &Bucket,
        before: u64,
        forgotten: Option<Vec<usize>>,
    ) -> PyResult<()> {
        let mut residuals = room(controller, &bucket.layers);
        let cuda = self.inner();
        let read = detached(py, || bucket.bucket.residuals_before(cuda, before as u32, &mut residuals));
        read.map_err(|error| refused(py, error, &bucket.names))?;
        controller.attempt(py, |own| {
            let parts = parts(&controller.exchanged, &bucket.layers, &mut residuals);
            parts.enumerate().try_for_each(|(place, (layer, part))| {
                if forgotten.as_ref().is_some_and(|forgotten| forgotten.contains(&place)) {
                    part.fill(0.0);
                }
                own.residuals().set(layer, part)
            })
        })
    }

    /// Waits: copies the controller's residuals to the bucket, between two steps.
    fn take_out(&mut self, py: Python<'_>, controller: &Controller, bucket: &mut Bucket) -> PyResult<()> {
        let residuals = remembered(py, controller, &bucket.layers)?;
        let Bucket { bucket, names, .. } = bucket;
        let cuda = self.inner();
        detached(py, || bucket.set_residuals(cuda, &residuals)).map_err(|error| refused(py, error, names))
    }
}

impl Device {
    pub(crate) fn inner(&mut self) -> &mut CudaBackend {
        self.cuda.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Bucket {
    /// Whether the bucket's settings are still the controller's settings.
    fn suits(&self, py: Python<'_>, controller: &Controller) -> bool {
        let mut layers = self.layers.iter().zip(&self.settings);
        controller.with(py, |controller| layers.all(|(&layer, setting)| controller.setting(layer) == *setting))
    }

    /// Device address of the two copies of the residuals, and of an i32 that says which copy is current.
    #[getter]
    fn residuals(&self) -> (u64, u64) {
        self.bucket.residual_addresses()
    }

    /// Positions in the bucket of the layers without error feedback.
    #[getter]
    fn forgetful(&self) -> Vec<usize> {
        self.forgetful.clone()
    }

    /// Device address of an f32 that is 1 after a step that failed on some rank, else 0.
    #[getter]
    fn found_inf(&self) -> u64 {
        self.bucket.found_inf_address()
    }

    /// Device address and number of bytes of the status record of steps.
    #[getter]
    fn outcome(&self) -> (u64, usize) {
        self.bucket.outcome_address()
    }

    /// Reads a status record. Returns whether the step failed on some rank, the first rank at fault, an error or None,
    /// and whether only this rank knows of the failure. The error is about this rank's values or about another rank's
    /// payload.
    fn fault(&self, py: Python<'_>, outcome: &[u8]) -> PyResult<Told> {
        let outcome = self.bucket.outcome_of(outcome).map_err(|error| refused(py, error, &self.names))?;
        let error = outcome.fault.map(|fault| self.at_fault(py, outcome.rank, fault).into_value(py).into_any());
        Ok((outcome.has_failed, outcome.rank, error, outcome.alone))
    }
}
