use super::cuda::lgreco_cuda;
use super::gradient::{Tensor, lgreco_layer};
use super::setting::lgreco_setting;
use crate::cuda::{DeviceTensor, OnDevice};
use crate::handle;
use crate::pointers::{Range, address, all_disjoint, disjoint, place, read_struct, slice, slice_mut};
use crate::status::{Failure, lgreco_status};
use lgreco_train::CoreError;
use lgreco_train::compress::wire::Payload;
use lgreco_train::compress::{Compressor as _, Setting};
use lgreco_train::rng::Stream;

/// The random words of one payload: QSGD rounds by all of it, PowerSGD starts from `seed` and `layer`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct lgreco_rng_stream {
    /// Seed of the run, the same on every rank.
    pub seed: u64,
    /// The training step.
    pub step: u32,
    /// Index of the layer in the model.
    pub layer: u32,
    /// Number of this worker. Workers must differ here, or their rounding errors do not average out.
    pub rank: u32,
}

/// What is encoded: a layer under a setting, with its random words.
struct Encoding<'a> {
    layer: lgreco_layer,
    tensor: Tensor<'a>,
    setting: Setting,
    stream: Stream,
}

impl<'a> Encoding<'a> {
    /// # Safety
    /// README.md, pointers; `'a` is within the call.
    unsafe fn read(
        layer: *const lgreco_layer,
        setting: *const lgreco_setting,
        rng: *const lgreco_rng_stream,
    ) -> Result<Encoding<'a>, Failure> {
        // SAFETY: passed on.
        let (layer, tensor, setting, rng) = unsafe {
            let layer = read_struct(layer)?;
            (layer, layer.tensor()?, read_struct(setting)?.to_core()?, slice(rng, 1, "rng")?[0])
        };
        let lgreco_rng_stream { seed, step, layer: index, rank } = rng;
        Ok(Encoding { layer, tensor, setting, stream: Stream { seed, step, layer: index, rank } })
    }

    /// Runs `call` on the gradient where it lies; failures name the layer.
    fn run(&self, call: impl FnOnce(DeviceTensor) -> Result<usize, Failure>) -> Result<usize, Failure> {
        let Tensor { name, dtype, shape, .. } = self.tensor;
        let address = self.layer.address(self.tensor);
        address
            .and_then(|address| call(DeviceTensor { address, dtype, shape }))
            .map_err(|failure| failure.of_layer(name))
    }

    /// Runs a call that writes a payload to host memory.
    ///
    /// # Safety
    /// README.md, pointers.
    unsafe fn to_host(
        &self,
        (payload, capacity, length): (*mut u8, usize, *mut usize),
        call: impl FnOnce(DeviceTensor, &mut [u8]) -> Result<usize, Failure>,
    ) -> Result<(), Failure> {
        let mut ranges =
            [self.layer.range(self.tensor), Range::of(payload, capacity, "payload"), Range::of(length, 1, "length")];
        all_disjoint(&mut ranges)?;
        // SAFETY: passed on.
        let (length, payload) = unsafe { (place(length, "length")?, slice_mut(payload, capacity, "payload")?) };
        length.write(self.run(|gradient| call(gradient, payload))?);
        Ok(())
    }
}

/// The address of `bytes` bytes in the device's memory, which is a multiple of 4.
fn bytes_address(pointer: *const u8, bytes: usize, what: &'static str) -> Result<u64, Failure> {
    address(pointer.cast::<u32>(), bytes.div_ceil(4), what)
}

/// Tells the bytes of the payload of a layer under a setting, whatever the values, which are not looked at.
///
/// LGRECO_PARAMETER when the setting does not fit the layer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cuda_payload_len(
    cuda: *mut lgreco_cuda,
    layer: *const lgreco_layer,
    setting: *const lgreco_setting,
    bytes: *mut usize,
) -> lgreco_status {
    // SAFETY: README.md, handles and pointers.
    unsafe {
        handle::call(cuda, |_| {
            let (tensor, setting) = (read_struct(layer)?.tensor()?, read_struct(setting)?.to_core()?);
            let bytes = place(bytes, "bytes")?;
            let len = setting.payload_len(tensor.shape, tensor.dtype);
            bytes.write(len.map_err(|error| Failure::from(error).of_layer(tensor.name))?);
            Ok(())
        })
    }
}

/// Done: compresses a gradient in the device's memory, `values` of `layer`, into a payload in host memory, of `length`
/// bytes. Takes QSGD with buckets of a power of two from 64 to 4096 values, TopK, also in few bits, PowerSGD of ranks up to 1024
/// and uncompressed gradients. `rng` names the random words.
///
/// LGRECO_NON_FINITE; LGRECO_LENGTH when `capacity` is less than lgreco_cuda_payload_len; LGRECO_UNAVAILABLE for other
/// methods and ranks; LGRECO_OVERFLOW, LGRECO_ELEMENT_OVERFLOW, LGRECO_OUT_OF_MEMORY, LGRECO_DEVICE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cuda_encode(
    cuda: *mut lgreco_cuda,
    layer: *const lgreco_layer,
    setting: *const lgreco_setting,
    rng: *const lgreco_rng_stream,
    payload: *mut u8,
    capacity: usize,
    length: *mut usize,
) -> lgreco_status {
    // SAFETY: README.md, handles, pointers and device memory.
    unsafe {
        handle::call(cuda, |cuda| {
            let encoding = Encoding::read(layer, setting, rng)?;
            encoding.to_host((payload, capacity, length), |gradient, payload| {
                cuda.encode(&encoding.setting, gradient, encoding.stream, payload)
            })
        })
    }
}

/// Enqueued for QSGD, done for other methods: decodes any payload in host memory into `values` in the device's memory,
/// `values_len` = the number of elements. The payload may go when the call has returned.
///
/// LGRECO_PAYLOAD_HEADER, LGRECO_PAYLOAD_FIELD, LGRECO_PAYLOAD_BODY, LGRECO_LENGTH on bytes that no encoder writes;
/// LGRECO_OUT_OF_MEMORY, LGRECO_DEVICE. `values` then hold nothing to be used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cuda_decode(
    cuda: *mut lgreco_cuda,
    payload: *const u8,
    length: usize,
    values: *mut f32,
    values_len: usize,
) -> lgreco_status {
    // SAFETY: README.md, handles, pointers and device memory.
    unsafe {
        handle::call(cuda, |cuda| {
            disjoint(Range::of(values, values_len, "values"), &[Range::of(payload, length, "payload")])?;
            let (payload, values) = (slice(payload, length, "payload")?, address(values, values_len, "values")?);
            let expected = Payload::parse(payload)?.header.shape.elements();
            expect("values", expected, values_len)?;
            cuda.decode(payload, values)
        })
    }
}

/// Enqueued: compresses a gradient as lgreco_cuda_encode, but into `payload` in the device's memory, 4-byte aligned, from
/// where NCCL or the like may send it. lgreco_cuda_check says later whether the gradient could be compressed; what is
/// enqueued after this call may overwrite it.
///
/// As lgreco_cuda_encode, but for the values; LGRECO_DEVICE when a check is due.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cuda_encode_to_device(
    cuda: *mut lgreco_cuda,
    layer: *const lgreco_layer,
    setting: *const lgreco_setting,
    rng: *const lgreco_rng_stream,
    payload: *mut u8,
    capacity: usize,
    length: *mut usize,
) -> lgreco_status {
    // SAFETY: README.md, handles, pointers and device memory.
    unsafe {
        handle::call(cuda, |cuda| {
            let encoding = Encoding::read(layer, setting, rng)?;
            let tensor = encoding.tensor;
            disjoint(Range::of(payload, capacity, "payload"), &[encoding.layer.range(tensor)])?;
            let (length, payload) = (place(length, "length")?, bytes_address(payload, capacity, "payload")?);
            let written = encoding.run(|gradient| {
                let needed = encoding.setting.payload_len(tensor.shape, tensor.dtype)?;
                if capacity < needed {
                    return Err(CoreError::Length { what: "payload bytes", expected: needed, found: capacity }.into());
                }
                cuda.encode_to_device(&encoding.setting, gradient, encoding.stream, payload)
            });
            length.write(written?);
            Ok(())
        })
    }
}

/// Enqueued: decodes a payload in the device's memory into `values` there; one that is not 4-byte aligned is copied to the
/// library's memory first. It is one that
/// lgreco_cuda_encode_to_device, on any worker, made of this layer (whose `values` are not looked at) under this setting; of
/// other bytes some values come out, or lgreco_cuda_check tells. Takes QSGD, TopK and PowerSGD.
///
/// LGRECO_LENGTH when `length` is less than lgreco_cuda_payload_len, or `values_len` not the layer's number of elements;
/// LGRECO_UNAVAILABLE for other methods; LGRECO_DEVICE, also when a check is due.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cuda_decode_on_device(
    cuda: *mut lgreco_cuda,
    layer: *const lgreco_layer,
    setting: *const lgreco_setting,
    payload: *const u8,
    length: usize,
    values: *mut f32,
    values_len: usize,
) -> lgreco_status {
    // SAFETY: README.md, handles, pointers and device memory.
    unsafe {
        handle::call(cuda, |cuda| {
            let (tensor, setting) = (read_struct(layer)?.tensor()?, read_struct(setting)?.to_core()?);
            disjoint(Range::of(values, values_len, "values"), &[Range::of(payload, length, "payload")])?;
            let (from, to) = (address(payload, length, "payload")?, address(values, values_len, "values")?);
            expect_of("values", tensor, tensor.shape.elements(), values_len)?;
            let decoded = decode_on_device(cuda, &setting, tensor, (from, length), to);
            decoded.map_err(|failure| failure.of_layer(tensor.name))
        })
    }
}

/// # Safety
/// README.md, device memory.
unsafe fn decode_on_device(
    cuda: &mut Box<dyn OnDevice>,
    setting: &Setting,
    tensor: Tensor<'_>,
    (payload, length): (u64, usize),
    values: u64,
) -> Result<(), Failure> {
    let needed = setting.payload_len(tensor.shape, tensor.dtype)?;
    if length < needed {
        return Err(CoreError::Length { what: "payload bytes", expected: needed, found: length }.into());
    }
    // SAFETY: passed on.
    unsafe { cuda.decode_on_device(setting, tensor.shape, payload, values) }
}

fn expect(what: &'static str, expected: usize, found: usize) -> Result<(), Failure> {
    if expected == found { Ok(()) } else { Err(CoreError::Length { what, expected, found }.into()) }
}

fn expect_of(what: &'static str, tensor: Tensor<'_>, expected: usize, found: usize) -> Result<(), Failure> {
    expect(what, expected, found).map_err(|failure| failure.of_layer(tensor.name))
}
