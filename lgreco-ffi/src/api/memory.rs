use super::compressor::lgreco_compressor;
use crate::handle;
use crate::pointers::{place, slice, slice_mut};
use crate::status::lgreco_status;

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
    // SAFETY: README.md, handles and pointers.
    unsafe {
        handle::call(compressor, |compressor| {
            Ok(compressor.memory(0)?.0.values(slice_mut(values, values_len, "values")?)?)
        })
    }
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
    // SAFETY: README.md, handles and pointers.
    unsafe {
        handle::call(compressor, |compressor| {
            let (memory, stream) = compressor.memory(step)?;
            Ok(memory.set(slice(values, values_len, "values")?, stream)?)
        })
    }
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
    // SAFETY: README.md, handles.
    unsafe {
        handle::call(compressor, |compressor| {
            let (memory, stream) = compressor.memory(step)?;
            Ok(memory.rescale(factor, stream)?)
        })
    }
}

/// Tells the squared L2 norm of what the compressor remembers, and how many steps it has seen.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_compressor_memory_norm(
    compressor: *mut lgreco_compressor,
    squared_norm: *mut f64,
    steps: *mut u64,
) -> lgreco_status {
    // SAFETY: README.md, handles and pointers.
    unsafe {
        handle::call(compressor, |compressor| {
            let (squared_norm, steps) = (place(squared_norm, "squared_norm")?, place(steps, "steps")?);
            let (memory, _) = compressor.memory(0)?;
            squared_norm.write(memory.squared_norm());
            steps.write(memory.steps());
            Ok(())
        })
    }
}

/// Tells how many bytes lgreco_compressor_save writes, always the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_compressor_saved_len(
    compressor: *mut lgreco_compressor,
    bytes: *mut usize,
) -> lgreco_status {
    // SAFETY: README.md, handles and pointers.
    unsafe {
        handle::call(compressor, |compressor| {
            let bytes = place(bytes, "bytes")?;
            bytes.write(compressor.memory(0)?.0.saved_len());
            Ok(())
        })
    }
}

/// Writes what the compressor remembers, read_struct and the same on every machine, to saved[0 .. lgreco_compressor_saved_len].
/// Layer and rank are for the caller to note.
///
/// LGRECO_LENGTH when `capacity` is less.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_compressor_save(
    compressor: *mut lgreco_compressor,
    saved: *mut u8,
    capacity: usize,
) -> lgreco_status {
    // SAFETY: README.md, handles and pointers.
    unsafe {
        handle::call(compressor, |compressor| {
            let (memory, _) = compressor.memory(0)?;
            memory.save(slice_mut(saved, capacity, "saved")?)?;
            Ok(())
        })
    }
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
    // SAFETY: README.md, handles and pointers.
    unsafe { handle::call(compressor, |compressor| compressor.load(slice(saved, length, "saved")?)) }
}
