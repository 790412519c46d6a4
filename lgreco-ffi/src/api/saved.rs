use super::controller::{ControllerState, lgreco_controller};
use super::table::Texts;
use crate::failure::{Result, one_of};
use crate::pointers::{Output, fill_unless_null, place, sized_struct, slice};
use crate::status::lgreco_status;
use core::ffi::c_char;
use lgreco_train::controller::{Contents, Loaded};

/// What lgreco_controller_load found. Begin with LGRECO_LOADED_INIT. The names are valid until the next load, or until the
/// controller is destroyed.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lgreco_loaded {
    /// Set by the INIT macro.
    pub struct_size: usize,
    /// Layers of the model that the state does not have: they start without residual, uncompressed until the next
    /// decision, which then comes at once.
    pub missing: *const *const c_char,
    /// Their number.
    pub missing_len: usize,
    /// Layers of the state that the model does not have: they are ignored.
    pub extra: *const *const c_char,
    /// Their number.
    pub extra_len: usize,
    /// Layers whose shape or element type is not that of the state: they are missing and extra at once.
    pub misshaped: *const *const c_char,
    /// Their number.
    pub misshaped_len: usize,
    /// The rank that saved the plan.
    pub rank: u32,
    /// The number of workers then.
    pub world_size: u32,
    /// The step that the run continues with: that of the plan.
    pub step: u64,
    /// The earliest step of a residual; that of the plan if none is earlier. What a rank has not sent between the two, its
    /// residual does not have.
    pub oldest_residual: u64,
}

// SAFETY: repr(C), starts with a usize; numbers and raw pointers only.
sized_struct!("loaded", lgreco_loaded {});

/// How much of a controller is saved.
pub type lgreco_save_contents = u32;

/// All of it: a run continues bit for bit.
pub const LGRECO_SAVE_EVERYTHING: lgreco_save_contents = 0;
/// Without the gradients that the next decision would be made by, an f32 per element of the model on the measuring rank:
/// whoever continues collects new ones.
pub const LGRECO_SAVE_WITHOUT_WINDOW: lgreco_save_contents = 1;

/// # Safety
/// README.md, pointers.
unsafe fn write_saved(bytes: &[u8], to: Output<u8>) -> Result<()> {
    let fill = |to: &mut [u8]| {
        to.copy_from_slice(bytes);
        Ok(())
    };
    // SAFETY: passed on.
    unsafe { to.fill(bytes.len(), bytes.len(), fill) }
}

fn contents_of(contents: lgreco_save_contents) -> Result<Contents> {
    one_of("contents", contents, [Contents::Everything, Contents::WithoutWindow])
}

/// Writes this rank's state, the same on every machine: residuals, factors, settings, schedule, but not the
/// options. Every rank saves its own, between the same two steps. `length`, which must not be
/// NULL, receives the number of bytes.
///
/// LGRECO_LENGTH when `capacity` is less: `length` is then set all the same, and `saved` may be NULL. LGRECO_IN_FLIGHT while
/// a bucket has not been closed. Allocates.
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

/// As lgreco_controller_save, a part of the state, for checkpoints that are maps by name: part 0 is what belongs to no
/// layer, and its `name` is NULL; part 1 + l is layer l with its name, which is valid until the controller is destroyed.
/// lgreco_controller_load_parts takes them in any order.
///
/// LGRECO_LAYER_MISMATCH when there is no such part.
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

/// Continues from `plan`, the saved state of any rank, with the residuals of `residuals`, an array of saved states of the
/// same step or earlier ones with their lengths. To resume, give this rank's state as both: the run continues bit for bit. With fewer
/// workers, give also the states of the ranks that this one takes over; on a new rank any rank's `plan` and no residuals.
/// Where a rank has died, all give the state of one of the others as `plan` and their own residuals, and whoever takes the dead
/// one's place the last that it saved. Any bytes may be given. A step under way is over, and buckets of before may only be closed. `loaded` may be NULL.
/// Allocates.
///
/// LGRECO_CHECKSUM for a state that is damaged; LGRECO_SAVED_STATE, LGRECO_LENGTH and others for bytes that are no state. The
/// controller is then unchanged.
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

/// As lgreco_controller_load, from parts that lgreco_controller_save_part wrote: `plan` is an array of all parts of any
/// rank's state, where layers that the model does not have may be left out, `residuals` one of the parts of layers, of one
/// or more ranks; their order does not matter.
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
/// README.md, pointers.
unsafe fn states<'a>(
    pointers: *const *const u8,
    lens: *const usize,
    count: usize,
    [what, of_lens, of_each]: [&'static str; 3],
) -> Result<Vec<&'a [u8]>> {
    // SAFETY: passed on.
    unsafe {
        let (pointers, lens) = (slice(pointers, count, what)?, slice(lens, count, of_lens)?);
        pointers.iter().zip(lens).map(|(&bytes, &len)| slice(bytes, len, of_each)).collect()
    }
}

impl ControllerState {
    /// Keeps what a load has found, for C.
    fn told(&mut self, found: Loaded) -> Result<lgreco_loaded> {
        self.loads += 1;
        // Any bytes may be given, so that names may hold NULs.
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
