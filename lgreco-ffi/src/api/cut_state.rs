use super::context::lgreco_context;
use super::cut::*;
use super::cut_setting::lgreco_cut_setting;
use crate::handle;
use crate::pointers::{Range, SizedStruct, disjoint, filled, place, slice, slice_mut};
use crate::status::{Failure, lgreco_status};
use lgreco_train::CoreError;
use lgreco_train::pipeline::{Counters, Direction, Downstream, Upstream};

/// What an end has done in one direction, evaluation aside. Begin with LGRECO_CUT_COUNTERS_INIT.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lgreco_cut_counters {
    /// Set by the INIT macro.
    pub struct_size: usize,
    /// Messages. None after a step: the cut is configured, but not in use.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of their values uncompressed.
    pub uncompressed_bytes: u64,
    /// AQ-SGD: samples sent as a change.
    pub hits: u64,
    /// AQ-SGD: samples sent uncompressed, as they were not remembered.
    pub misses: u64,
    /// AQ-SGD: samples without id.
    pub unremembered: u64,
    /// AQ-SGD: samples forgotten for want of capacity.
    pub evictions: u64,
    /// AQ-SGD: samples forgotten because their values do not fit the storage.
    pub non_finite: u64,
    /// AQ-SGD, sending end: sum over hits of the change's squared norm.
    pub change_energy: f64,
    /// AQ-SGD, sending end: sum over hits of the activations' squared norm.
    pub hit_energy: f64,
}

impl Default for lgreco_cut_counters {
    fn default() -> Self {
        Counters::default().into()
    }
}

// SAFETY: repr(C), starts with a usize, numbers only.
unsafe impl SizedStruct for lgreco_cut_counters {
    const WHAT: &'static str = "cut counters";
}

impl From<Counters> for lgreco_cut_counters {
    fn from(counters: Counters) -> Self {
        lgreco_cut_counters {
            struct_size: size_of::<lgreco_cut_counters>(),
            messages: counters.messages,
            bytes: counters.bytes,
            uncompressed_bytes: counters.uncompressed_bytes,
            hits: counters.hits,
            misses: counters.misses,
            unremembered: counters.unremembered,
            evictions: counters.evictions,
            non_finite: counters.non_finite,
            change_energy: counters.change_energy,
            hit_energy: counters.hit_energy,
        }
    }
}

/// Ends an optimiser step: what its messages made of the samples is remembered from now on. Both ends must commit between
/// the same two activation messages.
///
/// LGRECO_PARAMETER when no activations went through the cut in this step.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_commit_step(cut: *mut lgreco_cut) -> lgreco_status {
    // SAFETY: README.md, handles.
    unsafe { handle::call(cut, |state| Ok(either!(&mut state.end, end => end.commit_step())?)) }
}

/// Gives back the ticket of a micro-batch whose gradients will never travel. The other end must do the same.
///
/// LGRECO_NOT_IN_FLIGHT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_forget(cut: *mut lgreco_cut, ticket: u64) -> lgreco_status {
    // SAFETY: README.md, handles.
    unsafe { handle::call(cut, |state| Ok(either!(&mut state.end, end => end.forget(ticket))?)) }
}

/// Fills `forward` and `backward` with what the end has done with activations and with gradients.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_get_counters(
    cut: *mut lgreco_cut,
    forward: *mut lgreco_cut_counters,
    backward: *mut lgreco_cut_counters,
) -> lgreco_status {
    // SAFETY: README.md, handles and pointers.
    unsafe {
        handle::call(cut, |state| {
            for (counters, direction) in
                [(filled(forward)?, Direction::Forward), (filled(backward)?, Direction::Backward)]
            {
                let found = either!(&state.end, end => *end.counters(direction));
                counters.fill(found.into());
            }
            Ok(())
        })
    }
}

/// AQ-SGD: writes what is remembered of a sample to `values`, `values_len` = the features, and 1 to `found`; when nothing is,
/// `found` receives 0, and `values` are as they were.
///
/// LGRECO_LENGTH when `values_len` is another.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_remembered(
    cut: *mut lgreco_cut,
    sample: u64,
    values: *mut f32,
    values_len: usize,
    found: *mut u32,
) -> lgreco_status {
    // SAFETY: README.md, handles and pointers.
    unsafe {
        handle::call(cut, |state| {
            let (values, found) = (slice_mut(values, values_len, "values")?, place(found, "found")?);
            let remembered = either!(&state.end, end => end.remembered(sample, values));
            found.write(remembered?.into());
            Ok(())
        })
    }
}

/// AQ-SGD: writes the ids of all samples remembered to samples[0 .. count], least recently updated first; `count`, which
/// must not be NULL, receives their number.
///
/// LGRECO_LENGTH when `capacity` is less: `count` is then set all the same, and `samples` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_remembered_samples(
    cut: *mut lgreco_cut,
    samples: *mut u64,
    capacity: usize,
    count: *mut usize,
) -> lgreco_status {
    // SAFETY: README.md, handles and pointers.
    unsafe {
        handle::call(
            cut,
            |state| either!(&state.end, end => write_ids(|| end.remembered_samples(), samples, capacity, count)),
        )
    }
}

/// # Safety
/// README.md, pointers.
unsafe fn write_ids<I: Iterator<Item = u64>>(
    ids: impl Fn() -> I,
    samples: *mut u64,
    capacity: usize,
    count: *mut usize,
) -> Result<(), Failure> {
    disjoint(Range::of(count, 1, "count"), &[Range::of(samples, capacity, "samples")])?;
    let found = ids().count();
    // SAFETY: passed on.
    unsafe { place(count, "count") }?.write(found);
    if capacity < found {
        return Err(CoreError::Length { what: "samples", expected: found, found: capacity }.into());
    }
    // SAFETY: passed on.
    let samples = unsafe { slice_mut(samples, capacity, "samples") }?;
    samples.iter_mut().zip(ids()).for_each(|(place, id)| *place = id);
    Ok(())
}

/// Tells how many bytes lgreco_cut_save writes now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_saved_len(cut: *mut lgreco_cut, bytes: *mut usize) -> lgreco_status {
    // SAFETY: README.md, handles and pointers.
    unsafe {
        handle::call(cut, |state| {
            place(bytes, "bytes")?.write(either!(&state.end, end => end.saved_len()));
            Ok(())
        })
    }
}

/// Writes the whole end to saved[0 .. lgreco_cut_saved_len]. Both ends must be saved after the same step.
///
/// LGRECO_MID_STEP while updates wait for lgreco_cut_commit_step or tickets are in flight; LGRECO_LENGTH.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_save(cut: *mut lgreco_cut, saved: *mut u8, capacity: usize) -> lgreco_status {
    // SAFETY: README.md, handles and pointers.
    unsafe {
        handle::call(cut, |state| {
            let saved = slice_mut(saved, capacity, "saved")?;
            either!(&state.end, end => end.save(saved))?;
            Ok(())
        })
    }
}

/// Makes the end that was saved, which continues bit for bit. Any bytes may be given.
///
/// LGRECO_OTHER_SETTING when it was saved under another setting; LGRECO_CHECKSUM when it is damaged; LGRECO_SAVED_STATE and
/// others for bytes that no such end writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_cut_restore(
    context: *mut lgreco_context,
    setting: *const lgreco_cut_setting,
    end: lgreco_end,
    saved: *const u8,
    length: usize,
    cut: *mut *mut lgreco_cut,
) -> lgreco_status {
    // SAFETY: README.md, handles and pointers.
    unsafe {
        make(context, setting, cut, |setting| {
            let saved = slice(saved, length, "saved")?;
            Ok(match end {
                LGRECO_END_UPSTREAM => End::Upstream(Upstream::restore(setting, saved)?),
                LGRECO_END_DOWNSTREAM => End::Downstream(Downstream::restore(setting, saved)?),
                found => return Err(Failure::UnknownConstant { what: "end", found }),
            })
        })
    }
}
