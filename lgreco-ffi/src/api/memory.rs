use super::compressor::lgreco_compressor;
use crate::pointers::{Output, slice, slice_mut, write};
use crate::status::lgreco_status;

/// Writes the residual of the compressor's error feedback to `values`; `values_len` is the layer's number of elements.
///
/// All calls on the residual fail with LGRECO_FEEDBACK_RULE if the compressor has no error feedback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_compressor_memory(
    compressor: *mut lgreco_compressor,
    values: *mut f32,
    values_len: usize,
) -> lgreco_status {
    call!(compressor, |compressor| { Ok(compressor.memory(0)?.0.values(slice_mut(values, values_len, "values")?)?) })
}

/// Replaces the residual, for instance by the residual of a worker that left. `step` is the step number, as in
/// lgreco_compressor_encode, and selects the random bits for rounding.
///
/// Fails with LGRECO_OVERFLOW when a value is not finite or too large for the storage format. The residual is then
/// unchanged.
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

/// Multiplies the residual by `factor`, the ratio of the new loss scale to the old loss scale. `step` is as for
/// lgreco_compressor_set_memory.
///
/// Fails with LGRECO_PARAMETER unless `factor` is positive and finite, and with LGRECO_OVERFLOW when a value no longer
/// fits the storage format. The residual is then unchanged.
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

/// Writes the squared L2 norm of the residual, and the number of steps whose errors the residual has accumulated.
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

/// Writes the residual as a saved state. The format has a version and is the same on every machine. The state does not
/// contain the layer's name or the rank. `length` must not be NULL and receives the number of bytes, which is the same
/// at every step.
///
/// Fails with LGRECO_LENGTH when `capacity` is less than the number of bytes. Even then `length` is set, and `saved`
/// may be NULL.
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

/// Loads the saved state of a compressor with the same layer and options. The run then continues bit for bit. Any bytes
/// are allowed as input. Allocates.
///
/// Fails with LGRECO_CHECKSUM when the bytes are damaged, and with LGRECO_LENGTH. Fails with LGRECO_SAVED_STATE when
/// the bytes are not a saved state, or when the state has another shape or other feedback options. After a failure the
/// residual is unchanged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_compressor_load(
    compressor: *mut lgreco_compressor,
    saved: *const u8,
    length: usize,
) -> lgreco_status {
    call!(compressor, |compressor| compressor.load(slice(saved, length, "saved")?))
}
