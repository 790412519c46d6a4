use super::compressor::lgreco_compressor;
use crate::pointers::{Output, slice, slice_mut, write};
use crate::status::lgreco_status;

/// Writes what the compressor remembers to `values`; `values_len` = the layer's number of elements.
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
