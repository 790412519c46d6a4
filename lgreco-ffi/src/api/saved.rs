use super::controller::{ControllerState, lgreco_controller};
use super::table::Texts;
use crate::failure::{Result, one_of};
use crate::pointers::{Output, place, slice};
use crate::status::lgreco_status;
use crate::structs::{fill_unless_null, sized_struct};
use core::ffi::c_char;
use lgreco_train::controller::{Contents, Loaded};

/// The result of lgreco_controller_load. Begin with LGRECO_LOADED_INIT. The layer names are valid until the next load,
/// or until the controller is destroyed.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lgreco_loaded {
    /// Set by the INIT macro.
    pub struct_size: usize,
    /// Layers of the model that are missing in the state. Missing layers start without residual and uncompressed. If
    /// layers are missing, the next decision comes at once.
    pub missing: *const *const c_char,
    /// Length of `missing`.
    pub missing_len: usize,
    /// Layers of the state that the model does not have. The load ignores them.
    pub extra: *const *const c_char,
    /// Length of `extra`.
    pub extra_len: usize,
    /// Layers whose shape or element type differs from the state. The load treats such layers as both missing and
    /// extra.
    pub misshaped: *const *const c_char,
    /// Length of `misshaped`.
    pub misshaped_len: usize,
    /// The rank that saved the plan.
    pub rank: u32,
    /// The number of workers when the plan was saved.
    pub world_size: u32,
    /// The step with which the run continues: the step of the plan.
    pub step: u64,
    /// The earliest step of a loaded residual, or the plan's step if none is earlier. Compression errors from the steps
    /// between this step and the plan's step are lost.
    pub oldest_residual: u64,
}

// SAFETY: the struct is repr(C), starts with a usize, and has only numbers and raw pointers.
sized_struct!("loaded", lgreco_loaded {});

/// Which parts of a controller's state are saved.
pub type lgreco_save_contents = u32;

/// The whole state: the run continues bit for bit.
pub const LGRECO_SAVE_EVERYTHING: lgreco_save_contents = 0;
/// The state without the gradients that were collected for the next decision. On the measuring rank, these gradients
/// take one f32 per element of the model. The continued run collects new gradients.
pub const LGRECO_SAVE_WITHOUT_WINDOW: lgreco_save_contents = 1;

/// # Safety
/// Pointers meet the requirements of lgreco-ffi/README.md.
unsafe fn write_saved(bytes: &[u8], to: Output<u8>) -> Result<()> {
    let fill = |to: &mut [u8]| {
        to.copy_from_slice(bytes);
        Ok(())
    };
    // SAFETY: the caller meets the safety requirements of this function.
    unsafe { to.fill(bytes.len(), bytes.len(), fill) }
}

fn contents_of(contents: lgreco_save_contents) -> Result<Contents> {
    one_of("contents", contents, [Contents::Everything, Contents::WithoutWindow])
}

/// Writes this rank's state: residuals, factors, settings and schedule, but not the options. The format is the same on
/// every machine. Every rank saves its own state, between the same two steps. `length` must not be NULL and receives
/// the number of bytes. Allocates.
///
/// Fails with LGRECO_LENGTH when `capacity` is less than the number of bytes; even then `length` is set, and `saved`
/// may be NULL. Fails with LGRECO_STEP_ORDER while a step is under way, and with LGRECO_IN_FLIGHT while a bucket is not
/// closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_save(
    controller: *mut lgreco_controller,
    contents: lgreco_save_contents,
    saved: *mut u8,
    capacity: usize,
    length: *mut usize,
) -> lgreco_status {
    call!(controller, |state| {
        let bytes = state.levels.save_only(contents_of(contents)?)?;
        write_saved(&bytes, Output { what: "saved", to: saved, capacity, length })
    })
}

/// Like lgreco_controller_save, for one part of the state. Checkpoints that map names to values need such parts. Part 0
/// is the state that belongs to no layer, and its `name` is NULL. Part 1 + l belongs to layer l, and its `name` is
/// valid until the controller is destroyed. lgreco_controller_load_parts takes the parts in any order.
///
/// Fails with LGRECO_LAYER_MISMATCH for an unknown part.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_save_part(
    controller: *mut lgreco_controller,
    part: usize,
    contents: lgreco_save_contents,
    name: *mut *const c_char,
    saved: *mut u8,
    capacity: usize,
    length: *mut usize,
) -> lgreco_status {
    call!(controller, |state| {
        let contents = contents_of(contents)?;
        if let Some(length) = length.as_mut() {
            *length = 0;
        }
        let name = place(name, "name")?.write(core::ptr::null());
        let layer = part.checked_sub(1);
        layer.map_or(Ok(()), |layer| state.check_layer(layer))?;
        let bytes = state.levels.save_part(layer, contents)?;
        *name = layer.map_or(core::ptr::null(), |layer| state.texts.pointers()[layer]);
        write_saved(&bytes, Output { what: "saved", to: saved, capacity, length })
    })
}

/// Continues from saved states. Any bytes are allowed as input. `plan` is the state of any rank. `residuals` is an
/// array of states, with their lengths, from the plan's step or earlier steps.
///
/// To resume, each rank gives its own state as `plan` and in `residuals`. The run then continues bit for bit. With
/// fewer workers, each rank adds to `residuals` the states of the ranks that it replaces. A new rank gives any rank's
/// state as `plan`, and no residuals. After the death of a rank, all ranks give the same surviving rank's state as
/// `plan`. Surviving ranks give their own residuals. The rank that replaces the dead rank, or else one surviving rank,
/// also gives the last state that the dead rank saved.
///
/// All ranks must make this call between the same two steps. It ends a step that is under way. Afterwards, buckets from
/// before the call can only be closed. `loaded` may be NULL. Allocates.
///
/// Fails with LGRECO_CHECKSUM for a damaged state, and with LGRECO_SAVED_STATE, LGRECO_LENGTH or another code for bytes
/// that are not a state. A failed call changes nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_load(
    controller: *mut lgreco_controller,
    plan: *const u8,
    plan_len: usize,
    residuals: *const *const u8,
    residual_lens: *const usize,
    residuals_len: usize,
    loaded: *mut lgreco_loaded,
) -> lgreco_status {
    call!(controller, |state| {
        fill_unless_null(loaded, || {
            let plan = slice(plan, plan_len, "plan")?;
            let residuals = states(residuals, residual_lens, residuals_len, RESIDUALS)?;
            let found = state.levels.load(&[plan], &residuals)?;
            state.told(found)
        })
    })
}

/// Like lgreco_controller_load, from parts that lgreco_controller_save_part wrote, in any order. `plan` is an array of
/// all parts of one rank's state. Parts of layers that the model does not have may be left out. `residuals` is an array
/// of parts that belong to layers, from one or more ranks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lgreco_controller_load_parts(
    controller: *mut lgreco_controller,
    plan: *const *const u8,
    plan_lens: *const usize,
    plan_len: usize,
    residuals: *const *const u8,
    residual_lens: *const usize,
    residuals_len: usize,
    loaded: *mut lgreco_loaded,
) -> lgreco_status {
    call!(controller, |state| {
        fill_unless_null(loaded, || {
            let plan = states(plan, plan_lens, plan_len, ["plan", "plan_lens", "a part of the plan"])?;
            let residuals = states(residuals, residual_lens, residuals_len, RESIDUALS)?;
            let found = state.levels.load(&plan, &residuals)?;
            state.told(found)
        })
    })
}

const RESIDUALS: [&str; 3] = ["residuals", "residual_lens", "a residual"];

/// # Safety
/// Pointers meet the requirements of lgreco-ffi/README.md.
unsafe fn states<'a>(
    pointers: *const *const u8,
    lens: *const usize,
    count: usize,
    [what, of_lens, of_each]: [&'static str; 3],
) -> Result<Vec<&'a [u8]>> {
    // SAFETY: the caller meets the safety requirements of this function.
    unsafe {
        let (pointers, lens) = (slice(pointers, count, what)?, slice(lens, count, of_lens)?);
        pointers.iter().zip(lens).map(|(&bytes, &len)| slice(bytes, len, of_each)).collect()
    }
}

impl ControllerState {
    /// Stores the layer names in the result of a load, and returns the result for C.
    fn told(&mut self, found: Loaded) -> Result<lgreco_loaded> {
        self.loads += 1;
        // Saved states may be any bytes, so the names in a state may contain NULs.
        let texts = |names: Vec<String>| {
            let names: Vec<String> = names.iter().map(|name| name.replace('\0', "?")).collect();
            Texts::new(names.iter().map(String::as_str), "name of a layer")
        };
        self.loaded = [texts(found.missing)?, texts(found.extra)?, texts(found.misshaped)?];
        let [missing, extra, misshaped] = self.loaded.each_ref().map(Texts::pointers);
        Ok(lgreco_loaded {
            missing: missing.as_ptr(),
            missing_len: missing.len(),
            extra: extra.as_ptr(),
            extra_len: extra.len(),
            misshaped: misshaped.as_ptr(),
            misshaped_len: misshaped.len(),
            rank: found.rank,
            world_size: found.world_size,
            step: found.step,
            oldest_residual: found.oldest_residual,
            ..lgreco_loaded::default()
        })
    }
}
