//! A bucket of layers that are exchanged on a CUDA device.

use super::{BucketLayers, Collective, OnDevice, OnDeviceBucket, Outcome};
use crate::failure::{Failure, Result};
use crate::status::{LGRECO_NON_FINITE, LGRECO_OK, LGRECO_OVERFLOW, LGRECO_PEER_MESSAGE};
use lgreco_cuda::{CudaBackend, DeviceBucket, DeviceLayer, ExchangeConfig, ExchangeFault, ExchangeOutcome, OnFault};
use lgreco_train::exchange::Request;
use lgreco_train::gradient::Dtype;
use std::any::Any;

fn read(layers: &BucketLayers) -> (Vec<DeviceLayer<'static>>, ExchangeConfig) {
    let BucketLayers { dtype, reduce_dtype, world_size: world, stream, gain, nan_on_fault, .. } = *layers;
    let layer = |&(index, shape, setting)| DeviceLayer { index, shape, setting, shards: &[] };
    let on_fault = if nan_on_fault { OnFault::Nan } else { OnFault::Zeros };
    let config = ExchangeConfig { dtype, reduce_dtype, world, stream, gain, on_fault };
    (layers.layers.iter().map(layer).collect(), config)
}

pub(super) fn bytes(layers: &BucketLayers) -> Result<u64> {
    let (layers, config) = read(layers);
    Ok(DeviceBucket::bytes(&layers, config)?)
}

/// # Safety
/// The requirements of [`DeviceBucket::new`] apply.
pub(super) unsafe fn new(
    device: &mut CudaBackend,
    layers: &BucketLayers,
    memory: u64,
) -> Result<Box<dyn OnDeviceBucket>> {
    let (layers, config) = read(layers);
    // SAFETY: the caller meets the safety requirements of this function.
    Ok(Box::new(unsafe { DeviceBucket::new(device, &layers, config, memory) }?))
}

const OTHER_DEVICE: Failure = Failure::Unavailable("a bucket of this device");

fn cuda(device: &mut dyn OnDevice) -> Result<&mut CudaBackend> {
    (device as &mut dyn Any).downcast_mut().ok_or(OTHER_DEVICE)
}

fn told(outcome: ExchangeOutcome) -> Outcome {
    let ExchangeOutcome { step, failed, has_failed, rank, fault, .. } = outcome;
    let (fault, value) = match fault {
        None => (LGRECO_OK, (0, 0)),
        Some(ExchangeFault::NonFinite { layer, index }) => (LGRECO_NON_FINITE, (layer, index)),
        Some(ExchangeFault::Overflow { layer, index }) => (LGRECO_OVERFLOW, (layer, index)),
        Some(ExchangeFault::Factor { layer }) => (LGRECO_OVERFLOW, (layer, 0)),
        Some(ExchangeFault::Payload { layer }) => (LGRECO_PEER_MESSAGE, (layer, 0)),
    };
    Outcome { step, failed, has_failed, rank, fault, value }
}

impl OnDeviceBucket for DeviceBucket {
    unsafe fn submit(&mut self, device: &mut dyn OnDevice, gradients: u64) -> Result<()> {
        // SAFETY: the caller meets the safety requirements of this function.
        Ok(unsafe { DeviceBucket::submit(self, cuda(device)?, gradients) }?)
    }

    unsafe fn next(&mut self, device: &mut dyn OnDevice) -> Result<Option<Collective>> {
        let world_size = self.world_size() as usize;
        // SAFETY: the caller meets the safety requirements of this function.
        let request = unsafe { DeviceBucket::next(self, cuda(device)?) }?;
        let (address, sum, len) = match request {
            None => return Ok(None),
            Some(Request::AllGather { buffer }) => (buffer.address, None, buffer.len / world_size),
            Some(Request::AllReduceSum { values }) => (values.address, Some(Dtype::F32), values.len),
            Some(Request::AllReduceSumBf16 { values }) => (values.address, Some(Dtype::Bf16), values.len),
            Some(_) => return Err(Failure::Unavailable("a collective of this kind on devices")),
        };
        Ok(Some(Collective { address, sum, len }))
    }

    unsafe fn outcome(&self, device: &mut dyn OnDevice) -> Result<Outcome> {
        Ok(told(DeviceBucket::outcome(self, cuda(device)?)?))
    }

    fn outcome_place(&self) -> (u64, usize) {
        self.outcome_address()
    }

    fn outcome_of(&self, copy: &[u8]) -> Result<Outcome> {
        Ok(told(DeviceBucket::outcome_of(self, copy)?))
    }

    unsafe fn residuals(&self, device: &mut dyn OnDevice, values: &mut [f32]) -> Result<()> {
        Ok(DeviceBucket::residuals(self, cuda(device)?, values)?)
    }

    unsafe fn set_residuals(&mut self, device: &mut dyn OnDevice, values: &[f32]) -> Result<()> {
        Ok(DeviceBucket::set_residuals(self, cuda(device)?, values)?)
    }

    unsafe fn take_over(&mut self, device: &mut dyn OnDevice, other: &dyn OnDeviceBucket) -> Result<()> {
        let other: &DeviceBucket = (other as &dyn Any).downcast_ref().ok_or(OTHER_DEVICE)?;
        // SAFETY: the caller meets the safety requirements of this function.
        Ok(unsafe { DeviceBucket::take_over(self, cuda(device)?, other) }?)
    }

    fn found_inf(&self) -> u64 {
        self.found_inf_address()
    }
}
