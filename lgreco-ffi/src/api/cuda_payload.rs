use super::cuda::lgreco_cuda;
use super::gradient::{Tensor, lgreco_layer};
use super::setting::read_setting;
use crate::cuda::{DeviceTensor, Encoding};
use crate::failure::Result;
use crate::pointers::{Range, address, all_disjoint, at_least, disjoint, exactly, slice, slice_mut, write};
use crate::status::lgreco_status;
use crate::structs::read_struct;
use core::ffi::c_char;
use lgreco_train::compress::wire::Payload;
use lgreco_train::compress::{Compressor as _, Setting};
use lgreco_train::rng::Stream;

/// Selects the random bits of one payload. QSGD's rounding and EDEN's rotation use all fields. PowerSGD's start matrix
/// uses `seed` and `layer`. The layout of this struct never changes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct lgreco_rng_stream {
    /// Seed of the run, the same on every rank.
    pub seed: u64,
    /// The training step.
    pub step: u32,
    /// Index of the layer in the model.
    pub layer: u32,
    /// Number of this worker. The number must differ between workers, or their rounding errors do not average out.
    pub rank: u32,
}

/// A layer to encode, with its setting and its random stream.
struct Encoded<'a> {
    tensor: Tensor<'a>,
    /// The memory range of the gradient.
    range: Range,
    encoding: Encoding,
}

impl<'a> Encoded<'a> {
    /// # Safety
    /// Pointers meet the requirements of lgreco-ffi/README.md; `'a` ends within the call.
    unsafe fn read(
        layer: *const lgreco_layer,
        setting: *const c_char,
        rng: *const lgreco_rng_stream,
    ) -> Result<Encoded<'a>> {
        // SAFETY: the caller meets the safety requirements of this function.
        let (layer, tensor, setting, rng) = unsafe {
            let layer = read_struct(layer)?;
            (layer, layer.tensor()?, read_setting(setting)?, slice(rng, 1, "rng")?[0])
        };
        let lgreco_rng_stream { seed, step, layer: index, rank } = rng;
        let (Tensor { name, dtype, shape, .. }, range) = (tensor, layer.range(tensor));
        let address = layer.address(tensor).map_err(|failure| failure.of_layer(name))?;
        let gradient = DeviceTensor { address, dtype, shape };
        let stream = Stream { seed, step, layer: index, rank };
        Ok(Encoded { tensor, range, encoding: Encoding { gradient, setting, stream } })
    }
}

/// Reports the number of payload bytes of a layer under a setting. The number does not depend on the values, and the
/// call does not read them.
///
/// Fails with LGRECO_PARAMETER when the setting does not fit the layer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cuda_payload_len(
    cuda: *mut lgreco_cuda,
    layer: *const lgreco_layer,
    setting: *const c_char,
    bytes: *mut usize,
) -> lgreco_status {
    call!(cuda, |_| {
        let (tensor, setting) = (read_struct(layer)?.tensor()?, read_setting(setting)?);
        write(bytes, "bytes", || payload_len(&setting, tensor).map_err(|failure| failure.of_layer(tensor.name)))
    })
}

/// Blocking: compresses a gradient in the device's memory into a payload in host memory. The gradient is `values` of
/// `layer`. `length` receives the payload's number of bytes. `rng` selects the random bits. The call supports
/// uncompressed gradients, EDEN, TopK, and TopK with values in few bits. It also supports QSGD with bucket sizes of a
/// power of two from 64 to 4096, and PowerSGD with ranks up to 1024.
///
/// Fails with LGRECO_LENGTH when `capacity` is less than lgreco_cuda_payload_len reports, and with LGRECO_UNAVAILABLE
/// for other methods, bucket sizes and ranks. Also fails with LGRECO_NON_FINITE, LGRECO_OVERFLOW,
/// LGRECO_ELEMENT_OVERFLOW, LGRECO_OUT_OF_MEMORY and LGRECO_DEVICE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cuda_encode(
    cuda: *mut lgreco_cuda,
    layer: *const lgreco_layer,
    setting: *const c_char,
    rng: *const lgreco_rng_stream,
    payload: *mut u8,
    capacity: usize,
    length: *mut usize,
) -> lgreco_status {
    call!(cuda, |cuda| {
        let Encoded { tensor, range, encoding } = Encoded::read(layer, setting, rng)?;
        all_disjoint(&mut [range, Range::of(payload, capacity, "payload"), Range::of(length, 1, "length")])?;
        write(length, "length", || {
            let written = cuda.encode(&encoding, slice_mut(payload, capacity, "payload")?);
            written.map_err(|failure| failure.of_layer(tensor.name))
        })
    })
}

/// Enqueued for QSGD, blocking for other methods: decodes any payload in host memory into `values` in the device's
/// memory. `values_len` is the number of elements. The payload may be freed when the call returns.
///
/// Fails with LGRECO_PAYLOAD_HEADER, LGRECO_PAYLOAD_FIELD, LGRECO_PAYLOAD_BODY or LGRECO_LENGTH for bytes that no
/// encoder writes. Also fails with LGRECO_OUT_OF_MEMORY and LGRECO_DEVICE. `values` are then unusable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cuda_decode(
    cuda: *mut lgreco_cuda,
    payload: *const u8,
    length: usize,
    values: *mut f32,
    values_len: usize,
) -> lgreco_status {
    call!(cuda, |cuda| {
        disjoint(Range::of(values, values_len, "values"), &[Range::of(payload, length, "payload")])?;
        let (payload, values) = (slice(payload, length, "payload")?, address(values, values_len, "values")?);
        exactly(Payload::parse(payload)?.header.shape.elements(), values_len, "values")?;
        cuda.decode(payload, values)
    })
}

/// Enqueued: compresses a gradient like lgreco_cuda_encode, but into `payload` in the device's memory, so that NCCL can
/// send it. `payload` is aligned to 4 bytes. A later call of lgreco_cuda_check reports whether the gradient could be
/// compressed. Work that is enqueued after this call may overwrite the gradient.
///
/// Fails like lgreco_cuda_encode, except for errors about values, and with LGRECO_DEVICE when a check is due.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cuda_encode_to_device(
    cuda: *mut lgreco_cuda,
    layer: *const lgreco_layer,
    setting: *const c_char,
    rng: *const lgreco_rng_stream,
    payload: *mut u8,
    capacity: usize,
    length: *mut usize,
) -> lgreco_status {
    call!(cuda, |cuda| {
        let Encoded { tensor, range, encoding } = Encoded::read(layer, setting, rng)?;
        disjoint(Range::of(payload, capacity, "payload"), &[range])?;
        let payload = address(payload.cast::<u32>(), capacity.div_ceil(4), "payload")?;
        write(length, "length", || {
            let encoded = expect_payload(&encoding.setting, tensor, capacity)
                .and_then(|()| cuda.encode_to_device(&encoding, payload));
            encoded.map_err(|failure| failure.of_layer(tensor.name))
        })
    })
}

/// Enqueued: decodes a payload in the device's memory into `values` in the device's memory. The library first copies a
/// payload that is not 4-byte aligned to its own memory. The payload must come from lgreco_cuda_encode_to_device on any
/// worker, for this layer under this setting. The layer's `values` are not read. Other bytes decode to arbitrary
/// values, or lgreco_cuda_check reports a failure. Supports QSGD, EDEN, TopK and PowerSGD.
///
/// Fails with LGRECO_LENGTH when `length` is less than lgreco_cuda_payload_len reports, or when `values_len` is not the
/// layer's number of elements. Fails with LGRECO_UNAVAILABLE for other methods, and with LGRECO_DEVICE when the driver
/// fails or a check is due.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cuda_decode_on_device(
    cuda: *mut lgreco_cuda,
    layer: *const lgreco_layer,
    setting: *const c_char,
    payload: *const u8,
    length: usize,
    values: *mut f32,
    values_len: usize,
) -> lgreco_status {
    call!(cuda, |cuda| {
        let (tensor, setting) = (read_struct(layer)?.tensor()?, read_setting(setting)?);
        disjoint(Range::of(values, values_len, "values"), &[Range::of(payload, length, "payload")])?;
        let (from, to) = (address(payload, length, "payload")?, address(values, values_len, "values")?);
        let decoded = exactly(tensor.shape.elements(), values_len, "values")
            .and_then(|()| expect_payload(&setting, tensor, length))
            .and_then(|()| cuda.decode_on_device(&setting, tensor.shape, from, to));
        decoded.map_err(|failure| failure.of_layer(tensor.name))
    })
}

fn payload_len(setting: &Setting, tensor: Tensor<'_>) -> Result<usize> {
    Ok(setting.payload_len(tensor.shape, tensor.dtype)?)
}

/// Returns `Err` unless `found` bytes suffice for the layer's payload.
fn expect_payload(setting: &Setting, tensor: Tensor<'_>, found: usize) -> Result<()> {
    at_least(payload_len(setting, tensor)? as u64, found as u64, "payload bytes")
}
