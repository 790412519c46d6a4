use super::cuda::lgreco_cuda;
use super::gradient::lgreco_layer;
use super::request::{
    LGRECO_DEVICE_CUDA, LGRECO_REQUEST_ALL_GATHER, LGRECO_REQUEST_ALL_REDUCE_SUM, LGRECO_REQUEST_ALL_REDUCE_SUM_BF16,
    lgreco_request,
};
use super::setting::{lgreco_setting, read_setting};
use crate::cuda::{BucketLayers, Collective, OnDeviceBucket, Outcome};
use crate::failure::{Failure, Result};
use crate::handle::{self, kind};
use crate::options::{self, BucketOptions};
use crate::pointers::{Range, address, at_least, check_array, disjoint, exactly, slice, slice_mut, write};
use crate::status::lgreco_status;
use crate::structs::{fill, read_structs, sized_struct};
use core::ffi::{c_char, c_void};
use lgreco_train::CoreError;
use lgreco_train::gradient::Dtype;

/// Layers that are exchanged together, with gradients, residuals and messages in the device's memory. To take a step,
/// call lgreco_cuda_bucket_submit. Then repeat lgreco_cuda_bucket_next and the requested collective, until the request
/// is LGRECO_REQUEST_NONE. A step never waits, allocates or copies from the host, so a CUDA graph can capture and
/// replay it together with its collectives. Every call also takes the lgreco_cuda that made the bucket.
pub struct lgreco_cuda_bucket {
    _private: [u8; 0],
}

kind!(lgreco_cuda_bucket, "cuda bucket", b"lgcubckt", Box<dyn OnDeviceBucket>);

/// The value of `rank` in an outcome if no rank is at fault.
pub const LGRECO_NO_RANK: u32 = u32::MAX;

/// The outcome of a bucket's steps. Begin with LGRECO_CUDA_OUTCOME_INIT.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lgreco_cuda_outcome {
    /// Set by the INIT macro.
    pub struct_size: usize,
    /// The number of the next step.
    pub step: u32,
    /// Number of steps that failed. A failed step leaves residuals unchanged on all ranks, and the option `on_fault`
    /// decides the value of all means. If a mean is out of range for its type, the step also fails, but only this mean
    /// is infinite or NaN.
    pub failed: u32,
    /// The first rank at fault in the last step, else LGRECO_NO_RANK. A rank is at fault if its gradient was not
    /// finite, if its step or settings differed, or if its payload cannot be decoded.
    pub rank: u32,
    /// The fault that this rank found in the last step: LGRECO_NON_FINITE, LGRECO_OVERFLOW, or LGRECO_OK for none. If a
    /// payload cannot be decoded, the fault is LGRECO_PEER_MESSAGE on all ranks.
    pub fault: lgreco_status,
    /// Layer of the first value with this fault, as an index into the bucket's layers.
    pub layer: usize,
    /// Index of this value in its layer; 0 if the fault is in a factor of PowerSGD or in a payload.
    pub element: usize,
    /// 1 when the last step failed on some rank, else 0.
    pub has_failed: u32,
}

impl From<Outcome> for lgreco_cuda_outcome {
    fn from(Outcome { step, failed, has_failed, rank, fault, value: (layer, element) }: Outcome) -> Self {
        let (rank, has_failed) = (rank.unwrap_or(LGRECO_NO_RANK), has_failed.into());
        lgreco_cuda_outcome { step, failed, rank, fault, layer, element, has_failed, ..Default::default() }
    }
}

fn to_request(collective: Option<Collective>) -> lgreco_request {
    let Some(Collective { address, sum, len }) = collective else { return lgreco_request::default() };
    let (kind, count, length) = match sum {
        None => (LGRECO_REQUEST_ALL_GATHER, 0, len),
        Some(Dtype::Bf16) => (LGRECO_REQUEST_ALL_REDUCE_SUM_BF16, len, 0),
        Some(_) => (LGRECO_REQUEST_ALL_REDUCE_SUM, len, 0),
    };
    let buffer = core::ptr::with_exposed_provenance_mut(address as usize);
    lgreco_request { kind, memory: LGRECO_DEVICE_CUDA, buffer, count, length, ..Default::default() }
}

// SAFETY: the struct is repr(C), starts with a usize, and has only numbers.
sized_struct!("cuda outcome", lgreco_cuda_outcome { rank: LGRECO_NO_RANK });

/// # Safety
/// Pointers meet the requirements of lgreco-ffi/README.md.
unsafe fn read(
    layers: *const lgreco_layer,
    settings: *const lgreco_setting,
    layers_len: usize,
    options: *const *const c_char,
) -> Result<BucketLayers> {
    // SAFETY: the caller meets the safety requirements of this function.
    let (described, options) = unsafe { (read_structs(layers, layers_len)?, options::read::<BucketOptions>(options)?) };
    check_array(settings, layers_len, "settings")?;
    let BucketOptions { stream, world_size, indices, gain, nan_on_fault, reduce_dtype } = options;
    let indices = indices.unwrap_or_else(|| (0..layers_len as u32).collect());
    exactly(layers_len, indices.len(), "indices, one per layer")?;
    let (mut layers, mut common) = (Vec::with_capacity(layers_len), None);
    for (place, (layer, index)) in described.iter().zip(indices).enumerate() {
        // SAFETY: the caller meets the safety requirements of this function.
        let tensor = unsafe { layer.tensor() }?;
        if *common.get_or_insert(tensor.dtype) != tensor.dtype {
            let expected = "that of the bucket's first layer";
            let other =
                CoreError::Parameter { what: "code of the element type", value: tensor.dtype as u8 as f64, expected };
            return Err(Failure::from(other).of_layer(tensor.name));
        }
        // SAFETY: `settings` has one setting per layer.
        let setting = unsafe { read_setting(settings.add(place).cast()) };
        layers.push((index, tensor.shape, setting.map_err(|failure| failure.of_layer(tensor.name))?));
    }
    let dtype = common.unwrap_or(Dtype::F32);
    Ok(BucketLayers { layers, dtype, reduce_dtype, world_size, stream, gain, nan_on_fault })
}

/// Reports the number of bytes of device memory that a bucket of these layers needs: about 8 per element, plus
/// messages. `values` of layers are not read. `settings` has one setting per layer.
///
/// Fails with LGRECO_UNAVAILABLE for settings that cannot be exchanged on a device, with LGRECO_PARAMETER for layers of
/// different types, and with LGRECO_UNKNOWN_OPTION, LGRECO_PARAMETER or LGRECO_LENGTH for wrong options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cuda_bucket_bytes(
    cuda: *mut lgreco_cuda,
    layers: *const lgreco_layer,
    settings: *const lgreco_setting,
    layers_len: usize,
    options: *const *const c_char,
    bytes: *mut u64,
) -> lgreco_status {
    call!(cuda, |cuda| { write(bytes, "bytes", || cuda.bucket_bytes(&read(layers, settings, layers_len, options)?)) })
}

/// Enqueued: makes a bucket of these layers in `memory` on the device. The memory has at least the bytes that
/// lgreco_cuda_bucket_bytes reports, and is aligned to 16 bytes. Nothing else may use the memory until all work that
/// was enqueued with the bucket is done. Residuals start as zeros. The call first waits until kernels are loaded.
///
/// Fails like lgreco_cuda_bucket_bytes. Also fails with LGRECO_LENGTH when the memory is too small, and with
/// LGRECO_DEVICE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cuda_bucket_create(
    cuda: *mut lgreco_cuda,
    layers: *const lgreco_layer,
    settings: *const lgreco_setting,
    layers_len: usize,
    options: *const *const c_char,
    memory: *mut c_void,
    memory_bytes: u64,
    bucket: *mut *mut lgreco_cuda_bucket,
) -> lgreco_status {
    create_on!(cuda, bucket, |cuda| {
        let layers = read(layers, settings, layers_len, options)?;
        at_least(cuda.bucket_bytes(&layers)?, memory_bytes, "bytes of the bucket's memory")?;
        cuda.bucket(&layers, address(memory.cast::<u8>(), memory_bytes as usize, "memory")?)
    })
}

/// Frees a bucket and sets the caller's pointer to NULL. Does nothing for NULL, or for a pointer to NULL. The bucket's
/// memory may be freed once all work that was enqueued with the bucket is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cuda_bucket_destroy(bucket: *mut *mut lgreco_cuda_bucket) -> lgreco_status {
    // SAFETY: the caller promises a handle that meets the requirements of lgreco-ffi/README.md.
    unsafe { handle::destroy(bucket) }
}

/// Enqueued: adds residuals to the gradients of a step and compresses them. The gradients of all layers lie one after the
/// other in the device's memory. The gradients must stay in place until lgreco_cuda_bucket_next has returned
/// LGRECO_REQUEST_NONE. The means then replace them.
///
/// Fails with LGRECO_STEP_ORDER when a step is under way, and with LGRECO_DEVICE for an address that is NULL or not
/// aligned. The device detects wrong values and informs all ranks. lgreco_cuda_bucket_outcome reports wrong values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cuda_bucket_submit(
    cuda: *mut lgreco_cuda,
    bucket: *mut lgreco_cuda_bucket,
    gradients: *mut c_void,
) -> lgreco_status {
    call!(cuda, |cuda| {
        handle::with(bucket, |bucket| bucket.submit(&mut **cuda, gradients.expose_provenance() as u64))
    })
}

/// Enqueued: returns in `request` the next collective to enqueue on the stream. Call it after the previous collective
/// was enqueued. The kind is LGRECO_REQUEST_ALL_GATHER, LGRECO_REQUEST_ALL_REDUCE_SUM or
/// LGRECO_REQUEST_ALL_REDUCE_SUM_BF16. NCCL performs these collectives in place, on device memory. LGRECO_REQUEST_NONE
/// means that the work that computes the means is enqueued. All ranks get the same requests, and must start the
/// requests of different buckets in the same order.
///
/// Fails with LGRECO_STEP_ORDER before lgreco_cuda_bucket_submit. LGRECO_DEVICE in place of LGRECO_REQUEST_NONE means that
/// the driver refused a call. All workers have then enqueued the same collectives, and the step has failed on all
/// workers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cuda_bucket_next(
    cuda: *mut lgreco_cuda,
    bucket: *mut lgreco_cuda_bucket,
    request: *mut lgreco_request,
) -> lgreco_status {
    call!(cuda, |cuda| { fill(request, || Ok(to_request(handle::with(bucket, |bucket| bucket.next(&mut **cuda))?))) })
}

/// Blocking: reports the outcome of the bucket's steps so far. To read the outcome without waiting, use
/// lgreco_cuda_bucket_outcome_place.
///
/// Fails with LGRECO_DEVICE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cuda_bucket_outcome(
    cuda: *mut lgreco_cuda,
    bucket: *mut lgreco_cuda_bucket,
    outcome: *mut lgreco_cuda_outcome,
) -> lgreco_status {
    call!(cuda, |cuda| fill(outcome, || Ok(handle::with(bucket, |bucket| bucket.outcome(&mut **cuda))?.into())))
}

/// Reports the device address and the number of bytes of the outcome of the bucket's last step. Address and number stay
/// the same as long as the bucket lives. After LGRECO_REQUEST_NONE and before the next lgreco_cuda_bucket_submit,
/// enqueue a copy to page-locked memory on the same stream. The copy then holds this step's outcome, whatever is
/// enqueued later. Record an event after the copy. When the event has completed, lgreco_cuda_bucket_read_outcome can
/// read the copy. With this method a trainer learns of faults one step later, and waits only for the copy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cuda_bucket_outcome_place(
    cuda: *mut lgreco_cuda,
    bucket: *mut lgreco_cuda_bucket,
    address: *mut *const c_void,
    bytes: *mut usize,
) -> lgreco_status {
    call!(cuda, |_| {
        disjoint(Range::of(address, 1, "address"), &[Range::of(bytes, 1, "bytes")])?;
        let (start, len) = handle::with(bucket, |bucket| Ok(bucket.outcome_place()))?;
        write(address, "address", || {
            write(bytes, "bytes", || Ok(len))?;
            Ok(core::ptr::with_exposed_provenance(start as usize))
        })
    })
}

/// Reads the outcome of the bucket's steps from a copy of the bytes at lgreco_cuda_bucket_outcome_place. The copy need not
/// be aligned. The device is not used.
///
/// Fails with LGRECO_LENGTH unless `copy_bytes` is the number that lgreco_cuda_bucket_outcome_place reports. If the
/// copy holds other bytes, the outcome is meaningless and may name a layer that the bucket does not have.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cuda_bucket_read_outcome(
    cuda: *mut lgreco_cuda,
    bucket: *mut lgreco_cuda_bucket,
    copy: *const c_void,
    copy_bytes: usize,
    outcome: *mut lgreco_cuda_outcome,
) -> lgreco_status {
    call!(cuda, |_| {
        disjoint(Range::of(outcome, 1, "cuda outcome"), &[Range::of(copy.cast::<u8>(), copy_bytes, "copy")])?;
        let copy = slice(copy.cast(), copy_bytes, "copy")?;
        fill(outcome, || Ok(handle::with(bucket, |bucket| bucket.outcome_of(copy))?.into()))
    })
}

/// Reports the device address of an f32 flag: 1 if the last step failed on some rank, else 0. Loss scalers read this
/// flag as `found_inf`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cuda_bucket_found_inf(
    cuda: *mut lgreco_cuda,
    bucket: *mut lgreco_cuda_bucket,
    found_inf: *mut *mut f32,
) -> lgreco_status {
    call!(cuda, |_| {
        let address = handle::with(bucket, |bucket| Ok(bucket.found_inf()))?;
        write(found_inf, "found_inf", || Ok(core::ptr::with_exposed_provenance_mut(address as usize)))
    })
}

/// Blocking: copies the residuals of all layers, one layer after the other, to host memory. Call it between two steps.
///
/// Fails with LGRECO_LENGTH unless `values_len` is the number of elements of all layers, and with LGRECO_DEVICE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cuda_bucket_get_residuals(
    cuda: *mut lgreco_cuda,
    bucket: *mut lgreco_cuda_bucket,
    values: *mut f32,
    values_len: usize,
) -> lgreco_status {
    call!(cuda, |cuda| {
        let values = slice_mut(values, values_len, "values")?;
        handle::with(bucket, |bucket| bucket.residuals(&mut **cuda, values))
    })
}

/// Blocking: replaces the residuals of all layers by these values. Call it between two steps.
///
/// Fails like lgreco_cuda_bucket_get_residuals.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cuda_bucket_set_residuals(
    cuda: *mut lgreco_cuda,
    bucket: *mut lgreco_cuda_bucket,
    values: *const f32,
    values_len: usize,
) -> lgreco_status {
    call!(cuda, |cuda| {
        let values = slice(values, values_len, "values")?;
        handle::with(bucket, |bucket| bucket.set_residuals(&mut **cuda, values))
    })
}

/// Blocking: copies the residuals and the step count of another bucket with the same layers to this bucket, between two
/// steps. Use this call to change the layers' settings. PowerSGD's factors are reset. Both buckets must have been made
/// with `cuda`.
///
/// Fails with LGRECO_LENGTH when the layers have other numbers of elements, with LGRECO_BUSY for the same bucket twice,
/// and with LGRECO_DEVICE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cuda_bucket_take_over(
    cuda: *mut lgreco_cuda,
    bucket: *mut lgreco_cuda_bucket,
    from: *mut lgreco_cuda_bucket,
) -> lgreco_status {
    call!(cuda, |cuda| {
        handle::with(bucket, |bucket| handle::with(from, |from| bucket.take_over(&mut **cuda, &**from)))
    })
}
