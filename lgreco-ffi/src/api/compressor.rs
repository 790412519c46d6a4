use super::context::{device, lgreco_context};
use super::gradient::{lgreco_layer, values, values_range};
use super::setting::read_setting;
use crate::device::Device;
use crate::failure::{Failure, Result};
use crate::handle::{self, kind};
use crate::options::{self, CompressorOptions};
use crate::pointers::{Range, disjoint, encoded, slice_mut, write};
use crate::status::lgreco_status;
use crate::structs::read_struct;
use core::ffi::{c_char, c_void};
use lgreco_train::backend::Backend;
use lgreco_train::compress::{Compressor as _, Setting, wire::Payload};
use lgreco_train::feedback::{Memory, SavedState, contraction_workspace_len, payload_stream, suits, suits_gradient};
use lgreco_train::gradient::{Dtype, Gradient, Shape, Values};
use lgreco_train::rng::Stream;
use lgreco_train::{CoreError, Error};

/// The compressor of one layer on one worker, with its residual and its workspace.
pub struct lgreco_compressor {
    _private: [u8; 0],
}

kind!(lgreco_compressor, "compressor", b"lgcompr\0", Compressor, layer: name, device: device);

pub(crate) struct Compressor {
    name: String,
    shape: Shape,
    dtype: Dtype,
    setting: Setting,
    device: Device,
    /// The random stream at step 0.
    stream: Stream,
    memory: Option<Memory<Vec<u64>>>,
    workspace: Vec<u64>,
    /// The decoded payload, from which the residual is computed. Empty without error feedback.
    decoded: Vec<f32>,
    /// The sum of gradient and residual, as input of a GPU. Empty without error feedback, and on the CPU.
    compensated: Vec<f32>,
}

/// Returns zeros, or an error if the memory cannot be allocated.
pub(super) fn zeros<T: Clone + Default>(len: usize) -> Result<Vec<T>, Error> {
    let mut values = Vec::new();
    let words = len.saturating_mul(size_of::<T>()).div_ceil(8);
    values.try_reserve_exact(len).map_err(|_| Error::Core(CoreError::OutOfMemory { words }))?;
    values.resize(len, T::default());
    Ok(values)
}

impl Compressor {
    /// Changes the setting if it fits the layer and suits error feedback.
    fn set(&mut self, setting: Setting) -> Result<(), Error> {
        setting.payload_len(self.shape, self.dtype)?;
        let words = match &self.memory {
            Some(memory) => {
                suits(&setting, self.shape)?;
                memory.workspace_len(&setting, self.dtype)
            }
            None => setting.encode_workspace_len(self.shape, self.dtype),
        };
        if words > self.workspace.len() {
            self.workspace = zeros(words)?;
        }
        self.setting = setting;
        Ok(())
    }

    fn encode(&mut self, step: u32, gradient: &Gradient<'_>, payload: &mut [u8]) -> Result<usize, Error> {
        let stream = Stream { step, ..self.stream };
        let Compressor { setting, device, memory, workspace, decoded, compensated, shape, .. } = self;
        let shape = *shape;
        match memory {
            None if device.takes(setting, shape) => Ok(device.encode(setting, gradient, stream, workspace, payload)?),
            None => Ok(setting.encode(gradient, stream, workspace, payload)?),
            Some(memory) if device.takes(setting, shape) => {
                memory.compensate(gradient, compensated)?;
                let sum = Gradient::new(Values::F32(compensated), shape)?;
                let length = device.encode(setting, &sum, payload_stream(setting, stream), workspace, payload)?;
                device.decode(&payload[..length], decoded)?;
                memory.update(gradient, decoded, stream)?;
                Ok(length)
            }
            Some(memory) => memory.step(setting, gradient, stream, workspace, payload, decoded),
        }
    }

    fn decode(&mut self, payload: &[u8], values: &mut [f32]) -> Result<(), CoreError> {
        if Payload::parse(payload)?.header.shape != self.shape {
            return Err(CoreError::PayloadBody { what: "its shape is not that of the layer" });
        }
        self.device.decode(payload, values)
    }

    /// Returns the memory that holds the residual, with the random stream for rounding the residual at a step.
    pub(super) fn memory(&mut self, step: u32) -> Result<(&mut Memory<Vec<u64>>, Stream)> {
        let stream = Stream { step, ..self.stream };
        self.memory.as_mut().map(|memory| (memory, stream)).ok_or(Failure::NoFeedback)
    }

    /// Loads a saved residual with the same options and shape.
    pub(super) fn load(&mut self, saved: &[u8]) -> Result<()> {
        let memory = self.memory.as_mut().ok_or(Failure::NoFeedback)?;
        let saved = SavedState::parse(saved)?;
        let (found, own) = (saved.shape(), memory.shape());
        for (what, found, own) in
            [("number of rows", found.rows(), own.rows()), ("number of columns", found.cols(), own.cols())]
        {
            if found != own {
                return Err(CoreError::SavedState { what, found: found as u64 }.into());
            }
        }
        if saved.residual() != memory.residual() {
            return Err(Failure::OtherFeedback);
        }
        *memory = saved.restore(zeros(memory.residual().state_len(memory.shape()))?)?;
        Ok(())
    }
}

/// Makes the compressor of `layer`. The layer's `values` are not read. `setting` is text, such as "topk 786". NULL for
/// `context` means the CPU. Allocates all memory that encoding and decoding on the CPU need.
///
/// Fails with LGRECO_PARAMETER when the setting does not fit the layer. Fails with LGRECO_NOT_CONTRACTIVE when the
/// setting does not suit error feedback (lgreco_feedback_check). Also fails with the codes of lgreco_setting for a
/// wrong setting, and with LGRECO_UNKNOWN_OPTION or LGRECO_PARAMETER for a wrong option.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_compressor_create(
    context: *const lgreco_context,
    layer: *const lgreco_layer,
    setting: *const c_char,
    options: *const *const c_char,
    compressor: *mut *mut lgreco_compressor,
) -> lgreco_status {
    create!(compressor, || {
        let (device, tensor) = (device(context)?, read_struct(layer)?.tensor()?);
        let (setting, options) = (read_setting(setting)?, options::read::<CompressorOptions>(options)?);
        let residual = options.residual();
        let named = |error: Error| Failure::named(error, Some(tensor.name.into()));
        let memory = residual.map(|residual| Memory::owned(residual, tensor.shape)).transpose().map_err(named)?;
        let elements = if memory.is_some() { tensor.shape.elements() } else { 0 };
        let compensated = if matches!(device, Device::Cpu) { 0 } else { elements };
        let mut compressor = Compressor {
            name: tensor.name.into(),
            shape: tensor.shape,
            dtype: tensor.dtype,
            setting,
            device,
            stream: options.stream,
            memory,
            workspace: Vec::new(),
            decoded: zeros(elements).map_err(named)?,
            compensated: zeros(compensated).map_err(named)?,
        };
        compressor.set(setting).map_err(named)?;
        Ok(compressor)
    })
}

/// Checks whether `setting` suits error feedback on `layer`, under a compressor's `options`. All methods suit error
/// feedback, but QSGD only with at least 4 bits and buckets of up to 512 elements. lgreco_compressor_create makes the
/// same check without values. Allocates.
///
/// QSGD is unbiased and needs no error feedback. With few bits or long buckets, the norm of QSGD's error exceeds the
/// norm of its input. The residual would then grow until it overflows. The layer's `values` may be NULL. The call then
/// compresses heavy-tailed values to judge QSGD, as lgreco_compressor_create does. If `values` are given, they must be
/// finite, and the call compresses them to judge any method. The verdict may then be stricter or more lenient than
/// without values. If the options have no error feedback, the call does not judge the values.
///
/// Fails with LGRECO_NOT_CONTRACTIVE when the setting does not suit error feedback; the message then has the squared
/// error. Also fails with LGRECO_PARAMETER when the setting does not fit the layer, and with LGRECO_NON_FINITE when a
/// value is not finite.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_feedback_check(
    layer: *const lgreco_layer,
    setting: *const c_char,
    options: *const *const c_char,
) -> lgreco_status {
    plain!(|| {
        let layer = read_struct(layer)?;
        let tensor = layer.tensor()?;
        let (setting, options) = (read_setting(setting)?, options::read::<CompressorOptions>(options)?);
        let named = |error: Error| Failure::named(error, Some(tensor.name.into()));
        setting.payload_len(tensor.shape, tensor.dtype).map_err(|error| named(error.into()))?;
        if options.residual().is_none() {
            return Ok(());
        }
        if layer.values.is_null() {
            return suits(&setting, tensor.shape).map_err(named);
        }
        let gradient = layer.gradient(tensor)?;
        let words = contraction_workspace_len(&setting, tensor.shape, tensor.dtype);
        let mut workspace = zeros(words).map_err(named)?;
        suits_gradient(&setting, &gradient, options.stream, &mut workspace).map_err(named)
    })
}

/// Frees a compressor and sets the caller's pointer to NULL. Does nothing for NULL, or for a pointer to NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_compressor_destroy(compressor: *mut *mut lgreco_compressor) -> lgreco_status {
    // SAFETY: the caller promises a handle that meets the requirements of lgreco-ffi/README.md.
    unsafe { handle::destroy(compressor) }
}

/// Changes the setting between two steps, for instance after a new plan. The residual stays. Allocates when the new
/// setting needs a larger workspace than all earlier settings.
///
/// Fails like lgreco_compressor_create when the setting does not fit the layer or does not suit error feedback. After a
/// failure the old setting remains.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_compressor_set_setting(
    compressor: *mut lgreco_compressor,
    setting: *const c_char,
) -> lgreco_status {
    call!(compressor, |compressor| Ok(compressor.set(read_setting(setting)?)?))
}

/// Reports the largest number of bytes that lgreco_compressor_encode writes under the present setting. Encoding writes
/// exactly this number, unless the payload's length depends on the values (AdaComp, hard thresholds, SIDCo).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_compressor_bound(
    compressor: *mut lgreco_compressor,
    bytes: *mut usize,
) -> lgreco_status {
    call!(compressor, |compressor| write(bytes, "bytes", || Ok(compressor
        .setting
        .payload_len(compressor.shape, compressor.dtype)?)))
}

/// Compresses the layer's gradient of step `step`. `values` has the layer's type and number of elements. With error
/// feedback, the call first adds the residual, and the compression error becomes the new residual. `length` receives
/// the number of bytes written to `payload`. Does not allocate on the CPU.
///
/// Fails with LGRECO_NON_FINITE, LGRECO_OVERFLOW, LGRECO_ELEMENT_OVERFLOW, and with LGRECO_LENGTH when the payload does
/// not fit `capacity` (lgreco_compressor_bound always suffices). After a failure the residual is unchanged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_compressor_encode(
    compressor: *mut lgreco_compressor,
    step: u32,
    values: *const c_void,
    payload: *mut u8,
    capacity: usize,
    length: *mut usize,
) -> lgreco_status {
    call!(compressor, |compressor| {
        let (input, output) =
            (values_range(values, compressor.dtype, compressor.shape), Range::of(payload, capacity, "payload"));
        disjoint(output, &[input, Range::of(length, 1, "length")])?;
        write(length, "length", || {
            let values = self::values(values, compressor.dtype, compressor.shape.elements())?;
            let gradient = Gradient::new(values, compressor.shape)?;
            Ok(compressor.encode(step, &gradient, slice_mut(payload, capacity, "payload")?)?)
        })
    })
}

/// Decodes a payload of this layer, made under any setting, into `values`. `values_len` is the layer's number of
/// elements. Changes no state. Does not allocate on the CPU.
///
/// Fails with LGRECO_PAYLOAD_HEADER, LGRECO_PAYLOAD_FIELD, LGRECO_PAYLOAD_BODY or LGRECO_LENGTH on bytes that no encoder
/// writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_compressor_decode(
    compressor: *mut lgreco_compressor,
    payload: *const u8,
    length: usize,
    values: *mut f32,
    values_len: usize,
) -> lgreco_status {
    call!(compressor, |compressor| {
        let (payload, values) = encoded("payload", (payload, length), (values, values_len))?;
        Ok(compressor.decode(payload, values)?)
    })
}
