use super::context::lgreco_context;
use super::gradient::{lgreco_layer, values, values_range};
use super::setting::read_setting;
use crate::device::Device;
use crate::handle::{self, kind};
use crate::pointers::{
    Output, Range, disjoint, encoded, read_struct, read_struct_or_default, sized_struct, slice, slice_mut, write,
};
use crate::status::{Failure, Result, lgreco_status, one_of};
use core::ffi::{c_char, c_void};
use lgreco_train::backend::Backend;
use lgreco_train::compress::{Compressor as _, Setting, wire::Payload};
use lgreco_train::feedback::{
    Memory, Residual, SavedState, Storage, contraction_workspace_len, payload_stream, suits, suits_gradient,
};
use lgreco_train::gradient::{Dtype, Gradient, Shape, Values};
use lgreco_train::rng::Stream;
use lgreco_train::{CoreError, Error};

/// What a compressor remembers between steps: LGRECO_FEEDBACK_...
pub type lgreco_feedback = u32;

/// Nothing.
pub const LGRECO_FEEDBACK_NONE: lgreco_feedback = 0;
/// Error feedback: what was not sent; `gain`, `reset_every`, `storage`.
pub const LGRECO_FEEDBACK_RESIDUAL: lgreco_feedback = 1;

/// What a residual is kept in: LGRECO_STORAGE_...
pub type lgreco_storage = u32;

/// 4 bytes per element, exact.
pub const LGRECO_STORAGE_F32: lgreco_storage = 0;
/// 2 bytes per element, stochastically rounded.
pub const LGRECO_STORAGE_BF16: lgreco_storage = 1;
/// About 1 byte per element, stochastically rounded.
pub const LGRECO_STORAGE_INT8: lgreco_storage = 2;

/// Whose compressor it is, and what it remembers. Begin with LGRECO_COMPRESSOR_OPTIONS_INIT.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lgreco_compressor_options {
    /// Set by the INIT macro.
    pub struct_size: usize,
    /// Seed of the run, the same on every rank; 0 by default.
    pub seed: u64,
    /// Index of the layer in the model; with `seed` it names PowerSGD's start matrix; 0 by default.
    pub layer_index: u32,
    /// Number of this worker. Workers must differ here, or their rounding errors do not average out; 0 by default.
    pub rank: u32,
    /// LGRECO_FEEDBACK_NONE by default.
    pub feedback: lgreco_feedback,
    /// Residuals: how much of an error is remembered, in (0, 1]; 1 by default.
    pub gain: f32,
    /// Residuals: zeroed after every so many steps; 0, the default, for never.
    pub reset_every: u32,
    /// Residuals: LGRECO_STORAGE_F32 by default.
    pub storage: lgreco_storage,
}

// SAFETY: repr(C), starts with a usize; numbers only.
sized_struct!(
    "compressor options",
    lgreco_compressor_options { gain: Residual::CLASSIC.gain, reset_every: Residual::CLASSIC.reset_every }
);

impl lgreco_compressor_options {
    pub(super) fn residual(&self) -> Result<Option<Residual>> {
        let residual = Residual { gain: self.gain, reset_every: self.reset_every, storage: storage(self.storage)? };
        one_of("feedback", self.feedback, [None, Some(residual)])
    }
}

pub(super) fn storage(code: lgreco_storage) -> Result<Storage> {
    one_of("storage", code, [Storage::F32, Storage::Bf16, Storage::Int8])
}

/// The compressor of one layer on one worker, with what it remembers and the memory it works in.
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
    /// At step 0.
    stream: Stream,
    memory: Option<Memory<Vec<u64>>>,
    workspace: Vec<u64>,
    /// What the payload decodes to, for the memory; empty without one.
    decoded: Vec<f32>,
    /// What a GPU compresses; empty without a memory, and on the CPU.
    compensated: Vec<f32>,
}

/// Zeros, or an error where memory for them cannot be had.
pub(super) fn zeros<T: Clone + Default>(len: usize) -> Result<Vec<T>, Error> {
    let mut values = Vec::new();
    let words = len.saturating_mul(size_of::<T>()).div_ceil(8);
    values.try_reserve_exact(len).map_err(|_| Error::Core(CoreError::OutOfMemory { words }))?;
    values.resize(len, T::default());
    Ok(values)
}

impl Compressor {
    /// Changes the setting if it fits the layer and suits feedback.
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

    /// What is remembered, with the stream to round it with at a step.
    pub(super) fn memory(&mut self, step: u32) -> Result<(&mut Memory<Vec<u64>>, Stream)> {
        let stream = Stream { step, ..self.stream };
        self.memory.as_mut().map(|memory| (memory, stream)).ok_or(Failure::NoFeedback)
    }

    /// Takes over a saved memory of the same options and shape.
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

/// Makes the compressor of `layer`, whose `values` are not looked at. `setting` is text, such as "topk 786". `options` may
/// be NULL. Allocates all that later calls work in.
///
/// LGRECO_PARAMETER when the setting does not fit the layer; the codes of lgreco_setting; as lgreco_feedback_check when it
/// does not suit the feedback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_compressor_create(
    context: *mut lgreco_context,
    layer: *const lgreco_layer,
    setting: *const c_char,
    options: *const lgreco_compressor_options,
    compressor: *mut *mut lgreco_compressor,
) -> lgreco_status {
    create!(context, compressor, |context| {
        let tensor = read_struct(layer)?.tensor()?;
        let (setting, options) = (read_setting(setting)?, read_struct_or_default(options)?);
        let residual = options.residual()?;
        let named = |error: Error| Failure::named(error, Some(tensor.name.into()));
        let memory = residual.map(|residual| Memory::owned(residual, tensor.shape)).transpose().map_err(named)?;
        let elements = if memory.is_some() { tensor.shape.elements() } else { 0 };
        let compensated = if matches!(context.device, Device::Cpu) { 0 } else { elements };
        let mut compressor = Compressor {
            name: tensor.name.into(),
            shape: tensor.shape,
            dtype: tensor.dtype,
            setting,
            device: context.device.clone(),
            stream: Stream { seed: options.seed, step: 0, layer: options.layer_index, rank: options.rank },
            memory,
            workspace: Vec::new(),
            decoded: zeros(elements).map_err(named)?,
            compensated: zeros(compensated).map_err(named)?,
        };
        compressor.set(setting).map_err(named)?;
        Ok(compressor)
    })
}

/// Whether the feedback of `options` may be kept under `setting` on `layer`, which lgreco_compressor_create asks too, without
/// values. All methods go with it; QSGD does with 4 bits in buckets of up to 512.
///
/// QSGD is unbiased and needs no feedback. With few bits or long buckets it adds more error than it is given, and what is
/// remembered would grow until it overflows. The layer's `values` may be NULL: QSGD is then judged by heavy-tailed values, as
/// when a compressor is made. Otherwise any method is judged by them, which must be finite: more than
/// that may suit them, or less. With LGRECO_FEEDBACK_NONE nothing is asked of the values. Allocates.
///
/// LGRECO_NOT_CONTRACTIVE, with the squared error in the context's message; LGRECO_PARAMETER, LGRECO_NON_FINITE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_feedback_check(
    context: *mut lgreco_context,
    layer: *const lgreco_layer,
    setting: *const c_char,
    options: *const lgreco_compressor_options,
) -> lgreco_status {
    call!(context, |_| {
        let layer = read_struct(layer)?;
        let tensor = layer.tensor()?;
        let (setting, options) = (read_setting(setting)?, read_struct_or_default(options)?);
        let named = |error: Error| Failure::named(error, Some(tensor.name.into()));
        setting.payload_len(tensor.shape, tensor.dtype).map_err(|error| named(error.into()))?;
        if options.residual()?.is_none() {
            return Ok(());
        }
        if layer.values.is_null() {
            return suits(&setting, tensor.shape).map_err(named);
        }
        let gradient = layer.gradient(tensor)?;
        let stream = Stream { seed: options.seed, step: 0, layer: options.layer_index, rank: options.rank };
        let words = contraction_workspace_len(&setting, tensor.shape, tensor.dtype);
        let mut workspace = zeros(words).map_err(named)?;
        suits_gradient(&setting, &gradient, stream, &mut workspace).map_err(named)
    })
}

/// Frees a compressor and sets the caller's pointer to NULL; NULL, or a pointer to NULL, does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_compressor_destroy(compressor: *mut *mut lgreco_compressor) -> lgreco_status {
    // SAFETY: README.md, handles.
    unsafe { handle::destroy(compressor) }
}

/// What went wrong in the last failed call on the compressor, beginning with the layer's name; empty if none has failed.
/// Valid until the next call on it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_compressor_message(compressor: *const lgreco_compressor) -> *const c_char {
    // SAFETY: README.md, handles.
    unsafe { handle::message(compressor) }
}

/// Changes the setting between two steps, as when plans change; what is remembered stays. Allocates when the new setting
/// needs a larger workspace than any before.
///
/// As lgreco_compressor_create when it does not fit the layer or suit the feedback. The setting is then unchanged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_compressor_set_setting(
    compressor: *mut lgreco_compressor,
    setting: *const c_char,
) -> lgreco_status {
    call!(compressor, |compressor| Ok(compressor.set(read_setting(setting)?)?))
}

/// Tells the most bytes that lgreco_compressor_encode writes under the present setting; exactly so many, unless the values
/// decide the length of its payloads (AdaComp, hard thresholds, SIDCo).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_compressor_bound(
    compressor: *mut lgreco_compressor,
    bytes: *mut usize,
) -> lgreco_status {
    call!(compressor, |compressor| write(bytes, "bytes", || Ok(compressor
        .setting
        .payload_len(compressor.shape, compressor.dtype)?)))
}

/// Compresses the layer's gradient of step `step`: `values` has the layer's type and number of elements. With feedback,
/// what is remembered is added before, and what is left out is remembered. `length` receives the bytes written to
/// `payload`. Does not allocate.
///
/// LGRECO_NON_FINITE; LGRECO_LENGTH when the payload does not fit `capacity`, as it always does that of
/// lgreco_compressor_bound; LGRECO_OVERFLOW, LGRECO_ELEMENT_OVERFLOW. The memory is then unchanged.
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

/// Decodes any payload of this layer, whatever setting made it, into `values`, `values_len` = the layer's number of
/// elements. Changes nothing; does not allocate.
///
/// LGRECO_PAYLOAD_HEADER, LGRECO_PAYLOAD_FIELD, LGRECO_PAYLOAD_BODY, LGRECO_LENGTH on bytes that no encoder writes.
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

/// Writes what the compressor remembers to `values`; `values_len` = the layer's number of
/// elements.
///
/// LGRECO_FEEDBACK_RULE without feedback, as for the calls below.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_compressor_memory(
    compressor: *mut lgreco_compressor,
    values: *mut f32,
    values_len: usize,
) -> lgreco_status {
    call!(compressor, |compressor| { Ok(compressor.memory(0)?.0.values(slice_mut(values, values_len, "values")?)?) })
}

/// Replaces what the compressor remembers, for instance by the residual of a worker that left; `step` as for encoding.
///
/// LGRECO_OVERFLOW when a value is not finite or too large for the storage. The memory is then unchanged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_compressor_set_memory(
    compressor: *mut lgreco_compressor,
    step: u32,
    values: *const f32,
    values_len: usize,
) -> lgreco_status {
    call!(compressor, |compressor| {
        let (memory, stream) = compressor.memory(step)?;
        Ok(memory.set(slice(values, values_len, "values")?, stream)?)
    })
}

/// Multiplies what the compressor remembers by `factor`, new over old loss scale; `step` as for encoding.
///
/// LGRECO_PARAMETER unless `factor` is positive and finite; LGRECO_OVERFLOW. The memory is then unchanged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_compressor_rescale_memory(
    compressor: *mut lgreco_compressor,
    step: u32,
    factor: f32,
) -> lgreco_status {
    call!(compressor, |compressor| {
        let (memory, stream) = compressor.memory(step)?;
        Ok(memory.rescale(factor, stream)?)
    })
}

/// Tells the squared L2 norm of what the compressor remembers, and how many steps it has seen.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_compressor_memory_norm(
    compressor: *mut lgreco_compressor,
    squared_norm: *mut f64,
    steps: *mut u64,
) -> lgreco_status {
    call!(compressor, |compressor| {
        let (memory, _) = compressor.memory(0)?;
        write(squared_norm, "squared_norm", || {
            write(steps, "steps", || Ok(memory.steps()))?;
            Ok(memory.squared_norm())
        })
    })
}

/// Writes what the compressor remembers, versioned and the same on every machine. Layer and rank are for the caller to note.
/// `length`, which must not be NULL, receives the number of bytes, always the same.
///
/// LGRECO_LENGTH when `capacity` is less: `length` is then set all the same, and `saved` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_compressor_save(
    compressor: *mut lgreco_compressor,
    saved: *mut u8,
    capacity: usize,
    length: *mut usize,
) -> lgreco_status {
    call!(compressor, |compressor| {
        let (memory, _) = compressor.memory(0)?;
        let len = memory.saved_len();
        Output { what: "saved", to: saved, capacity, length }.fill(len, len, |to| Ok(memory.save(to).map(drop)?))
    })
}

/// Restores what another compressor of the same layer and options saved; it continues bit for bit. Any bytes may be given.
///
/// LGRECO_CHECKSUM when they are damaged; LGRECO_SAVED_STATE when the bytes are no saved state, or that of another shape or
/// other feedback; LGRECO_LENGTH. The memory is then unchanged. Allocates.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_compressor_load(
    compressor: *mut lgreco_compressor,
    saved: *const u8,
    length: usize,
) -> lgreco_status {
    call!(compressor, |compressor| compressor.load(slice(saved, length, "saved")?))
}
